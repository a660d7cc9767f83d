"""Imports that cases make late, and that asv's fork server makes once for the processes of all of them."""

import importlib
import os

if "ASV" in os.environ:
    # Seconds, in each process in which TorchRec's planner is timed, or what was learned is read again.
    importlib.import_module("shardbench.torchrec.translated")

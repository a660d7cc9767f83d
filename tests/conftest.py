"""Tests share the small problems of ``problems.py``."""

import os
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# By it tests of faults find what processes leave behind (faults/case.py): set before the first of them starts.
os.environ["SHARDBENCH_FAULTS"] = str(os.getpid())

# Shared machines stall; pytest-timeout is what catches a hang.
settings.register_profile("shardbench", deadline=None, print_blob=True)
settings.load_profile("shardbench")

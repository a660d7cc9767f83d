"""Tests share the small problems of ``problems.py``."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Shared machines stall; pytest-timeout is what catches a hang.
settings.register_profile("shardbench", deadline=None, print_blob=True)
settings.load_profile("shardbench")

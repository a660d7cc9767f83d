"""Tests share the small problems of ``problems.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

"""Tests that need a wall around planners say so here, and are skipped where bubblewrap builds none."""

import pytest

from shardbench.base.wall import Kind, kind

needs_wall = pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")

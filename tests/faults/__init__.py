"""Faults of ranks, planners, cells, the parent, the store and the disk, put in from outside or by plug-ins.

The program itself is the one that users run: what is put in are signals, limits, damaged files and misbehaving
strategies and studies. ``python -m faults`` runs them all (nox -s tables -- faults), the default tests some.
"""

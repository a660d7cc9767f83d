"""The planner with something taken away, to show what each part of it gains."""

from typing import ClassVar

from shardbench.model.strategy import Move, Role

from .strategy import Joint


class Variant(Joint):
    """A planner that runs only where a suite or study names it."""

    role: ClassVar[Role] = Role.VARIANT


class WithoutColumns(Variant):
    """The planner without column ranges."""

    name = "joint-no-columns"
    moves = Joint.moves - {Move.COLUMNS}


class WithoutRows(Variant):
    """The planner with whole tables, their columns and whole copies: no table is dealt or cut by row."""

    name = "joint-no-rows"
    moves = Joint.moves - {Move.ROWS}


class WithoutCopies(Variant):
    """The planner without copies: no row has two places."""

    name = "joint-no-copies"
    moves = Joint.moves - {Move.REPLICATE}


class WithoutHostMemory(Variant):
    """The planner with all rows in HBM."""

    name = "joint-no-uvm"
    moves = Joint.moves - {Move.UVM}


class WholeTables(Variant):
    """The planner with whole tables on one device, and nothing else."""

    name = "joint-whole-tables"
    moves = frozenset({Move.TABLE})


class PackedOnly(Variant):
    """The planner's relaxation and packing, without exchanges."""

    name = "joint-packed-only"
    exchanges: ClassVar[bool] = False


VARIANTS = (WithoutColumns, WithoutRows, WithoutCopies, WithoutHostMemory, WholeTables, PackedOnly)

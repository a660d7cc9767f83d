"""How tables are sharded as TorchRec's planner prints it: the lines under ``Parameter Info`` of its statistics."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from shardbench.base.errors import BadInput

TITLE = "Parameter Info:"
_TYPES = {
    "TW": "table_wise", "CW": "column_wise", "RW": "row_wise", "TWRW": "table_row_wise", "TWCW": "table_column_wise",
    "DP": "data_parallel",
}  # fmt: skip


def sharded_tables(text: str, what: str) -> dict[str, dict[str, Any]]:
    """Return the fields of ``ShardedTable`` by module path and table, of printed statistics, log lines or not.

    Ranks are printed in their order and blocks of rows or columns are not, so that these are taken for even ones.
    Raises BadInput where a line is missing or unlike TorchRec's.
    """
    modules: dict[str, dict[str, Any]] = {}
    for cells in _lines(text, what):
        path, _, name = cells["FQN"].rpartition(".")
        try:
            modules.setdefault(path, {})[name] = _fields(cells)
        except (KeyError, ValueError) as error:
            raise BadInput(f"{what}: the line of '{cells['FQN']}' is none that can be read: {error}") from error
    return modules


def _lines(text: str, what: str) -> Iterator[dict[str, str]]:
    """Yield the cells of each table's line by the heading of their column: cells end where the dashes under it end."""
    lines = [line.partition("#")[2].rstrip().removesuffix("#").rstrip() for line in text.splitlines()]
    start = next((number for number, line in enumerate(lines) if line.strip() == TITLE), len(lines))
    if len(lines) < start + 4:
        raise BadInput(f"{what}: no table under '{TITLE}': give the planner's statistics whole")
    heading, dashes, *rest = lines[start + 1 :]
    ends = [0, *(match.end() for match in re.finditer(r"-+", dashes))]
    names = [heading[low:high].strip() for low, high in pairwise(ends)]
    for line in rest:
        if not line.strip():
            return
        yield dict(zip(names, (line[low:high].strip() for low, high in pairwise(ends))))


def _fields(cells: dict[str, str]) -> dict[str, Any]:
    kind = _TYPES.get(cells["Sharding"])
    if kind is None:
        raise ValueError(f"sharding '{cells['Sharding']}' does not say where its blocks lie")
    ranks = [rank for part in cells["Ranks"].split(",") for rank in _range(part)]
    rows, width = int(cells["Hash Size"]), int(cells["Emb Dim (CW Dim)"].split()[0])
    blocks = []
    if kind.endswith("column_wise"):
        part = re.search(r"\((\d+)\)", cells["Emb Dim (CW Dim)"])
        columns = int(part[1]) if part else -(-width // len(ranks))
        starts = range(0, width, columns)
        blocks = [_block(rank, 0, first, rows, min(columns, width - first)) for rank, first in zip(ranks, starts)]
    elif kind != "data_parallel":
        share = -(-rows // len(ranks))
        blocks = [
            _block(rank, number * share, 0, min(share, max(rows - number * share, 0)), width)
            for number, rank in enumerate(ranks)
        ]
    factor = cells.get("Cache Load Factor", "None")
    return {
        "sharding_type": kind,
        "compute_kernel": cells["Compute Kernel"],
        "ranks": ranks,
        "sharding_spec": blocks or None,
        "cache_load_factor": None if factor == "None" else float(factor),
    }


def _range(part: str) -> range:
    low, _, high = part.partition("-")
    return range(int(low), int(high or low) + 1)


def _block(rank: int, row: int, column: int, rows: int, columns: int) -> dict[str, Any]:
    return {"offsets": [row, column], "sizes": [rows, columns], "rank": rank}

"""AutoShard's own rows of tasks."""

from shardbench.tasks.pools import TaskRow

CAP_BYTES = 7 * 2**30  # deviation 11
WIDTHS = (16, 32)
ROWS = {
    row.name: row
    for row in (
        TaskRow(name=f"Auto-{tables} ({devices})", tables=tables, devices=devices, widths=WIDTHS, cap_bytes=CAP_BYTES)
        for tables, devices in ((40, 4), (80, 8), (120, 8), (40, 2))
    )
}
"""The repository's tasks are 80 tables of widths 16 and 32 on 8 devices of 7 GB; the others test transfer."""
JUDGED = ("Auto-40 (4)", "Auto-80 (8)")

"""The part of ``plan`` that answers for several machines, or for several sizes of one: a table with a line each."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardbench.base.errors import BadInput
from shardbench.base.memory import gib
from shardbench.cli.options import line_width, wrapped

if TYPE_CHECKING:
    from shardbench.advice.machines import OnMachine

HEADS = ("machine", "devices", "fits", "ms", "bound by", "spare GiB", "samples/s", "a device", "plan")
TEXTS = {"machine", "fits", "bound by", "plan"}
FITS = {True: "yes", False: "no", None: "tables"}


def refuse_for_lines(options: Mapping[str, object], most_ms: float | None) -> None:
    """Raise BadInput for options that are of one plan, and for a longest step that is no time."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise BadInput(f"{given[0]} is for one plan: name one machine, without --fewest")
    if most_ms is not None and not most_ms > 0.0:
        raise BadInput(f"--fewest {most_ms:g} is no longest step: give milliseconds, or inf for any step")


def machine_data(one: "OnMachine") -> dict[str, Any]:
    """Give a machine's line as data; ``fits`` is null where the memory of a step is not known, but tables fit."""
    topology, rate = one.machine.topology, one.samples_per_s
    return {
        "nodes": topology.nodes,
        "devices": topology.world_size,
        "fits": one.fits,
        "good": one.good,
        "spare_bytes": one.spare_bytes,
        "samples_per_s": rate,
        "samples_per_s_per_device": None if rate is None else rate / topology.world_size,
        "cause": one.cause,
        "sizes": [{"devices": devices, "step_ms": step_ms} for devices, step_ms in one.steps_ms.items()],
    }


def machine_lines(answers: "Sequence[OnMachine]") -> list[str]:
    """Give the table: a line a machine, and under it what stands in no column."""
    from shardbench.report.tables.layout import lay_out  # noqa: PLC0415
    from shardbench.report.tables.text import Columns  # noqa: PLC0415

    first = next(one.search.problem for one in answers if one.search is not None)
    rows, notes = list[tuple[str, ...]](), list[str]()
    for one in answers:
        name, best, data = one.machine.name, one.best, machine_data(one)
        head = name, str(data["devices"]), FITS[one.fits] if one.search is not None else "-"
        if best is None:
            rows.append((*head, *("-" for _ in HEADS[len(head) :])))
            notes.append(f"{name}: {one.cause}")
        else:
            rates = (f"{data['samples_per_s']:,.0f}", f"{data['samples_per_s_per_device']:,.0f}")
            numbers = f"{best.step_ms:.4g}", best.bound_by, gib(data["spare_bytes"])
            rows.append((*head, *numbers, *rates, best.strategy))
        if one.steps_ms:
            tried = ", ".join(
                f"{devices} {'no plan' if step_ms is None else f'{step_ms:.4g} ms'}"
                for devices, step_ms in one.steps_ms.items()
            )
            over = "" if one.good else f"no size is within {one.most_ms:g} ms; "
            notes.append(f"{name}: {over}devices tried: {tried}")
    if any(one.search is not None and one.search.interrupted for one in answers):
        notes.append("stopped before the time was up: this is the best so far")
    numeric = tuple(head not in TEXTS for head in HEADS)
    table = lay_out(Columns(headers=HEADS, rows=tuple(rows), numeric=numeric), line_width())
    size = gib(sum(first.weight_bytes(table) for table in first.tables))
    return [
        f"{first.name}: {len(first.tables)} tables, {size} GiB, batch {first.batch_size} (predicted, not measured)",
        "",
        *table.heads,
        *table.rows,
        *([""] if notes else []),
        *(part for note in notes for part in wrapped(note)),
    ]

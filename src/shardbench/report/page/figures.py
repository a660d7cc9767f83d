"""Charts of a group: step by phase, embedding time per rank, traffic by link, memory by device, error of the model."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from shardbench.cost.collectives import EXCHANGES
from shardbench.records.record import Planned, TrafficTotals
from shardbench.records.trial import Backend
from shardbench.report.groups import Group, Row
from shardbench.report.page.chart import Chart, legend
from shardbench.report.page.palette import series_look, strategy_look
from shardbench.report.page.svg.plane import Frame, NamedPoint, diagonal, points
from shardbench.report.page.svg.rows import Bars, Devices, Reference, side_by_side, stacked
from shardbench.report.page.svg.scale import span
from shardbench.report.tables.suite_tables import REDUCTIONS, link_bytes, of_traffic, phase_ms, phases_of, rank_phase_ms
from shardbench.report.tables.text import readable_bytes, significant

_CAPPED = "An axis ends at three medians of the rows where some are far beyond; an arrow marks those."
_MEAN_OF_RANKS = (
    "the mean over ranks of each rank's own time in the phase, its waits for other ranks in the exchanges. What lacks "
    "of the step is how far its slowest rank is behind the mean; medians of phases need not add up to a median."
)
_SLOWEST_RANK = (
    "the slowest rank's time in the phase, in each phase another one's; where measured, that counts waits for it "
    "in several phases, so that bars may pass the step."
)
_LINKS = (
    "all-to-all inside nodes", "all-to-all between nodes", "all-reduce inside nodes", "all-reduce between nodes",
    "host to device and back",
)  # fmt: skip
_BOUNDS = (
    ("lower bound, any device move", attrgetter("bound_ms"), 2),
    ("lower bound, whole tables", attrgetter("whole_table_bound_ms"), 3),
)
Numbers = Mapping[str, int]
"""The number of every strategy on the page."""


def figures(group: Group, numbers: Numbers) -> list[Chart]:
    """Return every chart of a group, fastest strategy first; none where no row is ok."""
    rows = sorted(group.ok_rows, key=lambda row: (group.estimate(row).value, row.strategy))
    if not rows:
        return []
    name = f"{group.condition.title} on {group.condition.machine}"
    charts = [
        _steps(group, rows, numbers, name),
        _ranks(group, rows, numbers, name),
        _traffic(rows, numbers, name),
        _memory(rows, numbers, name),
    ]
    if group.condition.backend is Backend.MEASURED:
        charts.append(_model_error(rows, numbers, name))
    return [chart for chart in charts if chart is not None]


def _steps(group: Group, rows: list[Row], numbers: Numbers, name: str) -> Chart:
    bars, phases, by_rank = step_bars(group, rows, numbers)
    caption = (
        f"Step by phase, ms. Bars: {_MEAN_OF_RANKS if by_rank else _SLOWEST_RANK} Diamond and number: step; "
        f"its 95 % interval where it is known. {_CAPPED}"
    )
    drawing = stacked(f"Step by phase of {name}", bars, "ms per step")
    return Chart(caption=caption, drawings=(drawing,), legend=legend([_words(phase) for phase in phases]))


def step_bars(group: Group, rows: list[Row], numbers: Numbers) -> tuple[list[Bars], list[str], bool]:
    """Return the rows of the chart of steps, the phases of its parts, and whether these are means over ranks."""
    by_rank = group.condition.backend is Backend.MEASURED and all(
        record.timing is not None and record.timing.ranks for row in rows for record in row.records
    )
    read = rank_phase_ms if by_rank else phase_ms
    phases = phases_of(record for row in rows for record in row.records)
    bars = []
    for row in rows:
        parts = tuple(row.typical(read(phase)) or 0.0 for phase in phases)
        phase_texts = ", ".join(f"{_words(phase)} {significant(part)}" for phase, part in zip(phases, parts) if part)
        step = group.estimate(row)
        bars.append(
            Bars(
                strategy=numbers[row.strategy],
                name=row.title,
                parts=parts,
                value=f"{significant(step.value)} ms",
                words=f"{row.title}: step {significant(step.value)} ms; {phase_texts}",
                whole=step.value,
                low=step.low,
                high=step.high,
            )
        )
    return bars, phases, by_rank


def _ranks(group: Group, rows: list[Row], numbers: Numbers, name: str) -> Chart | None:
    devices = []
    for row in rows:
        times = row.kernels_ms
        if times:
            longest = significant(max(times))
            words = f"{row.title}: {_spread(times, significant)} ms"
            devices.append(
                Devices(
                    strategy=numbers[row.strategy], name=row.title, values=(times,), value=f"max {longest}", words=words
                )
            )
    if not devices:
        return None
    bounds = bounds_of(group, rows)
    caption = (
        "Embedding time per rank, ms (forward and backward kernels; CPU time where ranks have one): every rank a dot, "
        "of more than 16 the middle half a box and the slowest a dot; the line joins fastest and slowest. Bounds hold "
        f"for the slowest rank. {_CAPPED}"
    )
    references = [Reference(value=value, series=series) for _, value, series in bounds]
    drawing = side_by_side(
        f"Embedding time per rank of {name}", devices, "ms of embedding kernels per iteration", references
    )
    keys = tuple(
        (f"{series_look(series)} dashed", f"{bound} {significant(value)} ms") for bound, value, series in bounds
    )
    return Chart(caption=caption, drawings=(drawing,), legend=keys)


def bounds_of(group: Group, rows: list[Row]) -> list[tuple[str, float, int]]:
    """Return the name, the ms and the number of the colour of each bound that is proven for a group."""
    if group.condition.backend is not Backend.SIMULATED:
        return []
    bound_lines = []
    for name, number, series in _BOUNDS:
        bounds = [number(record) for row in rows for record in row.records if record.bounded]
        proven = [bound for bound in bounds if bound is not None]
        if proven:
            bound_lines.append((name, min(proven), series))
    return bound_lines


def _traffic(rows: list[Row], numbers: Numbers, name: str) -> Chart:
    bytes_by_strategy = {row.strategy: bytes_by_link(row) for row in rows}
    links = [i for i in range(len(_LINKS)) if any(parts[i] for parts in bytes_by_strategy.values())]
    size, unit = _unit(sum(parts) for parts in bytes_by_strategy.values())
    bars = []
    for row in rows:
        parts = bytes_by_strategy[row.strategy]
        link_texts = ", ".join(f"{_LINKS[i]} {readable_bytes(parts[i])}" for i in links if parts[i])
        bars.append(
            Bars(
                strategy=numbers[row.strategy],
                name=row.title,
                parts=tuple(parts[i] / size for i in links),
                value=readable_bytes(sum(parts)),
                words=f"{row.title}: {link_texts}",
            )
        )
    drawing = stacked(f"Traffic by link of {name}", bars, f"{unit} sent per iteration, all ranks together")
    caption = f"Traffic by link: bytes sent per iteration, all ranks together. {_CAPPED}"
    return Chart(caption=caption, drawings=(drawing,), legend=legend([_LINKS[i] for i in links]))


def bytes_by_link(row: Row) -> tuple[float, ...]:
    """Return typical bytes an iteration by the links of the chart of traffic; the row must be ok."""
    readers = [link_bytes(names, link) for names in (EXCHANGES, REDUCTIONS) for link in (0, 1)]
    return tuple(row.typical(read) or 0.0 for read in (*readers, of_traffic(_host_link_bytes)))


def _host_link_bytes(totals: TrafficTotals) -> float:
    # Gradients go back to the hosts as vectors came.
    vectors = 2.0 * (totals.host_vectors_bytes or 0.0)
    return vectors + (totals.copied_to_device_bytes or 0.0) + (totals.copied_to_host_bytes or 0.0)


def _memory(rows: list[Row], numbers: Numbers, name: str) -> Chart:
    held_bytes = {row.strategy: [_planned_bytes(row, read) for read in _MEMORIES.values()] for row in rows}
    memories = [i for i in range(len(_MEMORIES)) if any(max(kinds[i], default=0) for kinds in held_bytes.values())]
    size, unit = _unit(max(kind, default=0) for kinds in held_bytes.values() for kind in kinds)
    devices = []
    for row in rows:
        kinds = [(memory, values) for memory, values in zip(_MEMORIES, held_bytes[row.strategy]) if any(values)]
        memory_texts = "; ".join(f"{memory}: {_spread(values, readable_bytes)}" for memory, values in kinds)
        devices.append(
            Devices(
                strategy=numbers[row.strategy],
                name=row.title,
                values=tuple(tuple(value / size for value in held_bytes[row.strategy][i]) for i in memories),
                value=f"max {readable_bytes(max(held_bytes[row.strategy][0], default=0))}",
                words=f"{row.title}: {memory_texts}",
            )
        )
    caption = (
        "Memory by device: weights and optimiser state of the plan, drawn as the ranks above; the number is the "
        f"fullest device's HBM. {_CAPPED}"
    )
    drawing = side_by_side(f"Memory by device of {name}", devices, f"{unit} held")
    return Chart(caption=caption, drawings=(drawing,), legend=legend([list(_MEMORIES)[i] for i in memories]))


_MEMORIES: dict[str, Callable[[Planned], tuple[int, ...]]] = {
    "HBM of a device": attrgetter("hbm_memory_bytes"),
    "UVM of a device": attrgetter("uvm_memory_bytes"),
    "host memory of a node": attrgetter("host_memory_bytes"),
}


def _planned_bytes(row: Row, read: Callable[[Planned], tuple[int, ...]]) -> tuple[float, ...]:
    """Return the bytes on every device by the first trial's plan."""
    first = next((record.planned for record in row.records if record.planned), None)
    return tuple(map(float, read(first))) if first else ()


def _model_error(rows: list[Row], numbers: Numbers, name: str) -> Chart | None:
    pairs = [(row, pair) for row in rows for pair in predicted_and_measured(row)]
    if not pairs:
        return None
    both = [value for _, pair in pairs for value in pair]
    frame = Frame(
        width=640,
        height=420,
        x=span(both, 70, 620, log=True),
        y=span(both, 370, 24, log=True),
        x_title="predicted (ms, log)",
        y_title="measured (ms, log)",
    )
    dots = [
        NamedPoint(
            look=strategy_look(row.strategy), x=x, y=y, name="", strategy=numbers[row.strategy],
            words=f"{row.title}: predicted {significant(x)} ms, measured {significant(y)} ms",
        )
        for row, (x, y) in pairs
    ]  # fmt: skip
    drawing = frame.draw(f"Predicted against measured of {name}", diagonal(frame) + points(frame, dots))
    caption = (
        "Predicted against measured embedding time (CPU time where ranks have one), a dot a rank and trial; on the "
        "line the model is right."
    )
    keys = tuple((f"mark {strategy_look(row.strategy)}", row.title) for row in rows)
    return Chart(caption=caption, drawings=(drawing,), legend=keys)


def predicted_and_measured(row: Row) -> list[tuple[float, float]]:
    """Return (predicted, measured) embedding times of every rank and trial, ms, where both are above 0."""
    return [
        pair
        for record in row.records
        if record.timing and record.predicted
        for pair in zip(record.predicted.embedding_ms, record.timing.kernels_ms)
        if min(pair) > 0
    ]


def _spread(values: Iterable[float], write: Callable[[float], str]) -> str:
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered)
    return f"{write(ordered[0])} to {write(ordered[-1])}, mean {write(mean)}"


def _unit(values: Iterable[float]) -> tuple[float, str]:
    most = max(values, default=0.0)
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next(((size, unit) for size, unit in units if most >= size), (1.0, "bytes"))


def _words(phase: str) -> str:
    return phase.replace("_", " ")

"""What a suite's records answer, group by group: which strategy is best, what ties with it, what failed and why."""

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from shardbench.base.generated import ascii_text
from shardbench.model.strategy import Role
from shardbench.records.record import Record
from shardbench.records.trial import Backend, Outcome
from shardbench.report.groups import Condition, Group, groups
from shardbench.report.standing import Cells, Standing, number, standing
from shardbench.report.tables.suite_tables import throughput
from shardbench.report.tables.text import GROUP, percent, readable_count, significant

WIDTH = 79
"""Of a terminal of 80 columns."""
_KEY_DIGITS = 8
_BOUND = re.compile(r" (?=[+%-]|[mb]illion |samples/s|[\d.]+ ms\b|ms\b)")


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A strategy that has numbers, and how it stands to the best one."""

    strategy: str
    role: str
    step_ms: float
    low_ms: float | None
    """Of the 95 % interval (measured) or band (simulated); None where it is not known."""
    high_ms: float | None
    vs_best_pct: float
    """Of their ratios to the control plan where the group has one; negative where a reference is ahead."""
    standing: Standing


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a strategy has no numbers."""

    strategy: str
    outcome: str
    cause: str
    logs: tuple[str, ...] = ()
    """Of its trials that failed, as far as they wrote one; none where only the table is known."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Of one group: strategies under one condition, by one backend."""

    workload: str
    machine: str
    backend: str
    batch_size: int
    noise_pct: float | None
    """The noise floor of measured strategies; None where simulated or unknown."""
    placed: tuple[Placed, ...]
    """Fastest first."""
    faults: tuple[Fault, ...]
    keys: dict[str, str]
    """Of each strategy's first record; empty where only the table is known."""

    def of(self, *standings: Standing) -> list[Placed]:
        """Competitors that stand so."""
        return [one for one in self.placed if one.role == Role.COMPETITOR and one.standing in standings]


def answers(records: Iterable[Record], results: Path, of: Iterable[Record] | None = None) -> list[Answer]:
    """One a group of the records; ``results`` has the logs.

    ``of``: only of groups that one of these records is in.
    """
    asked = None if of is None else {Condition.of(record) for record in of}
    listed = [record for record in records if asked is None or Condition.of(record) in asked]
    both = zip(answers_of_table(throughput(listed)), groups(listed), strict=True)
    return [_with_records(found, group, results) for found, group in both]


def answers_of_table(frame: pd.DataFrame) -> list[Answer]:
    """One a group of a throughput table, by its marks and in its order."""
    return [_answer(rows.to_dict("records")) for _, rows in frame.groupby(list(GROUP), sort=False)]


def _answer(rows: Sequence[Cells]) -> Answer:
    placed = [
        Placed(
            strategy=row["strategy"],
            role=row["role"],
            step_ms=row["step_ms_p50"],
            low_ms=number(row, "step_ms_low"),
            high_ms=number(row, "step_ms_high"),
            vs_best_pct=row["vs_best_pct"],
            standing=place,
        )
        for row in rows
        if (place := standing(row)) is not None
    ]
    failed = [row for row in rows if row["outcome"] != Outcome.OK]
    floors = (number(row, "noise_pct") for row in rows)
    return Answer(
        workload=rows[0]["workload"],
        machine=rows[0]["machine"],
        backend=rows[0]["backend"],
        batch_size=int(rows[0]["batch_size"]),
        noise_pct=next((floor for floor in floors if floor is not None), None),
        placed=tuple(sorted(placed, key=lambda one: (one.vs_best_pct, one.strategy))),
        faults=tuple(Fault(**{name: row[name] for name in ("strategy", "outcome", "cause")}) for row in failed),
        keys={},
    )


def _with_records(found: Answer, group: Group, results: Path) -> Answer:
    rows = {row.strategy: row.records for row in group.rows}

    def logs(fault: Fault) -> Fault:
        paths = (results / "logs" / f"{record.key}.log" for record in rows[fault.strategy] if record.cause)
        return replace(fault, logs=tuple(str(path) for path in paths if path.is_file()))

    keys = {strategy: records[0].key for strategy, records in rows.items()}
    return replace(found, keys=keys, faults=tuple(map(logs, found.faults)))


def lines(found: Answer, options: str = "") -> list[str]:
    """The answer in words, ASCII, of at most 79 columns but for paths; ``options`` are what ``explain`` needs."""
    said = [_wrapped(f"{found.workload} on {found.machine}, {found.backend}, batch {found.batch_size}:", "")]
    said += [_wrapped(line) for line in (*_of_best(found), *_of_others(found))]
    if not found.placed:
        said.append(["  no strategy that competes ended well"])
    for cause, faults in _by_cause(found.faults).items():
        said.append(_wrapped(f"failed: {', '.join(fault.strategy for fault in faults)}: {cause}"))
        said += [[f"    log: {log}"] for fault in faults for log in fault.logs]
    slower = found.of(Standing.APART)
    if found.keys and slower and (best := found.of(Standing.BEST)):
        keys = " ".join(found.keys[one.strategy][:_KEY_DIGITS] for one in (best[0], slower[0]))
        said.append([f"  {slower[0].strategy} against it: shardbench explain {keys}{options}"])
    return [ascii_text(line) for part in said for line in part]


def _of_best(found: Answer) -> Iterator[str]:
    best = found.of(Standing.BEST)
    if not best:
        return
    first = best[0]
    sure = "" if first.low_ms is None or first.high_ms is None else f" ({_range(first.low_ms, first.high_ms)}, 95 %)"
    rate = f", {readable_count(1e3 * found.batch_size / first.step_ms)} samples/s" if first.step_ms > 0 else ""
    yield f"best: {', '.join(one.strategy for one in best)}, {significant(first.step_ms)} ms a step{sure}{rate}"


def _of_others(found: Answer) -> Iterator[str]:
    floor = "" if found.noise_pct is None else f" of {found.noise_pct:.1f} %"
    measured = found.backend == Backend.MEASURED
    unknown = "nothing was repeated, so the noise" if measured else "how sure the model is"
    for mark, says in (
        (Standing.SAME, f"ties with it, within the noise{floor} (=)" if measured else "equal to it (=)"),
        (Standing.OPEN, "ties with it, within the model's own error (~)"),
        (Standing.UNKNOWN, f"no order is claimed (?), {unknown} is unknown"),
        (Standing.APART, "slower"),
    ):
        placed = found.of(mark)
        if placed:
            # Where nothing is best a difference to it says nothing.
            texts = map(_one if found.of(Standing.BEST) else _step, placed)
            yield f"{says}: {', '.join(texts)}"
    others = [one for one in found.placed if one.role != Role.COMPETITOR]
    if others:
        yield f"beside the contest: {', '.join(f'{_one(one)} {one.standing}'.rstrip() for one in others)}"


def _one(placed: Placed) -> str:
    return f"{placed.strategy} {percent(placed.vs_best_pct)}"


def _step(placed: Placed) -> str:
    return f"{placed.strategy} {significant(placed.step_ms)} ms"


def _range(low: float, high: float) -> str:
    return f"{significant(low)} to {significant(high)}"


def _by_cause(faults: Iterable[Fault]) -> dict[str, list[Fault]]:
    found: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        found[f"{fault.outcome}: {fault.cause}"].append(fault)
    return found


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    # A name keeps its number beside it, and a number its unit.
    wrapped = textwrap.wrap(
        _BOUND.sub("\0", text), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return [line.replace("\0", " ") for line in wrapped]

"""What a suite's records answer, group by group: which strategy is best, what ties with it, what failed and why."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from shardbench.base.generated import ascii_text
from shardbench.model.table import Precision, StepSchedule
from shardbench.records.record import Record
from shardbench.records.trial import Outcome, unusual
from shardbench.report.compare.on_record import place
from shardbench.report.groups import ComparedBy, groups
from shardbench.report.prediction.model_error import model_error
from shardbench.report.rows import Condition, Row
from shardbench.report.standing import (
    Standing,
    TieMark,
    disagreement,
    is_measured,
    number,
    standings_by,
    text,
    throughput_standing,
)
from shardbench.report.tables.text import (
    NOT_COMPARED,
    freedom_text,
    interval,
    percent,
    readable_count,
    significant,
    split_by_group,
)

WIDTH = 79
"""Columns of lines where nothing else is asked for."""
_KEY_DIGITS = 8
_BOUND = re.compile(r" (?=[+%-]|[mb]illion |samples/s|[\d.]+ ms\b|ms\b)")


@dataclass(frozen=True, kw_only=True)
class GroupAnswer:
    """The standings of one group: strategies under one condition, by one backend."""

    standings: tuple[Standing, ...]
    """All rows of the group, in the table's order; there is one at least."""
    width_pct: float | None
    """How far a measured strategy must be behind the best to be told apart; None where simulated or unknown."""
    noise_freedom: float | None
    """The degrees of freedom behind that."""
    compared: bool
    """Whether times are compared: not where more ranks than cores ran."""
    logs: dict[str, tuple[str, ...]]
    """What failed trials of a strategy printed, as paths; a strategy without any has no entry."""
    unusual: tuple[str, ...] = ()
    """What the group's training does that ordinary training does not, in words."""
    places: tuple[str, ...] = ()
    """The places of the strategies that were asked for, in words."""
    elsewhere: frozenset[str] = frozenset()
    """Keys of the standings' records that lie in another folder, where commands would not find them."""

    @property
    def placed(self) -> list[Standing]:
        """The strategies that have numbers, fastest first."""
        standings = [one for one in self.standings if one.mark is not None]
        return sorted(standings, key=lambda one: (one.vs_best_pct, one.strategy))

    @property
    def judges(self) -> str:
        """Say which competitors the cost model and TorchRec's estimator have first; empty where they agree."""
        return disagreement(self.standings)

    @property
    def finished(self) -> list[Standing]:
        """The strategies that ended well, by name."""
        return sorted((one for one in self.standings if one.outcome == Outcome.OK), key=lambda one: one.strategy)

    @property
    def failed(self) -> list[Standing]:
        """The strategies that did not end well."""
        return [one for one in self.standings if one.outcome != Outcome.OK]

    def of(self, mark: TieMark) -> list[Standing]:
        """Return the competitors with this mark, fastest first."""
        return [one for one in self.placed if one.competes and one.mark is mark]

    def data(self) -> dict[str, Any]:
        """Return the answer as plain data, as ``--json`` prints it."""
        first = self.standings[0]
        numbers = ("strategy", "role", "step_ms", "low_ms", "high_ms", "vs_best_pct", "model_ms", "torchrec_ms")
        return {
            **{name: getattr(first, name) for name in ("workload", "machine", "backend", "batch_size")},
            "unusual": list(self.unusual),
            "width_pct": self.width_pct,
            "noise_freedom": self.noise_freedom,
            "model_error": None if is_measured(first.backend) else model_error(first.machine, "step"),
            "compared": self.compared,
            "judges": self.judges,
            "places": list(self.places),
            "placed": [
                {**{name: getattr(one, name) for name in numbers}, "standing": str(one.mark)} for one in self.placed
            ],
            "faults": [
                {
                    **{name: getattr(one, name) for name in ("strategy", "outcome", "cause")},
                    "logs": list(self.logs.get(one.strategy, ())),
                }
                for one in self.failed
            ],
            "keys": {one.strategy: one.record for one in self.standings},
        }


def answers(
    records: Iterable[Record],
    results: Path,
    of: Iterable[Record] | None = None,
    *,
    placed: Sequence[str] = (),
    beside: Iterable[Record] = (),
) -> list[GroupAnswer]:
    """Return an answer for each group of the records; ``results`` has the logs.

    With ``of``, only the groups are answered that one of these records is in. The strategies ``placed`` have their
    place said, also among records of others ``beside``, which lie elsewhere.
    """
    conditions = None if of is None else {Condition.of(record) for record in of}
    elsewhere = tuple(beside)
    # Of a condition the last record says which version of workload and machine counts.
    trials = [record for record in (*elsewhere, *records) if conditions is None or Condition.of(record) in conditions]
    return [
        GroupAnswer(
            standings=tuple(group.standings.values()),
            width_pct=group.width_pct,
            noise_freedom=group.noise.freedom if group.noise else None,
            compared=group.compared,
            logs={row.strategy: logs for row in group.rows if not row.ok and (logs := _logs(row, results))},
            unusual=unusual(group.condition.exchange, group.condition.schedule),
            places=tuple(place(group, name) for name in placed),
            elsewhere=frozenset(record.key for record in elsewhere),
        )
        for group in groups(trials)
    ]


def answers_of_table(frame: pd.DataFrame) -> list[GroupAnswer]:
    """Return an answer for each group of a table of throughput, by its marks and in its order."""
    all_answers = []
    for _, part in split_by_group(frame):
        rows = part.to_dict("records")
        width, freedom = (
            next((value for row in rows if (value := number(row, name)) is not None), None)
            for name in ("width_pct", "noise_freedom")
        )
        standings = tuple(map(throughput_standing, rows))
        compared = all(text(row, "compared_by") != ComparedBy.NOTHING for row in rows)
        ways = unusual(Precision(rows[0]["exchange"]), StepSchedule(rows[0]["schedule"]))
        all_answers.append(
            GroupAnswer(
                standings=standings,
                width_pct=width,
                noise_freedom=freedom,
                compared=compared,
                logs={},
                unusual=ways,
            )
        )
    return all_answers


def _logs(row: Row, results: Path) -> tuple[str, ...]:
    paths = (results / "logs" / f"{record.key}.log" for record in row.records if record.cause)
    return tuple(str(path) for path in paths if path.is_file())


def lines(answer: GroupAnswer, options: str = "", width: int = WIDTH) -> list[str]:
    """Return the answer in words: ASCII, ``width`` columns but for paths; ``options`` are what ``explain`` needs."""
    first = answer.standings[0]
    facts = (f"{first.workload} on {first.machine}", first.backend, f"batch {first.batch_size:.0f}", *answer.unusual)
    head = ", ".join(facts) + ":"

    def wrap(line: str) -> list[str]:
        return _wrap(line, width)

    paragraphs = [_wrap(head, width, "")]
    paragraphs += [wrap(line) for line in (*_best_line(answer), *answer.places)]
    paragraphs += [wrap(line) for line in (*_model_line(answer), *_other_lines(answer))]
    if answer.judges:
        paragraphs.append(wrap(answer.judges))
    if not answer.compared:
        paragraphs += [wrap(NOT_COMPARED), wrap(f"ran: {', '.join(map(_step, answer.finished))}")]
    elif not answer.placed:
        paragraphs.append(["  no strategy that competes ended well"])
    for cause, failed in standings_by(lambda one: f"{one.outcome}: {one.cause}", answer.failed).items():
        paragraphs.append(wrap(f"failed: {', '.join(one.strategy for one in failed)}: {cause}"))
        paragraphs += [[f"    log: {log}"] for one in failed for log in answer.logs.get(one.strategy, ())]
    best, slower = answer.of(TieMark.BEST), answer.of(TieMark.APART)
    if best and slower and slower[0].record and answer.elsewhere.isdisjoint((best[0].record, slower[0].record)):
        keys = " ".join(one.record[:_KEY_DIGITS] for one in (best[0], slower[0]))
        paragraphs.append([f"  {slower[0].strategy} against it: shardbench explain {keys}{options}"])
    return [ascii_text(line) for part in paragraphs for line in part]


def _best_line(answer: GroupAnswer) -> Iterator[str]:
    best = answer.of(TieMark.BEST)
    if not best or best[0].step_ms is None or best[0].batch_size is None:
        return
    first, step_ms, batch_size = best[0], best[0].step_ms, best[0].batch_size
    ends = interval(first.low_ms, first.high_ms)
    band = f" ({ends}, 95 %)" if ends else ""
    rate = f", {readable_count(1e3 * batch_size / step_ms)} samples/s" if step_ms > 0 else ""
    word = "alone" if answer.places and len(answer.standings) == 1 else "best"
    yield f"{word}: {', '.join(one.strategy for one in best)}, {significant(step_ms)} ms a step{band}{rate}"


def _model_line(answer: GroupAnswer) -> Iterator[str]:
    """Say how far simulated steps are known to be off on this machine; nothing of measured ones."""
    first = answer.standings[0]
    if answer.placed and not is_measured(first.backend):
        error = model_error(first.machine, "step")
        yield error if error.startswith("model error") else f"model error: {error}"


def _other_lines(answer: GroupAnswer) -> Iterator[str]:
    floor = ""
    if answer.width_pct is not None and answer.noise_freedom is not None:
        floor = f" of {answer.width_pct:.1f} %, {freedom_text(answer.noise_freedom)}"
    measured = is_measured(answer.standings[0].backend)
    unknown = "nothing was repeated, so the noise" if measured else "how sure the model is"
    for mark, words in (
        (TieMark.SAME, f"ties with it, within the noise{floor} (=)" if measured else "equal to it (=)"),
        (TieMark.OPEN, "ties with it, within the model's own error (~)"),
        (TieMark.UNKNOWN, f"no order is claimed (?), {unknown} is unknown"),
        (TieMark.APART, "slower"),
    ):
        standings = answer.of(mark)
        if standings:
            # Where nothing is best a difference to it says nothing.
            texts = map(_difference if answer.of(TieMark.BEST) else _step, standings)
            yield f"{words}: {', '.join(texts)}"
    others = [one for one in answer.placed if not one.competes]
    if others:
        yield f"beside the contest: {', '.join(f'{_difference(one)} {one.mark}'.rstrip() for one in others)}"


def _difference(one: Standing) -> str:
    return f"{one.strategy} {percent(one.vs_best_pct or 0.0)}"


def _step(one: Standing) -> str:
    return f"{one.strategy} {significant(one.step_ms or 0.0)} ms"


def _wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    # A name keeps its number beside it, and a number its unit.
    wrapped_lines = textwrap.wrap(
        _BOUND.sub("\0", text), width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return [line.replace("\0", " ") for line in wrapped_lines]

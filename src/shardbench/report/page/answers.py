"""What to do with tables like those of a problem: which strategy is best there, what ties with it, how sure that is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from shardbench.cost.costmodel import HOST
from shardbench.report.charts.strategies import by_step
from shardbench.report.ranking import longest_first
from shardbench.report.standing import AS_RUN, Standing, TieMark, display_name, is_measured
from shardbench.report.tables.text import interval, percent

SEQUENCES = "sequences and traces"
"""The family of the problems whose features are not all pooled."""
ROWS = 6
"""So many of the shortest steps are shown."""
MEMORY = {"ample": "has room for the tables", "tight": "is just enough", "short": "is too small for the tables"}
LOOKUPS = {"pooled": "pooled features", "sequences": "histories or recorded traces"}
_BINDS = {
    HOST: "The host takes longer to start the step than devices to run it: without CUDA graphs, no plan matters here.",
    "kernels": "Embedding kernels take most of its step.",
    "exchange": "Exchanges between devices take most of its step.",
    "dense": "The dense model, which no plan changes, takes most of its step.",
}
PREDICTED = "Predicted by the cost model: no GPU ran these plans."
_KNOWS = {"makes it short": "optimises the very formula", "learns from it": "learns from the formula"}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer for tables like those of a problem; a reader finds it by three words, empty where nothing is stated."""

    devices: str
    memory: str
    lookups: str
    says: tuple[str, ...]
    command: str
    """It asks about tables of the reader's own, on the problem's machine."""
    rows: pd.DataFrame
    """The shortest steps, with their intervals and ties."""


def answer(standings: Sequence[Standing], judge: Mapping[str, str]) -> Answer:
    """Return what a problem's standings with the longest budget say.

    ``judge`` has the strategies that know the formula by which they are judged, and in which way.
    """
    budget = min((one.budget for one in standings), key=longest_first)
    ok = [one for one in by_step(standings) if one.budget == budget and one.ok]
    any_row = standings[0]
    devices = f"{any_row.devices or 0:.0f}"
    facts = {
        f"{devices} devices": any_row.devices,
        f"HBM {MEMORY.get(any_row.memory)}": any_row.memory,
        f"{budget} to learn and plan": budget != AS_RUN,
    }
    rows = {
        "strategy": [display_name(one.strategy, one.role) + " *" * (one.strategy in judge) for one in ok],
        "step_ms": [one.step_ms for one in ok],
        "95 %": [interval(one.low_ms, one.high_ms) for one in ok],
        "to the best": [_distance(one) for one in ok],
        "seconds": [(one.plan_s or 0.0) + (one.fit_s or 0.0) for one in ok],
    }
    batch = f" --batch-size {any_row.batch_size:.0f}" if any_row.batch_size else ""
    where = f"Measured on real ranks of {any_row.machine}." if is_measured(any_row.backend) else PREDICTED
    return Answer(
        devices=devices,
        memory=any_row.memory,
        lookups="" if not any_row.family else "sequences" if any_row.family == SEQUENCES else "pooled",
        says=(
            *_says([one for one in ok if one.competes], judge, where),
            "; ".join(words for words, known in facts.items() if known),
        ),
        command=f"shardbench plan TABLES.csv {any_row.machine}{batch}",
        rows=pd.DataFrame(rows).head(ROWS),
    )


def _says(competing: Sequence[Standing], judge: Mapping[str, str], where: str) -> list[str]:
    """Say what is best, where, what ties with it, what takes its time; and the first that does not know the judge."""
    if not competing:
        return ["Nothing is best: no competitor ended, or times are not compared.", where]
    best, ties = competing[0], [one.strategy for one in competing[1:] if one.mark is not TieMark.APART]
    known = "the noise" if is_measured(best.backend) else "the model's error"
    shortest = (
        f"Nothing is surely best. {best.strategy} has the shortest step, but {known} leaves open whether these are"
    )
    says = [
        f"{shortest} as fast: {', '.join(ties)}." if ties else f"{best.strategy} is best by more than {known}.",
        where,
    ]
    if best.p_near is not None:
        says.append(f"It is within 5 % of the best in {100 * best.p_near:.0f} % of the model's draws.")
    others = [one for one in competing if one.strategy not in judge]
    if best.strategy in judge:
        first = f" The first that does not is {others[0].strategy}, {_distance(others[0])}." if others else ""
        says.append(f"* {best.strategy} {_KNOWS[judge[best.strategy]]} by which this is judged.{first}")
    return [line for line in (*says, _BINDS.get(best.bound_by)) if line]


def _distance(one: Standing) -> str:
    return "best" if one.mark is TieMark.BEST else f"{percent(one.over_best_pct or 0.0)} {one.mark or ''}".rstrip()

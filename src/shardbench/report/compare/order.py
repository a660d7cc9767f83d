"""Compares the order of measured strategies in two runs: do pairs that one tells apart come so in the other as well?"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.base.generated import csv_text
from shardbench.model.table import Precision, StepSchedule
from shardbench.records.record import Record
from shardbench.records.trial import TRAINING, Backend, unusual
from shardbench.report.groups import Group, groups
from shardbench.report.rows import Condition, Row
from shardbench.report.tables.files import cell_text

EVERYTHING = "all"
FILE = "agreement.csv"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One measured group of both runs, or all of them together; None is unknown or does not apply."""

    workload: str
    machine: str
    batch_size: int | None = None
    precision: str = ""
    optimizer: str = ""
    exchange: str = ""
    schedule: str = ""
    compared_by: str = ""
    """What rows are compared by, as ``ComparedBy`` has it: in the first run, then in the second."""
    strategies: int
    """The number of rows of the first run that are ok."""
    n: float | None = None
    """Trials of a row, the median over rows, in the first run; ``again_n`` in the second."""
    again_n: float | None = None
    noise_pct: float | None = None
    again_noise_pct: float | None = None
    pairs: int
    """The number of pairs of rows of the first run."""
    pairs_beyond_noise: int | None
    beyond_noise_pct: float | None
    same_order: int | None
    """How many pairs beyond the noise of the first run come in the same order in the second, which must have both."""
    same_order_pct: float | None
    opposite_beyond_noise: int | None
    """How many of them come in the other order in the second run, beyond the noise of that as well."""
    same_plan_pairs: int
    """The number of pairs whose two strategies made one plan, so that whatever tells them apart is noise."""
    same_plan_beyond_noise: int | None


COLUMNS = tuple(field.name for field in fields(Agreement))


def agreement(records: Iterable[Record], again: Iterable[Record]) -> list[Agreement]:
    """Compare the measured groups that two lists of records have in common; raises BadInput where there is none."""
    first, second = _measured(records), _measured(again)
    both = [(group, second[condition]) for condition, group in first.items() if condition in second]
    if not both:
        raise BadInput("no workload was measured in both results folders on one machine: nothing to compare")
    return agreements(both)


def agreements(both: Iterable[tuple[Group, Group]]) -> list[Agreement]:
    """Compare groups of the first and of the second run, one by one; the last one is of all where there are several."""
    group_agreements = [_of_group(group, other) for group, other in both]
    return [*group_agreements, _together(group_agreements)] if len(group_agreements) > 1 else group_agreements


def _measured(records: Iterable[Record]) -> dict[Condition, Group]:
    measured_groups = groups(record for record in records if record.spec.backend is Backend.MEASURED)
    return {group.condition: group for group in measured_groups if group.compared}


def _of_group(group: Group, other: Group) -> Agreement:
    condition, rows = group.condition, {row.strategy: row for row in other.ok_rows}
    beyond = group.pairs_beyond_noise
    alike = [pair for pair in group.pairs if pair[0].same_plan.keys() == pair[1].same_plan.keys()]
    same = opposite = None
    if beyond is not None:
        in_both = [pair for pair in beyond if all(row.strategy in rows for row in pair)]
        again = [(rows[a.strategy], rows[b.strategy]) for a, b in in_both]
        signs = [_order(group, *pair) * _order(other, *twins) for pair, twins in zip(in_both, again)]
        same = sum(sign > 0 for sign in signs)
        opposite = sum(sign < 0 and bool(other.apart(*twins)) for sign, twins in zip(signs, again))
    return Agreement(
        workload=condition.workload,
        machine=condition.machine,
        batch_size=condition.batch_size,
        **{name: getattr(condition, name).value for name in TRAINING},
        compared_by=", ".join(one.compared_by for one in (group, other)),
        strategies=len(group.ok_rows),
        n=group.typical_trials,
        again_n=other.typical_trials,
        noise_pct=group.noise_pct,
        again_noise_pct=other.noise_pct,
        pairs=len(group.pairs),
        pairs_beyond_noise=None if beyond is None else len(beyond),
        beyond_noise_pct=_pct(None if beyond is None else len(beyond), len(group.pairs)),
        same_order=same,
        same_order_pct=_pct(same, len(beyond or ())),
        opposite_beyond_noise=opposite,
        same_plan_pairs=len(alike),
        same_plan_beyond_noise=None if beyond is None else sum(bool(group.apart(*pair)) for pair in alike),
    )


def _order(group: Group, a: Row, b: Row) -> float:
    return float(np.sign(group.estimate(a).value - group.estimate(b).value))


def _pct(part: int | None, whole: int) -> float | None:
    return 100.0 * part / whole if part is not None and whole else None


def _together(group_agreements: Sequence[Agreement]) -> Agreement:
    """Sum over the groups; pairs of a group whose noise is unknown count as not told apart."""
    beyond = sum(one.pairs_beyond_noise or 0 for one in group_agreements)
    same, pairs = sum(one.same_order or 0 for one in group_agreements), sum(one.pairs for one in group_agreements)
    return Agreement(
        workload=EVERYTHING,
        machine=EVERYTHING,
        strategies=sum(one.strategies for one in group_agreements),
        pairs=pairs,
        pairs_beyond_noise=beyond,
        beyond_noise_pct=_pct(beyond, pairs),
        same_order=same,
        same_order_pct=_pct(same, beyond),
        opposite_beyond_noise=sum(one.opposite_beyond_noise or 0 for one in group_agreements),
        same_plan_pairs=sum(one.same_plan_pairs for one in group_agreements),
        same_plan_beyond_noise=sum(one.same_plan_beyond_noise or 0 for one in group_agreements),
    )


def _title(one: Agreement) -> str:
    return ", ".join((one.workload, *unusual(Precision(one.exchange), StepSchedule(one.schedule))))


def text_line(one: Agreement) -> str:
    """Say in a sentence what the table has of a group."""
    where = "all workloads" if one.workload == EVERYTHING else f"{_title(one)} on {one.machine}"
    if one.pairs_beyond_noise is None:
        return f"{where}: noise unknown (nothing was repeated), so no pair of {one.pairs} is told apart"
    share = "" if one.beyond_noise_pct is None else f" ({one.beyond_noise_pct:.1f} %)"
    again = "" if one.same_order_pct is None else f" ({one.same_order_pct:.1f} %)"
    return (
        f"{where}: {one.pairs_beyond_noise} of {one.pairs} pairs{share} are beyond the noise, of which "
        f"{one.same_order}{again} come in the same order again and {one.opposite_beyond_noise} in the other one beyond "
        f"its noise; of {one.same_plan_pairs} pairs of one plan, {one.same_plan_beyond_noise} seem to differ"
    )


def expected_file(results: Path, suite: str, group_agreements: Sequence[Agreement]) -> dict[Path, str]:
    """Give the path and the text of ``<results>/tables/<suite>/agreement.csv``."""
    rows = ([cell_text(getattr(one, column)) for column in COLUMNS] for one in group_agreements)
    return {results / "tables" / suite / FILE: csv_text(COLUMNS, rows)}

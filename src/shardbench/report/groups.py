"""Groups of rows that are compared with each other: their numbers, noise, best and standings."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import combinations

import numpy as np

from shardbench.base.statistics import Average, Covariance, Noise, covariance, log_mean, pooled_noise
from shardbench.cost.uncertainty import band, p_larger
from shardbench.records.record import Record, fast_ms
from shardbench.records.trial import Backend, Outcome, unusual
from shardbench.report.rows import Condition, Row, current, predicted_step_ms, slowest_embedding_ms
from shardbench.report.standing import PROBLEM, UNSHARDED, Standing, mark, over_pct, ranks_by_judge, same


class ComparedBy(StrEnum):
    """What the measured rows of a group are compared by."""

    CONTROL = "control"
    """The trials' steps, brought to one speed of the machine by those of the control plan that their ranks stepped in
    turn."""
    STEP = "step"
    """The trials' steps as they are: they have no control, not the same one, or too few repeats to know its effect."""
    NOTHING = "nothing"
    """Ranks shared cores: what they send is checked, and times are shown."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A simulated time in ms and its 95 % band under draws of the model's constants and form."""

    value: float
    low: float | None
    """Lower end of the band; None without draws, where it is not known how sure the model is."""
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Group:
    """The rows that are compared with each other."""

    condition: Condition
    rows: tuple[Row, ...]
    """One row a strategy, by its name."""

    @cached_property
    def control(self) -> str | None:
        """Hash of the control plan of all trials; None where simulated, and where one has none or another."""
        hashes = {r.control.plan_hash if r.control else None for row in self.ok_rows for r in row.records}
        return hashes.pop() if len(hashes) == 1 else None

    @property
    def control_ms(self) -> float:
        """Return the control's step over all trials, in ms; the group must have one control."""
        controls = [record.control for row in self.ok_rows for record in row.records]
        return log_mean([fast_ms(control.step_ms) for control in controls if control]).value

    @cached_property
    def compared(self) -> bool:
        """Tell whether times are compared: not where ranks shared cores, whose times are of how they did so."""
        return not any(record.shares_cores for row in self.rows for record in row.records)

    @property
    def compared_by(self) -> ComparedBy:
        """Name what measured rows are compared by."""
        if not self.compared:
            return ComparedBy.NOTHING
        return ComparedBy.CONTROL if self.covariance else ComparedBy.STEP

    @cached_property
    def covariance(self) -> Covariance | None:
        """The way in which measured trials follow their control; None without one, or with too few repeats of plans."""
        if self.control is None or not self.compared:
            return None
        plans = list(self._same_plans())
        return covariance(
            [[fast_ms(record.timing.step_ms) for record in trials if record.timing] for trials in plans],
            [[fast_ms(record.control.step_ms) for record in trials if record.control] for trials in plans],
        )

    def _same_plans(self) -> Iterator[list[Record]]:
        return (trials for row in self.ok_rows for trials in row.same_plan.values())

    def trial_ms(self, record: Record) -> float:
        """Return a measured trial's step: its three fastest iterations, at the group's mean speed of the machine.

        That is the speed by the control's three fastest iterations, where the group has such a control and enough
        repeats of plans to know how steps follow it.
        """
        if record.timing is None:
            raise ValueError(f"{record.summary}: no steps")
        own_ms = fast_ms(record.timing.step_ms)
        if self.covariance is None or record.control is None or record.control.plan_hash != self.control:
            return own_ms
        return self.covariance.adjusted(own_ms, fast_ms(record.control.step_ms))

    def numbers(self, row: Row) -> tuple[float, ...]:
        """Return the steps of a measured row, in ms, one a trial; the row must be ok."""
        return tuple(self.trial_ms(record) for record in row.records if record.timing)

    def estimate(self, row: Row) -> Prediction | Average:
        """Return the row's step in ms and its interval; the row must be ok.

        Measured: geometric mean over trials of their steps, by the noise of the group. Simulated: median over
        iterations, and the band of the draws of all trials.
        """
        return self._estimates[row.strategy]

    @cached_property
    def _estimates(self) -> dict[str, Prediction | Average]:
        return {row.strategy: self._estimate(row) for row in self.ok_rows}

    def _estimate(self, row: Row) -> Prediction | Average:
        if self.condition.backend is Backend.MEASURED:
            return log_mean(self.numbers(row), self.noise)
        low, high = band(row.step_draws) if row.step_draws else (None, None)
        return Prediction(value=float(np.median(row.step_ms)), low=low, high=high)

    @cached_property
    def noise(self) -> Noise | None:
        """Noise of measured trials' steps, from those of one plan; None where there is none to know."""
        if self.condition.backend is Backend.SIMULATED or not self.compared:
            return None
        if self.covariance is not None:
            return self.covariance.noise
        return pooled_noise([self.trial_ms(record) for record in trials] for trials in self._same_plans())

    @cached_property
    def noise_pct(self) -> float | None:
        """Noise floor: the least significant difference of two rows with the group's typical number of trials."""
        if self.noise is None:
            return None
        typical = self.typical_trials
        return None if typical is None else self.noise.least_pct(typical, typical)

    @property
    def width_pct(self) -> float | None:
        """Return how far a row of so many trials must be behind the best to be told apart from it."""
        typical, others = self.typical_trials, len(self.ok_rows) - 1
        if self.noise is None or typical is None or not others:
            return None
        return 100.0 * float(np.expm1(self.noise.behind_log(typical, typical, others)))

    @property
    def typical_trials(self) -> float | None:
        """Median over rows that are ok of how many trials they have; None where none is."""
        return float(np.median([len(row.records) for row in self.ok_rows])) if self.ok_rows else None

    def p_slower(self, row: Row, other: Row) -> float | None:
        """Share of draws, over all pairs of trials, in which ``row`` has the longer step.

        None where a trial has no draws, and where measured: there, draws are of the predictions.
        """
        if self.condition.backend is not Backend.SIMULATED:
            return None
        if row.step_draws is None or other.step_draws is None:
            return None
        return p_larger(row.step_draws, other.step_draws)

    def apart(self, a: Row, b: Row) -> bool | None:
        """Return whether two measured rows differ by more than the noise of so many trials; None where unknown."""
        if self.noise is None:
            return None
        distance = abs(np.log(self.estimate(a).value / self.estimate(b).value))
        return bool(distance > self.noise.least_log(len(a.records), len(b.records)))

    def behind(self, row: Row, other: Row) -> bool | None:
        """Return whether a measured row is slower than another, all rows compared at once; None where unknown."""
        if self.noise is None:
            return None
        above = float(np.log(self.estimate(row).value / self.estimate(other).value))
        return above > self.noise.behind_log(len(row.records), len(other.records), len(self.ok_rows) - 1)

    def places(self, row: Row) -> str | None:
        """Write the places that a measured row may have among the competitors, such as ``1 to 4``; None where unknown.

        As many stand before it as it is surely behind, and as many after it as are surely behind it.
        """
        others = [other for other in self.ok_rows if other.competes and other is not row]
        if not row.competes or not others or self.noise is None:
            return None
        before = sum(bool(self.behind(row, other)) for other in others)
        after = sum(bool(self.behind(other, row)) for other in others)
        return f"{1 + before} to {1 + len(others) - after}"

    @cached_property
    def pairs(self) -> tuple[tuple[Row, Row], ...]:
        """All pairs of rows that are ok; none where times are not compared."""
        return tuple(combinations(self.ok_rows, 2)) if self.compared else ()

    @cached_property
    def pairs_beyond_noise(self) -> tuple[tuple[Row, Row], ...] | None:
        """The pairs of rows that are apart; None where the noise is unknown."""
        return None if self.noise is None else tuple(pair for pair in self.pairs if self.apart(*pair))

    @cached_property
    def best(self) -> Row | None:
        """The competitor with the lowest number; None where none is ok, and where times are not compared."""
        competitors = [row for row in self.rows if row.competes and self.compared]
        return min(competitors, key=lambda row: (self.estimate(row).value, row.strategy), default=None)

    @cached_property
    def judge_places(self) -> dict[str, tuple[int, int] | None]:
        """The place of each row by the cost model and by TorchRec's estimator; None of a row that one does not rate."""
        standings = self.standings.values()
        places = ranks_by_judge([(one.model_ms, one.torchrec_ms) for one in standings])
        return dict(zip(self.standings, places, strict=True))

    @cached_property
    def standings(self) -> dict[str, Standing]:
        """The standing of each row, by its strategy and in the rows' order."""
        estimates = {row.strategy: self.estimate(row).value for row in self.ok_rows}
        reference = estimates[self.best.strategy] if self.best else None
        vs_best = {name: over_pct(value, reference) for name, value in estimates.items()}
        ratios = {name: 1.0 + value / 100.0 for name, value in vs_best.items() if value is not None}
        least = min(ratios.values(), default=1.0)
        over_best = {name: 100.0 * (ratio / least - 1.0) for name, ratio in ratios.items()}
        return {
            row.strategy: self._standing(row, vs_best.get(row.strategy), over_best.get(row.strategy))
            for row in self.rows
        }

    def _standing(self, row: Row, vs_best_pct: float | None, over_best_pct: float | None) -> Standing:
        condition, best = self.condition, self.best
        role, backend = row.worst.role.value, condition.backend.value
        step = self.estimate(row) if row.ok else None
        own_ms = step.value if step else None
        same = self._same(row, best) if row.ok and best is not None else None
        p_slower = self.p_slower(row, best) if row.ok and best is not None and row is not best else None
        return Standing(
            workload=condition.workload,
            machine=condition.machine,
            backend=backend,
            batch_size=condition.batch_size,
            strategy=row.strategy,
            role=role,
            outcome=row.worst.outcome.value,
            cause=row.cause,
            step_ms=own_ms,
            low_ms=step.low if step else None,
            high_ms=step.high if step else None,
            over_best_pct=over_best_pct,
            vs_best_pct=vs_best_pct,
            same=same,
            p_slower=p_slower,
            mark=mark(vs_best_pct, same, p_slower, role=role, backend=backend),
            model_ms=row.typical(predicted_step_ms) if row.worst.spec.backend is Backend.MEASURED else own_ms,
            torchrec_ms=row.torchrec_ms,
            plan_s=row.typical(lambda record: record.planned.plan_s if record.planned else None),
            fit_s=row.typical(lambda record: record.planned.fit_s if record.planned else None),
            bound_ms=row.typical(lambda record: record.step_bound_ms if record.bounded else None),
            record=row.records[0].key,
        )

    def _same(self, row: Row, best: Row) -> bool | None:
        if self.condition.backend is Backend.SIMULATED:
            return same([self.estimate(row).value], [self.estimate(best).value])
        behind = self.behind(row, best), self.behind(best, row)
        return None if None in behind else not any(behind)

    @cached_property
    def ok_rows(self) -> tuple[Row, ...]:
        """Rows that are ok, of strategies that do not compete as well."""
        return tuple(row for row in self.rows if row.ok)

    @cached_property
    def best_found(self) -> Record | None:
        """Trial whose slowest rank has the smallest embedding time that any plan of the group has; simulated only."""
        if self.condition.backend is not Backend.SIMULATED:
            return None
        records = [record for row in self.rows for record in row.records if record.outcome is Outcome.OK]
        timed = [record for record in records if record.timing and record.timing.embedding_ms]
        return min(timed, key=lambda record: slowest_embedding_ms(record) or 0.0, default=None)

    def p_slower_than_best_found(self, row: Row) -> float | None:
        """Share of draws in which ``row`` has the longer embedding time; None without draws, and of the best alone."""
        best = self.best_found
        if best is None or best.draws is None or row.embedding_draws is None or row.records == (best,):
            return None
        return p_larger(row.embedding_draws, [best.draws.embedding_ms])


def groups(records: Iterable[Record]) -> list[Group]:
    """Current records by condition, sorted by it; those whose times are not compared, or of other models, come last.

    Repeats that were left out, as their strategy was out, are no trials.
    """
    by_condition: dict[Condition, dict[str, list[Record]]] = {}
    trials = (record for record in current(records) if not record.left_out)
    for record in sorted(trials, key=lambda record: (record.spec.seed, record.spec.repeat)):
        by_condition.setdefault(Condition.of(record), {}).setdefault(record.spec.strategy, []).append(record)
    all_groups = [
        Group(condition=condition, rows=tuple(Row(strategy=name, records=tuple(rows[name])) for name in sorted(rows)))
        for condition, rows in sorted(by_condition.items())
    ]
    return sorted(all_groups, key=lambda group: (group.condition.trains != UNSHARDED, not group.compared))


def ordinary(grouped: Sequence[Group]) -> list[Group]:
    """Return the groups of ordinary exchanges and steps: curves over problems have no others, as few strategies run."""
    return [group for group in grouped if not unusual(group.condition.exchange, group.condition.schedule)]


def suite_standings(grouped: Sequence[Group]) -> list[Standing]:
    """Return the standings of all groups whose times are compared, and which train the unsharded model.

    Groups of one problem get names of their workload that differ.
    """
    grouped = [group for group in grouped if group.condition.trains == UNSHARDED]
    names = [_distinct_name(group.condition, grouped) for group in grouped]
    return [
        replace(one, workload=name)
        for group, name in zip(grouped, names)
        if group.compared
        for one in group.standings.values()
    ]


def _distinct_name(own: Condition, grouped: Sequence[Group]) -> str:
    """Return the workload's name, with what differs between its groups on one machine by one backend."""
    alike = [group.condition for group in grouped if group.condition[: len(PROBLEM)] == own[: len(PROBLEM)]]
    ways = ("batch_size", "precision", "optimizer")
    differences = [name for name in ways if len({getattr(one, name) for one in alike}) > 1]
    words = [f"{'batch ' if name == 'batch_size' else ''}{getattr(own, name)}" for name in differences]
    return ", ".join([own.title, *words])

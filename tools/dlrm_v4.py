"""What is published of the benchmark DLRMv4, beside what is drawn and predicted here.

``python tools/dlrm_v4.py FOLDER [NAME ...]`` writes, or those that are named, ``statistics.csv``, of four batches of
8,192 drawn samples, ``steps.csv``, of the two runs whose plans are published, ``phases.csv``, of what is published of
their parts, and ``drift.csv``, of what plans of one day take on a later one, in minutes.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from table_files import rows_csv, write_tables

from shardbench.base.arrays import Ints
from shardbench.cost.dense import sequence_s
from shardbench.cost.published.memory import published_plans
from shardbench.datasets.yambda_like import CONFIG, HISTORIES, POOLS, YambdaLike, kind_shares, user_events
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.model.table import DenseShape, Optimizer, Precision
from shardbench.records.trial import Failure
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import evaluate
from shardbench.trials.simulate import CountedQuestion, simulate
from shardbench.trials.suite import load_suite
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.trace import Bags, Split

RANK_SAMPLES, BATCH = 1024, 8
"""Samples of a rank, which are a block, and ranks of a batch."""
OWNERS = 32
USERS = 1 << 20
PUBLISHED = {
    "events of a user, median": 2695.0, "events of a user, mean": 4763.0, "events of a user, most": 27_738.0,
    "share of events: listened to": 0.613, "share of events: skipped": 0.359, "share of events: liked": 0.019,
    "share of events: other": 0.01, "events of a history": 2663.0, "likes of a history": 105.0,
    "ids of a history feature, a rank and step": 2_690_000.0, "distinct share in a rank's batch: item_id": 0.024,
    "distinct share in a rank's batch: album_id": 0.015, "distinct share in a rank's batch: artist_id": 0.006,
    "most loaded of 32 owners over the mean: album_id": 2.8,
    "most loaded of 32 owners over the mean: artist_id": 1.3,
}  # fmt: skip
"""What mlcommons/training, pull request 889, and arXiv 2505.22238 state."""
DENSE = DenseShape(
    bottom=(512, 256, 512), sequence_flops=315.7e9, attention_flops=180.4e9, sequence_numbers=4.035e6,
    input_bytes=210.5e3,
)  # fmt: skip
"""The dense model that the suite dlrm_v4 states."""
RUNS = {"dlrm4.mi350x.8": ("mi350x-1x8", 654.2), "dlrm4.b200.8": ("b200-1x8", 558.1)}
"""Machine, and milliseconds of a step in steady state (of the second run the traced one)."""
REST = "all else"
PHASES = {
    "dlrm4.mi350x.8": {"step": 652.3, "products": 138.4, "hosts": 104.1, "exchange": 27.0},
    "dlrm4.b200.8": {"step": 558.1, "products": 77.1, "hosts": 48.9},
}
"""Milliseconds of a traced rank: of matrix products, idle, and of exchanges that nothing hides. REST of a step is what
they leave: attention, element-wise kernels and lookups, and the exchange where it is not stated."""
EXCHANGE = ("input", "output", "output_backward")
DAYS, RENEWED = (100, 200), (0.001, 0.003, 0.01)
"""The day that plans are made for and the one they are judged on; shares of the artists that are others after a day."""
PLAN_S = 20.0


def statistics(workload: YambdaLike, batches: int) -> dict[str, float]:
    """Return the statistics of ``batches`` of BATCH train blocks, a block a rank, named as in PUBLISHED."""
    generator = np.random.default_rng(0)
    users = user_events(generator.random(USERS))
    shares = np.average(kind_shares(users), weights=users, axis=0)
    lengths: list[Ints] = []
    distinct: dict[str, list[float]] = {name: [] for name in HISTORIES}
    loaded: dict[str, list[float]] = {name: [] for name in HISTORIES}
    for first in range(0, batches * BATCH, BATCH):
        ids: dict[str, list[Ints]] = {name: [] for name in HISTORIES}
        for number in range(first, first + BATCH):
            events = workload.events(Split.TRAIN, number)
            lengths.append(events.lengths.reshape(-1, POOLS))
            for name, blocks in ids.items():
                blocks.append(events.bags(name).feature(0).values)
                distinct[name].append(len(np.unique(blocks[-1])) / len(blocks[-1]))
        for name, blocks in ids.items():
            loaded[name].append(_most_loaded(np.concatenate(blocks)))
    kept = np.concatenate(lengths)
    events_mean, likes_mean = kept.sum(axis=1).mean(), kept[:, 2].mean()
    names = ("listened to", "skipped", "liked", "other")
    made = {
        "events of a user, median": float(np.median(users)),
        "events of a user, mean": float(users.mean()),
        "events of a user, most": float(users.max()),
        **{f"share of events: {name}": float(share) for name, share in zip(names, shares, strict=True)},
        "events of a history": float(events_mean),
        "likes of a history": float(likes_mean),
        "ids of a history feature, a rank and step": RANK_SAMPLES * (1.0 + float(events_mean)),
        **{f"distinct share in a rank's batch: {name}": float(np.mean(each)) for name, each in distinct.items()},
        **{f"most loaded of {OWNERS} owners over the mean: {name}": float(np.mean(a)) for name, a in loaded.items()},
    }
    return {name: made[name] for name in PUBLISHED}


def _most_loaded(rows: Ints) -> float:
    """Return the lookups of the most loaded owner over the mean, where rows are dealt from the hottest on."""
    counts = np.sort(np.unique(rows, return_counts=True)[1])[::-1]
    loads = np.bincount(np.arange(len(counts)) % OWNERS, weights=counts, minlength=OWNERS)
    return float(loads.max() / loads.mean())


def steps(*, distinct: bool) -> Iterator[dict[str, object]]:
    """Yield the step that is predicted of each published plan beside the published one.

    The published runs make ids distinct. Rates of the sequence model are from phases of the run on the MI350X and of
    another model on H100 (``shardbench.cost.dense``), none of them from a step of these runs.
    """
    workload = CONFIG(dense=DENSE, distinct=distinct).build(Path())
    plans, batches = published_plans(workload.tables), DrawnBatches(workload)
    for point, (machine_name, published_ms) in RUNS.items():
        machine = load_machine(machine_name)
        step = simulate(plans[point], _problem(workload, machine), batches, workload.dense, 1)
        phases = step.times[0].phases_ms
        yield {
            "backend": "simulated", "point": point, "machine": machine_name, "distinct_ids": distinct,
            "published_ms": published_ms if distinct else None, "step_ms": round(step.step_ms, 1),
            "error_pct": round(100.0 * (step.step_ms / published_ms - 1.0), 1) if distinct else None,
            "bound_by": step.bound_by,
            **{f"{phase.value}_ms": round(ms, 1) for phase, ms in phases.items()},
        }  # fmt: skip


def phases(steps_of: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Yield each published phase of the runs beside the predicted one, from the rows of ``steps`` with distinct ids.

    A rate of products and of hosts is fixed by one run's phase, and judged by the other's: each way once.
    """
    for row in steps_of[steps_of["distinct_ids"]].to_dict("records"):
        point, machine = row["point"], load_machine(row["machine"])
        said = PHASES[point]
        law = _sequence_ms(machine)
        exchange_ms = sum(row[f"{name}_ms"] for name in EXCHANGE)
        head = {"backend": "simulated", "point": point, "machine": row["machine"]}
        for other, (other_machine, _) in RUNS.items():
            if other != point:
                scale = _sequence_ms(load_machine(other_machine))
                for phase in ("products", "hosts"):
                    predicted = PHASES[other][phase] * law[phase] / scale[phase]
                    yield head | _phase(phase, other_machine, said[phase], predicted)
        rest = row["step_ms"] - law["products"] - law["hosts"]
        if "exchange" in said:
            rest -= exchange_ms
            yield head | _phase("exchange", "published points", said["exchange"], exchange_ms)
        left = said["step"] - sum(ms for name, ms in said.items() if name != "step")
        yield head | _phase(REST, "published points", left, rest)


def _sequence_ms(machine: Machine) -> dict[str, float]:
    return {name: 1e3 * seconds for name, seconds in sequence_s(DENSE, machine, RANK_SAMPLES).items()}


def _phase(phase: str, fixed_by: str, published_ms: float, predicted_ms: float) -> dict[str, object]:
    error = 100.0 * (predicted_ms / published_ms - 1.0)
    return {
        "phase": phase, "fixed_by": fixed_by, "published_ms": round(published_ms, 1),
        "predicted_ms": round(predicted_ms, 1), "error_pct": round(error, 1),
    }  # fmt: skip


class LaterDay(DrawnBatches):
    """A test batch of another day in the frequency order of the day that plans are made for."""

    def __init__(self, newer: YambdaLike, older: YambdaLike) -> None:
        super().__init__(newer)
        self._newer, self._older = newer, older

    def bags(self, iteration: int, table: int) -> Bags:
        """Return the lookups of one table; every iteration has the one batch."""
        if (0, table) not in self._by_batch:
            drawn = self._newer._draw(Split.TEST, 0, table)
            self._by_batch[0, table] = replace(drawn, values=self._older.ranking(table)(drawn.values))
        return self._by_batch[0, table]


def drift(renewed: float) -> Iterator[dict[str, object]]:
    """Yield what the suite's plans of one day on 32 GPUs take then and on a later day, and what new ones take."""
    suite = load_suite("dlrm_v4")
    job = next(job for job in suite.jobs if job.load_machine().topology.nodes > 1)
    batch = {"batch_size": job.batch_size, "test_batches": 1, "dense": DENSE, "distinct": True, "renewed": renewed}
    older, newer = (CONFIG(day=day, **batch).build(Path()) for day in DAYS)
    made_for, fresh = (
        CountedQuestion(_problem(of_day, job.load_machine()), DrawnBatches(of_day), DENSE) for of_day in (older, newer)
    )
    later = LaterDay(newer, older)
    for strategy in job.strategies:
        was, new = (
            evaluate(question, get_strategy(strategy), Budget(plan_s=PLAN_S), 0, sealed=False)
            for question in (made_for, fresh)
        )
        head = {"backend": "simulated", "renewed_pct_a_day": 100.0 * renewed, "strategy": strategy}
        if isinstance(was, Failure) or isinstance(new, Failure):
            yield head | {"outcome": "failed"}
            continue
        then_ms, new_ms = was.judged.step_ms, new.judged.step_ms
        now_ms = simulate(was.plan, made_for.problem, later, DENSE, 1).step_ms
        yield head | {
            "outcome": "ok", "then_ms": round(then_ms, 2), "now_ms": round(now_ms, 2), "new_ms": round(new_ms, 2),
            "lost_pct": round(100.0 * (now_ms / then_ms - 1.0), 2),
            "over_new_pct": round(100.0 * (now_ms / new_ms - 1.0), 2),
        }  # fmt: skip


def _problem(workload: YambdaLike, machine: Machine) -> Problem:
    return Problem.of(
        workload.name, workload.tables, workload.profiles, machine, batch_size=workload.batch_size,
        optimizer=Optimizer.ROWWISE_ADAGRAD, exchange=Precision.FP16,
    )  # fmt: skip


def compared(made: dict[str, float]) -> Iterator[dict[str, object]]:
    """Yield each statistic as published and as drawn, and how far off it is."""
    for name, value in PUBLISHED.items():
        error = 100.0 * (made[name] / value - 1.0)
        yield {"statistic": name, "published": f"{value:g}", "drawn": f"{made[name]:.4g}", "error_pct": f"{error:.1f}"}


if __name__ == "__main__":
    write_tables(
        {
            "statistics.csv": lambda _: rows_csv(compared(statistics(CONFIG(dense=DENSE).build(Path()), 4))),
            "steps.csv": lambda _: rows_csv(row for distinct in (True, False) for row in steps(distinct=distinct)),
            "phases.csv": lambda path: rows_csv(phases(pd.read_csv(path.with_name("steps.csv")))),
            "drift.csv": lambda _: rows_csv(row for renewed in RENEWED for row in drift(renewed)),
        }
    )

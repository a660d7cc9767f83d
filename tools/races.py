"""Races of six problems, and what came of them: is the raced plan best, and does its correction help other tables?

``python tools/races.py draw RESULTS COMMIT`` draws three table sets that the commit decides, so that nobody
chose them. ``run RESULTS`` races all six problems, each by the user's commands, then times the plans afresh,
beside variants that choose in other ways among the plans that they saw. ``tables RESULTS OUT`` makes the tables of
these records. What is on record is not run again.
"""

import hashlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from shardbench.base.atomic import write_atomically
from shardbench.base.host import load
from shardbench.base.reading import toml_file
from shardbench.base.serialise import content_hash, to_toml
from shardbench.base.statistics import pooled_noise
from shardbench.calibrate.correction import RacedPlan, Trials, corrected, off_pct, question_of, raced_plans
from shardbench.cli.progress import progress
from shardbench.model.calibrated import chip_of
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.records.record import Record
from shardbench.records.store import plan_path, trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.trials.runner import RunOptions, run_suite
from shardbench.trials.simulate import CountedQuestion
from shardbench.trials.suite import Job, Suite, load_suite, read_suite
from shardbench.workloads.kinds import workload_config

DRAWN = "drawn.toml"
PLAN_S = 45
"""Seconds of planning before a race."""
CHECKS = 2
"""Trials of every plan after the race."""
FIT_S, ONE_PLAN_S = 8.0, 15.0
"""Budget of a variant, as in the suite ``measured``."""
VARIANTS = ("joint-nominal", "joint-p90")
RACED = "raced"
MOST_BYTES, LOOKUPS = 2_500_000_000, (200_000, 1_200_000)
"""Weights, of which ranks hold two copies, and lookups of a batch: fewer, and calls are all that is timed."""


@dataclass(frozen=True, kw_only=True)
class Raced:
    """A problem that is raced: tables as the command line names them, and a machine."""

    name: str
    tables: str
    workload: str
    machine: str

    @property
    def check(self) -> str:
        """Name of the records of all plans' trials after the race."""
        return f"check-{self.workload}-{self.machine}"

    def config(self, results: Path) -> dict[str, Any]:
        """Return the workload as it is written."""
        drawn = self.tables == DRAWN
        configs = toml_file(results / DRAWN)["workloads"] if drawn else read_suite(self.tables).workloads
        return dict(next(one for one in configs if one["name"] == self.workload))

    def job(self, **settings: Any) -> Job:
        """Return the trials of the problem's plans."""
        return Job(
            workload=self.workload, machine=self.machine, backend=Backend.MEASURED, iterations=10, warmup=2, **settings
        )  # fmt: skip


PROBLEMS = (
    Raced(name="mixed", tables="measured", workload="mixed", machine="cpu-1x2"),
    Raced(name="mixed-2x2", tables="measured", workload="mixed", machine="cpu-2x2"),
    Raced(name="histories", tables="measured", workload="histories", machine="cpu-1x2"),
    Raced(name="drawn-1", tables=DRAWN, workload="drawn-1", machine="cpu-1x2"),
    Raced(name="drawn-2", tables=DRAWN, workload="drawn-2", machine="cpu-1x2"),
    Raced(name="drawn-3", tables=DRAWN, workload="drawn-3", machine="cpu-2x2"),
)


def run(results: Path, only: Sequence[str]) -> None:
    """Race the problems by the user's commands, then time all plans afresh."""
    for problem in PROBLEMS:
        if only and problem.name not in only:
            continue
        if not (results / f"{problem.name}.json").is_file():
            _race(problem, results)
        _check(problem, results)


def _race(problem: Raced, results: Path) -> None:
    tables = str(results / DRAWN) if problem.tables == DRAWN else problem.tables
    with tempfile.TemporaryDirectory() as folder:
        answer = _shardbench(
            "plan", tables, problem.machine, "--workload", problem.workload, "--budget", str(PLAN_S), "--race", folder,
            "--json",
        )  # fmt: skip
        suite = load_suite(f"{folder}/race.toml")
        start = time.monotonic()
        _shardbench("run", f"{folder}/race.toml", "--results", str(results))
        standings = _standings(suite, results) | {
            "planned_s": json.loads(answer)["took_s"], "raced_s": time.monotonic() - start,
        }  # fmt: skip
    write_atomically(results / f"{problem.name}.json", json.dumps(standings, indent=1, sort_keys=True) + "\n")
    # No table reads the race's own trials; its standings stay.
    trial_store(results, suite.name).path.unlink()
    shutil.rmtree(results / "tables" / suite.name)


def _shardbench(*arguments: str) -> str:
    print("shardbench", *arguments, flush=True)
    return subprocess.run(["shardbench", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def _standings(suite: Suite, results: Path) -> dict[str, Any]:
    """Return who is best of a race, and each plan's trials and when it was out, the best first."""
    plans = _trials(suite.name, results)
    ranking = sorted(plans, key=lambda name: (-len(plans[name][1]), float(np.mean(_logs(plans[name][1])))))
    rounds = len(plans[ranking[0]][1])
    trials = {name: len(records) for name, (_, records) in plans.items()}
    (job,) = suite.jobs
    is_over = len(trial_store(results, suite.name).latest()) == job.repeats * len(job.strategies)
    return {
        "best": ranking[0],
        "rounds": rounds,
        "ended_by": "tie" if is_over else "time",
        "standings": [
            {
                "name": name, "plan_hash": content_hash(plans[name][0]), "n": trials[name],
                "dropped_in": trials[name] if trials[name] < rounds else None,
            }
            for name in ranking
        ],
    }  # fmt: skip


def _check(problem: Raced, results: Path) -> None:
    """Time the raced plans and the variants' again, none of them knowing the race."""
    answer = json.loads((results / f"{problem.name}.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for one in answer["standings"]:
            name = RACED if one["name"] == answer["best"] else one["name"]
            paths.append(f"{folder}/{name}.json")
            shutil.copyfile(plan_path(results, one["plan_hash"]), paths[-1])
        job = problem.job(strategies=(*paths, *VARIANTS), repeats=CHECKS, plan_s=ONE_PLAN_S, fit_s=FIT_S)
        config = problem.config(results)
        suite = Suite(name=problem.check, description="plans after a race", workloads=(config,), jobs=(job,))
        with progress(as_json=False) as listener:
            run_suite(suite, RunOptions(results=results, data=Path("data")), listener)


def draw(results: Path, commit: str) -> None:
    """Write three table sets that the commit's hash decides; sets too large for two copies on two ranks are skipped."""
    rng = np.random.default_rng(int(hashlib.sha256(commit.encode()).hexdigest()[:16], 16))
    sizes = {"test_batches": 2, "profile_samples": 16_384, "dense": {"bottom": [16], "top": [16, 1]}}
    lines = [f"# Drawn by tools/races.py of commit {commit}: three table sets that nobody chose."]
    for number, make in enumerate((_synthetic, _described, _synthetic), start=1):
        config = make(rng)
        while not _fits({**config, **sizes}):
            config = make(rng)
        lines += ["", "[[workloads]]", f'name = "drawn-{number}"']
        lines += [f"{key} = {to_toml(value)}" for key, value in {**config, **sizes}.items()]
    write_atomically(results / DRAWN, "\n".join(lines) + "\n")


def _synthetic(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "dataset": "synthetic",
        "tables": int(rng.integers(12, 41)),
        "subset_seed": int(rng.integers(1 << 31)),
        "dims": sorted(rng.choice([16, 32, 64, 128], size=int(rng.integers(1, 5)), replace=False).tolist()),
        "batch_size": int(rng.choice([1024, 2048, 4096])),
    }


def _described(rng: np.random.Generator) -> dict[str, Any]:
    tables = [
        {
            "name": f"t{i:02d}",
            "rows": int(10 ** rng.uniform(3.5, 6.3)),
            "dim": int(rng.choice([16, 32, 64, 128])),
            "pooling": round(float(10 ** rng.uniform(0.0, 1.8)), 1),
            "coverage": round(float(rng.uniform(0.3, 1.0)), 2),
            "alpha": round(float(rng.uniform(0.5, 1.4)), 2),
        }
        for i in range(int(rng.integers(12, 41)))
    ]
    return {"dataset": "described", "batch_size": int(rng.choice([1024, 2048, 4096])), "tables": tables}


def _fits(config: Mapping[str, Any]) -> bool:
    workload = workload_config({**config, "name": "drawn"}, "drawn").build(Path())
    nbytes = sum(4 * table.rows * table.dim for table in workload.tables)
    if nbytes > MOST_BYTES:
        return False
    lookups = sum(profile.mean_pooling for profile in workload.profiles) * workload.batch_size
    return LOOKUPS[0] <= lookups <= LOOKUPS[1]


def _plan(results: Path, plan_hash: str) -> Plan:
    return Plan.from_json(plan_path(results, plan_hash).read_text())


def _trials(name: str, results: Path) -> dict[str, tuple[Plan, list[Record]]]:
    """Return by candidate its plan and its trials that ended well, of records that are of one plan a candidate."""
    by_candidate: dict[str, tuple[Plan, list[Record]]] = {}
    for record in trial_store(results, name).latest().values():
        if record.outcome is Outcome.OK and record.planned is not None:
            plan = _plan(results, record.planned.plan_hash)
            by_candidate.setdefault(record.spec.strategy, (plan, []))[1].append(record)
    return by_candidate


def ratio_to_control(record: Record) -> float:
    """Return the median over iterations of a trial's step over the control's of the same turn."""
    if record.timing is None or record.control is None:
        raise ValueError(f"{record.summary}: no steps beside the control's")
    return float(np.median(np.divide(record.timing.step_ms, record.control.step_ms)))


def _logs(records: Sequence[Record]) -> list[float]:
    return [math.log(ratio_to_control(record)) for record in records]


def tables(results: Path, out: Path) -> None:
    """Write what became of every plan, of every race and of every correction as CSV."""
    raced = [problem for problem in PROBLEMS if (results / f"{problem.name}.json").is_file()]
    checks = {problem.name: _trials(problem.check, results) for problem in raced}
    plans = pd.DataFrame([row for problem in raced for row in _plan_rows(problem, results, checks[problem.name])])
    races = pd.DataFrame([_race_row(problem, results, plans) for problem in raced])
    corrections = pd.DataFrame([*_corrections(raced, checks, results)])
    out.mkdir(parents=True, exist_ok=True)
    for name, table in (("plans", plans), ("races", races), ("correction", corrections)):
        write_atomically(out / f"{name}.csv", table.to_csv(index=False, lineterminator="\n", float_format="%.6g"))


def _plan_rows(
    problem: Raced, results: Path, checked: Mapping[str, tuple[Plan, list[Record]]]
) -> Iterator[dict[str, object]]:
    raced = {one["name"]: one for one in json.loads((results / f"{problem.name}.json").read_text())["standings"]}
    winner = json.loads((results / f"{problem.name}.json").read_text())["best"]
    noise = pooled_noise([[math.exp(log) for log in _logs(records)] for _, records in checked.values()])
    assert noise is not None
    ours = _logs(checked[RACED][1])
    for name, (plan, records) in checked.items():
        logs = _logs(records)
        off, least = float(np.mean(logs) - np.mean(ours)), noise.least_log(len(logs), len(ours))
        in_race = raced.get(winner if name == RACED else name, {})
        yield {
            "problem": problem.name, "machine": problem.machine, "plan": winner if name == RACED else name,
            "raced_best": name == RACED, "backend": "measured", "n": len(logs), "n_counts": "process groups",
            "over_raced_pct": 100.0 * math.expm1(off), "least_pct": 100.0 * math.expm1(least),
            "order": "same" if abs(off) <= least else "slower" if off > 0 else "faster",
            "step_ms": math.exp(float(np.mean([math.log(np.median(r.timing.step_ms)) for r in records if r.timing]))),
            "predicted_ms": records[0].predicted.step_ms[0] if records[0].predicted else None,
            "segments": len(plan.segments), "race_trials": in_race.get("n"), "out_in_round": in_race.get("dropped_in"),
        }  # fmt: skip


def _race_row(problem: Raced, results: Path, plans: pd.DataFrame) -> dict[str, object]:
    answer = json.loads((results / f"{problem.name}.json").read_text())
    own = plans[plans["problem"] == problem.name]
    rivals = own[~own["raced_best"]]
    first = rivals.loc[rivals["over_raced_pct"].idxmin()]
    model_choice = own.loc[own["predicted_ms"].idxmin()]
    return {
        "problem": problem.name, "machine": problem.machine, "raced_best": answer["best"],
        "candidates": len(answer["standings"]), "rounds": answer["rounds"], "ended_by": answer["ended_by"],
        "planned_s": answer["planned_s"], "raced_s": answer["raced_s"], "backend": "measured",
        "plans_checked": len(own), "n": int(own["n"].max()), "n_counts": "process groups a plan",
        "faster_plans": int((own["order"] == "faster").sum()), "best_rival": first["plan"],
        "best_rival_over_raced_pct": first["over_raced_pct"], "least_pct": first["least_pct"],
        "models_choice": model_choice["plan"], "models_choice_over_raced_pct": model_choice["over_raced_pct"],
    }  # fmt: skip


def _corrections(
    raced: Sequence[Raced], checks: Mapping[str, Mapping[str, tuple[Plan, list[Record]]]], results: Path
) -> Iterator[dict[str, object]]:
    """Yield how far whole steps are off on a problem's tables, as shipped and corrected by the plans of another one."""
    questions = {problem.name: _question(problem, results) for problem in raced}
    trials = {
        name: [(plan, record) for plan, records in checks[name].values() for record in records] for name in questions
    }
    machines = {name: _corrected(question, trials[name], results) for name, question in questions.items()}
    for judged in raced:
        plans = raced_plans(questions[judged.name], trials[judged.name])
        before = questions[judged.name].problem.machine
        for by in raced:
            if by.name != judged.name and by.machine == judged.machine:
                after = machines[by.name]
                yield {
                    "machine": judged.machine, "corrected_by": by.name, "judged_on": judged.name, "plans": len(plans),
                    "n": sum(len(plan.steps_s) for plan in plans), "n_counts": "process groups",
                    "step_mape_before_pct": off_pct(plans, before), "step_mape_after_pct": off_pct(plans, after),
                    "bias_before_pct": _bias(plans, before), "bias_after_pct": _bias(plans, after),
                    "tau_before": _tau(plans, before), "tau_after": _tau(plans, after),
                }  # fmt: skip


def _corrected(question: CountedQuestion, trials: Trials, results: Path) -> Machine:
    machine, environment = question.problem.machine, load(results, trials[0][1].environment)
    return corrected(machine, question, trials, chip=chip_of(environment, machine.device)).machine


def _question(raced: Raced, results: Path) -> CountedQuestion:
    return question_of(workload_config(raced.config(results), raced.name).build(Path("data")), raced.job())


def _bias(plans: Sequence[RacedPlan], machine: Machine) -> float:
    return 100.0 * float(np.mean([math.expm1(plan.step.log_error(machine)) for plan in plans]))


def _tau(plans: Sequence[RacedPlan], machine: Machine) -> float:
    predicted = [plan.step.predicted_s(machine) for plan in plans]
    return float(kendalltau(predicted, [plan.step.measured_s for plan in plans]).statistic)


def main(arguments: Sequence[str]) -> None:
    """Run the command line."""
    what, results, *rest = arguments
    if what == "draw":
        draw(Path(results), rest[0])
    elif what == "run":
        run(Path(results), rest)
    else:
        tables(Path(results), Path(rest[0]))


if __name__ == "__main__":
    main(sys.argv[1:])

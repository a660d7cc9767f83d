"""Races of six problems, and what came of them: is the raced plan best, and does its correction help other tables?

``python tools/races.py draw RESULTS COMMIT`` draws three table sets that the commit decides, so that nobody
chose them. ``run RESULTS`` races all six problems, each by the user's command, then times every strategy's plan afresh,
beside variants that choose in other ways among the plans that they saw. ``tables RESULTS OUT`` makes the tables of
these records. What is on record is not run again.
"""

import hashlib
import json
import math
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from shardbench.advice.best_plan import Candidate
from shardbench.advice.race import race
from shardbench.advice.race_round import RaceOptions, ratio_to_control
from shardbench.base.atomic import write_atomically
from shardbench.base.host import load
from shardbench.base.statistics import pooled_noise
from shardbench.calibrate.correction import RacedPlan, Trials, corrected, off_pct, raced_plans
from shardbench.cli.progress import progress
from shardbench.model.calibrated import chip_of
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.plan_files import plan_path
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.discovery import strategies
from shardbench.trials.evaluate import evaluate
from shardbench.trials.simulate import CountedQuestion
from shardbench.trials.suite import read_suite
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

DRAWN = "drawn.toml"
RACE_S, PLAN_S = 240, 45
"""Seconds of a race, and of planning before it."""
CHECKS = 2
"""Trials of every plan after the race."""
FIT_S, ONE_PLAN_S = 8.0, 15.0
"""Budget of a strategy that did not answer in the race, as in the suite ``measured``."""
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
    def race(self) -> str:
        """Name of the race's records."""
        return f"race-{self.workload}-{self.machine}"

    @property
    def check(self) -> str:
        """Name of the records of all plans' trials after the race."""
        return f"check-{self.workload}-{self.machine}"

    def build(self, results: Path) -> Workload:
        """Return the workload that is raced."""
        config = next(one for one in self._configs(results) if one["name"] == self.workload)
        return workload_config(config, self.name).build(Path("data"))

    def _configs(self, results: Path) -> list[dict[str, Any]]:
        if self.tables == DRAWN:
            return list(tomllib.loads((results / DRAWN).read_text())["workloads"])
        return list(read_suite(self.tables).workloads)


PROBLEMS = (
    Raced(name="mixed", tables="measured", workload="mixed", machine="cpu-1x2"),
    Raced(name="mixed-2x2", tables="measured", workload="mixed", machine="cpu-2x2"),
    Raced(name="histories", tables="measured", workload="histories", machine="cpu-1x2"),
    Raced(name="drawn-1", tables=DRAWN, workload="drawn-1", machine="cpu-1x2"),
    Raced(name="drawn-2", tables=DRAWN, workload="drawn-2", machine="cpu-1x2"),
    Raced(name="drawn-3", tables=DRAWN, workload="drawn-3", machine="cpu-2x2"),
)


def run(results: Path, only: Sequence[str]) -> None:
    """Race the problems by the user's command, then time all plans afresh."""
    for problem in PROBLEMS:
        if only and problem.name not in only:
            continue
        if not (results / f"{problem.name}.json").is_file():
            _race(problem, results)
        _check(problem, results)
        # No table reads the race's own trials; its standings stay.
        trial_store(results, problem.race).path.unlink(missing_ok=True)


def _race(problem: Raced, results: Path) -> None:
    tables = str(results / DRAWN) if problem.tables == DRAWN else problem.tables
    answer_file = results / f"{problem.name}.json"
    command = [
        "shardbench", "plan", tables, problem.machine, "--workload", problem.workload, "--budget", str(PLAN_S),
        "--race", "--race-s", str(RACE_S), "--results", str(results), "--json",
    ]  # fmt: skip
    print(" ".join(command), flush=True)
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    write_atomically(answer_file, json.dumps(json.loads(answer), indent=1, sort_keys=True) + "\n")


def _check(problem: Raced, results: Path) -> None:
    """Time the raced plan, every strategy's and the variants' again: no plan drops out, none knows the race."""
    workload = problem.build(results)
    answer = json.loads((results / f"{problem.name}.json").read_text())
    raced = {one["name"]: _plan(results, one["plan_hash"]) for one in answer["standings"] if one["plan_hash"]}
    best = answer["best"]
    candidates: dict[str, Candidate] = {}
    machine = load_machine(problem.machine)
    entrants = {name: one for name, one in strategies().items() if not one.role.named_only or name in VARIANTS}
    shared = any(Sees.INPUTS in strategy.sees for strategy in entrants.values())
    posed = Problem.of(
        workload.name, workload.tables, workload.profiles, machine, batch_size=workload.batch_size,
        inputs=workload.input_sample if shared else None,
    )  # fmt: skip
    question = CountedQuestion(posed, DrawnBatches(workload, workload.test_batches), workload.dense)
    candidates[RACED] = Candidate(name=RACED, plan=raced[best], step_ms=question.judge(raced[best]).step_ms)
    for name, strategy in entrants.items():
        plan = raced[name] if name in raced else _ask(question, strategy)
        if plan is not None and all(plan.segments != one.plan.segments for one in candidates.values()):
            candidates[name] = Candidate(name=name, plan=plan, step_ms=question.judge(plan).step_ms)
    options = RaceOptions(name=problem.check, results=results, data=Path("data"), drops=False, most_rounds=CHECKS)
    with progress(as_json=False) as listener:
        race(workload, problem.machine, list(candidates.values()), {}, options, listener)


def _ask(question: CountedQuestion, strategy: Strategy) -> Plan | None:
    answer = evaluate(question, strategy, Budget(plan_s=ONE_PLAN_S, fit_s=FIT_S), 0, slack=2.0)
    if isinstance(answer, Failure):
        print(f"{strategy.name}: {answer.outcome}: {answer.cause}")
        return None
    return answer.plan


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
        lines += [f"{key} = {_toml(value)}" for key, value in {**config, **sizes}.items()]
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


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + "".join(f"  {_toml(one)},\n" for one in value) + "]"
    return json.dumps(value)


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
        "plans_checked": len(own), "n": int(own["n"].min()), "n_counts": "process groups a plan",
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
    machine, workload = load_machine(raced.machine), raced.build(results)
    problem = Problem.of(workload.name, workload.tables, workload.profiles, machine, batch_size=workload.batch_size)
    return CountedQuestion(problem, DrawnBatches(workload, workload.test_batches), workload.dense, 10)


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

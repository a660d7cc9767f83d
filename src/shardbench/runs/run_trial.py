"""One trial: its question evaluated, and where asked the plan measured on real ranks; whatever happens is a record."""

import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardbench.base.errors import Infeasible
from shardbench.cost.bounds.embedding import Bound
from shardbench.engine.measure import rank_job, run_on_ranks
from shardbench.model.calibrated import calibrated_on
from shardbench.model.discovery import get_strategy, missing_modules, strategies
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.model.validate import validate
from shardbench.processes.failures import TrialFailed, failed, failure_of
from shardbench.processes.trial_folder import left_hash, next_attempt
from shardbench.records.plan_files import keep_lookups, keep_plan
from shardbench.records.provenance import Provenance
from shardbench.records.record import Draws, Planned, Record, Tiers, Timing, TrafficTotals
from shardbench.records.trial import Backend, Failure, Outcome, TrialSpec
from shardbench.runs.control import control_plan
from shardbench.runs.evaluate import Answer, Bounds, Limits, evaluate
from shardbench.runs.jobcheck import impossible, lacking_devices
from shardbench.runs.least_step import least_step_ms
from shardbench.runs.measured_trial import judge, write_trial
from shardbench.runs.simulate import CountedQuestion, Simulation
from shardbench.runs.suite import EVERY, Job
from shardbench.workloads.materialise import Batches, materialise, materialise_beside
from shardbench.workloads.workload import Workload

ROUNDING = 1e-9
"""Relative difference that sums in another order make."""
KEPT_LOG_BYTES = 1 << 20
"""Of what each process of a failed trial printed, the last."""
LEFT = "its ranks are left to torchrun or a scheduler; shardbench collect records them"


class MaterialisedQuestion(CountedQuestion):
    """Judged on test batches that lie on disk, where a strategy could get at them; they are made again if so."""

    def __init__(self, problem: Problem, workload: Workload, folder: Path, iterations: int) -> None:
        self._workload = workload
        self._numbers = range(min(iterations, workload.test_batches))
        self.written: Batches = materialise_beside(workload, folder, self._numbers)
        self.restorations = 0
        """How often the batches were made again."""
        self._restoring = threading.Lock()
        super().__init__(problem, self.written, workload.dense, iterations)

    def __getstate__(self) -> dict[str, object]:
        # Crosses to the processes that count, which need no workload.
        return {**self.__dict__, "_workload": None, "_restoring": None}

    def restored(self) -> bool:
        """See Question."""
        with self._restoring:
            if self.written.intact():
                return False
            shutil.rmtree(self.written.folder, ignore_errors=True)
            self.batches = self.written = materialise(self._workload, self.written.folder, self._numbers)
            self.restorations += 1
        return True


@dataclass(frozen=True, kw_only=True)
class Found:
    """A strategy's valid plan and what a record keeps of it; nothing by batch, as many are held."""

    plan: Plan
    traffic: TrafficTotals
    predicted: Timing
    bound: Bound | None
    """On plans like this one."""
    whole_table_bound_ms: float | None
    mean_step_ms: float
    step_bound_ms: float | None
    """On the step of plans like this one."""
    own_step_bound_ms: float | None
    """The same of plans made with the moves that the strategy declares."""
    draws: Draws | None


@dataclass(frozen=True, kw_only=True)
class Planning:
    """What asking a strategy once gave; ``planned`` is None where it made no valid plan."""

    planned: Planned | None
    found: Found | Failure


class JobContext:
    """What the trials of one job share, threads too; made when first needed, in a folder of the job.

    Repeats are A/A trials of one plan: a strategy is asked once for all repeats that a session runs.
    Plans and the logs of failed trials are kept under ``results`` where that is given;
    ``folder_stays`` says that job folders are for the user, who may run them elsewhere, and
    without ``launch`` will.
    """

    def __init__(
        self,
        job: Job,
        workload: Workload,
        folder: Path,
        *,
        results: Path | None = None,
        folder_stays: bool = False,
        launch: bool = True,
        data: Path | None = None,
    ) -> None:
        self.job = job
        self.workload = workload
        self.folder = folder
        self.results = results
        self.folder_stays = folder_stays
        self.launch = launch
        self.closed = (folder, *filter(None, [data]))
        """What no planner reaches: the test batches and, where it is given, the data that they were made of."""
        self.machine = job.load_machine()
        self._attempts: dict[str, Path] = {}
        self._plannings: dict[tuple[type[Strategy], str], Planning] = {}
        self._making, self._proving = threading.Lock(), threading.Lock()

    @cached_property
    def question(self) -> MaterialisedQuestion:
        """The planning problem, from the train split, and the test batches that the iterations go through, on disk."""
        problem = Problem.of(
            self.workload.name,
            self.workload.tables,
            self.workload.profiles,
            self.machine,
            batch_size=self.workload.batch_size,
            precision=self.job.precision,
            optimizer=self.job.optimizer,
            inputs=self.workload.input_sample if self._shows_inputs() else None,
        )
        made = MaterialisedQuestion(problem, self.workload, self.folder / "batches", self.job.iterations)
        made.closed = self.closed
        return made

    def _shows_inputs(self) -> bool:
        """Whether any strategy of the job looks at single inputs: a sample of them is as large as all else together."""
        named = self.job.strategies
        asked = strategies().values() if EVERY in named else [get_strategy(name) for name in named]
        return any(Sees.INPUTS in strategy.sees for strategy in asked)

    @cached_property
    def control(self) -> Plan:
        """What the ranks of every measured trial hold beside the trial's plan; raises TrialFailed."""
        try:
            plan = control_plan(self.question.problem)
        except Infeasible as error:
            raise TrialFailed(failure_of(error, "control")) from error
        validate(plan, self.question.problem, frozenset(Move))
        self.keep_plan(plan)
        return plan

    def planning(self, spec: TrialSpec, strategy: Strategy) -> Planning:
        """What the strategy gives for the trial and its other repeats, which run one after the other."""
        key = _asked(spec, strategy)
        if key not in self._plannings:
            self._plannings[key] = _plan(spec, strategy, self)
        return self._plannings[key]

    def bounds(self, answer: Answer[Simulation]) -> Bounds:
        """Those of the job's question, proven once; raises TrialFailed."""
        with self._proving:
            proven, before = self.question.proven, self.restorations
            bounds = answer.bounds
            if not proven and not self.untouched_since(before):
                self.question.forget_bounds()
            return bounds

    def untouched_since(self, restorations: int) -> bool:
        """Whether nobody changed the test batches since they had been made again so often."""
        made = "question" in self.__dict__
        return not made or (self.question.restorations == restorations and self.question.written.intact())

    @property
    def restorations(self) -> int:
        """How often the test batches were made again."""
        return self.question.restorations if "question" in self.__dict__ else 0

    def forget(self, spec: TrialSpec, strategy: Strategy) -> None:
        """Restore the test batches, and ask the strategy again for the trial."""
        self.question.restored()
        self._plannings.pop(_asked(spec, strategy), None)

    def new_attempt(self, key: str) -> Path:
        """Folder for the ranks of a measured trial, in which none was yet."""
        self._attempts[key] = next_attempt(self.folder / key)
        return self._attempts[key]

    def make(self) -> None:
        """Make what reads the user's files, so that BadInput of theirs is raised here and nowhere else."""
        with self._making:
            self.folder.mkdir(parents=True, exist_ok=True)
            _ = self.question

    def keep_plan(self, plan: Plan) -> None:
        """Keep a valid plan as ``plans/<hash>.json``, and in ``lookups/`` what a sample asks of its segments."""
        if self.results is not None:
            keep_plan(self.results, plan)
            keep_lookups(self.results, plan, self.question.problem, self.workload.fingerprint)

    def keep_log(self, key: str, *, ok: bool) -> None:
        """Keep what the processes of a trial printed as ``logs/<key>.log``, unless it ended well."""
        if self.results is not None:
            ran = sorted(self._attempts[key].glob("rank*.log")) if key in self._attempts else []
            keep_log(self.results, key, () if ok else (self.folder / f"{key}.log", *ran))


def keep_log(results: Path, key: str, parts: Iterable[Path]) -> None:
    """Make ``logs/<key>.log`` of those files that are there; without any there is none."""
    kept = results / "logs" / f"{key}.log"
    kept.unlink(missing_ok=True)
    there = [path for path in parts if path.is_file()]
    if not there:
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("wb") as file:
        for part in there:
            file.write(f"== {part.name}\n".encode())
            before = max(part.stat().st_size - KEPT_LOG_BYTES, 0)
            if before:
                file.write(f"({before} bytes before this are left out)\n".encode())
            with part.open("rb") as text:
                text.seek(before)
                file.write(text.read(KEPT_LOG_BYTES))


def run_trial(
    spec: TrialSpec, strategy: Strategy, context: JobContext, environment: str, provenance: Provenance | None = None
) -> Record:
    """Run one trial to its record; whatever goes wrong inside it is an outcome, not an exception.

    Raises BadInput only for files of the user's, which no trial of the job could read.
    """
    draft: dict[str, object] = {
        "key": spec.key,
        "spec": spec,
        "role": strategy.role,
        "environment": environment,
        "provenance": provenance,
    }
    failure = _cannot_start(spec, strategy, context)
    if failure is None:
        context.make()
        try:
            _fill(draft, spec, strategy, context)
        except Exception as error:
            failure = failure_of(error, "harness")
        context.keep_log(spec.key, ok=failure is None)
    if failure is not None:
        return Record.model_validate({**draft, "outcome": failure.outcome, "failure": failure})
    return Record.model_validate({**draft, "outcome": Outcome.OK})


def _cannot_start(spec: TrialSpec, strategy: Strategy, context: JobContext) -> Failure | None:
    cause = impossible(context.workload, context.machine, context.job)
    if cause:
        return Failure(outcome=Outcome.INFEASIBLE, cause=cause, phase="start")
    missing = missing_modules(strategy)
    cause = f"needs {', '.join(missing)}, which cannot be imported here" if missing else ""
    if not cause and not context.folder_stays:
        cause = lacking_devices(context.machine, spec.backend)
    return Failure(outcome=Outcome.SKIPPED, cause=cause, phase="start") if cause else None


def _asked(spec: TrialSpec, strategy: Strategy) -> tuple[type[Strategy], str]:
    return type(strategy), spec.model_copy(update={"repeat": 0}).key


def _plan(spec: TrialSpec, strategy: Strategy, context: JobContext) -> Planning:
    valid: list[Planned] = []

    def on_plan(plan: Plan, planned: Planned) -> None:
        # Kept even where the plan then cannot be counted or run.
        valid.append(planned)
        context.keep_plan(plan)

    budget = Budget(plan_s=spec.plan_s, fit_s=spec.fit_s)
    limits = Limits(timeout_s=spec.timeout_s, log=context.folder / f"{spec.key}.log")
    answer = evaluate(context.question, strategy, budget, spec.seed, limits=limits, on_plan=on_plan)
    if not isinstance(answer, Failure):
        try:
            return Planning(planned=answer.planned, found=_found(answer, spec, context))
        except TrialFailed as failed_bound:
            answer = failed_bound.failure
    return Planning(planned=valid[0] if valid else None, found=answer)


def _found(answer: Answer[Simulation], spec: TrialSpec, context: JobContext) -> Found:
    judged, measured = answer.judged, spec.backend is Backend.MEASURED
    bounds = context.bounds(answer)
    anyhow, own = bounds.of_step(answer.plan), bounds.of_step(answer.plan, answer.moves)
    return Found(
        plan=answer.plan,
        traffic=judged.totals,
        predicted=judged.timing(spec.iterations, by_rank=measured),
        bound=bounds.of(answer.plan, answer.planned.moves),
        whole_table_bound_ms=bounds.whole_tables_ms,
        mean_step_ms=judged.step_ms,
        step_bound_ms=anyhow.ms if anyhow is not None else None,
        own_step_bound_ms=own.ms if own is not None else None,
        draws=None if measured else judged.draws(context.question.problem, context.workload.dense),
    )


def _fill(draft: dict[str, object], spec: TrialSpec, strategy: Strategy, context: JobContext) -> None:
    planning = context.planning(spec, strategy)
    draft["planned"], found = planning.planned, planning.found
    if isinstance(found, Failure):
        raise TrialFailed(found)
    draft["traffic"], draft["predicted"] = found.traffic, found.predicted
    draft["tiers"] = _tiers(spec.backend, context)
    if found.bound is not None:
        draft["bound_ms"], draft["bound_fixed_ms"] = found.bound.ms, found.bound.fixed_ms
        draft["whole_table_bound_ms"] = found.whole_table_bound_ms
        draft["step_bound_ms"], draft["own_step_bound_ms"] = found.step_bound_ms, found.own_step_bound_ms
        draft["mean_step_ms"] = found.mean_step_ms
    if spec.backend is Backend.SIMULATED:
        _refuse_impossible(found)
        draft["timing"] = draft["predicted"]
        draft["draws"] = found.draws
        return
    _measure(draft, spec, found, context)


def _refuse_impossible(found: Found) -> None:
    """A time below what is proven says that plan, counter or bound is wrong: no number is shown then."""
    bound_ms = found.bound.ms if found.bound is not None else None
    held = (
        ("the step", found.mean_step_ms, found.step_bound_ms, "any device moves"),
        ("the step", found.mean_step_ms, found.own_step_bound_ms, "the strategy's moves"),
        ("the slowest device's embedding time", max(found.predicted.embedding_ms), bound_ms, "any device moves"),
    )
    for what, ms, least_ms, whose in held:
        if least_ms is not None and ms < least_ms * (1.0 - ROUNDING):
            cause = (
                f"{what}, {ms:.6g} ms, is below the bound proven for {whose}, {least_ms:.6g} ms: too good to be true"
            )
            raise failed(Outcome.INVALID, cause, "bound", "bound")


def _measure(draft: dict[str, object], spec: TrialSpec, found: Found, context: JobContext) -> None:
    batches = context.question.written
    job = rank_job(
        found.plan,
        context.question.problem,
        context.workload.dense,
        # As seen from the trial's folder.
        Path("..") / batches.folder.name,
        batches_hash=batches.hash,
        control=context.control,
        warmup=spec.warmup,
        iterations=spec.iterations,
        seed=spec.seed,
        timeout_s=spec.timeout_s,
    )
    draft["calibrated_on"] = calibrated_on(context.machine)
    draft["least_step_ms"] = least_step_ms(found.traffic, context.machine)
    folder = context.new_attempt(spec.key)
    write_trial(draft, job, folder)
    elsewhere = lacking_devices(context.machine, spec.backend) or ("" if context.launch else LEFT)
    if elsewhere:
        raise failed(Outcome.SKIPPED, elsewhere, "start")
    try:
        run_on_ranks(folder, job.topology.world_size, job.timeout_s)
        judge(draft, folder)
    finally:
        draft["ranks_hash"] = left_hash(folder)


def _tiers(backend: Backend, context: JobContext) -> Tiers:
    if backend is Backend.SIMULATED:
        return Tiers.SIMULATED
    return Tiers.COUNTED if context.machine.device == "cpu" else Tiers.PHYSICAL

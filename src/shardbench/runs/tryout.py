"""One trial: plan in a sealed process, validate, count, and where asked measure on real ranks."""

import shutil
import tempfile
import time
from functools import cached_property
from pathlib import Path

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput, InvalidPlan, ShardBenchError
from shardbench.base.serialise import content_hash
from shardbench.engine.launch import TrialFailed, call_in_child
from shardbench.engine.measure import measure, rank_job, write_job
from shardbench.model.discovery import missing_modules
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.model.validate import used_moves, validate
from shardbench.records.record import Planned, Record, Tiers
from shardbench.records.trial import Backend, Failure, Outcome, TrialSpec
from shardbench.runs.jobcheck import impossible, lacking_devices
from shardbench.runs.sealed import Planning, plan_sealed, simulated_bounds
from shardbench.runs.simulate import simulate
from shardbench.runs.suite import Job
from shardbench.workloads.materialise import Batches, materialise
from shardbench.workloads.workload import Workload

START_S = 20.0
"""Grace for starting a process, on top of a strategy's own budget."""


class JobContext:
    """What the trials of one job share; made when first needed, in a folder of the job.

    Plans and the logs of failed trials are kept under ``results`` where that is given;
    ``folder_stays`` says that job folders are for the user, who may run them elsewhere.
    """

    def __init__(
        self, job: Job, workload: Workload, folder: Path, *, results: Path | None = None, folder_stays: bool = False
    ) -> None:
        self.job = job
        self.workload = workload
        self.folder = folder
        self.results = results
        self.folder_stays = folder_stays
        self.machine = job.load_machine()

    @cached_property
    def problem(self) -> Problem:
        """The planning problem, from the train split."""
        return Problem.of(
            self.workload.name,
            self.workload.tables,
            self.workload.profiles,
            self.machine,
            batch_size=self.workload.batch_size,
            precision=self.job.precision,
            optimizer=self.job.optimizer,
        )

    @cached_property
    def batches(self) -> Batches:
        """The test batches the iterations go through, on disk."""
        number = min(self.job.iterations, self.workload.test_batches)
        return materialise(self.workload, self.folder / "batches", range(number))

    def make(self) -> None:
        """Make what reads the user's files, so that BadInput of theirs is raised here and nowhere else."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _ = self.problem, self.batches

    def batches_changed(self) -> bool:
        """Whether someone changed the test batches; if so they are made again."""
        if self.batches.intact():
            return False
        shutil.rmtree(self.folder / "batches", ignore_errors=True)
        del self.batches
        _ = self.batches
        return True

    def keep_plan(self, plan: Plan) -> None:
        """Keep a valid plan as ``plans/<hash>.json``."""
        if self.results is not None:
            write_atomically(self.results / "plans" / f"{content_hash(plan)}.json", plan.to_json() + "\n")

    def keep_log(self, key: str, *, ok: bool) -> None:
        """Keep what the processes of a trial printed as ``logs/<key>.log``, unless it ended well."""
        if self.results is None:
            return
        kept = self.results / "logs" / f"{key}.log"
        kept.unlink(missing_ok=True)
        parts = [
            path
            for path in (self.folder / f"{key}.log", *sorted((self.folder / key).glob("rank*.log")))
            if path.is_file()
        ]
        if ok or not parts:
            return
        kept.parent.mkdir(parents=True, exist_ok=True)
        with kept.open("wb") as file:
            for part in parts:
                file.write(f"== {part.name}\n".encode())
                with part.open("rb") as text:
                    shutil.copyfileobj(text, file)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Lower bounds on the slowest rank's embedding ms: any device move, whole tables."""
        return call_in_child(
            simulated_bounds,
            (self.problem, self.batches),
            timeout_s=self.job.timeout_s,
            phase="bound",
            log=self.folder / "bound.log",
        )


def try_out(spec: TrialSpec, strategy: Strategy, context: JobContext, environment: str) -> Record:
    """Run one trial to its record; whatever goes wrong inside it is an outcome, not an exception.

    Raises BadInput only for files of the user's, which no trial of the job could read.
    """
    draft: dict[str, object] = {
        "key": spec.key,
        "spec": spec,
        "role": strategy.role,
        "environment": environment,
    }
    failure = _cannot_start(spec, strategy, context)
    if failure is None:
        context.make()
        try:
            _fill(draft, spec, strategy, context)
        except TrialFailed as failed:
            failure = failed.failure
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            failure = Failure(outcome=Outcome.ERROR, cause=cause, phase="harness")
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


def _fill(draft: dict[str, object], spec: TrialSpec, strategy: Strategy, context: JobContext) -> None:
    log = context.folder / f"{spec.key}.log"
    planning = _plan(spec, strategy, context, log)
    try:
        plan = Plan.from_json(planning.plan, "plan")
    except BadInput as error:
        raise _failed(Outcome.INVALID, str(error), "validate") from error
    draft["planned"] = _planned(plan, planning, strategy, context.problem)
    context.keep_plan(plan)
    deadline = time.monotonic() + spec.timeout_s
    draft["bound_ms"], draft["whole_table_bound_ms"] = context.bounds
    simulation = call_in_child(
        simulate,
        (plan, context.problem, context.batches, context.workload.dense, spec.iterations),
        timeout_s=spec.timeout_s,
        phase="count",
        log=log,
    )
    draft["traffic"], draft["predicted"] = simulation.totals, simulation.timing
    draft["tiers"] = _tiers(spec.backend, context)
    if spec.backend is Backend.SIMULATED:
        draft["timing"] = simulation.timing
        return
    job = rank_job(
        plan,
        context.problem,
        context.workload.dense,
        context.folder / "batches",
        warmup=spec.warmup,
        iterations=spec.iterations,
        seed=spec.seed,
        timeout_s=max(1.0, deadline - time.monotonic()),
    )
    lacking = lacking_devices(context.machine, spec.backend)
    if lacking:
        write_job(job, context.folder / spec.key)
        raise _failed(Outcome.SKIPPED, lacking, "start")
    measurement = measure(job, context.folder / spec.key)
    draft["timing"] = measurement.timing
    draft["measured_bytes"] = {name: sum(sent) for name, sent in measurement.sent.items()}
    _compare_bytes(draft["measured_bytes"], simulation.totals.collectives)


def _tiers(backend: Backend, context: JobContext) -> Tiers:
    if backend is Backend.SIMULATED:
        return Tiers.SIMULATED
    return Tiers.COUNTED if context.machine.device == "cpu" else Tiers.PHYSICAL


def _plan(spec: TrialSpec, strategy: Strategy, context: JobContext, log: Path) -> Planning:
    budget = Budget(plan_s=spec.plan_s, fit_s=spec.fit_s)
    learns = type(strategy).fit is not Strategy.fit
    limit = spec.plan_s + START_S + (spec.fit_s if learns else 0.0)
    # A planner's open log must not lead it to the test batches.
    with tempfile.TemporaryDirectory(prefix="shardbench-plan-") as private:
        printed = Path(private) / "log"
        try:
            planning = call_in_child(
                plan_sealed, (strategy, context.problem, budget, spec.seed), timeout_s=limit, phase="plan", log=printed
            )
        finally:
            if printed.is_file():
                shutil.copyfile(printed, log)
            if context.batches_changed():
                raise _failed(Outcome.INVALID, "the strategy changed the test batches", "plan")
    if planning.fit_s > spec.fit_s:
        cause = f"fitting took {planning.fit_s:.1f} s, its budget is {spec.fit_s:g} s"
        raise _failed(Outcome.TIMEOUT, cause, "plan")
    if planning.plan_s > spec.plan_s:
        cause = f"planning took {planning.plan_s:.1f} s, its budget is {spec.plan_s:g} s"
        raise _failed(Outcome.TIMEOUT, cause, "plan")
    return planning


def _planned(plan: Plan, planning: Planning, strategy: Strategy, problem: Problem) -> Planned:
    try:
        memory = validate(plan, problem, strategy.moves)
    except InvalidPlan as error:
        raise _failed(Outcome.INVALID, str(error), "validate") from error
    except ShardBenchError as error:
        raise _failed(Outcome.ERROR, str(error), "validate") from error
    return Planned(
        plan_hash=content_hash(plan),
        plan_s=planning.plan_s,
        fit_s=planning.fit_s,
        segments=len(plan.segments),
        moves=tuple(sorted(used_moves(plan, problem))),
        notes=plan.notes,
        hbm_memory_bytes=tuple(memory.hbm.tolist()),
        uvm_memory_bytes=tuple(memory.uvm.tolist()),
        host_memory_bytes=tuple(memory.host.tolist()),
    )


def _compare_bytes(measured: object, counted: dict[str, tuple[float, float]]) -> None:
    sent = dict(measured) if isinstance(measured, dict) else {}
    for name, links in counted.items():
        if abs(sent.get(name, 0.0) - sum(links)) > 1e-6 * max(1.0, sum(links)):
            cause = f"{name}: ranks sent {sent.get(name, 0.0):.0f} bytes, the counter says {sum(links):.0f}"
            raise _failed(Outcome.ERROR, cause, "bytes")


def _failed(outcome: Outcome, cause: str, phase: str) -> TrialFailed:
    return TrialFailed(Failure(outcome=outcome, cause=cause, phase=phase))

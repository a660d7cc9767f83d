"""One trial: its question evaluated, and where asked the plan measured on real ranks; whatever happens is a record."""

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from shardbench.base.atomic import no_room
from shardbench.base.deadline import call_or, interrupts
from shardbench.base.errors import Infeasible
from shardbench.cost.memory.fullest import predicted_peak
from shardbench.engine.measure import rank_job, run_on_ranks
from shardbench.engine.processes.failures import TrialFailed, failed, failure_of
from shardbench.engine.processes.trial_folder import left_hash, next_attempt
from shardbench.model.calibrated import calibrated_on
from shardbench.model.plan import Plan
from shardbench.model.problem import Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy
from shardbench.model.validate import validate
from shardbench.records.provenance import Provenance
from shardbench.records.record import ROUNDING, Planned, Record, Tiers
from shardbench.records.store import keep_log, keep_lookups, keep_plan
from shardbench.records.trial import Backend, Failure, Outcome, TrialSpec
from shardbench.trials.control import control_plan
from shardbench.trials.discovery import get_entrant, missing_modules, strategies
from shardbench.trials.evaluate import Answer, Bounds, JudgeLimits, SecondJudge, evaluate
from shardbench.trials.jobcheck import impossible, lacking_devices
from shardbench.trials.measured_trial import judge, least_step_ms, write_trial
from shardbench.trials.quiet import MachineBusy, Quiet
from shardbench.trials.simulate import CountedQuestion, Simulation
from shardbench.trials.suite import EVERY, Job
from shardbench.workloads.materialise import Batches, materialise_beside
from shardbench.workloads.workload import Workload

NEVER_RAN = Failure(outcome=Outcome.SKIPPED, cause="no results of its ranks were collected", phase="start")
LEFT_TO_OTHERS = "its ranks are left to torchrun or a scheduler; shardbench collect records them"


@dataclass(frozen=True, kw_only=True)
class PlanningOutcome:
    """The result of asking a strategy once: a plan that is judged, or a failure."""

    planned: Planned | None = None
    """The plan in numbers; None where there is no valid one."""
    failure: Failure | None = None
    plan: Plan | None = None
    """The valid plan; None where there is a failure."""
    fields: dict[str, object] = field(default_factory=dict)
    """What records keep of a judged plan; nothing by batch, as many are held."""


@dataclass(eq=False)
class JobContext:
    """The things that the trials of one job share, threads too; made when first needed, in a folder of the job.

    Repeats are A/A trials of one plan: a strategy is asked once for all repeats that a session runs.
    Plans and the logs of failed trials are kept under ``results`` where that is given;
    ``folder_stays`` says that job folders are for the user, who may run them elsewhere, and
    without ``launch`` will. Ranks run here as ``quiet`` lets them. ``second`` judges plans beside the cost model.
    Files that cannot be kept before a record is on disk are put off to ``later``.
    """

    job: Job
    workload: Workload
    folder: Path
    _: KW_ONLY
    results: Path | None = None
    folder_stays: bool = False
    launch: bool = True
    data: Path | None = None
    quiet: Quiet = field(default_factory=Quiet)
    second: SecondJudge | None = None
    later: list[Callable[[], None]] = field(default_factory=list)
    """Makes the files of the results for which there was no room, once the record is on disk."""

    def __post_init__(self) -> None:
        self.machine = self.job.load_machine()
        self._attempts: dict[str, Path] = {}
        self._plannings: dict[tuple[type[Strategy], str], PlanningOutcome] = {}
        self._making, self._proving = threading.Lock(), threading.Lock()

    @cached_property
    def batches(self) -> Batches:
        """Write the test batches of the iterations to disk."""
        numbers = range(min(self.job.iterations, self.workload.test_batches))
        return materialise_beside(self.workload, self.folder / "batches", numbers)

    @cached_property
    def question(self) -> CountedQuestion:
        """Make the planning problem, from the train split, judged on the batches on disk."""
        inputs = self.workload.input_sample if self._shows_inputs() else None
        problem = self.workload.problem(self.machine, **self.job.training, inputs=inputs)
        question = CountedQuestion(problem, self.batches, self.workload.dense, self.job.iterations)
        # Planners behind a wall see neither test batches, nor the data behind them, nor results.
        question.closed = tuple(filter(None, [self.folder, self.data, self.results]))
        return question

    def _shows_inputs(self) -> bool:
        """Tell whether any strategy of the job looks at single inputs: a sample is as large as all else together."""
        names = self.job.strategies
        entrants = strategies().values() if EVERY in names else map(get_entrant, names)
        # Of one that raises here its own trial says so.
        return any(call_or(lambda: Sees.INPUTS in strategy.sees, otherwise=False) for strategy in entrants)  # noqa: B023

    @cached_property
    def control(self) -> Plan:
        """Make the plan that the ranks of every measured trial hold beside the trial's; raises TrialFailed."""
        try:
            plan = control_plan(self.question.problem)
        except Infeasible as error:
            raise TrialFailed(failure_of(error, "control")) from error
        validate(plan, self.question.problem, frozenset(Move))
        self.keep_plan(plan)
        return plan

    def planning(self, spec: TrialSpec, strategy: Strategy) -> PlanningOutcome:
        """Return what the strategy gives for the trial and its other repeats, which run one after the other."""
        key = type(strategy), spec.model_copy(update={"repeat": 0}).key
        outcome = self._plannings.get(key) or _plan(spec, strategy, self)
        # Draws are of the plan: of measured trials one record of it has them.
        fields = outcome.fields if spec.backend is Backend.SIMULATED else {**outcome.fields, "draws": None}
        self._plannings[key] = replace(outcome, fields=fields)
        return outcome

    def bounds(self, answer: Answer[Simulation]) -> Bounds:
        """Return the bounds of the job's question, proven once; raises TrialFailed."""
        with self._proving:
            return answer.bounds

    def new_attempt(self, key: str) -> Path:
        """Return a folder for the ranks of a measured trial, in which none was yet."""
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
            problem, fingerprint = self.question.problem, self.workload.fingerprint
            self._keep(partial(keep_plan, self.results, plan))
            self._keep(partial(keep_lookups, self.results, plan, problem, fingerprint))

    def keep_log(self, key: str, *, ok: bool) -> None:
        """Keep what the processes of a trial printed as ``logs/<key>.log``, unless it ended well."""
        if self.results is not None:
            rank_logs = sorted(self._attempts[key].glob("rank*.log")) if key in self._attempts else []
            self._keep(partial(keep_log, self.results, key, () if ok else (self.folder / f"{key}.log", *rank_logs)))

    def _keep(self, keep: Callable[[], None]) -> None:
        """Keep a file now, so that no record is without it, or later: none is lost for want of room for the file."""
        try:
            keep()
        except OSError:
            self.later.append(keep)


def open_record(spec: TrialSpec, strategy: Strategy, environment: str, provenance: Provenance | None) -> Record:
    """Return the record of a trial of which nothing is known yet, as if it never ran."""
    return Record(
        key=spec.key,
        spec=spec,
        role=call_or(lambda: strategy.role, Role.COMPETITOR),
        environment=environment,
        provenance=provenance,
        outcome=NEVER_RAN.outcome,
        failure=NEVER_RAN,
    )


def run_trial(
    spec: TrialSpec, strategy: Strategy, context: JobContext, environment: str, provenance: Provenance | None = None
) -> Record:
    """Run one trial to its record; whatever goes wrong inside it is an outcome, not an exception.

    Raises BadInput only for files of the user's, which no trial of the job could read, and where the machine is busy
    while trials are to have it for themselves.
    """
    record = open_record(spec, strategy, environment, provenance)
    try:
        failure = _cannot_start(spec, strategy, context)
    except BaseException as error:
        if interrupts(error):
            raise
        failure = failure_of(error, "start")
    if failure is not None:
        return record.ended(failure)
    context.make()
    try:
        outcome = context.planning(spec, strategy)
    except BaseException as error:
        # Without room for what the program itself writes the trial has no outcome.
        if interrupts(error) or no_room(error):
            raise
        record = record.ended(failure_of(error, "harness"))
    else:
        record = _judge_trial(record.model_copy(update={"planned": outcome.planned}), outcome, context)
    context.keep_log(spec.key, ok=record.failure is None)
    return record


def _cannot_start(spec: TrialSpec, strategy: Strategy, context: JobContext) -> Failure | None:
    cause = impossible(context.workload, context.machine, context.job)
    if cause:
        return Failure(outcome=Outcome.INFEASIBLE, cause=cause, phase="start")
    missing = missing_modules(strategy)
    cause = f"needs {', '.join(missing)}, which cannot be imported here" if missing else ""
    if not cause and not context.folder_stays:
        cause = lacking_devices(context.machine, spec.backend)
    return Failure(outcome=Outcome.SKIPPED, cause=cause, phase="start") if cause else None


def _plan(spec: TrialSpec, strategy: Strategy, context: JobContext) -> PlanningOutcome:
    valid: list[Planned] = []

    def on_plan(plan: Plan, planned: Planned) -> None:
        # Kept even where the plan then cannot be counted or run.
        valid.append(planned)
        context.keep_plan(plan)

    budget = Budget(plan_s=spec.plan_s, fit_s=spec.fit_s)
    limits = JudgeLimits(timeout_s=spec.timeout_s, log=context.folder / f"{spec.key}.log")
    answer = evaluate(context.question, strategy, budget, spec.seed, limits=limits, on_plan=on_plan)
    if not isinstance(answer, Failure):
        try:
            fields = _predict(answer, spec, context)
            return PlanningOutcome(planned=answer.planned, plan=answer.plan, fields=fields)
        except TrialFailed as failed_bound:
            answer = failed_bound.failure
    return PlanningOutcome(planned=valid[0] if valid else None, failure=answer)


def _predict(answer: Answer[Simulation], spec: TrialSpec, context: JobContext) -> dict[str, object]:
    """Return what a record keeps of a plan that is judged, by its fields; raises TrialFailed."""
    judged, measured = answer.judged, spec.backend is Backend.MEASURED
    bounds = context.bounds(answer)
    bound = bounds.of(answer.plan, answer.planned.moves)
    any_moves, own = bounds.of_step(answer.plan), bounds.of_step(answer.plan, answer.moves)
    second, problem, dense = context.second, context.question.problem, context.workload.dense
    peak = predicted_peak(answer.plan, problem, dense)
    measured_tiers = Tiers.COUNTED if context.machine.device == "cpu" else Tiers.PHYSICAL
    fields: dict[str, object] = {
        "traffic": judged.totals,
        "predicted": judged.timing(spec.iterations, by_rank=measured),
        "draws": judged.draws(problem, dense),
        "tiers": measured_tiers if measured else Tiers.SIMULATED,
        "torchrec_estimate_ms": second(answer.plan, problem, spec.timeout_s) if second else None,
        "peak_bytes": peak.bytes if peak is not None else None,
    }
    if bound is not None:
        fields |= {
            "bound_ms": bound.ms,
            "bound_fixed_ms": bound.fixed_ms,
            "whole_table_bound_ms": bounds.whole_tables_ms,
            "mean_step_ms": judged.step_ms,
            "step_bound_ms": any_moves.ms if any_moves is not None else None,
            "own_step_bound_ms": own.ms if own is not None else None,
        }
    return fields


def _judge_trial(record: Record, outcome: PlanningOutcome, context: JobContext) -> Record:
    """Return the record of a trial of a plan; what goes wrong from here on leaves the predictions known."""
    if outcome.plan is None:
        return record.ended(outcome.failure)
    predicted = record.ended(NEVER_RAN, **outcome.fields)
    try:
        if record.spec.backend is Backend.MEASURED:
            return _measure(predicted, outcome.plan, context)
        _refuse_impossible(predicted)
    except MachineBusy:
        raise
    except Exception as error:
        if no_room(error):
            raise
        return predicted.ended(failure_of(error, "harness"))
    return predicted.ended(None)


def _refuse_impossible(record: Record) -> None:
    """Refuse a predicted time below what is proven: plan, counter or bound is wrong then; raises TrialFailed."""
    embedding_ms = max(record.predicted.embedding_ms) if record.predicted is not None else None
    checks = (
        ("the step", record.mean_step_ms, record.step_bound_ms, "any device moves"),
        ("the step", record.mean_step_ms, record.own_step_bound_ms, "the strategy's moves"),
        ("the slowest device's embedding time", embedding_ms, record.bound_ms, "any device moves"),
    )
    for time, ms, least_ms, moves in checks:
        if ms is not None and least_ms is not None and ms < least_ms * (1.0 - ROUNDING):
            cause = (
                f"{time}, {ms:.6g} ms, is below the bound proven for {moves}, {least_ms:.6g} ms: too good to be true"
            )
            raise failed(Outcome.INVALID, cause, "bound", "bound")


def _measure(predicted: Record, plan: Plan, context: JobContext) -> Record:
    """Return the record of a trial whose plan ranks run here, or are to run elsewhere; raises TrialFailed."""
    spec, batches = predicted.spec, context.batches
    job = rank_job(
        plan,
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
    least_ms = least_step_ms(predicted.traffic, context.machine) if predicted.traffic is not None else None
    trial = predicted.ended(NEVER_RAN, calibrated_on=calibrated_on(context.machine), least_step_ms=least_ms)
    why_not_here = lacking_devices(context.machine, spec.backend) or ("" if context.launch else LEFT_TO_OTHERS)
    if why_not_here:
        write_trial(trial, job, context.new_attempt(spec.key))
        return trial.ended(Failure(outcome=Outcome.SKIPPED, cause=why_not_here, phase="start"))

    def run() -> Record:
        folder = context.new_attempt(spec.key)
        write_trial(trial, job, folder)
        try:
            run_on_ranks(folder, job.topology.world_size, job.timeout_s)
            return judge(trial, folder)
        except Exception as error:
            failure = _with_peak(failure_of(error, "harness"), plan, context)
            return trial.ended(failure, ranks_hash=left_hash(folder))

    record, others_share = context.quiet.take(run, spec.text)
    return record.model_copy(update={"others_share": others_share})


def _with_peak(failure: Failure, plan: Plan, context: JobContext) -> Failure:
    """Have a want of memory say beside its cause what was predicted of the fullest rank."""
    if failure.outcome is not Outcome.OOM:
        return failure
    peak = predicted_peak(plan, context.question.problem, context.workload.dense)
    predicted = "no peak is predicted of such plans" if peak is None else f"predicted: {peak.words}"
    return Failure.model_validate({**dict(failure), "cause": f"{failure.cause}; {predicted}"})

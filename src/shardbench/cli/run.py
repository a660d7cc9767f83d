"""The command ``run``: runs what is open of a suite."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardbench.base.atomic import sole_writer
from shardbench.base.errors import BadInput
from shardbench.base.generated import say
from shardbench.cli import options as shared
from shardbench.cli.compare import NOTHING_COMMITTED, committed_folder, others_folder
from shardbench.cli.names import machines, outcomes, say_left_out, suite_called
from shardbench.cli.progress import JsonProgress, progress
from shardbench.cli.report import print_report
from shardbench.cli.status import outcome_counts
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.records.store import plan_path
from shardbench.records.trial import Backend, Outcome
from shardbench.trials.cluster import Cluster, Engine

if TYPE_CHECKING:
    from shardbench.records.record import Record
    from shardbench.report.compare.on_record import OnRecord
    from shardbench.trials.evaluate import StepJudge
    from shardbench.trials.runner import RunOptions
    from shardbench.trials.suite import Job, Suite
    from shardbench.workloads.workload import Workload


def torchrec_step_ms(plan: Plan, problem: Problem) -> float | None:
    """Return TorchRec's own estimate of a plan's step in ms; None where it cannot express the plan."""
    # Imported by the process that judges alone: TorchRec takes seconds.
    from shardbench.engine.torchrec.estimate import torchrec_estimate_ms  # noqa: PLC0415

    return torchrec_estimate_ms(plan, problem)


def second_judge() -> "StepJudge | None":
    """Return the judge beside the cost model; None where TorchRec is not installed."""
    return torchrec_step_ms if importlib.util.find_spec("torchrec") is not None else None


def run_command(
    suite: shared.SuiteArgument,
    *,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            help="Run the suite's jobs on this machine instead, such as the file of doctor --calibrate.",
            autocompletion=machines,
        ),
    ] = None,
    backend: shared.BackendOption = None,
    strategy: shared.StrategiesOption = None,
    seed: shared.SeedsOption = None,
    data: shared.DataOption = shared.DEFAULT_DATA,
    results: shared.ResultsOption = shared.DEFAULT_RESULTS,
    force: shared.ForceOption = False,
    fresh: shared.FreshOption = False,
    outdated: shared.OutdatedOption = False,
    retry: shared.RetryOption = "",
    busy_ok: shared.BusyOption = False,
    work: shared.WorkOption = None,
    no_launch: shared.NoLaunchOption = False,
    parallel: shared.ParallelOption = 1,
    cluster: shared.ClusterOption = None,
    cluster_option: shared.ClusterOptions = None,
    update: Annotated[
        Path | None,
        typer.Option("--update", help="Write a machine file (.toml), corrected by the suite's one measured job."),
    ] = None,
    page: shared.PageOption = False,
    tables: shared.TablesOption = False,
    as_json: shared.JsonOption = False,
) -> int:
    """Run a suite and say which strategy is best.

    Only trials without a valid record run. A failed trial is recorded too, and the suite's tables are written. With
    --strategy it says which place the strategy has, also among the trials that are committed in the clone.
    """
    from shardbench.trials.runner import RunOptions, run_suite  # noqa: PLC0415

    if page:  # what a page needs is missed before anything runs
        from shardbench.studies.page import write_suite_page  # noqa: PLC0415
    if no_launch and work is None:
        raise BadInput("--no-launch leaves folders for ranks that you start: say where by --work DIR")
    loaded_suite = suite_called(suite) if machine is None else suite_called(suite).on(_anywhere(machine))
    if update is not None and len(_measured_jobs(loaded_suite)) != 1:
        raise BadInput("--update corrects the machine of one measured job: this suite has none or several")
    say_left_out()
    # Jobs elsewhere begin in other folders.
    options = RunOptions(
        results=results.resolve() if cluster else results,
        data=data.resolve() if cluster else data,
        backend=backend,
        strategies=tuple(strategy or ()),
        seeds=tuple(seed or ()),
        force=force,
        retry=outcomes(retry),
        work=work,
        launch=not no_launch,
        parallel=parallel,
        cluster=cluster_of(cluster, parallel, cluster_option or [], results),
        second_judge=second_judge(),
        calibrate=_calibrate,
        busy_ok=busy_ok,
    )
    if fresh or outdated:
        _delete_records(loaded_suite, options, outdated_only=not fresh)
    with progress(as_json) as listener:
        records = run_suite(loaded_suite, options, listener)
    if not records:
        raise BadInput(
            f"suite {loaded_suite.name} has no trial for this selection of backend, strategies and seeds; all it has: "
            f"shardbench status {suite}"
        )

    from shardbench.report.tables.answer import answers  # noqa: PLC0415
    from shardbench.report.tables.files import suite_records, write_tables  # noqa: PLC0415

    files = write_tables(results, loaded_suite.name)
    if page:
        files.append(write_suite_page(results, loaded_suite.name))
    updates = _update_machine(loaded_suite, options, records, update) if update is not None else []
    counts = outcome_counts(records)
    names, beside = options.strategies, _find_on_record(loaded_suite.name, options, records)
    if isinstance(listener, JsonProgress):
        others = beside.records if beside else ()
        replies = answers(suite_records(results, loaded_suite.name), results, of=records, placed=names, beside=others)
        fields = {"answers": [answer.data() for answer in replies], "tables": [str(path) for path in files]}
        fields["compared_with"], fields["updated"] = beside.lines if beside else [], updates
        listener.write({"event": "done", "outcomes": counts, **fields})
    else:
        say()
        print_report(results, loaded_suite.name, tables=tables, of=records, placed=names, beside=beside)
        if names and committed_folder() is None:
            say(NOTHING_COMMITTED)
        if page:
            say(f"page: {files[-1]}")
        for line in (*updates, _summary(len(records), counts)):
            say(line)
    return shared.EXIT_FAILED if counts.get(Outcome.ERROR) else shared.EXIT_OK


def _measured_jobs(suite: "Suite") -> list["Job"]:
    return [job for job in suite.jobs if job.backend is Backend.MEASURED]


def _update_machine(suite: "Suite", options: "RunOptions", records: "Sequence[Record]", out: Path) -> list[str]:
    """Correct the machine of the measured job by its trials that ended well; say how far off it was and is."""
    from shardbench.calibrate.correction import question_of, update_file  # noqa: PLC0415

    (job,) = _measured_jobs(suite)
    question = question_of(suite.workload(job).build(options.data), job)
    trials = [
        (Plan.from_json(plan_path(options.results, record.planned.plan_hash).read_text()), record)
        for record in records
        if record.spec.backend is Backend.MEASURED and record.outcome is Outcome.OK and record.planned is not None
    ]
    return update_file(job.machine, out, question, trials)


def _find_on_record(suite: str, options: "RunOptions", records: "Sequence[Record]") -> "OnRecord | None":
    """Find the committed trials that chosen strategies are held beside; None where none are, or where all ran."""
    from shardbench.report.compare.on_record import on_record  # noqa: PLC0415
    from shardbench.report.tables.files import suite_records  # noqa: PLC0415

    folder = others_folder(options.results) if options.strategies else None
    if folder is None or not any(record.spec.backend is Backend.SIMULATED for record in records):
        return None
    return on_record(folder, suite, records, suite_records(options.results, suite))


def _anywhere(machine: str) -> str:
    """Return the machine's name, or the whole path of its file: jobs on a cluster begin in other folders."""
    from shardbench.model.machine_file import load_machine  # noqa: PLC0415

    load_machine(machine)
    return str(Path(machine).resolve()) if machine.endswith(".toml") else machine


def _calibrate(machine: Machine, out: Path, workloads: "Sequence[Workload]") -> None:
    """Measure this computer as a machine of that shape, on which these workloads are to run."""
    from shardbench.calibrate.calibration import calibrate  # noqa: PLC0415
    from shardbench.calibrate.cases import workload_case  # noqa: PLC0415

    models = {workload.name: workload_case(workload, machine) for workload in workloads}
    calibrate(machine.device, machine.topology.world_size, out, quick=False, force=True, models=tuple(models.values()))


def _delete_records(suite: "Suite", options: "RunOptions", *, outdated_only: bool) -> None:
    """Delete the suite's records that the options choose, also of trials that the suite no longer has."""
    from shardbench.records.store import trial_store  # noqa: PLC0415
    from shardbench.report.compare.versions import trial_version  # noqa: PLC0415
    from shardbench.trials.discovery import get_strategy  # noqa: PLC0415

    plans = {Path(entry).stem for job in suite.jobs for entry in job.strategies}
    # A mistyped name is refused before anything is deleted.
    for name in set(options.strategies) - plans:
        get_strategy(name)

    def is_chosen(record: "Record") -> bool:
        of_backend = options.backend in (None, record.spec.backend)
        of_strategy = not options.strategies or record.spec.strategy in options.strategies
        return of_backend and of_strategy and (not options.seeds or record.spec.seed in options.seeds)

    with sole_writer(options.results):
        trial_store(options.results, suite.name).remove(
            lambda record: is_chosen(record) and (not outdated_only or not record.is_of(trial_version(record)))
        )


def cluster_of(engine: Engine | None, at_once: int, assignments: list[str], results: Path) -> Cluster | None:
    """Make the cluster that the options name, whose files lie under the results; raises BadInput for other options."""
    if engine is None:
        if assignments:
            raise BadInput("--cluster-option is for --cluster: say which cluster, or leave it out")
        return None
    parameters: dict[str, str | int] = {}
    for text in assignments:
        name, is_one, value = text.partition("=")
        if not is_one or not name.isidentifier():
            raise BadInput(f"--cluster-option {text}: write NAME=VALUE")
        parameters[name] = int(value) if value.isdigit() else value
    return Cluster(engine=engine, folder=results.resolve() / "cluster", at_once=at_once, parameters=parameters)


def _summary(total: int, counts: dict[str, int]) -> str:
    failed = {name: number for name, number in counts.items() if name != Outcome.OK}
    line = f"{total} trials: {counts.get(Outcome.OK, 0)} ok"
    if not failed:
        return line
    causes = ", ".join(f"{number} {name}" for name, number in failed.items())
    return f"{line}; not ok: {causes} (again: --retry {','.join(failed)})"

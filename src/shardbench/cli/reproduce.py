"""The command ``reproduce``: a baseline's suite, its studies, and what became of its paper's claims."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardbench.base.atomic import sole_writer
from shardbench.base.code import LEADERBOARD
from shardbench.base.errors import BadInput
from shardbench.base.generated import say
from shardbench.base.serialise import to_data
from shardbench.cli import options as shared
from shardbench.cli.claims import print_claims_of
from shardbench.cli.compare import NOTHING_COMMITTED, committed_folder, others_folder
from shardbench.cli.names import outcomes, papers, refuse_no_paper, strategy_names, suites
from shardbench.cli.progress import JsonProgress, PlainProgress, progress
from shardbench.cli.run import cluster_of, second_judge
from shardbench.records.base_record import BaseRecord
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.records.cell import CellRecord
    from shardbench.records.record import Record
    from shardbench.studies.beside import CellComparison
    from shardbench.studies.reproduction import Reproduction
    from shardbench.studies.session import SessionOptions

SUBMITTED = LEADERBOARD.rpartition(".")[2]
"""The studies whose records can be submitted (docs/rules.md)."""


def reproduce_command(
    name: shared.PaperArgument,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Run the small part of it: minutes, not an hour.")] = False,
    study: Annotated[list[str] | None, typer.Option("--study", help="Run this study and no suite; repeatable.")] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            help="Run the studies' cells of this strategy, also one that the paper does not know, and no suite.",
            autocompletion=strategy_names,
        ),
    ] = None,
    force: shared.ForceOption = False,
    fresh: shared.FreshOption = False,
    outdated: shared.OutdatedOption = False,
    retry: shared.RetryOption = "",
    parallel: shared.ParallelOption = 0,
    cluster: shared.ClusterOption = None,
    cluster_option: shared.ClusterOptions = None,
    data: shared.DataOption = shared.DEFAULT_DATA,
    results: shared.ResultsOption = shared.DEFAULT_RESULTS,
    page: shared.PageOption = False,
    as_json: shared.JsonOption = False,
) -> int:
    """Reproduce a paper and judge its claims.

    Only trials and cells without a valid record run. The tables are written, and claims are told with their evidence.
    """
    from shardbench.report.tables.files import write_tables  # noqa: PLC0415
    from shardbench.studies.beside import compare_cells, reuse  # noqa: PLC0415
    from shardbench.studies.ledger import write_study_files  # noqa: PLC0415
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415
    from shardbench.studies.session import SessionOptions, run_studies  # noqa: PLC0415
    from shardbench.trials.discovery import get_strategy  # noqa: PLC0415
    from shardbench.trials.runner import RunOptions, run_suite  # noqa: PLC0415
    from shardbench.trials.suite import load_suite  # noqa: PLC0415

    if page:  # what a page needs is missed before anything runs
        from shardbench.studies.page import write_reproduction_page  # noqa: PLC0415

    if name not in papers():
        refuse_no_paper(name)
    reproduction = find_reproduction(name)
    for study_name in study or ():
        reproduction.study(study_name)
    for strategy_name in strategy or ():
        get_strategy(strategy_name)
    retry_outcomes = outcomes(retry)
    if fresh or outdated:
        if quick or study or strategy:
            raise BadInput(
                "--fresh and --outdated are about all of a paper: leave out --quick, --study and --strategy, or use "
                "--force"
            )
        _delete_records(reproduction, results, outdated_only=not fresh)
    job_cluster = cluster_of(cluster, parallel, cluster_option or [], results)
    if job_cluster is not None:  # jobs begin in other folders
        results, data = results.resolve(), data.resolve()
    study_options = SessionOptions(
        results=results,
        quick=quick,
        studies=tuple(study or ()),
        strategies=tuple(strategy or ()),
        force=force,
        retry=retry_outcomes,
        workers=parallel,
        cluster=job_cluster,
    )
    if strategy and not any(study_options.cells(each) for each in study_options.studies_of(reproduction)):
        _refuse_no_cell(name, strategy)
    committed = others_folder(results) if strategy else None
    with progress(as_json) as listener:
        if committed is not None and not force:
            _note_reused(reuse(reproduction, study_options, committed), committed, listener)
        trials: list[Record] = []
        files: list[Path] = []
        if not study and not strategy and name in suites():
            options = RunOptions(
                results=results, data=data, quick=quick, force=force, retry=retry_outcomes, second_judge=second_judge(),
                parallel=parallel, cluster=job_cluster,
            )  # fmt: skip
            trials = run_suite(load_suite(name), options, listener)
            files = write_tables(results, name) if trials else []
        cells = run_studies(reproduction, study_options, listener)
    files += write_study_files(reproduction, results)
    places = list(compare_cells(reproduction, study_options, committed)) if strategy else []
    if page:
        files.append(write_reproduction_page(reproduction, results, places))
    _say(reproduction, study_options, files, [*trials, *cells], listener, places=places, committed=committed)
    errors = any(record.outcome is Outcome.ERROR for record in trials)
    return shared.EXIT_FAILED if errors or any(record.cause for record in cells) else shared.EXIT_OK


def _delete_records(reproduction: "Reproduction", results: Path, *, outdated_only: bool) -> None:
    """Delete the records of the paper's suite and of all its studies, also of those that it no longer has."""
    from shardbench.records.store import cell_store, trial_store  # noqa: PLC0415
    from shardbench.report.compare.versions import trial_version  # noqa: PLC0415
    from shardbench.studies.session import cell_version  # noqa: PLC0415

    studies = {study.name: study for study in reproduction.studies}

    def is_old(record: "CellRecord") -> bool:
        study = studies.get(record.study)
        return study is None or study.version != record.version or not record.is_of(cell_version(study, record.cell))

    with sole_writer(results):
        trial_store(results, reproduction.owner).remove(
            lambda record: not outdated_only or not record.is_of(trial_version(record))
        )
        for path in sorted((results / "studies" / reproduction.owner).glob("*.jsonl")):
            cell_store(results, reproduction.owner, path.stem).remove(
                lambda record: not outdated_only or is_old(record)
            )


def _refuse_no_cell(name: str, strategies: list[str]) -> None:
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415

    fault = f"no study of {name} that is chosen poses its tasks to {', '.join(strategies)}"
    if name not in suites():
        open_to_all = [each for each in papers() if any(study.strategies for study in find_reproduction(each).studies)]
        raise BadInput(f"{fault}; these have tasks for every strategy: {', '.join([*open_to_all, SUBMITTED])}")
    raise BadInput(
        f"{fault}; its suite compares those that it names: add yours to a copy of benchmarks/suites/{name}.toml"
    )


def _note_reused(counts: tuple[int, int], committed: Path, listener: PlainProgress) -> None:
    reused, outdated = counts
    if reused:
        listener.noted(f"{reused} bounds are reused from {committed}, where this version proved them")
    if outdated:
        listener.noted(f"{outdated} bounds in {committed} are of another version than this: they are proven again")


def _say(
    reproduction: "Reproduction",
    options: "SessionOptions",
    files: list[Path],
    records: list[BaseRecord],
    listener: PlainProgress,
    *,
    places: "list[CellComparison]",
    committed: Path | None,
) -> None:
    from shardbench.report.tables.files import json_rows  # noqa: PLC0415
    from shardbench.studies.ledger import ledger  # noqa: PLC0415

    results = options.results
    if isinstance(listener, JsonProgress):
        listener.write(
            {
                "event": "done",
                "claims": json_rows(ledger(results, reproduction).claims),
                "failed": [record.key for record in records if record.cause],
                "files": [str(path) for path in files],
                "places": [to_data(each) for each in places],
            }
        )
        return
    for path in files:
        say(f"written: {path}")
    if not options.strategies:
        print_claims_of(reproduction, results)
    for line in shared.failure_lines(records, results):
        say(line)
    if options.strategies and committed_folder() is None:
        say(NOTHING_COMMITTED)
    for each in places:
        say()
        for line in _place_lines(each, committed):
            say(line)
    if reproduction.owner == SUBMITTED and options.strategies:
        say(_to_submit(options))


def _place_lines(place: "CellComparison", committed: Path | None) -> Iterator[str]:
    """Say beside whose cells a study's are held, of which commits those are, and what came of it."""
    if place.others:
        others = f"; {place.not_compared} are of other versions and left out" if place.not_compared else ""
        commits = ", ".join(place.commits) or "not stated"
        yield f"{place.study}, beside {place.others} others in {committed} (commit {commits}{others}):"
    else:
        yield f"{place.study}:"
    yield from (f"  {line}" for one in place.places for line in one.lines())


def _to_submit(options: "SessionOptions") -> str:
    results = options.results
    if options.quick:
        return "to submit: a run of all problems, without --quick"
    return (
        f"to submit: {results / 'studies' / SUBMITTED}, {results / 'environments'} and {results / 'plans'}, with the "
        f"strategy's package; check them first: shardbench check-submission {results}"
    )

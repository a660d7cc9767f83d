"""The part of ``plan`` that runs plans: a race on real ranks, and its answer on one screen."""

import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.cli import options as shared
from shardbench.cli.names import outcomes
from shardbench.records.trial import unusual

if TYPE_CHECKING:
    from shardbench.advice.best_plan import PlanSearch
    from shardbench.advice.race import RaceResult, Standing
    from shardbench.advice.race_round import RaceOptions
    from shardbench.base.statistics import Average
    from shardbench.model.constraints import Constraints
    from shardbench.model.machine import Machine
    from shardbench.model.strategy import Strategy
    from shardbench.workloads.workload import Workload

GIB = 2.0**30
COLUMNS = 79
SHOWN = 7
"""Most candidates that have a line of their own, so that the answer is one screen."""
NEXT = 3
"""Slower ones, and failed ones, that have a line of their own."""
BUSY = 0.05
"""Share of the cores that others may use unsaid."""


@dataclass(frozen=True, kw_only=True)
class Racing:
    """The options of a race."""

    race: Annotated[
        bool, typer.Option("--race", help="Run the plans of all strategies on real ranks, the slower ones less often.")
    ] = False
    race_s: Annotated[
        float,
        typer.Option(
            "--race-s", min=0.0, callback=shared.seconds, help="Seconds of a race; its first round always runs whole."
        ),
    ] = 300.0
    results: shared.ResultsOption = shared.DEFAULT_RESULTS
    work: shared.WorkOption = None
    no_launch: shared.NoLaunchOption = False
    retry: shared.RetryOption = ""
    update: Annotated[
        Path | None, typer.Option("--update", help="Write a machine file (.toml) that what was raced corrects.")
    ] = None

    def check(self) -> None:
        """Raise BadInput for options of a race without one, and for folders that nobody says where to make."""
        for name, given in (("--work", self.work), ("--no-launch", self.no_launch), ("--update", self.update)):
            if given and not self.race:
                raise BadInput(f"{name} is for a race: add --race")
        if self.no_launch and self.work is None:
            raise BadInput("--no-launch leaves folders for ranks that you start: say where by --work DIR")


@dataclass(frozen=True, kw_only=True)
class RaceRequest(Racing):
    """What the command line asks of a race."""

    machine: str
    """The machine's name, or the path of its file."""
    data: Path
    out: Path | None
    as_json: bool

    def check_machine(self, machine: "Machine") -> None:
        """Raise BadInput, before anything takes time, for options that do not fit and ranks that cannot run here."""
        from shardbench.advice.race import refuse_elsewhere  # noqa: PLC0415

        outcomes(self.retry)
        refuse_elsewhere(machine, self.work)

    def run(
        self,
        search: "PlanSearch",
        workload: "Workload",
        strategies: "Sequence[Strategy]",
        training: Mapping[str, Any],
        *,
        constraints: "Constraints | None",
        budget_s: float,
        seed: int,
    ) -> int:
        """Race the plans of a search and their runners-up, tell the answer and give the exit code."""
        from shardbench.advice.race import Ending, race  # noqa: PLC0415
        from shardbench.advice.race_entry import gather_candidates  # noqa: PLC0415
        from shardbench.cli.progress import PlainProgress, progress  # noqa: PLC0415

        options = self._options(search)
        candidates = gather_candidates(
            search, workload, strategies, constraints=constraints, budget_s=budget_s, seed=seed
        )  # fmt: skip
        # With --json stdout has the answer alone.
        with nullcontext(PlainProgress(sys.stderr)) if self.as_json else progress() as listener:
            race_result = race(workload, self.machine, candidates, training, options, listener)
        best = race_result.best
        if best is not None and self.out is not None:
            write_atomically(self.out, best.plan.to_json() + "\n")
        answer = ["", *lines(race_result, search, options, self.out)]
        update_lines = self._update_machine(race_result, search, workload, options) if self.update is not None else []
        data = {**_data(race_result, search, options, self.out), "updated": update_lines}
        shared.tell(data, answer + update_lines, as_json=self.as_json)
        if race_result.ended_by is Ending.INTERRUPTED:
            return shared.EXIT_INTERRUPTED
        return shared.EXIT_OK if best is not None or race_result.waiting else shared.EXIT_FAILED

    def _options(self, search: "PlanSearch") -> "RaceOptions":
        from shardbench.advice.race_round import RaceOptions  # noqa: PLC0415

        return RaceOptions(
            name=f"race-{search.problem.name}-{search.problem.machine.name}",
            results=self.results,
            data=self.data,
            race_s=self.race_s,
            work=self.work,
            launch=not self.no_launch,
            retry=outcomes(self.retry),
        )

    def _update_machine(
        self, race_result: "RaceResult", search: "PlanSearch", workload: "Workload", options: "RaceOptions"
    ) -> list[str]:
        """Correct the machine file by all trials that ended well; say how far off it was and is."""
        from shardbench.calibrate.correction import update_file  # noqa: PLC0415
        from shardbench.trials.simulate import CountedQuestion  # noqa: PLC0415
        from shardbench.workloads.materialise import DrawnBatches  # noqa: PLC0415

        trials = [(standing.plan, record) for standing in race_result.standings for record in standing.records]
        if self.update is None or not trials:
            return []
        batches = DrawnBatches(workload, min(options.iterations, workload.test_batches))
        question = CountedQuestion(search.problem, batches, workload.dense, options.iterations)
        return ["", *update_file(self.machine, self.update, question, trials)]


def lines(race: "RaceResult", search: "PlanSearch", options: "RaceOptions", out: Path | None) -> list[str]:
    """Give the answer in lines of at most 80 columns."""
    problem = search.problem
    size = sum(problem.weight_bytes(table) for table in problem.tables) / GIB
    answer = [f"{problem.name}: {len(problem.tables)} tables, {size:.3g} GiB, batch {problem.batch_size}"]
    answer += [f"on {problem.machine.name}: {problem.world_size} devices, raced on its ranks (measured)"]
    answer += unusual(problem.exchange, problem.schedule)
    best = race.best
    if best is not None:
        answer += ["", *_best_lines(best, race, problem.batch_size, options), "", *_table(race, best)]
    answer += [*_out_lines(race), ""]
    if race.noise is not None and best is not None:
        answer += _wrapped(f"the model {_model(race, best)}")
    strategies, distinct = len(search.tried), len(race.standings)
    planless = ", ".join(one.strategy for one in search.tried if one.step_ms is None)
    planning_text = f"planned {search.took_s:.1f} s: {distinct} distinct plans of {strategies} strategies"
    answer += _wrapped(planning_text + (f"; without a plan: {planless}" if planless else ""))
    before = f", {race.on_record} trials were on record" if race.on_record else ""
    race_text = f"raced {race.seconds:.0f} s: {race.rounds} whole rounds{before}; ended as {race.ended_by.value}"
    answer += _wrapped(race_text)
    answer.append(f"records: {options.results / 'records' / options.name}.jsonl")
    if race.waiting:
        answer += ["", *_start_lines(race, search, options)]
    elif best is not None:
        answer.append(f"plan: {out} (shardbench export {out})" if out else "keep the plan with --out PLAN.json")
    return answer


def _best_lines(best: "Standing", race: "RaceResult", batch_size: int, options: "RaceOptions") -> list[str]:
    ties = [one.name for one in race.standings if one.ties]
    if race.noise is None:
        tie = "one trial each: who ties is not known; the same command goes on"
    else:
        noise = 100.0 * race.noise.deviation
        tie = f"{len(ties)} tie (=)" if ties else "nobody ties with it"
        tie += f"; one trial's noise is {noise:.2g} %, by all repeats"
    trials = f"{best.n} trial{'s' if best.n > 1 else ''}"
    per_s = 1e3 * batch_size / best.step.value if best.step is not None else 0.0
    sentences = [
        f"best: {best.name}, {_interval(best.step)} ms a step, {per_s:,.0f} samples/s",
        f"  95 % intervals; n = {trials} of {options.iterations} steps, each in processes of its own; {tie}",
    ]
    records = [record for one in race.standings for record in one.records]
    if any(record.shares_cores for record in records):
        sentences.append("  more ranks than cores ran: these times are of how the cores are shared")
    others_share = statistics.median([record.others_share or 0.0 for record in records])
    if others_share > BUSY:
        sentences.append(f"  others used {100 * others_share:.0f} % of the cores meanwhile")
    return [part for line in sentences for part in _wrapped(line)]


def _table(race: "RaceResult", best: "Standing") -> list[str]:
    """Give a line each to those that tie and the next few, and one to all slower ones."""
    racers = [one for one in race.standings if one.n]
    top = racers[: min(SHOWN, 1 + sum(one.ties for one in racers) + NEXT)]
    width = max(len(one.name) for one in top)
    rows = [f"  {'':{width}}  ms a step  over the control's     n  to best  predicted"]
    for one in top:
        against = "" if one is best else "=" if one.ties else f"+{_slower_pct(one, best):.1f} %"
        ratio, ms = _interval(one.ratio, 3), f"{one.predicted_ms:.4g} ms"
        rows.append(f"  {one.name:{width}}  {_middle(one.step):>9}  {ratio:22} {one.n:>2}  {against:>7}  {ms:>9}")
    rest = racers[len(top) :]
    ties, slower = [one for one in rest if one.ties], [_slower_pct(one, best) for one in rest if not one.ties]
    more = [f"{len(ties)} more tie"] if ties else []
    more += [f"{len(slower)} slower, by {min(slower):.0f} to {max(slower):.0f} %"] if slower else []
    return [*rows, f"  and {', '.join(more)}"] if more else rows


def _middle(step: "Average | None") -> str:
    return f"{step.value:.4g}" if step is not None else ""


def _interval(average: "Average | None", digits: int = 4) -> str:
    if average is None or average.low is None:
        return f"{average.value:.{digits}g}" if average is not None else ""
    return f"{average.value:.{digits}g} ({average.low:.{digits}g} to {average.high:.{digits}g})"


def _out_lines(race: "RaceResult") -> list[str]:
    """Say who failed and who has not run."""
    failed = [one for one in race.standings if one.cause]
    never = [one.name for one in race.standings if not (one.n or one.cause)]
    notes = [f"failed: {one.name}, {one.cause}" for one in failed[:NEXT]]
    if failed[NEXT:]:
        notes.append(f"and {len(failed[NEXT:])} more failed: " + ", ".join(one.name for one in failed[NEXT:]))
    if never:
        notes.append(f"not run yet: {', '.join(never)}")
    return [
        part for line in notes for part in _wrapped(textwrap.shorten(line, 2 * shared.line_width(COLUMNS)), first="  ")
    ]


def _slower_pct(one: "Standing", best: "Standing") -> float:
    return 100.0 * (one.slower_than(best) - 1.0)


def _model(race: "RaceResult", best: "Standing") -> str:
    """Say what the cost model had said of the order: its first, and of the pairs told apart those in its order."""
    first = min(race.standings, key=lambda one: one.predicted_ms)
    if first is best:
        verdict = f"had put {first.name} first, too"
    elif not first.n:
        verdict = f"had put {first.name} first, which has no time"
    else:
        how = "ties" if first.ties else f"is {_slower_pct(first, best):.1f} % slower"
        verdict = f"had put {first.name} first, which {how}"
    in_order, pairs = race.model_order()
    return f"{verdict}; it has {in_order} of the {pairs} pairs in order that are told apart"


def _start_lines(race: "RaceResult", search: "PlanSearch", options: "RaceOptions") -> list[str]:
    """Say how to start the ranks of a round, and how to go on."""
    topology = search.problem.topology
    rendezvous = (
        f"--nnodes {topology.nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29400"
        if topology.nodes > 1
        else "--standalone"
    )
    return [
        f"round {race.rounds + 1}: {race.waiting} trials wait for their ranks. Start them by torchrun on every",
        "machine, or by SLURM (examples/slurm/trials.sbatch), and collect:",
        f"  for folder in $(shardbench collect {options.work} --open); do",
        f"    torchrun {rendezvous} \\",
        f"      --nproc-per-node {topology.devices_per_node} -m shardbench.engine.rank $folder",
        "  done",
        f"  shardbench collect {options.work} --results {options.results}",
        "Then the command that you gave just now goes on.",
    ]


def _wrapped(line: str, first: str = "") -> list[str]:
    return textwrap.wrap(line, shared.line_width(COLUMNS), initial_indent=first, subsequent_indent="    ")


def _data(race: "RaceResult", search: "PlanSearch", options: "RaceOptions", out: Path | None) -> dict[str, Any]:
    from shardbench.base.serialise import to_data  # noqa: PLC0415
    from shardbench.records.trial import TRAINING  # noqa: PLC0415

    in_order, pairs = race.model_order()
    best = race.best
    return {
        "workload": search.problem.name,
        "machine": search.problem.machine.name,
        "batch_size": search.problem.batch_size,
        "backend": "measured",
        **{name: getattr(search.problem, name).value for name in TRAINING},
        "best": best.name if best is not None else None,
        "standings": [
            {
                "name": one.name,
                "predicted_ms": one.predicted_ms,
                "ratio_to_control": to_data(one.ratio) if one.ratio is not None else None,
                "step_ms": to_data(one.step) if one.step is not None else None,
                "n": one.n,
                "dropped_in": one.dropped_in,
                "ties": one.ties if race.noise is not None else None,
                "cause": one.cause,
                "trials": [record.key for record in one.records],
                "plan_hash": one.records[0].planned.plan_hash if one.records and one.records[0].planned else None,
            }
            for one in race.standings
        ],
        "noise": to_data(race.noise) if race.noise is not None else None,
        "model_order": {"pairs_told_apart": pairs, "in_order": in_order},
        "rounds": race.rounds,
        "ended_by": race.ended_by.name.lower(),
        "waiting": race.waiting,
        "known": race.on_record,
        "planned_s": search.took_s,
        "raced_s": race.seconds,
        "records": str(options.results / "records" / f"{options.name}.jsonl"),
        "tried": [to_data(one) for one in search.tried],
        "file": str(out) if out is not None and best is not None else None,
    }

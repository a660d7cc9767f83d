"""Factory of records for the tests of stores, tables, pages and the command line."""

import math
from pathlib import Path
from typing import Any

from shardbench.base.code import JUDGE_VERSION
from shardbench.model.strategy import Move, Role
from shardbench.records.provenance import Provenance
from shardbench.records.record import Control, Draws, Planned, Record, Timing, TrafficTotals
from shardbench.records.store import RecordStore, trial_store
from shardbench.records.trial import Backend, Failure, Outcome, TrialSpec

COLLECTIVES = {
    "input_splits": (1.0, 2.0),
    "input_all_to_all": (10.0, 20.0),
    "output_all_to_all": (100.0, 200.0),
    "output_reduce_scatter": (0.0, 0.0),
    "backward_all_to_all": (1000.0, 2000.0),
    "backward_all_gather": (0.0, 0.0),
    "rows_all_reduce": (3.0, 4.0),
    "dense_all_reduce": (30.0, 40.0),
}


def spec(strategy: str = "greedy-size", **changes: Any) -> TrialSpec:
    """A trial; keyword arguments replace fields."""
    given: dict[str, Any] = {
        "suite": "quick",
        "workload": "dlrm20",
        "workload_fingerprint": "f" * 16,
        "machine": "cpu-1x2",
        "machine_hash": "a" * 16,
        "backend": Backend.MEASURED,
        "strategy": strategy,
        "seed": 0,
        "batch_size": 1000,
        "iterations": 4,
        "plan_s": 60.0,
        "fit_s": 600.0,
        "timeout_s": 300.0,
    }
    return TrialSpec(**{**given, **changes})


def timing(step_ms: tuple[float, ...], embedding_ms: tuple[float, ...], **phases: float) -> Timing:
    """Times of one trial."""
    return Timing(step_ms=step_ms, phases_ms=phases or {"input": 1.0, "lookup": 2.0}, embedding_ms=embedding_ms)


def control(*step_ms: float, plan_hash: str = "9" * 16) -> Control:
    """The steps of the control plan."""
    return Control(plan_hash=plan_hash, step_ms=step_ms)


def drifting(strategy: str, own_ms: float, speeds: tuple[float, ...], off: float, **changes: Any) -> list[Record]:
    """Trials while the machine takes so many times as long, the steps off by turns by a share; one iteration is slow.

    Beside each the control takes 10 ms times that.
    """
    return [
        ok(
            strategy,
            (own_ms * slow * math.exp(off * (-1) ** repeat),) * 3 + (99.0,),
            repeat=repeat,
            changes={"control": control(*(10.0 * slow,) * 3, 99.0), **changes},
        )
        for repeat, slow in enumerate(speeds)
    ]


def draws(step_ms: float, *, embedding_ms: float = 1.0, errors: tuple[float, ...] = (0.8, 0.9, 1.1, 1.2)) -> Draws:
    """The prediction under draws that err by these factors."""
    return Draws(
        step_ms=tuple(step_ms * error for error in errors), embedding_ms=tuple(embedding_ms * error for error in errors)
    )


def planned(**changes: Any) -> Planned:
    """A plan of two ranks on one node."""
    given: dict[str, Any] = {
        "plan_hash": "0" * 16,
        "plan_s": 0.5,
        "fit_s": 0.0,
        "segments": 2,
        "moves": (Move.TABLE,),
        "notes": {},
        "hbm_memory_bytes": (4000, 6000),
        "uvm_memory_bytes": (0, 0),
        "host_memory_bytes": (0,),
    }
    return Planned(**{**given, **changes})


def provenance(made_by: str | None = "1", **changes: Any) -> Provenance:
    """Made by that version, a while ago."""
    given: dict[str, Any] = {
        "commit": "d" * 40,
        "dirty": False,
        "judge_version": JUDGE_VERSION,
        "made_by": made_by,
        "started": "2026-01-02T03:04:05Z",
        "load_at_start": 0.25,
        "load_at_end": 1.5,
    }
    return Provenance(**{**given, **changes})


def totals(**changes: Any) -> TrafficTotals:
    """Counted traffic."""
    given: dict[str, Any] = {
        "lookups": 200.0,
        "off_hbm_lookups": 50.0,
        "distinct_rows": (40.0, 60.0),
        "hbm_bytes": 12800.0,
        "uvm_bytes": 640.0,
        "host_bytes": 0.0,
        "collectives": COLLECTIVES,
    }
    return TrafficTotals(**{**given, **changes})


def ok(
    strategy: str = "greedy-size",
    step_ms: tuple[float, ...] = (10.0, 20.0, 30.0, 40.0),
    embedding_ms: tuple[float, ...] = (2.0, 4.0),
    *,
    role: Role = Role.COMPETITOR,
    changes: dict[str, Any] | None = None,
    **spec_changes: Any,
) -> Record:
    """A record that ended well; ``changes`` replace fields of the record, the rest those of the spec."""
    trial = spec(strategy, **spec_changes)
    times = timing(step_ms, embedding_ms)
    given: dict[str, Any] = {
        "key": trial.key,
        "spec": trial,
        "outcome": Outcome.OK,
        "role": role,
        "environment": "e" * 16,
        "provenance": provenance(),
        "planned": planned(),
        "timing": times,
        "predicted": times,
        "traffic": totals(),
    }
    given |= changes or {}
    if trial.backend is Backend.SIMULATED and (changes or {}).get("predicted") is None:
        given["predicted"] = given["timing"]
    return Record(**given)


def failed(
    outcome: Outcome = Outcome.OOM, strategy: str = "greedy-size", *, rank: int | None = 1, **spec_changes: Any
) -> Record:
    """A record that did not end well."""
    trial = spec(strategy, **spec_changes)
    failure = Failure(outcome=outcome, cause="rank 1 was killed by signal 9", phase="build", rank=rank)
    given: dict[str, Any] = {"key": trial.key, "spec": trial, "role": Role.COMPETITOR, "environment": "e" * 16}
    return Record(**given, outcome=outcome, failure=failure, provenance=provenance())


def sample() -> list[Record]:
    """Two groups as a suite gives them: measured with repeats and a failure, simulated with bounds and a search."""
    bounds = {"bound_ms": 2.5, "whole_table_bound_ms": 3.2}
    simulated = {"backend": Backend.SIMULATED, "machine": "a100-40gb-2x8"}
    return [
        ok("greedy-size", (10.0, 20.0, 30.0, 40.0), (2.0, 4.0), repeat=0),
        ok("greedy-size", (11.0, 21.0, 31.0, 41.0), (2.2, 4.4), repeat=1),
        ok("torchrec", (50.0, 50.0, 52.0, 54.0), (3.0, 9.0), repeat=0),
        ok("torchrec", (51.0, 53.0, 53.0, 55.0), (3.0, 9.0), repeat=1),
        failed(Outcome.OOM, "random", repeat=0),
        ok("random", repeat=1),
        ok("greedy-size", (8.0, 8.0), (3.0, 4.0), changes=bounds, **simulated),
        ok("torchrec", (9.0, 9.0), (3.1, 5.0), changes=bounds, **simulated),
        ok("local-search", (7.5, 7.5), (3.3, 3.4), role=Role.SEARCH, changes=bounds, **simulated),
        failed(Outcome.INFEASIBLE, "random", rank=None, **simulated),
    ]


def kept(folder: Path, *records: Record, suite: str = "quick") -> RecordStore[Record]:
    """The suite's store in a folder of results, with these records appended to it."""
    store = trial_store(folder, suite)
    for record in records:
        store.append(record)
    return store

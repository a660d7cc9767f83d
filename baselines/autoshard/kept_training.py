"""A training from end to end: kept by content key, taken up again after a kill, stopped in time."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from shardbench.learning.checkpoint import Checkpoint, load, path_of, save
from shardbench.learning.training import Limit, adam_tensors, network_tensors, one_thread, put_adam, put_networks
from shardbench.tasks.features import Scaling
from shardbench.tasks.oracle import Oracle
from shardbench.tasks.task import Task

from .networks import Networks
from .training import VERSION, Run, Settings, Stage, Trained
from .unrolls import Episode

KIND = "autoshard"
STATE = "autoshard-state"
"""What a training that is not over needs besides its networks: one file, replaced at every stage."""


def train(
    tasks: Sequence[Task],
    oracle: Oracle,
    seed: int,
    settings: Settings | None = None,
    *,
    folder: Path | None = None,
    progress: Callable[[Stage], None] | None = None,
    limit_cpu_s: float | None = None,
) -> Trained:
    """Networks trained on ``tasks`` with ``oracle``; the same for the same seed.

    With a ``folder`` the networks after every stage, and the state after the last one, are kept
    there by content key, and training goes on from there. It ends early, with what it has, where the
    updates after the first one take ``limit_cpu_s``: CPU seconds, so that a busy machine makes no
    other networks.
    """
    run = Run(tasks, oracle, seed, settings if settings is not None else Settings())
    with one_thread():
        if folder is not None:
            resume(run, folder)
        limit = Limit(limit_cpu_s)
        while not run.done and not limit.over:
            stage = run.update()
            limit.begin()
            if stage is not None and folder is not None:
                keep(run, folder)
            if stage is not None and progress is not None:
                progress(stage)
    return run.result()


def snapshot(folder: Path, key: str, updates: int) -> Trained:
    """The networks after ``updates`` learner updates, a stage's end, of the training with this key.

    Raises BadInput where they are not there, or the file is none of ours.
    """
    return _trained(load(path_of(folder, KIND, f"{key}-{updates}"), KIND, VERSION, f"{key}-{updates}"))


def _trained(found: Checkpoint) -> Trained:
    networks = Networks(0)
    put_networks(networks, found)
    facts = found.facts
    return Trained(
        networks=networks,
        scaling=Scaling(mean=tuple(facts["mean"]), spread=tuple(facts["spread"])),
        history=tuple(Stage(**line) for line in facts["history"]),
        oracle_calls=int(facts["oracle_calls"]),
        steps=int(facts["steps"]),
        complete=bool(facts["complete"]),
        earlier_cpu_s=float(facts["cpu_s"]),
    )


def keep(run: Run, folder: Path) -> None:
    """Save the networks of this stage, and until the last one the state to go on from."""
    done = run.result()
    facts = {
        "mean": list(done.scaling.mean),
        "spread": list(done.scaling.spread),
        "history": [asdict(line) for line in done.history],
        "oracle_calls": done.oracle_calls,
        "steps": done.steps,
        "complete": done.complete,
        "cpu_s": run.clock.seconds,
    }
    tensors = network_tensors(run.networks)
    key = f"{run.key}-{run.updates}"
    save(Checkpoint(kind=KIND, version=VERSION, key=key, facts=facts, tensors=tensors), folder)
    if run.done:
        path_of(folder, STATE, run.key).unlink(missing_ok=True)
        return
    facts |= {
        "updates": run.updates,
        "rng": json.dumps(run.rng.bit_generator.state),
        "added": run.shards.added,
        "used": run.streams.used,
        "waiting": [[(e.task, e.reward) for e in queue] for queue in run.streams.waiting],
    }
    tensors |= adam_tensors(run.adam)
    stored = len(run.shards)
    tensors |= {"shards.holds": torch.from_numpy(run.shards.holds[:stored])}
    tensors |= {"shards.ms": torch.from_numpy(run.shards.ms[:stored])}
    waiting = [episode for queue in run.streams.waiting for episode in queue]
    for field in ("order", "chosen", "log_p"):
        parts = [getattr(episode, field) for episode in waiting]
        tensors[f"waiting.{field}"] = torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0))
    save(Checkpoint(kind=STATE, version=VERSION, key=run.key, facts=facts, tensors=tensors), folder)


def resume(run: Run, folder: Path) -> None:
    """Go on from what was kept for this training, if anything was."""
    last = f"{run.key}-{run.settings.updates}"
    if path_of(folder, KIND, last).is_file():
        found = load(path_of(folder, KIND, last), KIND, VERSION, last)
        _restore_outcome(run, found, run.settings.updates)
    elif path_of(folder, STATE, run.key).is_file():
        found = load(path_of(folder, STATE, run.key), STATE, VERSION, run.key)
        _restore_outcome(run, found, int(found.facts["updates"]))
        _restore_state(run, found)


def _restore_outcome(run: Run, found: Checkpoint, updates: int) -> None:
    put_networks(run.networks, found)
    run.updates, run.calls = updates, int(found.facts["oracle_calls"])
    run.clock.earlier_s = float(found.facts["cpu_s"])
    run.history = [Stage(**line) for line in found.facts["history"]]


def _restore_state(run: Run, found: Checkpoint) -> None:
    facts, tensors = found.facts, found.tensors
    run.rng.bit_generator.state = json.loads(facts["rng"])
    put_adam(run.adam, found)
    run.shards.added = int(facts["added"])
    stored = len(run.shards)
    run.shards.holds[:stored] = tensors["shards.holds"].numpy()
    run.shards.ms[:stored] = tensors["shards.ms"].numpy()
    run.streams.used = [int(used) for used in facts["used"]]
    start = 0
    for queue, kept in zip(run.streams.waiting, facts["waiting"]):
        for task, reward in kept:
            at = slice(start, start + run.tasks[task].tables)
            order, chosen, log_p = (tensors[f"waiting.{field}"][at].numpy() for field in ("order", "chosen", "log_p"))
            queue.append(Episode(task=int(task), order=order, chosen=chosen, log_p=log_p, reward=float(reward)))
            start = at.stop

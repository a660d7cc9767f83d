"""FAE's phases for real: on local CPU ranks, or in one process with a GPU."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.cost.traffic import Traffic, count
from shardbench.engine.phased.exchange import SYNCHRONISE
from shardbench.engine.phased.ranks import PhasedResult, train_in_phases
from shardbench.engine.phased.training import GlobalBatch, PhasedModel
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import BatchSchedule, Host, Phase, PhaseKind, Plan, Replicated, Segment, row_ranges
from shardbench.model.problem import Problem
from shardbench.model.table import Optimizer
from shardbench.studies.study import Row
from shardbench.workloads.hotness import Packer

from .accuracy import choose_hot, dense_shape, global_batch, hot_rows, pack_stream
from .clicks import ClickData, click_data

INPUTS = 524_288
WARMUP = 3
"""Mini-batches after a switch that are not timed: a rank's first ones set buffers up."""
EACH = 20
"""Timed mini-batches of a kind in each turn."""
TURNS = 2
HYBRID = "hybrid"
"""The kind of mixed mini-batches, whose tables are all looked up in host memory: training without hot rows."""


def measure_phases(
    ranks: int, device: Literal["cpu", "cuda"], batch_size: int, seed: int, folder: Path
) -> Sequence[Row]:
    """Measure cold, hot, cold and hot mini-batches of the click model's inputs, then mixed ones as the hybrid trains.

    The processes are local CPU ranks, or one with a GPU. The click model has summed bags only:
    no Taobao (deviation 11).
    """
    data = click_data(seed, INPUTS, 4096)
    choice = choose_hot(data)
    model = PhasedModel(
        tables=data.tables,
        hot=choice.rows,
        dense=dense_shape(data),
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        learning_rate=0.05,
    )
    packer = Packer(hot_rows(data, choice), batch_size)
    everyone = np.arange(len(data.train))
    packed = [b for b in pack_stream(packer, data.train, everyone) if len(b.samples) == batch_size]
    chosen: list[tuple[str, np.ndarray]] = []
    for kind in (PhaseKind.COLD, PhaseKind.HOT) * TURNS:
        pure = [(kind.value, b.samples) for b in packed if b.kind is kind][: WARMUP + EACH]
        if len(pure) < WARMUP + EACH:
            raise BadInput(f"{len(pure)} {kind} mini-batches of {batch_size}, {WARMUP + EACH} are needed")
        chosen += pure
    chosen += [(HYBRID, everyone[i * batch_size : (i + 1) * batch_size]) for i in range(WARMUP + TURNS * EACH)]
    labels = [label for label, _ in chosen]
    batches = [
        global_batch(data.train.at(samples), PhaseKind.HOT if label == PhaseKind.HOT.value else PhaseKind.COLD)
        for label, samples in chosen
    ]
    with tempfile.TemporaryDirectory(dir=folder, prefix="phases-") as work:
        results = train_in_phases(model, batches, ranks, Path(work), seed=seed, device=device)
    counted = counter(model, data, ranks, batch_size)
    share = 100.0 * packer.hot / packer.samples
    return [
        _row(label, labels, batches, results, counted) | {"hot_inputs_pct": share} for label in dict.fromkeys(labels)
    ]


def counter(model: PhasedModel, data: ClickData, ranks: int, batch_size: int) -> Callable[[GlobalBatch], Traffic]:
    """Return what counts a mini-batch's traffic, of a plan of the model on as many devices as there are ranks.

    The plan has one cold and one hot mini-batch.
    """
    segments: list[Segment] = []
    for table, hot in zip(model.tables, model.hot):
        segments += row_ranges(table, (hot, Replicated(ranks=tuple(range(ranks)))), (table.rows, Host(node=0)))
    phases = tuple(Phase(kind=kind, batches=1) for kind in (PhaseKind.COLD, PhaseKind.HOT))
    plan = Plan(world_size=ranks, segments=tuple(segments), schedule=BatchSchedule(phases=phases))
    # Bytes depend on how many devices there are, on none of this machine's rates.
    machine = load_machine("v100-16gb-1x4")
    machine = replace(machine, topology=replace(machine.topology, devices_per_node=ranks))
    problem = Problem.of(
        "phases", model.tables, data.profiles, machine, batch_size=batch_size, optimizer=model.optimizer
    )
    return lambda batch: count(plan, problem, batch.tables.__getitem__, model.dense, batch.kind)


def _sent(results: Sequence[PhasedResult], batch: int) -> float:
    """Return bytes that all ranks sent in one step, but for those of a switch."""
    return sum(b for r in results for name, b in r.sent[batch].items() if name != SYNCHRONISE)


def _row(
    label: str,
    labels: Sequence[str],
    batches: Sequence[GlobalBatch],
    results: Sequence[PhasedResult],
    counted: Callable[[GlobalBatch], Traffic],
) -> Row:
    begins = [i for i, one in enumerate(labels) if one == label and (i == 0 or labels[i - 1] != label)]
    chosen = [i for i, one in enumerate(labels) if one == label and all(not b <= i < b + WARMUP for b in begins)]
    steps = np.max([r.step_ms for r in results], axis=0)[chosen]
    switches = [i for i in begins if i > 0 and label != HYBRID]
    took = np.max([r.switch_ms for r in results], axis=0)[switches]
    copied = [sum(sum(r.copied[i].values()) for r in results) for i in switches]
    traffics = [counted(batches[i]) for i in chosen]
    sent = [float(sum(c.sent.sum() for c in traffic.collectives.values())) for traffic in traffics]
    # Means over the plan's two iterations, of which one begins with a copy.
    copies = traffics[0].synchronisation
    a_switch = {PhaseKind.HOT.value: 2.0 * copies.to_device_bytes, PhaseKind.COLD.value: 2.0 * copies.to_host_bytes}
    return {
        "kind": label,
        "backend": "measured",
        "steps": len(chosen),
        "step_ms": float(np.median(steps)),
        "step_ms_low": float(np.percentile(steps, 25.0)),
        "step_ms_high": float(np.percentile(steps, 75.0)),
        "sent_bytes_a_step": float(np.mean([_sent(results, i) for i in chosen])),
        "counted_bytes_a_step": float(np.mean(sent)),
        "switch_ms": float(np.median(took)) if switches else None,
        "copied_bytes_a_switch": float(np.mean(copied)) if switches else None,
        "counted_bytes_a_switch": a_switch.get(label),
        "hot_rows": len(results[0].replica),
        "replicas_equal": all(r.replica.tobytes() == results[0].replica.tobytes() for r in results),
    }

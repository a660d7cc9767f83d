"""The region: FlexShard's gains over other plans where no source fixes the workload, the cluster or the memory."""

from pathlib import Path

from shardbench.model.strategy import Strategy
from shardbench.studies.regions.region import Knob, region_study
from shardbench.studies.study import Row
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import answer_of

from .. import FlexShard
from ..shape import least_bytes
from .conditions import (
    COMPARED,
    LEAST,
    SampledQuestion,
    all_links_bytes,
    between_nodes_bytes,
    cluster,
    communication_ms,
    workload,
)

COUNTED_SAMPLES = 128
"""Samples a device that are counted, of the batch: 16 nodes would look up hundreds of millions of rows a point."""
OTHERS = (COMPARED, LEAST, "column-wise")
"""The best other is the best of these: TorchRec's planner takes longer than all the rest of a point together."""

KNOBS = (
    Knob(
        name="samples", low=256, high=2048, scale="log",
        reason="samples a device: long-term interests ask for 512 to 2,048; from 256, the contrast",
    ),
    Knob(
        name="history_scale", low=0.5, high=5.0, scale="log",
        reason="all histories' lengths: about 240 to 2,400 lookups a sample, hundreds to thousands",
    ),
    Knob(
        name="exponent_scale", low=0.6, high=1.4,
        reason="all exponents, which the form spreads over 0.8 to 1.2: their mean takes the range of the rm workload's",
    ),
    Knob(
        name="nodes", scale="choice", values=(2, 4, 8, 16),
        reason="nodes of 8 devices: from the fewest that have a link between nodes to 128 devices",
    ),
    Knob(
        name="link_ratio", low=2.5, high=40.0, scale="log",
        reason="bandwidth inside a node over that between nodes: a factor 4 either way of an A100's 10, four links a "
        "device or four devices a link",
    ),
    Knob(
        name="budget_pct", low=0.05, high=150.0, scale="log",
        reason="memory a device over row-wise sharding's: what table-row-wise sharding takes on 2 to 16 nodes",
    ),
)  # fmt: skip


def measure(
    _: Path,
    *,
    point: int,
    samples: float,
    history_scale: float,
    exponent_scale: float,
    nodes: int,
    link_ratio: float,
    budget_pct: float,
    counted_samples: int = COUNTED_SAMPLES,
    **parameters: float,
) -> Row:
    """Return theirs over ours: bytes between nodes, on all links, latency against table-row-wise and the best.

    ``parameters`` are further ones of the workload.
    """
    machine = cluster(nodes, bandwidth_ratio=link_ratio)
    drawn = workload(
        "production", counted_samples * machine.topology.world_size, history_scale=history_scale,
        exponent_scale=exponent_scale, **parameters,
    )  # fmt: skip
    question = SampledQuestion(drawn, machine, local_batch=round(samples))
    budget_bytes = int(least_bytes(question.problem) * (1.0 + budget_pct / 100.0))
    plans: list[Strategy] = [FlexShard(budget_bytes=budget_bytes), *map(get_strategy, OTHERS)]
    by_strategy = {strategy.name: answer_of(question, strategy).judged for strategy in plans}
    ours, compared = by_strategy[plans[0].name], by_strategy[COMPARED]
    waits = {name: communication_ms(collectives, machine) for name, collectives in by_strategy.items()}
    return {
        "traffic_x": between_nodes_bytes(compared) / between_nodes_bytes(ours),
        "traffic_all_links_x": all_links_bytes(compared) / all_links_bytes(ours),
        "latency_x": waits[COMPARED] / waits[plans[0].name],
        "latency_vs_best_x": min(waits[name] for name in OTHERS) / waits[plans[0].name],
        "communication_ms": waits[plans[0].name],
        "lookups_a_sample": sum(profile.mean_pooling for profile in question.problem.profiles),
    }


REGION = region_study(
    title="The production form's first draw over its unknown knobs; bytes are counted, times simulated. Memory is a "
    "knob, so that it is no longer what one compared plan happens to leave.",
    knobs=KNOBS,
    outcomes=("traffic_x", "traffic_all_links_x", "latency_x", "latency_vs_best_x"),
    measure=measure,
    uses=("flexshard", *OTHERS),
)

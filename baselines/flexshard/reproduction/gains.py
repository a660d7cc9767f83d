"""FlexShard's gains over other plans: ratios theirs / ours, one row a condition and draw."""

from collections.abc import Sequence

import pandas as pd

COMPARED, LEAST, PLANNER = "table-row-wise", "row-wise", "torchrec-fused"
CONDITION = ("workload", "local_batch", "history_scale", "nodes", "draw")
RATIOS = (
    "traffic_x", "traffic_all_links_x", "traffic_with_copies_x", "latency_x",
    "traffic_vs_best_x", "traffic_all_links_vs_best_x", "latency_vs_best_x",
    "memory_vs_row_wise_x", "memory_vs_torchrec_x",
)  # fmt: skip


def gains(rows: pd.DataFrame, ours: str, variants: Sequence[str]) -> pd.DataFrame:
    """Return ratios of every condition and draw: bytes sent, milliseconds waited and bytes held, theirs over ours.

    Against ``table-row-wise``, whose memory is the budget, and against the *best* other plan there:
    of all strategies but ours and its ``variants`` the one that waits least, in all its ratios the
    same. With copies: the synchronisation of copies between nodes is added to ours.
    """
    frames = []
    for key, group in rows.groupby(list(CONDITION), sort=True):
        plans = group.set_index("strategy")
        others = plans.drop(index=[ours, *variants], errors="ignore")
        best = str(others["communication_ms"].idxmin())
        labels = dict(zip(CONDITION, key))
        case = f"{labels['workload']}, {labels['local_batch']} samples"
        frames.append({**labels, "case": case, "best": best, **_ratios(plans, ours, best), "backend": "simulated"})
    return pd.DataFrame(frames, columns=[*CONDITION, "case", "best", *RATIOS, "backend"])


def _ratios(plans: pd.DataFrame, ours: str, best: str) -> dict[str, float]:
    between, links, waits, memory = (
        plans[name]
        for name in ("exchanged_between_nodes_bytes", "exchanged_bytes", "communication_ms", "fullest_device_bytes")
    )
    with_copies = between + plans["synchronised_between_nodes_bytes"]
    return {
        "traffic_x": between[COMPARED] / between[ours],
        "traffic_all_links_x": links[COMPARED] / links[ours],
        "traffic_with_copies_x": with_copies[COMPARED] / with_copies[ours],
        "latency_x": waits[COMPARED] / waits[ours],
        "traffic_vs_best_x": between[best] / between[ours],
        "traffic_all_links_vs_best_x": links[best] / links[ours],
        "latency_vs_best_x": waits[best] / waits[ours],
        "memory_vs_row_wise_x": memory[LEAST] / memory[ours],
        "memory_vs_torchrec_x": memory[PLANNER] / memory[ours],
    }

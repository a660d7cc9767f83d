"""The numbers behind FlexShard's claims: ratios theirs / ours, out of the study ``communication``."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.base.statistics import log_mean
from shardbench.studies.claim import Evidence

from .conditions import BASE_NODES, HISTORY_SCALE, LOCAL_BATCH, YAMBDA, YAMBDA_DISTINCT

TABLE = "gains"
BY_DRAW = {
    "traffic-stand-in": "traffic_x",
    "traffic-stand-in-vs-best": "traffic_vs_best_x",
    "traffic-stand-in-all-links": "traffic_all_links_x",
    "traffic-stand-in-all-links-vs-best": "traffic_all_links_vs_best_x",
    "traffic-with-copies": "traffic_with_copies_x",
    "latency-stand-in": "latency_x",
    "latency-stand-in-vs-best": "latency_vs_best_x",
    "memory-stand-in-vs-row-wise": "memory_vs_row_wise_x",
    "memory-stand-in-vs-torchrec": "memory_vs_torchrec_x",
}
"""Claims of one number a draw, at the base condition, and their columns."""
BY_NODES = (
    "traffic-stand-in", "latency-stand-in", "latency-stand-in-vs-best", "memory-stand-in-vs-row-wise",
    "memory-stand-in-vs-torchrec",
)  # fmt: skip
"""Claims that have also one number for each number of nodes, as ``NAME-by-nodes``."""
ON_YAMBDA = {
    "traffic-yambda": (YAMBDA, "traffic_x"),
    "traffic-yambda-distinct": (YAMBDA_DISTINCT, "traffic_x"),
    "latency-yambda": (YAMBDA, "latency_x"),
    "latency-yambda-distinct": (YAMBDA_DISTINCT, "latency_x"),
    "memory-yambda-vs-row-wise": (YAMBDA, "memory_vs_row_wise_x"),
}
"""Claims of one number a draw of the public benchmark's lookups: its workload and their columns."""
CONTROLS = {"taobao-traffic": "traffic_x", "taobao-latency-vs-best": "latency_vs_best_x"}


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Return ratios by claim: one a draw on four nodes, or one a number of nodes."""
    if TABLE not in evidence.tables:
        return {}
    table = evidence.tables[TABLE]
    rows = table[(table["local_batch"] == LOCAL_BATCH) & (table["history_scale"] == HISTORY_SCALE)]
    production = rows[rows["workload"] == "production"]
    base = production[production["nodes"] == BASE_NODES].sort_values("draw")
    claims = {claim: base[column].tolist() for claim, column in BY_DRAW.items()}
    claims |= {f"{claim}-by-nodes": _by_nodes(production, BY_DRAW[claim]) for claim in BY_NODES}
    claims |= {claim: table.loc[table["workload"] == name, of].tolist() for claim, (name, of) in ON_YAMBDA.items()}
    taobao = table[table["workload"] == "taobao"].sort_values("nodes")
    claims |= {claim: taobao[column].tolist() for claim, column in CONTROLS.items()}
    return claims


def _by_nodes(rows: pd.DataFrame, column: str) -> list[float]:
    return [log_mean(group[column].tolist()).value for _, group in rows.groupby("nodes", sort=True)]

"""A machine file of two made-up devices, and a workload of a made-up trace for suites."""

from pathlib import Path

MADE_UP = """
[[workloads]]
name = "made-up"
dataset = "trace"
files = ["{trace}"]
dim = 8
pooling = 4
batch_size = 32
test_batches = 2
dense = {{ features = 4, bottom = [8], top = [8, 1] }}
"""
"""Of a suite: formatted with the path of its trace."""

MACHINE = """
name = "toy"
description = "two made-up devices"
device = "cpu"
nodes = 1
devices_per_node = 2
[constants]
"""
CONSTANTS = {
    "hbm_capacity": (100, "MB"), "uvm_capacity": (100, "MB"), "host_capacity": (1, "GB"),
    "hbm_bandwidth": (10, "GB/s"), "cache_bandwidth": (40, "GB/s"), "cache_capacity": (1, "MB"),
    "uvm_bandwidth": (10, "GB/s"), "host_bandwidth": (10, "GB/s"), "gather_efficiency": (0.5, "ratio"),
    "access_overhead": (32, "B"), "sort_traffic": (32, "B"), "launch": (10, "us"), "intra_bandwidth": (1, "GB/s"),
    "inter_bandwidth": (1, "GB/s"), "intra_latency": (10, "us"), "inter_latency": (10, "us"),
    "dense_rate": (1, "GFLOP/s"), "cache_reach": (2, "ratio"), "dispatch": (20, "us"), "bag_step": (100, "ns"),
    "peer_latency": (1, "us"), "table_call": (1, "us"), "bag_call": (10, "ns"), "page_walk": (10, "ns"),
    "sequence_row": (10, "ns"), "sequence_half": (1000, "rows"), "host_launch": (10, "us"),
    "host_table_call": (1, "us"), "dense_step": (10, "us"), "dense_layer": (1, "us"),
    "module_call": (0, "us"), "vector_copy": (1000000, "GB/s"),
    "activation_copy": (1000000, "GB/s"), "lookup_copy": (0, "ns"),
    "length_copy": (0, "ns"), "bucketise": (0, "ns"), "reduce": (1000000, "GB/s"), "step_floor": (0, "us"),
}  # fmt: skip


def machine_file(folder: Path) -> str:
    known = 'error = 1.2, error_source = "made up for tests"'
    lines = [
        f'{k} = {{ value = {v}, unit = "{u}", source = "made up for tests"'
        f"{'' if k.endswith('capacity') else ', ' + known} }}"
        for k, (v, u) in CONSTANTS.items()
    ]
    path = folder / "toy.toml"
    path.write_text(MACHINE + "\n".join(lines))
    return str(path)

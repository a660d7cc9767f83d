"""Parsers of what people write: TOML and options."""

from collections.abc import Callable
from pathlib import Path

import mutations
from document_numbers import parse as parse_numbers
from learned_tasks import random_problem
from parser import Parser, committed, words
from toy_machine import MADE_UP, machine_file

from shardbench.base.reading import toml_file
from shardbench.base.serialise import from_data
from shardbench.calibrate.write import base_of
from shardbench.cli.names import outcomes
from shardbench.datasets.cards import card
from shardbench.model.constraints import Constraints
from shardbench.model.machine_file import load_machine, overridden
from shardbench.studies.claim import parse_claims
from shardbench.studies.definitions import parse_definitions
from shardbench.trials.suite import load_suite
from shardbench.workloads.kinds import workload_config


def _toy(folder: Path) -> list[bytes]:
    own = Path(machine_file(folder)).read_text()
    based = 'base = "a100-40gb-2x8"\nname = "mine"\ndescription = "mine"\nnodes = 2\n'
    return [own.encode(), (based + CONSTANT).encode()]


CONSTANT = (
    'constants.inter_bandwidth = { value = 10, unit = "GB/s", source = "made up for it", error = 1.5, '
    'error_source = "made up too" }\n'
)
SUITE = """
name = "mine"
description = "made up"
seeds = [0, 1]
[defaults]
iterations = 4
[[grids]]
machines = ["a100-40gb-2x8"]
backends = ["simulated"]
overrides = [{}, { uvm_bandwidth = "16 GB/s" }]
strategies = ["greedy-size", "shuffle"]
[[grids.exceptions]]
override = {}
plan_s = 3.5
"""


def _suites(_: Path) -> list[bytes]:
    return [(SUITE + MADE_UP.format(trace="x.txt")).encode(), *committed("benchmarks/suites/quick.toml")(Path())]


def _text(read: Callable[[str, str], object]) -> Callable[[Path], object]:
    return lambda path: read(path.read_text(errors="surrogateescape"), path.name)


def _constraints(path: Path) -> object:
    kept = from_data(Constraints, toml_file(path), "constraints")
    problem = random_problem(4)
    kept.check_tables(problem.tables)
    return kept.device_bytes(problem.topology)


CONSTRAINTS = """
same_device = [["t0", "t1"]]
same_node = [["t2", "t3"]]
device_hbm_bytes = [1000000, 1000000, 1000000, 1000000]
reserved_bytes = 10
[sharding_types]
t0 = ["table_wise", "row_wise"]
"""
DESCRIBED = """
batch_size = 64
test_batches = 1
[[tables]]
name = "a"
rows = 100
dim = 16
pooling = 3.5
coverage = 0.9
alpha = 1.2
[[tables]]
name = "b"
rows = 20
pooled = false
features = 2
seen_rows = 10
"""
WORKLOADS = """
[[workloads]]
dataset = "synthetic"
name = "s"
tables = 3
batch_size = 32
[[workloads]]
dataset = "trace"
name = "p"
files = ["x.txt"]
batch_size = 32
[[workloads]]
dataset = "criteo_like"
name = "c"
[[workloads]]
dataset = "sequence"
name = "q"
[[workloads]]
dataset = "rm"
name = "r"
seed = 3
"""


def _workloads(path: Path) -> object:
    listed = toml_file(path).get("workloads", [])
    return (
        [workload_config(one, path.name) for one in listed if isinstance(one, dict)]
        if isinstance(listed, list)
        else None
    )


def _described(path: Path) -> object:
    return workload_config({"dataset": "described", "name": "mine", **toml_file(path)}, path.name)


def _overridden(path: Path) -> object:
    name, _, value = path.read_bytes().decode(errors="replace").partition("=")
    return overridden(load_machine("a100-40gb-2x8"), {name: value})


TEXTS = (
    Parser("machine file", "mine.toml", _toy, mutations.toml, lambda p: load_machine(str(p)), 4),
    Parser(
        "machine for a calibration",
        "mine.toml",
        lambda folder: _toy(folder)[:1],
        mutations.toml,
        lambda p: base_of("cpu", 2, p),
        2,
    ),
    Parser("suite file", "mine.toml", _suites, mutations.toml, lambda p: load_suite(str(p)), 5),
    Parser("workloads", "mine.toml", words(WORKLOADS), mutations.toml, _workloads, 5),
    Parser("described tables", "mine.toml", words(DESCRIBED), mutations.toml, _described, 5),
    Parser("constraints", "kept.toml", words(CONSTRAINTS), mutations.toml, _constraints, 5),
    Parser(
        "claims",
        "claims.toml",
        committed("baselines/embark/reproduction/claims.toml"),
        mutations.toml,
        _text(parse_claims),
        4,
    ),
    Parser(
        "definitions of claims",
        "defined.toml",
        committed("baselines/*/reproduction/defined.toml"),
        mutations.toml,
        _text(parse_definitions),
        3,
    ),
    Parser(
        "numbers of documents",
        "numbers.toml",
        committed("baselines/*/reproduction/numbers.toml"),
        mutations.toml,
        parse_numbers,
        3,
    ),
    Parser("data set card", "card.toml", committed("datasets/cards/*.toml"), mutations.toml, card.read_card, 3),
    Parser(
        "override of a constant",
        "x",
        words("uvm_bandwidth=16 GB/s", "launch=1 us"),
        mutations.some_bytes,
        _overridden,
        3,
    ),
    Parser(
        "outcomes of --retry",
        "x",
        words("oom,timeout", "failed"),
        mutations.some_bytes,
        lambda p: outcomes(p.read_bytes().decode(errors="replace")),
        10,
    ),
)

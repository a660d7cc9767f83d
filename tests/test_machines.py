"""The machine files that come with the suite, and what a wrong one is answered."""

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from published_held_out import BEGINS, stated_factor

from shardbench.base.errors import BadInput
from shardbench.base.plugins import Brought
from shardbench.base.serialise import to_data
from shardbench.cli.listing import list_machines
from shardbench.model import machine_file as machine_module
from shardbench.model.machine import Trust
from shardbench.model.machine_file import load_machine, machine_files, overridden, parse_machine, scaled, uncertain

FILES = Path(__file__).parent.parent / "benchmarks" / "machines"
CPU_SOURCES = (
    "rough placeholder until calibrated", "measured by shardbench doctor --calibrate", "reported by the system",
    "not measured on one node",
)  # fmt: skip
NAMES = sorted(path.stem for path in FILES.glob("*.toml"))


def text_of(name: str) -> str:
    return (FILES / f"{name}.toml").read_text()


def test_the_expected_machines_are_there() -> None:
    expected = {"a100-24gb-2x8", "a100-40gb-2x8", "v100-32gb-1x8", "2080ti-1x4", "h100-1x8", "cpu-1x2", "cpu-1x4"}
    assert expected <= set(NAMES)
    assert set(NAMES) <= set(machine_files())


@pytest.mark.parametrize("name", NAMES)
def test_machine_loads(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    shape = re.search(r"(\d+)x(\d+)$", name)
    assert shape is not None
    assert (machine.topology.nodes, machine.topology.devices_per_node) == (int(shape[1]), int(shape[2]))


@pytest.mark.parametrize("name", NAMES)
def test_constants_are_plausible(name: str) -> None:
    machine = load_machine(name)
    constants, shape = machine.constants, machine.topology
    gather = constants.hbm_bytes_per_s * constants.gather_efficiency_ratio
    assert constants.uvm_bytes_per_s <= gather < constants.cache_bytes_per_s
    assert constants.cache_bytes < shape.hbm_bytes
    assert constants.inter_bytes_per_s <= constants.intra_bytes_per_s
    assert constants.intra_latency_s <= constants.inter_latency_s
    assert 1e-6 <= constants.launch_s <= 1e-3
    if machine.device == "cuda":
        assert shape.devices_per_node * shape.uvm_bytes == pytest.approx(shape.host_bytes, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_says_where_it_comes_from(name: str) -> None:
    machine = load_machine(name)
    for field, source in machine.sources.items():
        assert len(source.split()) >= 3, f"{name}: {field}"
        assert source.isascii()
        if machine.device == "cpu":
            assert source.startswith(CPU_SOURCES), f"{name}: {field}"


def test_a_file_may_state_what_differs_from_a_base() -> None:
    text = """
    name = "roomy-8x4"
    base = "a100-40gb-2x8"
    description = "more of them"
    nodes = 8
    devices_per_node = 4

    [constants.hbm_capacity]
    value = 64
    unit = "GiB"
    source = "made up for this test"
    """
    base, made = load_machine("a100-40gb-2x8"), parse_machine(text, "file")
    shape = (made.topology.nodes, made.topology.devices_per_node, made.topology.hbm_bytes)
    assert shape == (8, 4, 64 * 2**30)
    assert made.topology.uvm_bytes == base.topology.uvm_bytes
    assert (made.constants, made.errors) == (base.constants, base.errors)
    assert {key for key in base.sources if made.sources[key] != base.sources[key]} == {"hbm_bytes"}


def test_a_base_may_have_a_base_but_not_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, made = load_machine("a100-40gb-4x8"), parse_machine(BASED.replace("2x8", "4x8"), "file")
    assert (made.topology, made.constants, made.sources) == (base.topology, base.constants, base.sources)
    for one, other in ("ab", "ba"):
        (tmp_path / one).write_text(f'name = "{one}"\nbase = "{other}"\ndescription = "d"')
    files = {path.name: Brought(value=path, package="made-up", module="made-up") for path in tmp_path.iterdir()}
    monkeypatch.setattr("shardbench.model.machine_file.machine_files", lambda: files)
    with pytest.raises(BadInput, match="base 'a' is based on this machine itself"):
        load_machine("b")


TRUST = """
[trust]
step_error = 1.09
pair_error = 1.03
plans = 20
pairs = 100
pairs_right = 94
source = "made up for this test"
"""


def test_a_file_may_say_how_far_whole_steps_trust_it() -> None:
    machine = parse_machine(text_of("h100-1x8").partition("[trust]")[0] + TRUST, "file")
    assert machine.trust == Trust(
        step_error=1.09, pair_error=1.03, plans=20, pairs=100, pairs_right=94, source="made up for this test"
    )
    without = replace(machine, trust=None)
    assert "trust" not in to_data(without)
    # Other constants have no such steps; less memory changes none.
    assert overridden(machine, {"launch": "9 us"}).trust is None
    assert overridden(machine, {"hbm_capacity": "1 GB"}).trust == machine.trust
    other = 'name = "x-1x2"\nbase = "cpu-1x2"\ndescription = "d"'
    assert parse_machine(other, "file").trust is None, "a base's steps are not another machine's"
    assert parse_machine(other + TRUST, "file").trust == machine.trust


A100, H100, CPU = map(text_of, ("a100-40gb-2x8", "h100-1x8", "cpu-1x2"))
BASED = 'name = "x"\nbase = "a100-40gb-2x8"\ndescription = "d"'
TRUSTED = H100.partition("[trust]")[0] + TRUST
REFUSED = [
    (A100, "[constants.launch]", "[constants.lunch]", "constant 'launch' is missing"),
    (
        H100,
        "[trust]",
        '[constants.colour]\nvalue = 1\nunit = "s"\nsource = "made up here"\n[trust]',
        "unknown constant 'colour'",
    ),
    (H100, 'value = 3.35\nunit = "TB/s"', 'value = -3.35\nunit = "TB/s"', "hbm_bandwidth"),
    (H100, 'value = 3.35\nunit = "TB/s"', 'value = 3.35\nunit = "GiB"', "'hbm_bandwidth' has unit 'GiB'; use one of"),
    (H100, 'value = 3.35\nunit = "TB/s"', 'value = 3.35\nunit = "TB"', "'hbm_bandwidth' has unit 'TB'"),
    (H100, 'value = 3.35\nunit = "TB/s"', 'value = 3.35\nunit = "furlong"', "unit 'furlong'"),
    (H100, 'value = 3.35\nunit = "TB/s"', 'value = 0\nunit = "TB/s"', "hbm_bytes_per_s"),
    (A100, 'value = 0.857\nunit = "ratio"', 'value = 35.8\nunit = "ratio"', "gather_efficiency_ratio"),
    (H100, 'source = "NVIDIA H100 SXM datasheet: 3.35 TB/s"', 'source = "?"', "source"),
    (H100, 'source = "NVIDIA H100 SXM datasheet: 3.35 TB/s"', "", "source"),
    (H100, "nodes = 1", "nodes = 0", "nodes"),
    (A100, 'device = "cuda"', 'device = "tpu"', "device"),
    (H100, "nodes = 1", "nodes = ", "not TOML"),
    (H100, "nodes = 1", "nodes = 1\nspeed = 3", "speed"),
    (H100, "error = 1.21\n", "", "'hbm_bandwidth' does not say how well it is known: add error"),
    (H100, "error = 1.21\n", "error = 0.9\n", "error"),
    (H100, 'unit = "MiB"\n', 'unit = "MiB"\nerror = 1.2\n', "'cache_capacity' is a capacity and has no error"),
    (CPU, "[constants.dense_rate]\nvalue = ", "[constants.dense_rate]\nvalue = -", "dense_rate"),
    (CPU, 'unit = "GFLOP/s"', 'unit = "GB/s"', "constant 'dense_rate' has unit 'GB/s'; use one of GFLOP/s, TFLOP/s"),
    (TRUSTED, "pairs_right = 94", "pairs_right = 101", "101 pairs are right of 100"),
    (TRUSTED, "pair_error = 1.03", "", "pair_error"),
    (TRUSTED, "step_error = 1.09", "step_error = 0.9", "step_error"),
    (TRUSTED, "plans = 20", "plans = 0", "plans"),
    (TRUSTED, 'source = "made up for this test"', 'source = "x"', "source"),
    (TRUSTED, "plans = 20", "plans = 20\nmood = 3", "mood"),
    (BASED, '"a100-40gb-2x8"', '"tpu"', "unknown base 'tpu'; known: "),
    (BASED, '"a100-40gb-2x8"', '["h100-1x8"]', "unknown base"),
    (BASED, 'name = "x"\n', "", "name: Field required"),
    (BASED, '\ndescription = "d"', "", "description: Field required"),
]


@pytest.mark.parametrize(("text", "old", "new", "message"), REFUSED)
def test_wrong_files_are_refused_with_one_line(text: str, old: str, new: str, message: str) -> None:
    assert old in text
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        parse_machine(text.replace(old, new, 1), "machine file")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("machine file: ")


def test_unknown_machines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown machine 'tpu'; \d+ are known \(see: shardbench list machines"):
        load_machine("tpu")
    with pytest.raises(BadInput, match="does not exist"):
        load_machine(str(tmp_path / "gone.toml"))


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Installs a package that holds files, or whatever else its entry point is to give."""

    def install(files: dict[str, str], given: object = None) -> None:
        folder = tmp_path / "their_machines"
        folder.mkdir()
        for name, text in {"__init__.py": "", **files}.items():
            (folder / name).write_text(text)
        dist = SimpleNamespace(name="their-package")
        load = (lambda: import_module("their_machines")) if given is None else (lambda: given)
        point = SimpleNamespace(name="x", value="their_machines", dist=dist, load=load)
        monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == "shardbench.machines" else [])

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_machines", raising=False)
    machine_module._machine_files.cache_clear()
    yield install
    sys.modules.pop("their_machines", None)
    machine_module._machine_files.cache_clear()


def test_machines_of_an_installed_package_are_known(bring) -> None:
    bring({"mine.toml": text_of("cpu-1x2").replace('name = "cpu-1x2"', 'name = "mine"')})
    assert load_machine("mine").constants == load_machine("cpu-1x2").constants
    assert "mine" in [entry["name"] for entry in list_machines()]


@pytest.mark.parametrize(
    ("files", "given", "says"),
    [
        ({"cpu-1x2.toml": text_of("cpu-1x2")}, None, "is already taken by shardbench.machines: rename it"),
        ({"mine.toml": text_of("cpu-1x2")}, None, "the file states the name 'cpu-1x2'; they must be the same"),
        ({"mine.toml": 'name = "mine"'}, None, "description: Field required"),
        ({}, None, "holds no machine file (*.toml)"),
        ({}, 3, "gives 3, not a package that holds machine files"),
        ({}, ModuleType("alone"), "not a package that holds machine files"),
    ],
)
def test_machines_of_a_faulty_package_are_refused_in_one_line(bring, files, given, says) -> None:
    bring(files, given)
    with pytest.raises(BadInput, match=re.escape(says)) as caught:
        load_machine("mine")
    assert "their-package (entry point x = their_machines)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert load_machine("cpu-1x2").name == "cpu-1x2", "what is not theirs is there"


def test_an_override_replaces_constants_and_shows_in_the_name():
    machine = load_machine("a100-40gb-2x8")
    other = overridden(machine, {"uvm_bandwidth": "16 GB/s", "hbm_capacity": "4.5 GiB"})
    assert other.name == "a100-40gb-2x8+hbm_capacity-4.5GiB+uvm_bandwidth-16GBps"
    assert other.constants.uvm_bytes_per_s == 16e9
    assert other.topology.hbm_bytes == 9 << 29
    assert other.constants.hbm_bytes_per_s == machine.constants.hbm_bytes_per_s
    assert other.sources["uvm_bytes_per_s"] == "override of the job"
    assert overridden(machine, {}) == machine


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ({"speed": "1 GB/s"}, "unknown constant 'speed'"),
        ({"uvm_bandwidth": "16"}, "write a number, a space and one of MB/s"),
        ({"uvm_bandwidth": "16 GiB"}, "write a number"),
        ({"uvm_bandwidth": "fast GB/s"}, "'fast' is no number"),
        ({"uvm_bandwidth": "-1 GB/s"}, "must be positive"),
        ({"uvm_bandwidth": "nan GB/s"}, "must be positive"),
        ({"uvm_bandwidth": "1e300 GB/s"}, "1e\\+18 at most"),
        ({"gather_efficiency": "2 ratio"}, "gather_efficiency.*less than or equal to 1"),
        ({"hbm_capacity": "9e9 TB"}, "hbm_capacity.*less than or equal to"),
    ],
)
def test_a_malformed_override_is_refused(override, says):
    with pytest.raises(BadInput, match=says):
        overridden(load_machine("a100-40gb-2x8"), override)


@pytest.mark.parametrize("name", NAMES)
def test_every_rate_says_how_well_it_is_known_and_capacities_do_not(name: str) -> None:
    machine = load_machine(name)
    assert set(machine.errors) == set(uncertain(machine))
    assert not {"hbm_bytes", "uvm_bytes", "host_bytes", "cache_bytes"} & machine.errors.keys()
    for field, value in ((f, getattr(machine.constants, f, None)) for f in machine.errors):
        # Nothing is known exactly; zero is zero under any factor.
        assert machine.errors[field] > 1.0 or value == 0.0, field


@pytest.mark.parametrize("name", NAMES)
def test_errors_in_files_are_those_of_the_held_out_points(name: str) -> None:
    known = {"held out", "calibrated", "assumption", "zero, and no factor of it is anything else"}
    for key, constant in tomllib.loads(text_of(name)).get("constants", {}).items():
        if "error" not in constant:
            continue
        words = constant["error_source"]
        assert words.split(":")[0] in known, key
        if words.startswith(BEGINS):
            assert constant["error"] == stated_factor(words), key
        elif words.startswith("assumption"):
            assert constant["error"] == 2.0, key


def test_what_an_override_states_is_exact_and_scaling_keeps_shares() -> None:
    machine = load_machine("v100-16gb-1x4")
    other = overridden(machine, {"uvm_bandwidth": "16 GB/s", "host_dense_rate": "1 TFLOP/s", "hbm_capacity": "1 GiB"})
    changed = {name for name in machine.errors if machine.errors[name] != other.errors[name]}
    assert changed == {"uvm_bytes_per_s", "host_dense_rate"}
    assert other.errors["uvm_bytes_per_s"] == other.errors["host_dense_rate"] == 1.0
    twice = scaled(machine, {"gather_efficiency_ratio": 9.0, "launch_s": 2.0, "host_dense_rate": 3.0})
    assert twice.constants.gather_efficiency_ratio == 1.0
    assert twice.constants.launch_s == 2.0 * machine.constants.launch_s
    assert twice.constants.dense_flop_per_s == machine.constants.dense_flop_per_s
    assert machine.host is not None
    assert twice.host is not None
    assert twice.host.dense_flop_per_s == 3.0 * machine.host.dense_flop_per_s

"""Tables described in a suite, workload kinds that other packages give, and the card of each kind."""

import importlib
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pydantic
import pytest

import shardbench.datasets
from shardbench.base.errors import BadInput
from shardbench.datasets import described
from shardbench.datasets.cards import card
from shardbench.datasets.cards.card import Card, load_card
from shardbench.datasets.described import CONFIG
from shardbench.model.table import Pooling
from shardbench.workloads import kinds
from shardbench.workloads.kinds import broken_dataset_packages, workload_config, workload_kinds
from shardbench.workloads.trace import Split
from shardbench.workloads.workload import WorkloadConfig

NOWHERE = Path("nowhere")


def config(*tables: dict[str, Any]) -> WorkloadConfig:
    return workload_config({"dataset": "described", "name": "ours", "batch_size": 20_000, "tables": tables}, "suite s")


def test_example_of_the_docstring_is_a_suites_workload() -> None:
    text = (described.__doc__ or "").partition("::\n")[2]
    (data,) = tomllib.loads(text)["workloads"]
    workload = workload_config(data, "suite s").build(NOWHERE)
    assert [(t.name, t.rows, t.dim) for t in workload.tables] == [
        ("user_id", 80_000_000, 64),
        ("items_watched", 2_000_000, 128),
    ]
    assert workload.batch_size == 8192


def test_draws_have_the_stated_mean_coverage_and_rows() -> None:
    stated = [
        {"name": "plain", "rows": 1000},
        {"name": "even", "rows": 500, "alpha": 0, "pooling": 7.5, "coverage": 0.6, "dim": 4, "pooled": False},
        {"name": "active", "rows": 100_000, "alpha": 1.2, "pooling": 40, "seen_rows": 300},
        {"name": "absent", "rows": 10, "coverage": 0},
    ]
    workload = config(*stated).build(NOWHERE)
    assert [t.pooling for t in workload.tables] == [Pooling.SUM, Pooling.NONE, Pooling.SUM, Pooling.SUM]
    assert [t.dim for t in workload.tables] == [64, 4, 64, 64]
    for number, table in enumerate(stated):
        bags = workload.bags(Split.TEST, 0, number)
        present = bags.lengths[bags.lengths > 0]
        assert len(present) / 20_000 == pytest.approx(table.get("coverage", 1), abs=0.02)
        if len(present):
            assert present.mean() == pytest.approx(table.get("pooling", 1), rel=0.02)
            assert present.max() <= 2 * table.get("pooling", 1)
    assert workload.bags(Split.TEST, 0, 2).values.max() == 299
    even = np.bincount(workload.bags(Split.TEST, 0, 1).values, minlength=500)
    assert even.max() < 2 * even.min()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rows": 0}, "tables.0.rows: Input should be greater"),
        ({"rows": 2**40 + 1}, "tables.0.rows: Input should be less than or equal to 1099511627776"),
        ({"dim": 6}, "tables.0.dim: Input should be a multiple of 4"),
        ({"pooling": 0.5}, "tables.0.pooling"),
        ({"coverage": 1.1}, "tables.0.coverage"),
        ({"alpha": -1}, "tables.0.alpha"),
        ({"alpha": float("nan")}, "tables.0.alpha"),
        ({"seen_rows": 101}, "table a: seen_rows 101 exceeds rows 100"),
        ({"hashes": 2}, "tables.0.hashes: Extra inputs"),
    ],
)
def test_bad_tables_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=f"suite s: workload ours: .*{words}") as caught:
        config({"name": "a", "rows": 100, **wrong})
    assert "\n" not in str(caught.value)


def test_no_tables_and_names_given_twice_are_refused() -> None:
    with pytest.raises(BadInput, match="tables: "):
        config()
    with pytest.raises(BadInput, match="two are called a"):
        config({"name": "a", "rows": 1}, {"name": "a", "rows": 2})


def test_largest_tables_and_steepest_laws_stay_in_bounds() -> None:
    largest = [{"name": f"t{i}", "rows": 2**40, "alpha": alpha, "pooling": 3} for i, alpha in enumerate((0, 0.5, 1, 4))]
    workload = CONFIG(tables=largest, batch_size=100, profile_samples=200).build(NOWHERE)
    for number, profile in enumerate(workload.profiles):
        assert profile.lookups == sum(workload.bags(Split.TRAIN, i, number).offsets[-1] for i in range(2))
        assert workload.bags(Split.TEST, 0, number).values.max() < 2**40


class Theirs(CONFIG):  # type: ignore[misc,valid-type]
    """A kind another package gives."""

    dataset: Literal["theirs"] = "theirs"


class Nameless(WorkloadConfig):
    """Has no default for its kind."""


def _broken() -> Any:
    raise ImportError("no module\nnamed x")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    def points(*loads: Callable[[], Any]) -> None:
        found = [
            SimpleNamespace(name="x", value="pkg:obj", dist=SimpleNamespace(name="their-package"), load=load)
            for load in loads
        ]
        monkeypatch.setattr(metadata, "entry_points", lambda group: found if group == "shardbench.datasets" else [])
        kinds._kinds.cache_clear()

    yield points
    kinds._kinds.cache_clear()


def test_installed_kinds_are_known(install: Callable[..., None]) -> None:
    install(lambda: Theirs)
    data = {"dataset": "theirs", "name": "n", "tables": [{"name": "a", "rows": 5}]}
    assert isinstance(workload_config(data, "suite s"), Theirs)


@pytest.mark.parametrize(
    ("loads", "words"),
    [
        ([lambda: CONFIG], "is already taken by shardbench.datasets.described: rename it"),
        ([lambda: Theirs, lambda: Theirs], r"is already taken by their-package \(entry point x = pkg:obj\): rename it"),
        ([lambda: 3], "gives 3, which is not a subclass of WorkloadConfig"),
        ([lambda: Nameless], "Nameless must give its field 'dataset' a default"),
        ([_broken], "cannot be imported: ImportError: no module named x"),
    ],
)
def test_bad_installed_kinds_are_refused(install: Callable[..., None], loads: list[Any], words: str) -> None:
    install(*loads)
    (cause,) = broken_dataset_packages()
    assert re.search(rf"their-package \(entry point x = pkg:obj\).*{words}", cause)
    assert "\n" not in cause
    assert "described" in workload_kinds(), "what is not theirs is there"
    with pytest.raises(BadInput, match=r"dataset 'nope'.*; left out: .*their-package"):
        workload_config({"dataset": "nope", "name": "n"}, "suite s")


HERE = Path(shardbench.datasets.__file__).parent
MODULES = {"trace": "trace_file"}


def config_of(kind: str) -> type[WorkloadConfig]:
    found: type[WorkloadConfig] = importlib.import_module(f"shardbench.datasets.{MODULES.get(kind, kind)}").CONFIG
    return found


def test_every_kind_has_a_card() -> None:
    defining = [p.stem for p in HERE.glob("*.py") if "\nCONFIG = " in p.read_text(encoding="ascii")]
    assert sorted(defining) == sorted(MODULES.get(kind, kind) for kind in card.kinds())


@pytest.mark.parametrize("kind", card.kinds())
def test_card_is_of_its_kind(kind: str) -> None:
    loaded = load_card(kind)
    fields = config_of(kind).model_fields
    assert loaded.kind == kind == fields["dataset"].default
    assert loaded.source
    assert loaded.licence


@pytest.mark.parametrize("kind", [k for k in card.kinds() if load_card(k).instance is not None])
def test_instance_has_the_cards_fingerprint(kind: str, tmp_path: Path) -> None:
    loaded = load_card(kind)
    workload = config_of(kind).model_validate(loaded.instance).build(tmp_path)
    assert workload.fingerprint == loaded.fingerprint, f"the lookups of {kind} changed: is that meant?"


def test_bad_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="no card for 'other': there are access_log, avazu, "):
        load_card("other")
    monkeypatch.setattr(card, "CARDS", tmp_path)
    (tmp_path / "x.toml").write_text('kind = "x"\n')
    with pytest.raises(BadInput, match=r"x\.toml: name: Field required \(and 5 more\)"):
        load_card("x")
    with pytest.raises(pydantic.ValidationError, match="go together"):
        Card(kind="x", name="x", description="x", source="x", licence="x", assumptions=(), numbers={}, fingerprint="1")


def test_data_files_are_small_and_ascii() -> None:
    files = list((HERE / "data").iterdir())
    assert sum(p.stat().st_size for p in files) < 1_000_000
    assert sum(p.stat().st_size for p in files if p.name.startswith("meta_trace")) < 700_000
    for path in [p for p in HERE.rglob("*") if p.suffix in (".py", ".json", ".toml", ".md")]:
        path.read_text(encoding="ascii")

"""Cards: every kind has one, it loads, and its instance has its fingerprint."""

import importlib
from pathlib import Path

import pydantic
import pytest

import shardbench.datasets
from shardbench.base.errors import BadInput
from shardbench.datasets.cards import card
from shardbench.datasets.cards.card import Card, kinds, load_card
from shardbench.workloads.workload import WorkloadConfig

HERE = Path(shardbench.datasets.__file__).parent
MODULES = {"trace": "trace_file"}


def config_of(kind: str) -> type[WorkloadConfig]:
    found: type[WorkloadConfig] = importlib.import_module(f"shardbench.datasets.{MODULES.get(kind, kind)}").CONFIG
    return found


def test_every_kind_has_a_card() -> None:
    defining = [p.stem for p in HERE.glob("*.py") if "\nCONFIG = " in p.read_text(encoding="ascii")]
    assert sorted(defining) == sorted(MODULES.get(kind, kind) for kind in kinds())


@pytest.mark.parametrize("kind", kinds())
def test_card_is_of_its_kind(kind: str) -> None:
    loaded = load_card(kind)
    fields = config_of(kind).model_fields
    assert loaded.kind == kind == fields["dataset"].default
    assert loaded.source
    assert loaded.licence


@pytest.mark.parametrize("kind", [k for k in kinds() if load_card(k).instance is not None])
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

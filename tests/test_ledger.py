"""The ledger: the evidence beside a verdict, its model error, its commits, and when a definition came."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from test_claims import claim

from shardbench.base import code
from shardbench.base.errors import BadInput
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.provenance import Provenance
from shardbench.runs.discovery import reproduction_names
from shardbench.studies import definitions, ledger
from shardbench.studies.claim import Claim, RegionTable
from shardbench.studies.definitions import Definition
from shardbench.studies.reproduction import find_reproduction

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record(commit: str, hours: int, *, dirty: bool = False) -> CellRecord:
    made = Provenance(
        commit=commit * 40, dirty=dirty, package_code="p", strategy_code="s",
        started=NOON + timedelta(hours=hours), load_at_start=0, load_at_end=0,
    )  # fmt: skip
    return CellRecord(
        key=cell_key("one", 1, {}), environment="e", study="one", version=1, cell={}, wall_s=1, cpu_s=1,
        rows=({"backend": "counted"},), provenance=made,
    )  # fmt: skip


def stamp(made: Claim, hours: int = 0) -> Definition:
    return Definition(digest=made.digest, commit="d" * 40, at=NOON + timedelta(hours=hours))


def test_a_row_names_the_commits_of_its_definition_and_of_its_records() -> None:
    made = claim(part="embedding", machine="h100-1x8", data="made up")
    row = ledger._row(made, [7.0] * 5, [record("b", 2), record("a", 1)], stamp(made))
    assert (row["defined_in"], row["judged_in"]) == ("d" * 10, f"{'a' * 10} to {'b' * 10}")
    assert row["strength"].startswith("simulated (constants of h100-1x8: model error ")
    assert row["strength"].endswith(" held-out kernels); made-up workload")
    unjudged = ledger._row(claim(part="step", machine="nobody-1x8"), [7.0] * 5, [record("b", 2)], stamp(made))
    assert unjudged["strength"].startswith("simulated (constants of nobody-1x8: not judged by any published step)")
    with pytest.raises(ValueError, match="need the name of their 'machine'"):
        claim(part="step")
    assert claim(part="step", machine="h100-1x8").digest == claim(part="step", machine="nobody-1x8").digest
    assert (row["direction"], row["magnitude"], row["n"], row["n_unit"]) == ("reproduced", "reproduced", 5, "draw")
    changed = ledger._row(made, [7.0], [record("a", 1, dirty=True)], stamp(claim(paper=7.0)))
    assert (changed["defined_in"], changed["judged_in"]) == ("not committed", f"{'a' * 10} (changed)")


def test_a_run_before_its_definition_is_said_to_be_one() -> None:
    made = claim()
    early = "run before this definition was committed"
    assert early in ledger._row(made, [7.0], [record("a", 1), record("b", 3)], stamp(made, hours=2))["strength"]
    assert early not in ledger._row(made, [7.0], [record("a", 2)], stamp(made, hours=2))["strength"]
    unstated = record("a", 5).model_copy(update={"provenance": None})
    assert early in ledger._row(made, [7.0], [unstated], stamp(made))["strength"], "nobody knows when it ran"


def test_the_share_of_a_region_counts_points_with_a_number() -> None:
    points = pd.DataFrame({"gain_x": [7.0, 2.0, 0.5, None], "skew": [1.0, 2.0, 3.0, 4.0]})
    knobs = pd.DataFrame(
        {"outcome": ["gain_x"], "knob": ["skew"], "total": [1.0], "q2": [0.9], "rank_correlation": [-0.5]}
    )
    made = claim(region=RegionTable(column="gain_x"))
    found = ledger._region("someone", made, {"region": points, "region_knobs": knobs})
    assert found is not None
    assert (found["points"], found["without_a_number"]) == (4, 1)
    assert (found["share_magnitude"], found["share_direction"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert found["deciding"] == "skew 1.00"
    vague = ledger._region("someone", made, {"region": points, "region_knobs": knobs.assign(q2=0.1)})
    assert vague is not None and vague["deciding"] == "by rank: skew -0.50"
    assert ledger._region("someone", made, {}) is None, "a region that did not run"
    with pytest.raises(BadInput, match="'gain_x', which table region lacks"):
        ledger._region("someone", made, {"region": points.drop(columns="gain_x"), "region_knobs": knobs})


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_definition_is_stamped_with_the_commit_that_has_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "_ROOT", tmp_path)
    monkeypatch.setattr(definitions.resources, "files", lambda package: tmp_path)
    git(tmp_path, "init", "-q")
    file, speed, size = tmp_path / "claims.toml", claim(), claim(name="size")
    file.write_text("first")
    with pytest.raises(BadInput, match="differs from what is committed"):
        definitions.define("mine", [speed])
    git(tmp_path, "add", "."), git(tmp_path, "commit", "-qm", "one")
    first = git(tmp_path, "rev-parse", "HEAD")
    assert definitions.define("mine", [speed]) == ["speed"]
    assert definitions.define("mine", [speed]) == []
    file.write_text("second")
    git(tmp_path, "commit", "-qam", "two")
    assert definitions.define("mine", [speed, size]) == ["size"]
    known = definitions.definitions("mine")
    second = git(tmp_path, "rev-parse", "HEAD")
    assert {name: stamp.commit for name, stamp in known.items()} == {"speed": first, "size": second}
    git(tmp_path, "add", "."), git(tmp_path, "commit", "-qm", "three")
    assert definitions.define("mine", [size]) == [], "what is no claim any more leaves the file"
    assert set(definitions.definitions("mine")) == {"size"}
    (tmp_path / "defined.toml").write_text("size = 3")
    with pytest.raises(BadInput, match=r"defined\.toml: size"):
        definitions.definitions("mine")


@pytest.mark.parametrize("name", reproduction_names())
def test_every_claim_says_which_commit_defined_it(name: str) -> None:
    found = find_reproduction(name)
    stale = [
        made.name
        for made in found.claims
        if made.name not in found.defined or found.defined[made.name].digest != made.digest
    ]
    assert stale == [], "commit claims.toml, then run: shardbench claims --define"

"""The ledger: the evidence beside a verdict, its model error, its commits, and when a definition came."""

import subprocess
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from test_claims import claim

from shardbench.base import code
from shardbench.base.errors import BadInput
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.provenance import Provenance
from shardbench.records.store import trial_store
from shardbench.studies import definitions, ledger
from shardbench.studies.claim import SUITE, Claim, RegionTable, parse_claims
from shardbench.studies.definitions import Definition
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.rules import ALLOWED
from shardbench.studies.study_tables import recorded_cells
from shardbench.trials.discovery import reproduction_names

ROOT = Path(__file__).parent.parent
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record(commit: str, hours: int, *, dirty: bool = False) -> CellRecord:
    made = Provenance(
        commit=commit * 40, dirty=dirty, judge_version=1, made_by="1",
        started=NOON + timedelta(hours=hours), load_at_start=0, load_at_end=0,
    )  # fmt: skip
    return CellRecord(
        key=cell_key("one", 1, {}), environment="e", study="one", version=1, cell={}, wall_s=1, cpu_s=1,
        rows=({"backend": "counted"},), provenance=made,
    )  # fmt: skip


def stamp(made: Claim, hours: int = 0) -> Definition:
    at = NOON + timedelta(hours=hours)
    return Definition(digest=made.digest, commit="d" * 40, at=at, first_judged=at.date(), redefined=1)


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
    assert {stamp.redefined for stamp in known.values()} == {0}
    git(tmp_path, "add", "."), git(tmp_path, "commit", "-qm", "three")
    assert definitions.define("mine", [size]) == [], "what is no claim any more leaves the file"
    assert set(definitions.definitions("mine")) == {"size"}
    file.write_text("third")
    git(tmp_path, "commit", "-qam", "four")
    assert definitions.define("mine", [claim(name="size", paper=7.0)]) == ["size"]
    changed = definitions.definitions("mine")["size"]
    assert (changed.first_judged, changed.redefined) == (known["size"].first_judged, 1), "judged before, by another"
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


def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)


@cache
def digests(owner: str, commit: str) -> dict[str, str]:
    """The claims of a commit, by name."""
    text = asked("show", f"{commit}:baselines/{owner}/reproduction/claims.toml").stdout
    return {each.name: each.digest for each in parse_claims(text, f"{owner} at {commit}")}


def test_definitions_stand_in_ancestors_of_the_commits_that_judged_them() -> None:
    """Clocks may be wrong; the history is not: for every row of the ledger git is asked."""
    shallow = asked("rev-parse", "--is-shallow-repository").stdout.strip()
    if shallow != "false":
        pytest.skip("a shallow clone, or none, has no history to ask: git fetch --unshallow")
    made = ledger.ledger(ROOT / "results").rows
    judged_rows = made[made["defined_first"].notna()]
    assert [row.claim for row in judged_rows.itertuples() if not row.defined_first] == [], "judged before defined"
    first = judged_rows.groupby("paper")["claim"].agg(set)
    assert len(judged_rows) > 50
    pairs: set[tuple[str, str]] = set()
    for name, claims in first.items():
        found = find_reproduction(str(name))
        trials = trial_store(ROOT / "results", found.owner).read()
        cells = recorded_cells(found, ROOT / "results")
        for judged in (each for each in found.claims if each.name in claims):
            stamped = found.defined[judged.name]
            there = digests(found.owner, stamped.commit)
            assert there.get(judged.name) == judged.digest, f"{name} {judged.name}: {stamped.commit} has it otherwise"
            behind = [record for study, record in cells if study.name in judged.judged_by]
            behind += trials if SUITE in judged.judged_by else []
            for record in behind:
                assert record.provenance is not None and record.provenance.commit and not record.provenance.dirty
                pairs.add((stamped.commit, record.provenance.commit))
    lost = [pair for pair in pairs if asked("merge-base", "--is-ancestor", *pair).returncode]
    assert lost == [], "the definition is in no ancestor of the commit that judged it, or a commit is not here"


def test_no_rule_says_yes_too_often() -> None:
    rules = pd.read_csv(ROOT / "results" / "tables" / "claims_rules.csv")
    assert len(rules) > 40
    for rate in ("false_direction", "false_magnitude"):
        assert rules[rate].dropna().max() <= ALLOWED
    counted = pd.read_csv(ROOT / "results" / "tables" / "claims.csv")
    counted = pd.concat([counted, pd.read_csv(ROOT / "results" / "tables" / "readings.csv")])
    judged = counted[counted["direction"] != "not testable here"]
    assert set(zip(rules["paper"], rules["claim"])) == set(zip(judged["paper"], judged["claim"]))


def test_a_sourced_statement_has_one_verdict() -> None:
    claims = pd.read_csv(ROOT / "results" / "tables" / "claims.csv")
    readings = pd.read_csv(ROOT / "results" / "tables" / "readings.csv")
    assert set(claims["kind"]) == {"statement", "second-hand", "control"}
    assert (claims["sourced"] == (claims["kind"] == "statement")).all()
    stated = set(zip(claims["paper"], claims["claim"]))
    assert set(zip(readings["paper"], readings["of"])) <= stated
    said = claims[claims["kind"] == "statement"]
    assert not said.duplicated(["paper", "statement"]).any()

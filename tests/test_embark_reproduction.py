"""EMBark's models have their public totals, and its claims' numbers are what their definitions say."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shardbench.baselines.embark.reproduction import studies as models
from shardbench.baselines.embark.reproduction.claims import observations
from shardbench.baselines.embark.reproduction.studies import STRATEGIES, STUDY, over_compared
from shardbench.studies.claim import Evidence


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("draw", models.DRAWS[:2])
def test_every_draw_has_the_public_totals(name: str, draw: int) -> None:
    totals = models.MODELS[name]
    made = models.workload(name, draw, 32)
    assert len(made.tables) == totals.tables
    assert sum(table.rows * table.dim for table in made.tables) == pytest.approx(totals.parameters, rel=1e-5)
    recipe = made.recipe()
    assert isinstance(recipe, dict)
    hotness = [table["pooling"] * table["coverage"] for table in recipe["tables"]]
    assert np.mean(hotness) == pytest.approx(totals.hotness)


def test_draws_differ_in_tables_and_lookups() -> None:
    first, second = (models.workload("T510", draw, 32) for draw in (0, 1))
    assert first.tables != second.tables
    assert models.cluster().topology.world_size == 32


def rows(steps: dict[str, list[tuple[float, float, float]]]) -> pd.DataFrame:
    """A model's steps of the three strategies, draw by draw."""
    return pd.DataFrame(
        [
            {"model": model, "draw": draw, "strategy": strategy, "step_ms": step_ms}
            for model, drawn in steps.items()
            for draw, several in enumerate(drawn)
            for strategy, step_ms in zip(STRATEGIES, several, strict=True)
        ]
    )


STEPS = {
    "T180": [(2.0, 4.0, 4.0), (1.0, 1.0, 1.0)],
    "T200": [(4.0, 2.0, 4.0), (1.0, 2.0, 2.0)],
    "T510": [(1.0, 1.0, 3.0), (1.0, 0.5, 3.0)],
}


def test_numbers_behind_the_claims() -> None:
    found = observations(Evidence(records=(), tables={"models": rows(STEPS)}))
    assert found["throughput-stand-in"] == pytest.approx([(2.0 + 1.0 + 3.0) / 3, (1.0 + 2.0 + 3.0) / 3])
    assert found["throughput-stand-in-flat"] == pytest.approx([(1.0 + 2.0 + 3.0) / 3, (1.0 + 1.0 + 6.0) / 3])
    # A draw that one model lacks is none, and without a model there is no mean over the three.
    shorter = {**STEPS, "T510": STEPS["T510"][:1]}
    assert len(observations(Evidence(records=(), tables={"models": rows(shorter)}))["throughput-stand-in"]) == 1
    two = {name: STEPS[name] for name in ("T180", "T200")}
    assert not any(observations(Evidence(records=(), tables={"models": rows(two)})).values())


def test_the_table_of_throughput() -> None:
    table = over_compared(rows(STEPS)).set_index(["model", "strategy"])
    ours = table.loc["T180", "embark"]
    assert (ours["over_table_row_wise_x"], ours["least_x"], ours["most_x"], ours["n"]) == (1.5, 1.0, 2.0, 2)
    assert len(table) == 6


def test_a_cell_asks_all_strategies_on_the_same_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models, "LOCAL_BATCH", 2)
    monkeypatch.setattr(models, "PROFILE_SAMPLES", 64)
    (cell,) = STUDY.cells(True)
    found = STUDY.run(cell, tmp_path)
    assert [row["strategy"] for row in found] == list(STRATEGIES)
    for row in found:
        parts = [row["embedding_ms"], row["exchanges_ms"]]
        assert all(isinstance(part, float) and part > 0 for part in parts)
        assert sum(parts) < row["step_ms"] < 1.1 * sum(parts), "little but the tables in a step"
        assert 10 < row["fullest_device_gib"] < 64

"""Sequence workloads: the card's numbers, bounded histories, empty ones, and what the scales change."""

from pathlib import Path

import numpy as np
import pydantic
import pytest

from shardbench.base.errors import BadInput
from shardbench.datasets.cards.card import load_card
from shardbench.datasets.sequence import CONFIG, Sequence, history_lengths, production_features
from shardbench.model.table import Pooling
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.trace import Split

NOWHERE = Path("no-such-folder")


def made(**changes: object) -> Sequence:
    return CONFIG(batch_size=500, profile_samples=1200, **changes).build(NOWHERE)  # type: ignore[arg-type]


def test_the_cards_numbers() -> None:
    numbers = load_card("sequence").numbers
    taobao = made().tables
    assert tuple(t.rows for t in taobao) == tuple(numbers["taobao_rows"])  # type: ignore[arg-type]
    assert {t.dim for t in taobao} == {numbers["taobao_width"]}
    assert all(t.pooling is Pooling.NONE for t in taobao)
    assert made().features[1].bound == numbers["taobao_history"]
    production = made(form="production").tables
    assert len(production) == numbers["production_features"]
    assert sum(t.pooling is Pooling.NONE for t in production) == numbers["production_sequences"]


def test_histories_are_bounded_and_some_are_empty() -> None:
    lengths = history_lengths(np.random.default_rng(0), 20_000, bound=20, mean=20.0, empty_share=0.1)
    assert set(np.unique(lengths)) == set(range(21))
    assert np.mean(lengths == 0) == pytest.approx(0.1, abs=0.01)
    # Cut at 20: an exponential of mean 20 is longer than 19 with e^(-19/20), and not empty with 0.9.
    assert np.mean(lengths == 20) == pytest.approx(0.9 * np.exp(-0.95), abs=0.01)
    assert (history_lengths(np.random.default_rng(0), 50, 1, 1.0, 0.0) == 1).all()
    assert (history_lengths(np.random.default_rng(0), 50, 9, 5.0, 1.0) == 0).all()


def test_ids_are_rows_and_only_active_ones_are_drawn() -> None:
    workload = made(form="production", tables=6)
    for i, (table, feature) in enumerate(zip(workload.tables, workload.features, strict=True)):
        bags = workload.bags(Split.TEST, 0, i)
        assert bags.values.max() < table.rows
        assert bags.lengths.max() <= feature.bound
        assert workload.profiles[i].seen_rows <= feature.active_rows < table.rows


def test_a_feature_has_the_same_lookups_in_every_subset() -> None:
    some, everything = made(form="production", tables=6), made(form="production")
    at = some.features[2].number
    np.testing.assert_array_equal(some.bags(Split.TEST, 1, 2).values, everything.bags(Split.TEST, 1, at).values)
    assert made(form="production", tables=99).tables == everything.tables


def test_draws_of_the_features_follow_the_same_laws_and_differ() -> None:
    first, second = (made(form="production", draw=draw) for draw in (0, 1))
    assert first.features == production_features() == made(form="production").features
    assert first.fingerprint == made(form="production").fingerprint != second.fingerprint
    assert not {f.rows for f in first.features} & {f.rows for f in second.features}
    for feature in second.features:
        assert 1e5 <= feature.rows <= 1e7 and 0.8 <= feature.exponent <= 1.2
        assert feature.bound in ((1, 5, 10) if feature.pooled else (20, 50, 100))
    with pytest.raises(pydantic.ValidationError, match="draw"):
        made(draw=1)


def test_scales_change_skew_length_and_rows() -> None:
    plain = made().profiles[1]
    assert (
        made(exponent_scale=1.5).profiles[1].cdf(100) > plain.cdf(100) > made(exponent_scale=0.5).profiles[1].cdf(100)
    )
    assert made(history_scale=2.0).profiles[1].mean_pooling == pytest.approx(2 * plain.mean_pooling, rel=0.05)
    assert made(row_scale=0.01).tables[1].rows == 41_620
    assert made(history_scale=2.0).bags(Split.TEST, 0, 0).lengths.max() == 1
    bag = production_features()[-1]
    longer = made(form="production", history_scale=4.0)
    assert longer.bags(Split.TEST, 0, bag.number).lengths.max() <= bag.bound


def test_empty_histories_everywhere_are_a_workload_too() -> None:
    workload = made(empty_share=1.0)
    assert workload.bags(Split.TEST, 0, 1).values.size == 0
    assert workload.profiles[1].lookups == 0


@pytest.mark.parametrize(
    ("field", "value"), [("empty_share", 1.5), ("history_scale", 0.0), ("row_scale", -1.0), ("form", "criteo")]
)
def test_wrong_parameters_are_named(field: str, value: object) -> None:
    with pytest.raises(pydantic.ValidationError, match=field):
        CONFIG(**{field: value})
    with pytest.raises(BadInput, match=f"suite x: workload s: {field}"):
        workload_config({"dataset": "sequence", "name": "s", field: value}, "suite x")

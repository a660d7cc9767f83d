"""Ids that are made distinct on CPUs: FBGEMM's operator by its definition, and what is counted of it by hand."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import bags

from shardbench.cost.lookups import CountedLookups, ExpectedLookups
from shardbench.engine.operators import unique_ids
from shardbench.model.profile import AccessProfile


@given(st.data())
def test_distinct_ids_give_back_all_ids(data: st.DataObject) -> None:
    """Two tables, the first of two features: each id of a table comes once, in bags of about equal lengths."""
    rows, samples = (7, 5), data.draw(st.integers(1, 4))
    starts = torch.tensor([0, 0, 7, 12])
    features = [
        [data.draw(st.lists(st.integers(0, count - 1), max_size=6)) for _ in range(samples)]
        for count in (rows[0], rows[0], rows[1])
    ]
    lists = [one for feature in features for one in feature]
    offsets = torch.tensor([0, *map(len, lists)]).cumsum(0)
    ids = torch.tensor([number for one in lists for number in one], dtype=torch.int64)
    lengths, new_offsets, distinct, places = unique_ids(starts, torch.tensor([0, 2, 2, 3]), offsets, ids)
    first, second = (
        {number for one in lists[part] for number in one} for part in (slice(0, 2 * samples), slice(2 * samples, None))
    )
    assert distinct.tolist() == [*sorted(first), *sorted(second)]
    assert distinct[places].tolist() == ids.tolist()
    assert new_offsets.tolist() == [0, *lengths.cumsum(0).tolist()]
    for part, found in ((lengths[: 2 * samples], first), (lengths[2 * samples :], second)):
        assert int(part.sum()) == len(found)
        assert int(part.max() - part.min()) <= 1


def test_each_rank_asks_for_a_row_once() -> None:
    batch = bags([1, 1, 2], [2, 0], [3, 3], [3])
    counted = CountedLookups(batch, 5, 2, distinct=True)
    assert counted.of_samples.by_source(0, 5).tolist() == [5, 3]
    assert counted.by_source(0, 5).tolist() == [3, 1], "0, 1, 2 and 3"
    assert counted.by_source(2, 5).tolist() == [1, 1]
    assert counted.dealt(0, 5, 2).tolist() == [[2, 1], [0, 1]]
    assert counted.distinct(0, 5, 1).tolist() == [4]
    assert counted.longest_bag(0, 5, 2, 1).ravel().tolist() == [2, 1], "three ids in two bags, one in two"
    whole = CountedLookups(batch, 5, 2)
    assert whole.by_source(0, 5).tolist() == counted.of_samples.by_source(0, 5).tolist()


def test_a_profile_lets_expect_as_many_rows_as_a_rank_meets() -> None:
    profile = AccessProfile(rows=4, samples=4, present=4, counts=(8, 4), row_counts=(1, 2))
    expected = ExpectedLookups(profile, 8, 4, distinct=True)
    assert expected.of_samples.by_source(0, 4).tolist() == [8.0] * 4
    np.testing.assert_allclose(expected.by_source(0, 4), profile.expected_distinct(8.0))
    np.testing.assert_allclose(expected.distinct(0, 4, 1), profile.expected_distinct(32.0))
    assert expected.by_source(0, 4)[0] < ExpectedLookups(profile, 8, 4).by_source(0, 4)[0]

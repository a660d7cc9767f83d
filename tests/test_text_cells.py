"""Texts read out of Arrow's buffers, against plain Python; values numbered by first appearance."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardbench.datasets.preparation import log_encode
from shardbench.datasets.preparation.log_encode import Vocabulary
from shardbench.workloads.value_hash import first_unlike, mixed, quoted, spans, text_hashes

TEXTS = st.lists(st.none() | st.text("0aF\u00e9 -", max_size=30), max_size=12)
KINDS = st.sampled_from([pa.string(), pa.large_string()])


def bytes_of(texts: list[str | None]) -> list[bytes]:
    return [(text or "").encode() for text in texts]


@given(TEXTS, KINDS, st.integers(0, 3))
def test_spans_are_the_bytes_of_every_text(texts: list[str | None], kind: pa.DataType, start: int) -> None:
    found = spans(pa.array(texts, kind)[start:])
    cut = [found.data[a : a + n].tobytes() for a, n in zip(found.starts, found.lengths)]
    assert cut == bytes_of(texts[start:])


def one_hash(text: bytes) -> int:
    def mix(value: int) -> int:
        return int(mixed(np.array([value], dtype=np.uint64).view(np.int64), 0)[0])

    found = mix(len(text))
    for at in range(0, len(text), 8):
        found = (mix(found) if at else found) ^ int.from_bytes(text[at : at + 8], "little")
    return found


@settings(deadline=None)
@given(TEXTS, KINDS, st.integers(0, 3))
@example(["0123abcd", "0123abcd", "ffffffff"], pa.string(), 0)
@example([None, "0123abcd", None, "00000000"], pa.string(), 1)
def test_a_hash_is_of_the_bytes_alone(texts: list[str | None], kind: pa.DataType, start: int) -> None:
    found = text_hashes(spans(pa.array(texts, kind)[start:]))
    assert found.view(np.uint64).tolist() == [one_hash(text) for text in bytes_of(texts[start:])]


def test_different_texts_have_different_hashes() -> None:
    texts = [sign * n for sign in "ab" for n in range(1, 200)] + [f"{n:x}" for n in range(50_000)]
    assert len(set(text_hashes(spans(pa.array(texts))).tolist())) == len(set(texts))


@given(TEXTS, st.integers(0, 2), st.integers(0, 8))
def test_the_first_text_with_another_sign_or_length(texts: list[str | None], least: int, most: int) -> None:
    good = [least <= len(text) <= most and not text.strip(b"0aF") for text in bytes_of(texts)]
    found = first_unlike(spans(pa.array(texts, pa.string())), b"0aF", range(least, most + 1))
    assert found == (None if all(good) else good.index(False))


def test_a_quoted_cell_is_short_and_plain() -> None:
    texts = pa.array(["caf\u00e9\t" + "x" * 90, None])
    assert quoted(texts, 0) == r"'caf\xe9\t" + "x" * 35 + "'"
    assert quoted(texts, 1) == "''"


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 50)), max_size=6), st.integers(0, 20))
def test_a_vocabulary_numbers_by_first_appearance(parts: list[list[int]], waiting: int) -> None:
    rows: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_encode, "_RECENT", waiting)
        numbered = Vocabulary()
        for part in parts:
            wanted = [rows.setdefault(v, len(rows)) for v in part]
            assert numbered.encode(np.array(part, dtype=np.int64)).tolist() == wanted
            assert len(numbered) == len(rows)

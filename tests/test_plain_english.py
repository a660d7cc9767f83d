"""Docstrings, documents and the README are plain English, as far as a program can tell."""

from pathlib import Path

import pytest
from plain_english import (
    Docstring,
    docstring_fault,
    docstrings,
    document_faults,
    file_faults,
    sentence_fault,
    sentences,
)
from test_docs import DOCUMENTS, named

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "baselines", "datasets", "benchmarks", "tools")
README_WORDS = 1200


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_are_sentences(folder):
    assert [fault for path in sorted((ROOT / folder).rglob("*.py")) for fault in file_faults(path)] == []


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("function", "", "has fewer than 4 words"),
        ("function", "Both.", "has fewer than 4 words"),
        ("attribute", "Of all weights.", "has fewer than 4 words"),
        ("function", "Of all rows those of the batch.", "begins with a preposition"),
        ("class", "By what the form's draws of a plan are told apart.", "begins with a preposition"),
        ("function", "Which of ``batches`` each iteration takes of one kind.", "begins with 'Which'"),
        ("function", "Whether the plan is a valid one.", "begins with 'Whether'"),
        ("attribute", "See the class Question for this.", "begins with 'See'"),
        ("module", "those of the names that begin as what is typed", "begins with 'those'"),
    ],
)
def test_a_docstring_that_is_no_sentence_is_found(kind, text, fault):
    assert docstring_fault(Docstring(kind=kind, line=1, text=text)) == fault


def test_every_kind_of_docstring_is_read(tmp_path):
    source = (
        '"""One."""\nX = 1\n"""Two."""\n\n\nclass A:\n    """Three."""\n\n    x: int\n    """Four."""\n\n'
        '    def f(self):\n        """Five."""\n\n        async def g():\n            """Six."""\n'
        '            return "Seven."\n'
    )
    found = sorted((each.line, each.kind, each.text) for each in docstrings(source))
    assert found == [
        (1, "module", "One."),
        (3, "attribute", "Two."),
        (7, "class", "Three."),
        (10, "attribute", "Four."),
        (13, "function", "Five."),
        (16, "function", "Six."),
    ]
    (tmp_path / "a.py").write_text(source)
    assert file_faults(tmp_path / "a.py")[0] == (
        f"{tmp_path / 'a.py'}:1: a module's docstring has fewer than 4 words: One."
    )


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_sentences_of_documents_are_whole(document):
    assert document_faults(document) == []


@pytest.mark.parametrize("said", ["Both.", "*Likewise.*", "Not so.", "The same."])
def test_a_fragment_in_a_document_is_found(said, tmp_path):
    document = tmp_path / "a.md"
    document.write_text(f"# Title.\n\nA plan is counted and then timed. {said}\n\n- An item says it, too. {said}\n")
    assert len(document_faults(document)) == 2


def test_code_tables_and_abbreviations_are_no_sentences():
    block = "<!-- numbers: one begin -->\nBoth.\n<!-- numbers: one end -->\n"
    prose = "- **In short.** It takes 1.5 ms, e.g. by `run`. It ends (or not)\n  by itself. [Bounds](bounds.md).\n"
    found = list(sentences(f"# Both.\n\n| Both. |\n|---|\n\n```\nBoth.\n```\n\n{block}\n{prose}"))
    assert found == [
        "**In short.**",
        "It takes 1.5 ms, e.g. by CODE.",
        "It ends (or not) by itself.",
        "[Bounds](bounds.md).",
    ]
    assert [sentence_fault(each) for each in found] == [None] * 4

"""Plain English as far as a program can tell: faults of docstrings, and of sentences in Markdown."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FEWEST_WORDS = 4
"""A docstring of fewer words is a label, and its name is one already."""
PREPOSITIONS = frozenset({
    "above", "after", "against", "among", "as", "at", "before", "behind", "below", "beside", "between", "beyond", "by",
    "down", "during", "for", "from", "in", "into", "like", "near", "of", "off", "on", "out", "over", "per", "since",
    "through", "to", "under", "until", "up", "with", "within", "without",
})  # fmt: skip
NO_BEGINNING = frozenset({"both", "likewise", "none", "nothing", "same", "see", "that", "those"})
"""Words with which a docstring of any kind refers to something that the reader does not see."""
NO_VERB = NO_BEGINNING | {
    "also", "and", "but", "ditto", "how", "if", "meanwhile", "not", "or", "what", "when", "where", "whether", "which",
    "while", "who", "whose",
}  # fmt: skip
"""Words with which no imperative begins: the docstring of a function says what it does."""
FRAGMENTS = frozenset({"both", "ditto", "likewise", "none", "nothing", "so is this", "the same"})
"""What does not stand as a sentence of its own in a document."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z*\[])|(?<=[.!?]\*)\s+(?=[A-Z*\[])|(?<=[.!?]\*\*)\s+")

Kind = Literal["module", "class", "function", "attribute"]


@dataclass(frozen=True, kw_only=True)
class Docstring:
    """One docstring of a source file, of whatever kind, with its line."""

    kind: Kind
    line: int
    text: str


def docstrings(source: str) -> Iterator[Docstring]:
    """Yield every docstring of a module's source, those below attributes included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _literals(node.body[:1], "function")
        elif isinstance(node, ast.Module | ast.ClassDef):
            kind: Kind = "module" if isinstance(node, ast.Module) else "class"
            yield from _literals(node.body[:1], kind)
            yield from _literals(node.body[1:], "attribute")


def _literals(body: list[ast.stmt], kind: Kind) -> Iterator[Docstring]:
    for each in body:
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
            yield Docstring(kind=kind, line=each.lineno, text=each.value.value)


def docstring_fault(docstring: Docstring) -> str | None:
    """Return what is wrong with a docstring, or None."""
    words = docstring.text.split()
    first = words[0].strip(",.:;`*").lower() if words else ""
    if len(words) < FEWEST_WORDS:
        return f"has fewer than {FEWEST_WORDS} words"
    if words[0][0].isupper() and first in PREPOSITIONS:
        return "begins with a preposition"
    if first in (NO_VERB if docstring.kind == "function" else NO_BEGINNING):
        return f"begins with '{words[0]}'"
    return None


def file_faults(path: Path) -> list[str]:
    """Return a line for each faulty docstring of a file: path, line, fault and the docstring's beginning."""
    found = [(each, docstring_fault(each)) for each in docstrings(path.read_text())]
    return [
        f"{path}:{each.line}: a {each.kind}'s docstring {fault}: {' '.join(each.text.split())[:80]}"
        for each, fault in found
        if fault
    ]


def sentences(markdown: str) -> Iterator[str]:
    """Yield the sentences of a document's paragraphs and list items, without code, tables and generated blocks."""
    for pattern in (
        r"<!-- numbers: (\S+) begin -->.*?<!-- numbers: \1 end -->",
        r"^```.*?^```",
        r"^(?:[#|!<]|\[[^\]]+\]: ).*?$",
    ):
        markdown = re.sub(pattern, "", markdown, flags=re.DOTALL | re.MULTILINE)
    markdown = re.sub(r"`[^`]*`", "CODE", markdown)
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", markdown, flags=re.MULTILINE):
        text = " ".join(paragraph.split())
        # A dot before a small letter or a number ends an abbreviation, not a sentence.
        yield from (part for part in SENTENCE_END.split(text) if part)


def sentence_fault(sentence: str) -> str | None:
    """Return what is wrong with a sentence of a document, or None; only what ends in a full stop is a sentence."""
    said = re.sub(r"[*_\[\]]|\([^()]*\)", "", sentence).strip()
    if not said.endswith(".") or said.startswith("CODE"):
        return None
    bare = said.removesuffix(".").lower()
    if bare in FRAGMENTS:
        return "is a fragment"
    # The bold or slanted heading of a list item may be short, and so may a reference.
    if len(said.split()) < 3 and not sentence.startswith(("*", "[")):
        return "has fewer than three words"
    return None


def document_faults(path: Path) -> list[str]:
    """Return a line for each faulty sentence of a document."""
    return [f"{path}: {fault}: {each}" for each in sentences(path.read_text()) if (fault := sentence_fault(each))]

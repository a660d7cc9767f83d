"""CITATION.cff fits the Citation File Format 1.2.0, and the project."""

import tomllib
from pathlib import Path

import yaml

import shardbench

ROOT = Path(__file__).parent.parent
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="ascii"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KEYS = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
    "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "title", "type", "url", "version",
}  # fmt: skip
"""All that the format knows; it takes no others."""


def test_it_has_what_the_format_asks_for_and_nothing_else():
    assert CITATION.keys() >= {"authors", "cff-version", "message", "title"}
    assert CITATION.keys() <= KEYS
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    texts = ("message", "title", "abstract", "version", "license")
    assert all(isinstance(CITATION[key], str) and CITATION[key].strip() for key in texts)
    assert len(set(CITATION["keywords"])) == len(CITATION["keywords"]) > 0


def test_its_author_is_an_entity():
    # An entity has a name; a person would have family-names and given-names.
    assert CITATION["authors"] == [{"name": "ShardBench developers"}]


def test_version_and_licence_are_the_projects():
    assert CITATION["version"] == PROJECT["version"] == shardbench.__version__
    # The format has single licences: that of what is ours.
    assert CITATION["license"] == PROJECT["license"].split(" AND ")[0]

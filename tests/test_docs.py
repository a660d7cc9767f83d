"""Documents against what they are about: numbers against tables, rooms against layers, commands against code."""

import re
import shutil
from pathlib import Path

import pytest

from shardbench.base.errors import BadInput
from shardbench.report import numbers

ROOT = Path(__file__).parent.parent
SPECS = numbers.specs(ROOT)
AGAIN = "write them again with: python -m shardbench.report.numbers"
RESULT = re.compile(r"\d\.\d|\d (%|ms|s|x|times|GiB|us)(?!\w)|\dx\b")
"""What a result looks like: a decimal, or a number with the unit of one."""


def made_elsewhere(text):
    """Without what is generated, and without code."""
    for pattern in (r"<!-- numbers: (\S+) begin -->.*?<!-- numbers: \1 end -->", r"^```.*?^```", r"`[^`]*`"):
        text = re.sub(pattern, "", text, flags=re.DOTALL | re.MULTILINE)
    return text


def results_section(text):
    """The part under the heading ``Results``, or nothing."""
    found = re.search(r"^## Results\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return found.group(1) if found else ""


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: str(path.relative_to(ROOT)))
def test_numbers_in_documents_are_what_the_tables_give(spec):
    document, text = numbers.rewritten(spec, ROOT / numbers.TABLES)
    assert document.read_text() == text, AGAIN


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_result_is_typed(spec):
    document = spec.parent / numbers.parse(spec).document
    section = results_section(document.read_text())
    assert section, f"{document} has no section of results"
    assert [line for line in made_elsewhere(section).splitlines() if RESULT.search(line)] == []


@pytest.mark.parametrize("typed", ["4.2 times", "is 12 % less", "5x", "takes 12 ms", "in 3 s"])
def test_a_typed_result_is_found(typed):
    assert RESULT.search(made_elsewhere(results_section(f"# a\n\n## Results\nIt {typed}.\n\n## Limits\n")))


def test_a_changed_table_changes_its_block(tmp_path):
    shutil.copytree(ROOT / numbers.TABLES / "dreamshard", tmp_path / "dreamshard")
    spec = ROOT / "baselines" / "dreamshard" / "reproduction" / "numbers.toml"
    document, text = numbers.rewritten(spec, tmp_path)
    assert document.read_text() == text
    table = tmp_path / "dreamshard" / "effort.csv"
    head, row, *others = table.read_text().splitlines()
    table.write_text("\n".join([head, row.replace(",simulated,3,", ",simulated,3,9"), *others]))
    assert numbers.rewritten(spec, tmp_path)[1] != text


BLOCK = "<!-- numbers: one begin -->\n<!-- numbers: one end -->\n"
TABLE = """strategy,task,split,backend,ms
a,t1,test,simulated,1.0
b,t1,test,simulated,3.0
a,t2,test,simulated,2.0
b,t2,test,simulated,-0.001
"""


def block(tmp_path, **fields):
    (tmp_path / "table.csv").write_text(TABLE)
    made = numbers.Block.model_validate({"name": "one", "tables": ["table.csv"], "rows": {"task": "task"}, **fields})
    return numbers.block_text(made, tmp_path).splitlines()


def test_rows_become_columns_and_are_summed_up(tmp_path):
    lines = block(
        tmp_path,
        spread={"by": "strategy", "values": ["ms"]},
        least={"best": ("a", "b")},
        columns=[{"head": "b", "value": "b", "unit": "%"}, {"head": "a over best", "value": "a / best", "decimals": 0}],
        summary=["mean", "max"],
    )
    assert lines == [
        "| task | b | a over best |",
        "| --- | ---: | ---: |",
        "| t1 | 3.0 % | 1 |",
        "| t2 | 0.0 % | -2,000 |",
        "| mean | 1.5 % | -1,000 |",
        "| max | 3.0 % | 1 |",
        "",
        "Simulated; `results/tables/table.csv`.",
    ]


def test_a_range_stands_behind_its_value(tmp_path):
    column = {"head": "ms", "value": "ms", "low": "ms / 2", "high": "ms * 2", "unit": "ms"}
    lines = block(tmp_path, where="strategy == 'a'", columns=[column])
    assert lines[2] == "| t1 | 1.00 ms (0.500 to 2.00) |"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"columns": [{"head": "ms", "value": "ms"}]}, "several rows"),
        ({"where": "task == 't3'", "columns": [{"head": "ms", "value": "ms"}]}, "no row"),
        ({"average": "mean", "columns": [{"head": "ms", "value": "seconds"}]}, "seconds"),
        ({"tables": ["gone.csv"], "columns": [{"head": "ms", "value": "ms"}]}, r"gone\.csv"),
    ],
)
def test_a_block_that_cannot_be_made_says_why(tmp_path, fields, message):
    with pytest.raises(BadInput, match=f"block 'one'.*{message}"):
        block(tmp_path, **fields)


def test_a_claim_without_a_source_prints_no_number_of_the_paper(tmp_path):
    (tmp_path / "claims.csv").write_text(
        "claim,paper,ours,low,high,n,verdict,unit,relation,sourced,statement\n"
        "known,6,4.17,1.4,7.5,4,inconclusive,x,at least,True,It is faster.\n"
        "unknown,77,2,,,1,inconclusive,x,at least,False,It is smaller.\n"
        "open,3,,,,0,not tested,x,about,True,It is level.\n"
    )
    made = numbers.Block(name="claims", tables=("claims.csv",), form="claims")
    text = numbers.block_text(made, tmp_path)
    assert "paper at least 6 x; ours 4.17 x (1.40 to 7.50, n = 4)" in text
    assert "77" not in text
    assert "ours 2.00 x (n = 1)" in text
    assert "**not tested**: `open`" in text


@pytest.mark.parametrize(
    "document",
    [
        "# none\n",
        f"{BLOCK}<!-- numbers: two begin -->\n<!-- numbers: two end -->\n",
        f"{BLOCK}<!-- numbers: two begin -->\n",
    ],
)
def test_a_document_without_a_specs_blocks_is_refused(tmp_path, document):
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "README.md").write_text(document)
    (tmp_path / "numbers.toml").write_text(
        'document = "README.md"\n[[blocks]]\nname = "one"\ntables = ["table.csv"]\nrows = { task = "task" }\n'
        'average = "mean"\ncolumns = [{ head = "ms", value = "ms" }]\n'
    )
    with pytest.raises(BadInput, match="its blocks"):
        numbers.rewritten(tmp_path / "numbers.toml", tmp_path)

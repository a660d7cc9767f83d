"""Documents against what they are about: numbers against tables, rooms against layers, commands against code."""

import ast
import itertools
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import document_numbers as numbers
import plan_command
import pytest
from layers import ROOMS, modules

import shardbench
from shardbench.base.errors import BadInput
from shardbench.cli.main import app
from shardbench.trials.discovery import strategies
from shardbench.trials.planning import learns

ROOT = Path(__file__).parent.parent
SYSTEMS = [path.parent for path in sorted((ROOT / "baselines").glob("*/__init__.py"))]
SPECS = numbers.specs(ROOT)
AGAIN = "write them again with: python tools/document_numbers.py"
RESULT = re.compile(r"\d\.\d|\d (%|ms|s|x|times|GiB|us)(?!\w)|\dx\b")
"""What a result looks like: a decimal, or a number with the unit of one."""


def made_elsewhere(text):
    """Without what is generated, and without code."""
    for pattern in (r"<!-- numbers: (\S+) begin -->.*?<!-- numbers: \1 end -->", r"^```.*?^```", r"`[^`]*`"):
        text = re.sub(pattern, "", text, flags=re.DOTALL | re.MULTILINE)
    return text


def results_section(text):
    """The part under the heading that begins with ``Results``, or nothing."""
    found = re.search(r"^## Results[^\n]*\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return found.group(1) if found else ""


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: str(path.relative_to(ROOT)))
def test_numbers_in_documents_are_what_the_tables_give(spec):
    document, text = numbers.rewritten(spec, ROOT / numbers.TABLES)
    assert document.read_text() == text, AGAIN


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_result_is_typed(spec):
    document = spec.parent / numbers.parse(spec).document
    section = results_section(document.read_text())
    # They print results in every section, or say how results were made.
    listed = {ROOT / page for page in ("README.md", "docs/papers.md", "docs/use_a_plan.md", "results/README.md")}
    assert section or document.resolve() in listed, f"{document} has no section of results"
    assert [line for line in made_elsewhere(section).splitlines() if RESULT.search(line)] == []


def test_a_changed_table_changes_its_block(tmp_path):
    for folder in ("dreamshard", "gpu"):
        shutil.copytree(ROOT / numbers.TABLES / folder, tmp_path / folder)
    for name in ("claims", "readings"):
        shutil.copy(ROOT / numbers.TABLES / f"{name}.csv", tmp_path)
    spec = ROOT / "baselines" / "dreamshard" / "reproduction" / "numbers.toml"
    document, text = numbers.rewritten(spec, tmp_path)
    assert document.read_text() == text
    table = tmp_path / "gpu" / "slide.csv"
    changed = re.sub(r"(placement,slowest device,DLRM-100 \(4\),dreamshard,4,ms,3,)", r"\g<1>1", table.read_text())
    table.write_text(changed)
    assert numbers.rewritten(spec, tmp_path)[1] != text


def test_the_terminal_of_the_first_screen_is_of_this_version():
    shown = (ROOT / numbers.TABLES / "plan" / "session.txt").read_text()
    wheel = f"shardbench-{shardbench.__version__}-py3-none-any.whl"
    asked = [line.removeprefix("$ ").partition("  # ")[0] for line in shown.splitlines() if line.startswith("$ ")]
    again = "show it again: nox -s build, then nox -s tables -- plan session"
    assert asked == [command.format(wheel=wheel) for command in plan_command.SESSION], again


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


def test_verdicts_that_none_knows_and_facts_of_several_rows_are_refused(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "claims.csv").write_text("paper,claim,direction,magnitude,sourced\none,known,forgotten,partly,true\n")
    made = numbers.Block(name="one", tables=("claims.csv",), form="verdicts")
    with pytest.raises(BadInput, match="none knows: forgotten"):
        numbers.block_text(made, tmp_path)
    fact = {"table": "table.csv", "value": "ms", "unit": "ms"}
    headline = {"says": "One", "paper": "2", "ours": "{ms}", "how": "simulated", "why": "{ms}", "facts": {"ms": fact}}
    fields = {"name": "one", "form": "headlines", "tables": ["claims.csv", "table.csv"], "headlines": [headline]}
    with pytest.raises(BadInput, match=r"block 'one': 4 rows of table\.csv are left for ms, not one"):
        numbers.block_text(numbers.Block.model_validate(fields), tmp_path)


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


DEVIATIONS = re.compile(r"^## [^\n]*deviations[^\n]*\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE)
CITATION = re.compile(r"\bdeviations? (\d+(?:(?:, | and )\d+)*)")


def deviations(folder):
    """Numbers of a baseline's deviations in the order of its README -> whether a line of code decides them."""
    section = DEVIATIONS.search((folder / "README.md").read_text())
    items = re.findall(r"^(\d+)\. (.*)", section.group(1) if section else "", flags=re.MULTILINE)
    return [(int(number), text != "(moved to Limits)") for number, text in items]


def cited(paths):
    """Numbers of the deviations that files cite."""
    found = [group for path in paths for group in CITATION.findall(path.read_text())]
    return {int(number) for group in found for number in re.findall(r"\d+", group)}


def wrong_citations(folder):
    """What a baseline's code does not cite, and what code or README cite that is not there."""
    numbered = deviations(folder)
    wanted = {number for number, decided in numbered if decided}
    in_code = cited(folder.rglob("*.py"))
    return sorted(wanted - in_code), sorted((in_code | cited([folder / "README.md"])) - wanted)


@pytest.mark.parametrize("folder", SYSTEMS, ids=lambda path: path.name)
def test_deviations_are_numbered_and_cited_where_they_are_decided(folder):
    assert [number for number, _ in deviations(folder)] == list(range(1, len(deviations(folder)) + 1))
    assert wrong_citations(folder) == ([], [])


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("x = 1  # deviation 1\n", ([3], [])),
        ('"""A thing (deviations 1 and 3)."""\n', ([], [])),
        ("x = 1  # deviations 1, 3 and 4\n", ([], [4])),
        ("x = 1  # deviations 1 and 3\ny = 2  # deviation 2\n", ([], [2])),
    ],
)
def test_a_wrong_citation_is_found(tmp_path, code, wrong):
    text = "# a\n\n## Choices and deviations\n1. One.\n2. (moved to Limits)\n3. Three.\n\n## Results\n1. None.\n"
    (tmp_path / "README.md").write_text(text)
    (tmp_path / "rule.py").write_text(code)
    assert wrong_citations(tmp_path) == wrong


TRACKED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
DOCUMENTS = [ROOT / name for name in TRACKED.split() if not name.startswith("results/tables/")]
READMES = [path for path in DOCUMENTS if path.name == "README.md"]
FOLDERS = (".", "benchmarks", "datasets", "results", "tests", "tools", *(f"baselines/{path.name}" for path in SYSTEMS))
WORDS = ("segment", "dealt", "tier", "bound", "best found", "study", "trial", "oracle", "placement", "plan", "strategy",
         "problem", "record", "pooling factor", "hash size", "baseline", "variant", "suite")  # fmt: skip


def named(path):
    return str(path.relative_to(ROOT))


def table_rows(text, heading):
    """First cells of the first table under a heading, without the head."""
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
    assert table, heading
    return [line.split("|")[1].strip() for line in table.group().splitlines()[2:]]


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_lines_are_of_at_most_120_columns(document):
    long = [number for number, line in enumerate(document.read_text().splitlines(), 1) if len(line) > 120]
    assert long == []


def test_the_rooms_are_listed_lowest_first():
    rooms = table_rows((ROOT / "docs" / "architecture.md").read_text(), "Layers")
    assert rooms == [f"`{room}`" for room in ROOMS]


def test_the_machines_that_are_here_are_listed():
    listed = table_rows((ROOT / "docs" / "machines.md").read_text(), "The files that are here")
    assert sorted(listed) == sorted(f"`{path.stem}`" for path in (ROOT / "benchmarks" / "machines").glob("*.toml"))


def test_what_strategies_see_move_and_learn_is_as_they_declare():
    section = (ROOT / "docs" / "choose_a_strategy.md").read_text().split("## What each needs")[1].split("\n## ")[0]
    said = {}
    for line in re.findall(r"^\| \[.*", section, flags=re.MULTILINE):
        names, sees, moves, learned = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`([^`]+)`", names):
            said[name] = (set(sees.split(", ")) - {"-"} | {"tables"}, set(moves.split(", ")), learned == "yes")
    declared = {
        name: (set(found.sees), set(found.moves), learns(found))
        for name, found in strategies().items()
        if not found.role.named_only and type(found).__module__.startswith("shardbench.")
    }
    assert said == declared


def test_the_glossary_has_the_words_that_a_reader_meets():
    cells = table_rows((ROOT / "docs" / "architecture.md").read_text(), "Glossary")
    explained = {word for cell in cells for word in cell.split(", ")}
    assert [word for word in WORDS if word not in explained] == []


def test_every_folder_that_a_reader_opens_has_a_readme():
    assert [folder for folder in FOLDERS if ROOT / folder / "README.md" not in READMES] == []


@pytest.mark.parametrize("document", READMES, ids=named)
def test_a_readme_begins_with_a_paragraph_in_plain_words(document):
    title, blank, *rest = document.read_text().splitlines()
    assert title.startswith("# ")
    assert blank == ""
    paragraph = " ".join(itertools.takewhile(str.strip, rest))
    assert not paragraph.startswith(("|", "-", "#", "`", "**", "<"))
    assert len(paragraph.split()) >= 15, paragraph


def test_every_page_has_its_place_in_the_sidebar_once():
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    listed = [page.rpartition("<")[2].strip("/>") for pages in conf["NAVIGATION"].values() for page in pages]
    found = {path for pattern in conf["include_patterns"] for path in ROOT.glob(pattern)} & set(DOCUMENTS)
    assert sorted(listed) == sorted(
        path.relative_to(ROOT).with_suffix("").as_posix() for path in found - {ROOT / f"{conf['root_doc']}.md"}
    )


def modules_named(text):
    """Dotted names of modules that a text has, such as ``shardbench.learned.tasks.pools``."""
    return set(re.findall(r"\bshardbench\.[a-z_]+(?:\.[a-z_]+)?(?:\.[a-z_]+)?", text))


def paths_named(text):
    """Paths from the root or from ``src`` that a text has, as far as they are not patterns."""
    found = re.findall(r"\b(?:shardbench|baselines|benchmarks|tests|datasets|results|docs)/[\w./*<>-]*\w", text)
    return {path for path in found if not re.search(r"[*<>]", path)}


MADE_BY_USERS = {"baselines/round_robin/__init__.py", "shardbench/bin/activate", "tests/test_my_strategy.py"}
GROUPS = {"shardbench.machines"}
"""Entry points that are no module."""
EXPORTED = {f"shardbench.{name}" for name in shardbench.__all__}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_modules_files_and_links_that_a_document_names_are_there(document):
    text = document.read_text()
    known = set(modules())
    wrong = [
        name
        for name in modules_named(text) - GROUPS - EXPORTED
        # The last part may be a function or a class of a module.
        if name not in known and (name.rpartition(".")[0] not in known or name.count(".") < 3)
    ]
    roots = (ROOT, ROOT / "src", document.parent)
    wrong += [path for path in paths_named(text) - MADE_BY_USERS if not any((root / path).exists() for root in roots)]
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    wrong += [link for link in links if not (document.parent / link).exists()]
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_commands_that_a_document_names_exist(document):
    text = document.read_text()
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    sessions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    asked = {name for names in re.findall(r"nox -s ((?:[a-z_]+ ?)+)", text) for name in names.split()}
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    groups = {group.name for group in app.registered_groups}
    called = set(re.findall(r"(?:^|`)shardbench ([a-z][a-z-]*)", text, flags=re.MULTILINE))
    assert asked - sessions == set()
    assert called - commands - groups == set()

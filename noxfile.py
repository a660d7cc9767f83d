"""One command a job: each session installs what it needs, once, and runs.

All sessions share one environment (.nox/shardbench); it is made again only when a file under
requirements/ or pyproject.toml changes.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "none"  # all sessions share the environment that install() makes

ROOT = Path(__file__).parent
VENV = ROOT / ".nox" / "shardbench"
REQUIREMENTS = ROOT / "requirements"
PIP = ("python", "-m", "pip", "install", "--quiet")
PYTHONS = ("3.11", "3.12", "3.13")
"""Those that the README names. On each these tests are run, which touch the engine, the planners and the solver."""
TRIED = tuple(f"tests/test_{name}.py" for name in ("measured_backend", "torchrec_planner", "recshard", "run_trial"))
ENVIRONMENT = {
    # `datasets/` must never be importable as the top-level package of that name.
    "PYTHONSAFEPATH": "1",
    # Spinning OpenMP threads slow ranks that share cores thirtyfold.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
DEFAULT_SUITE = "quick"
LEADERBOARD = "leaderboard"
EVERYTHING = "all"
REPEATED_SUITE = "measured"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHECKS = ROOT / "tests" / "browser"


def run(session: nox.Session, *command: str, **environment: str) -> None:
    """Run a command of the shared environment."""
    env = {**ENVIRONMENT, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}", **environment}
    session.run(str(VENV / "bin" / command[0]), *command[1:], env=env, external=True)


def install(session: nox.Session) -> None:
    """The engine, the suite (editable) and the tools, each package by its hash (requirements/locked/)."""
    engine = "cuda" if shutil.which("nvidia-smi") else "cpu"
    files = sorted([*REQUIREMENTS.glob("locked/*.txt"), REQUIREMENTS / "install.py", ROOT / "pyproject.toml"])
    content = b"".join(f.read_bytes() for f in files)
    digest = hashlib.sha256(content + engine.encode() + sys.version.encode()).hexdigest()
    stamp = VENV / "installed.sha256"
    if stamp.exists() and stamp.read_text() == digest:
        return
    if sys.version_info < (3, 11):  # noqa: UP036 - nox itself may run on an older Python
        session.error(f"ShardBench needs Python 3.11 or later; nox runs on {sys.version.split()[0]}")
    session.log(f"installing into {VENV.relative_to(ROOT)} (once; a few minutes)")
    session.run(sys.executable, "-m", "venv", "--clear", str(VENV), external=True)
    run(session, "python", str(REQUIREMENTS / "install.py"), engine)
    run(session, *PIP, "--no-deps", "--no-build-isolation", "-e", ".")
    stamp.write_text(digest)


def is_paper(name: str) -> bool:
    """Whether it is a baseline with studies or claims, or the leaderboard; not a plain suite."""
    return (ROOT / "baselines" / name / "reproduction").is_dir() or name == LEADERBOARD


def everything() -> list[str]:
    """The suite quick, every paper and the leaderboard."""
    papers = sorted(folder.parent.name for folder in (ROOT / "baselines").glob("*/reproduction"))
    return [DEFAULT_SUITE, *papers, LEADERBOARD]


@nox.session
def reproduce(session: nox.Session) -> None:
    """Run a suite (default: quick), or a paper's suite, studies and claims (such as recshard). Records go to runs/.

    `all` is the suite quick, every paper and the leaderboard. Options go to `shardbench run` or `shardbench reproduce`.
    """
    install(session)
    arguments = list(session.posargs)
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else DEFAULT_SUITE
    results = [] if "--results" in arguments else ["--results", "runs"]
    for each in everything() if name == EVERYTHING else (name,):
        # A suite has no short form: quick is one.
        options = arguments if is_paper(each) or name != EVERYTHING else [a for a in arguments if a != "--quick"]
        run(session, "shardbench", "reproduce" if is_paper(each) else "run", each, "--page", *results, *options)


@nox.session
def publish(session: nox.Session) -> None:
    """Make the committed records and tables of a suite again, under results/, and the numbers in the documents.

    The old records go first; git has them. `--strategy NAME` makes those of one strategy of a suite again, or for the
    first time. The suite `measured` is run twice: its orders are to hold in a second run (results/again/).
    """
    name, *options = session.posargs or [DEFAULT_SUITE]
    if is_paper(name) and options:
        session.error(f"{name} is a paper: all of it is made again, so it takes no options, not {' '.join(options)}")
    install(session)
    if is_paper(name):
        page = ["--page"] if name == LEADERBOARD else []
        run(session, "shardbench", "reproduce", name, *page, "--results", "results", "--fresh")
    else:
        run(session, "shardbench", "run", name, "--results", "results", "--fresh", *options)
        if name == REPEATED_SUITE:
            run(session, "shardbench", "run", name, "--results", "results/again", "--fresh", *options)
            run(session, "shardbench", "compare", "results", "--with", "results/again", "--order", name)
        run(session, "shardbench", "report", "prediction", "--results", "results")
        run(session, "python", "-m", "shardbench.cost.published.agreement")
    run(session, "python", "tools/document_numbers.py")


@nox.session
def scale(session: nox.Session) -> None:
    """Count the full synthetic workload against plans for 8, 128 and 1,024 devices; write the table."""
    install(session)
    out = ROOT / "results" / "tables" / "scale" / "counting.csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    run(session, "python", "tools/counting_scale.py", "856", str(out))


@nox.session
def prepare_scale(session: nox.Session) -> None:
    """Prepare made-up logs of one and of ten million rows; write rows a CPU second and the peak memory."""
    install(session)
    out = ROOT / "results" / "tables" / "scale" / "prepare.csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    run(session, "python", "tools/prepare_scale.py", str(out))


@nox.session
def planners(session: nox.Session) -> None:
    """Our planner beside TorchRec's own on the same modules: plans, predicted steps, measured steps; the tables."""
    install(session)
    out = ROOT / "results" / "tables" / "planner"
    for what in ("plans", "measured"):
        command = ("python", "tools/torchrec_planners.py", what, str(out / f"{what}.csv"))
        # TorchRec's planner takes its options out of sets of strings.
        run(session, *command, PYTHONHASHSEED="0")


@nox.session
def impostors(session: nox.Session) -> None:
    """Try every strategy that breaks a rule, and write which check caught it; an error where another one did."""
    install(session)
    folder = ROOT / "tests" / "conformance"
    run(session, "python", str(folder / "table.py"), PYTHONPATH=str(folder))


@nox.session
def tests(session: nox.Session) -> None:
    """The default tests: minutes on two cores, no GPU, no data to bring."""
    install(session)
    # Many tests wait for ranks or for a limit: on two cores three at once take three quarters of the time of two.
    at_once = min(4, len(os.sched_getaffinity(0)) + 1)
    spread = (f"--numprocesses={at_once}", "--dist=worksteal")
    run(session, "python", "-m", "pytest", *spread, "--durations=10", *session.posargs)


@nox.session
def tests_slow(session: nox.Session) -> None:
    """Tests of minutes: the full synthetic workload, planners at scale, many random plans."""
    install(session)
    run(session, "python", "-m", "pytest", "-m", "slow", "--durations=10", *session.posargs)


@nox.session
def random_plans(session: nox.Session) -> None:
    """Measured equals counted over 200 random plans of all placements (three minutes)."""
    install(session)
    run(session, "python", "-m", "pytest", "-m", "slow", "tests/test_random_plans.py", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Two hundred seeded faults of ranks, planners, cells, the program, its files and the disk; writes the table.

    Options (`--seed N`, `--only KIND`, `--every N`) go to it, and with one of them the committed table stays as it is.
    """
    install(session)
    made = Path(session.create_tmp()) / "summary.csv"
    out = made if session.posargs else ROOT / "results" / "tables" / "faults" / "summary.csv"
    run(session, "python", "-m", "faults", str(out), *session.posargs, PYTHONPATH=str(ROOT / "tests"))


@nox.session
def soak(session: nox.Session) -> None:
    """Three hundred trials in one process, good and bad ones in turn: its memory and its files stay as many."""
    install(session)
    run(session, "python", "-m", "pytest", "-m", "slow", "tests/test_soak.py", *session.posargs)


@nox.session
def tests_gpu(session: nox.Session) -> None:
    """Tests that need a CUDA device."""
    install(session)
    run(session, "python", "-m", "pytest", "-m", "gpu", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """100,000 wrong files and options for every parser of what others write (ten minutes of one core); the table.

    `-- N` gives N.
    """
    install(session)
    out = ROOT / "results" / "tables" / "faults" / "fuzz.csv"
    tests = ROOT / "tests"
    found = os.pathsep.join(map(str, (tests, tests / "fuzz")))
    total = session.posargs[0] if session.posargs else "100000"
    run(session, "python", str(tests / "fuzz" / "__main__.py"), total, str(out), PYTHONPATH=found)


@nox.session
def micro(session: nox.Session) -> None:
    """Micro-benchmarks, as ratios: planners to a greedy plan, the harness to a hand-written TorchRec loop."""
    install(session)
    options = ("-m", "", "--benchmark-only", "--benchmark-quiet")
    run(session, "python", "-m", "pytest", "benchmarks/micro", *options, *session.posargs)


@nox.session
def regression(session: nox.Session) -> None:
    """Whether this working tree made a benchmark slower, larger or worse (minutes); benchmarks/README.md says how.

    `-- --base COMMIT` compares with that commit, `-- --record` keeps the results of HEAD.
    """
    install(session)
    run(session, "python", "tools/regression", *session.posargs)


@nox.session
def page(session: nox.Session) -> None:
    """The page in a real browser: links, sorting, hiding, dark and light, 400 px, keyboard, accessibility (axe-core).

    Needs chromium, node and npm. `-- FOLDER` leaves screenshots there.
    """
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        session.error(f"the page is checked in a browser, and there is none: install one of {', '.join(BROWSERS)}")
    if shutil.which("npm") is None:
        session.error("the page is checked by scripts of node, and there is no npm: install node 20 or later")
    install(session)
    made = Path(session.create_tmp()) / "page"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    listed = made / "pages.txt"
    run(session, "python", str(CHECKS / "make_pages.py"), str(made), str(listed))
    session.run("npm", "ci", "--prefix", str(CHECKS), "--silent", "--no-audit", "--no-fund", external=True)
    pictures = ("--screenshots", session.posargs[0]) if session.posargs else ()
    pages = listed.read_text().splitlines()
    check = ("node", str(CHECKS / "check.mjs"), "--chromium", browser, "--broken", str(CHECKS / "broken.html"))
    session.run(*check, *pictures, *pages, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The documents as a site, .nox/site/index.html; a broken link or a resource from elsewhere is an error."""
    install(session)
    run(session, *PIP, "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS / "locked" / "docs.txt"))
    site = ROOT / ".nox" / "site"
    shutil.rmtree(site, ignore_errors=True)
    strict = ("--fail-on-warning", "--keep-going", "--quiet", "--fresh-env")
    folders = ("-d", str(ROOT / ".nox" / "doctrees"), "-c", str(ROOT / "docs"), str(ROOT), str(site))
    run(session, "python", "-m", "sphinx", *strict, *folders)
    run(session, "python", "-m", "pytest", "-m", "site", "tests/test_site.py")


@nox.session
def latex(session: nox.Session) -> None:
    """What `report --latex` gives of the committed results, compiled (two minutes). Needs pdflatex and pdftotext."""
    for program in ("pdflatex", "pdftotext"):
        if shutil.which(program) is None:
            session.error(f"there is no {program}: install a TeX with booktabs, and poppler's tools")
    install(session)
    run(session, "python", "-m", "pytest", "-m", "latex", "tests/test_latex_compiled.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, and mypy --strict against the built wheel (an editable install hides packaging faults)."""
    install(session)
    run(session, "ruff", "check", ".")
    run(session, "ruff", "format", "--check", ".")
    site = Path(session.create_tmp()) / "site"
    shutil.rmtree(site, ignore_errors=True)
    run(
        session, "python", "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site), "."
    )
    config = str(ROOT / "pyproject.toml")
    run(session, "mypy", "--config-file", config, "-p", "shardbench", MYPYPATH=str(site))
    run(session, "mypy", "--config-file", config, "tools/regression", MYPYPATH=str(site))


@nox.session
def lock(session: nox.Session) -> None:
    """Write requirements/locked/ again: the newest versions that requirements/*.txt allow, with their hashes."""
    place = Path(session.create_tmp()) / "uv"
    session.run(sys.executable, "-m", "venv", "--clear", str(place), external=True)
    tool = ("--quiet", "--require-hashes", "-r", str(REQUIREMENTS / "locked" / "uv.txt"))
    session.run(str(place / "bin" / "python"), "-m", "pip", "install", *tool, external=True)
    env = {"PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    session.run(str(place / "bin" / "python"), str(REQUIREMENTS / "lock.py"), env=env, external=True)


@nox.session
def pythons(session: nox.Session) -> None:
    """What is locked, installed and tried on each Python that the README names and that is here: `-- 3.12` for one.

    A gigabyte or, where torch comes with CUDA, six a Python, taken away afterwards.
    """
    asked = tuple(session.posargs) or PYTHONS
    lacking = [version for version in asked if shutil.which(f"python{version}") is None]
    if lacking:
        session.error(f"no Python {', '.join(lacking)} on PATH; try those that are: nox -s pythons -- VERSION ...")
    for version in asked:
        place = Path(session.create_tmp()) / f"python{version}"
        python = str(place / "bin" / "python")
        session.run(f"python{version}", "-m", "venv", "--clear", str(place), external=True)
        session.run(python, str(REQUIREMENTS / "install.py"), "cpu", external=True)
        session.run(python, *PIP[1:], "--no-deps", "--no-build-isolation", ".", external=True)
        env = {**ENVIRONMENT, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        session.run(python, "-m", "pytest", "-q", *TRIED, env=env, external=True)
        shutil.rmtree(place)

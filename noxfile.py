"""One command a job: each session installs what it needs, once, and runs.

All sessions share one environment (.nox/shardbench); it is made again only when a file under
requirements/ or pyproject.toml changes.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "none"  # all sessions share the environment that install() makes

ROOT = Path(__file__).parent
VENV = ROOT / ".nox" / "shardbench"
REQUIREMENTS = ROOT / "requirements"
PIP = ("python", "-m", "pip", "install", "--quiet")
PYTHONS = ("3.11", "3.12", "3.13")
"""The Pythons that the README names."""
TRIED = tuple(f"tests/test_{name}.py" for name in ("measured_backend", "torchrec_planner", "recshard", "run_trial"))
"""Tests that are run on each of them: they touch the engine, the planners and the solver."""
ASKED = ("plan", "quick", "a100-40gb-1x8", "--workload", "criteo-kaggle-like", "--budget", "5")
"""What the wheel is asked: RecShard is among the strategies, and with it the solver."""
ENVIRONMENT = {
    # `datasets/` must never be importable as the top-level package of that name.
    "PYTHONSAFEPATH": "1",
    # Spinning OpenMP threads slow ranks that share cores thirtyfold.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
DEFAULT_SUITE = "quick"
EXAMPLE = "examples/round_robin/round_robin"
LEADERBOARD = "leaderboard"
COMMON = ("drift", LEADERBOARD)
"""Studies of all strategies, which reproduce no paper."""
EVERYTHING = "all"
REPEATED_SUITE = "measured"
TABLES = {
    "prepare": ("tools", "tools/prepare_scale.py results/tables/scale"),
    "planners": ("tools", "tools/torchrec_planners.py results/tables/planner"),
    "plan": ("tools benchmarks", "tools/plan_command.py results/tables/plan"),
    "impostors": ("tests/conformance", "tests/conformance/table.py"),
    "faults": ("tests", "-m faults results/tables/faults/summary.csv"),
    "fuzz": ("tests tests/fuzz tools", "tests/fuzz results/tables/faults/fuzz.csv"),
    "support": ("tests", "-m torchrec_cells results/tables/torchrec/support.csv"),
    "gpu": ("tools", "tools/gpu_box/tables.py"),
    "memory": ("tests", "tests/memory_peaks.py results/tables/memory"),
    "dlrm_v4": ("tools", "tools/dlrm_v4.py results/tables/dlrm_v4"),
    "field": ("tests", "tests/field_cases.py results/tables/field/cases.csv"),
}
"""By name the folders whose modules are imported, and what Python runs to make the tables; options follow."""
MARKS = ("slow", "gpu", "latex")
"""Marks of tests that are not run by default and that a session can be asked for."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHECKS = ROOT / "tests" / "browser"
GPU_SUITE = "gpu"
ON_EVERY_MACHINE = """
Run this on each of the {nodes} machines, in this folder, which all of them share; FIRST is the first one's address:

export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONSAFEPATH=1 FIRST=127.0.0.1; i=0
while read -r folder; do
  {torchrun} --nnodes {nodes} --nproc-per-node {ranks} --rdzv-backend c10d --rdzv-id "$i" \\
    --rdzv-endpoint "$FIRST:$((29400 + i++ % 100))" -m shardbench.engine.rank "$folder" < /dev/null
done < {list}

When all have ended, on one of them: {again}"""
TRIED_ON_CPUS = ("quick", "--backend", "measured", "--strategy", "row-wise", "--strategy", "greedy-size")
"""Suite and options of `nox -s gpu -- --cpu`: the suite `gpu` would take an hour a repeat there."""


def variables(**environment: str) -> dict[str, str]:
    """Return what commands of the shared environment find in their environment beside this process's."""
    return {**ENVIRONMENT, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}", **environment}


def run(session: nox.Session, *command: str, **environment: str) -> None:
    """Run a command of the shared environment."""
    session.run(str(VENV / "bin" / command[0]), *command[1:], env=variables(**environment), external=True)


class Steps:
    """Commands of the shared environment of which one that fails does not keep the next one from running."""

    def __init__(self, logs: Path, *, hidden: bool) -> None:
        """Keep what they print in ``logs``; GPUs are ``hidden`` from them or not."""
        self._logs, self._environment = logs, {"CUDA_VISIBLE_DEVICES": ""} if hidden else {}
        self._rows: list[tuple[str, str, float, str]] = []
        logs.mkdir(parents=True, exist_ok=True)

    def log(self, name: str) -> Path:
        """Return the file of what a step printed."""
        return self._logs / f"{name}.log"

    def run(self, name: str, product: Path | None, *command: str) -> None:
        """Run a command, show and keep what it prints; it makes a file or folder, or nothing but its log."""
        print(f"\n{name}: {shlex.join(command)}", flush=True)
        env = {**os.environ, **variables(**self._environment), "PYTHONUNBUFFERED": "1"}
        start_s, last_line, why = time.monotonic(), "", ""
        with (
            self.log(name).open("w") as log,
            subprocess.Popen(
                [str(VENV / "bin" / command[0]), *command[1:]], env=env, text=True, errors="replace",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            ) as process,
        ):  # fmt: skip
            for line in process.stdout:
                print(line, end="", flush=True)
                log.write(line)
                last_line = line.strip() or last_line
                why = last_line if line.startswith(("error: ", "problem: ")) else why
        result, text = "passed", str(product or self.log(name))
        if process.returncode:
            result, text = "failed", f"{why or last_line or f'exit code {process.returncode}'} ({self.log(name)})"
        self._rows.append((name, result, time.monotonic() - start_s, text))

    def end(self, session: nox.Session) -> None:
        """Print what passed, what failed and where all of it lies; end the session in error if a step failed."""
        print("\nstep, result, seconds, where it lies or why it failed:")
        for name, result, seconds, text in self._rows:
            print(f"  {name:<11}  {result}  {seconds:>6.0f} s  {text}", flush=True)
        failed = [name for name, result, *_ in self._rows if result == "failed"]
        if failed:
            session.error(f"{len(failed)} of {len(self._rows)} steps failed: {', '.join(failed)}")


def new_environment(session: nox.Session, place: Path, *installed: str) -> str:
    """Make a virtual environment anew and install into it what pip is told; return its Python."""
    python = str(place / "bin" / "python")
    session.run(sys.executable, "-m", "venv", "--clear", str(place), external=True)
    session.run(python, *PIP[1:], *installed, external=True)
    return python


def install(session: nox.Session) -> None:
    """Install the engine, the suite (editable) and the tools, each package by its hash (requirements/locked/)."""
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
    """Say whether the name is of studies or claims (a baseline's, or of all strategies), and not of a plain suite."""
    return (ROOT / "baselines" / name / "reproduction").is_dir() or name in COMMON


def everything() -> list[str]:
    """Return the names of the suite quick, of every paper, and of the studies of all strategies."""
    papers = sorted(folder.parent.name for folder in (ROOT / "baselines").glob("*/reproduction"))
    return [DEFAULT_SUITE, *papers, *COMMON]


@nox.session
def reproduce(session: nox.Session) -> None:
    """Run a suite (default: quick), or a paper's suite, studies and claims (such as recshard). Records go to runs/.

    `all` is the suite quick, every paper, drift and the leaderboard. Options go to `shardbench run` or `reproduce`.
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

    `-- all` makes every suite, study and page again that is not of the code here, in hours: what was interrupted goes
    on. What is simulated runs on all cores, or on other hosts (`--parallel N`, `--cluster slurm`); what is timed runs
    alone. `nox -s tables` makes the tables that no suite has.
    """
    name, *options = session.posargs or [DEFAULT_SUITE]
    if is_paper(name) and options:
        session.error(f"{name} is a paper: all of it is made again, so it takes no options, not {' '.join(options)}")
    install(session)
    if name == EVERYTHING:
        spread = options if "--parallel" in options else ["--parallel", "0", *options]
        for each in everything():
            make_again(session, each, "--outdated", *spread)
        make_again(session, REPEATED_SUITE, "--outdated")
    else:
        make_again(session, name, "--fresh", *options)
    for tool in ("making", "document_numbers"):
        run(session, "python", f"tools/{tool}.py")
    if name == EVERYTHING:
        docs(session)


def make_again(session: nox.Session, name: str, *options: str) -> None:
    """Make the committed records and tables of a suite or a paper again."""
    if is_paper(name):
        run(session, "shardbench", "reproduce", name, "--results", "results", *options)
        return
    run(session, "shardbench", "run", name, "--results", "results", *options)
    if name == REPEATED_SUITE:
        run(session, "shardbench", "run", name, "--results", "results/again", *options)
        run(session, "shardbench", "compare", "results", "--with", "results/again", "--order", name)
        run(session, "python", "tools/thin.py", f"results/again/records/{name}.jsonl")
        # The leaderboard's measured column is of this suite.
        run(session, "shardbench", "report", "leaderboard", "--results", "results")
    run(session, "shardbench", "report", "prediction", "--results", "results")
    for tool in ("agreement", "held_out", "chart"):
        run(session, "python", f"tools/published_{tool}.py", PYTHONPATH=str(ROOT / "tools"))
    run(session, "python", "tools/pair_error.py", PYTHONPATH=str(ROOT / "tools"))


@nox.session
def tables(session: nox.Session) -> None:
    """Make committed tables that no suite has: `-- NAME`, one of those below. Options go to what makes them.

    prepare: prepare made-up logs of one and of ten million rows, and profile one of ten million; rows a CPU second,
    seconds on one and two cores, and the peak memory.
    planners: our planner beside TorchRec's own on the same modules; plans, predicted and measured steps; and what more
    TorchRec's planner makes of a problem the more it is told.
    plan: seconds of `shardbench plan` with many tables, its answers within short budgets on a busy machine, and the
    terminal of the README's first screen, for which `nox -s build` made the wheel; `-- plan session` makes that alone.
    `-- plan grid` asks it in 72 cells (an hour of a quiet machine): those in its file are kept, so that it can go on.
    impostors: which check catches each strategy that breaks a rule; an error where another check does.
    faults: 286 seeded faults of ranks, planners, cells, the program, its files, the disk, memory and network; those of
    disk and network need unshare (util-linux). With options (`--seed N`,
    `--only KIND`, `--every N`) the committed table stays as it is.
    support: what ShardBench supports of TorchRec: two ranks run every cell. `-- support PYTHON` runs them in the
    environment of that Python, which has ShardBench and another release of TorchRec; the table keeps both.
    dlrm_v4: what listeners like those of MLPerf's benchmark are drawn as, beside what is published of them (minutes).
    memory: peaks of real ranks for 20 plans and four workloads, beside predicted ones (half an hour), and which
    simulated plans of quick and the leaderboard fit by their peaks; `-- memory fits` counts these alone, off tables.
    gpu: the runs in results/gpu (tools/gpu_box), beside what was predicted.
    field: what people reported, a line a kind, by the tests that take their input.
    fuzz: 100,000 wrong files and options for every parser of what others write (ten minutes), or `-- fuzz N` of them.
    """
    name, *options = session.posargs or [""]
    if name not in TABLES:
        session.error(f"say which tables to make: nox -s tables -- NAME, where NAME is one of {', '.join(TABLES)}")
    install(session)
    folders, command = map(str.split, TABLES[name])
    python = options.pop(0) if name == "support" and options else "python"
    if name == "faults" and options:
        command[-1] = str(Path(session.create_tmp()) / "summary.csv")
    path = os.pathsep.join(str(ROOT / folder) for folder in folders)
    # TorchRec's planner takes its options out of sets of strings.
    run(session, python, *command, *options, PYTHONPATH=path, PYTHONHASHSEED="0")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the default tests: minutes on two cores, no GPU, no data to bring. Options and files go to pytest.

    `-- slow`, `-- gpu` and `-- latex` run the tests of that mark instead: those of many minutes, those that need a CUDA
    device, and those that compile LaTeX (pdflatex, pdftotext). `-- slow tests/test_soak.py` runs one file of them.
    """
    mark, *options = session.posargs if session.posargs and session.posargs[0] in MARKS else ["", *session.posargs]
    lacking = [program for program in ("pdflatex", "pdftotext") if mark == "latex" and shutil.which(program) is None]
    if lacking:
        session.error(f"there is no {' and no '.join(lacking)}: install a TeX with booktabs, and poppler's tools")
    install(session)
    # Many tests wait for ranks or for a limit: on two cores three at once take three quarters of the time of two.
    at_once = min(4, len(os.sched_getaffinity(0)) + 1)
    selection = ("-m", mark) if mark else (f"--numprocesses={at_once}", "--dist=worksteal")
    # Each of hundreds of Pythons would compile the tests and the package anew where this is set, as in many containers.
    compiled = {"PYTHONDONTWRITEBYTECODE": ""}
    run(session, "python", "-m", "pytest", *selection, "--durations=10", *options, **compiled)


@nox.session
def gpu(session: nox.Session) -> None:
    """Do on a machine with GPUs what needs them: test, calibrate, measure over nccl, compare with predictions.

    A step that fails says why, and the next one goes on; a table at the end says where all of it lies. `-- --nodes N`
    measures on N machines like this one: it prints what each of them is to run, and `-- --collect` goes on when they
    have. `-- --cpu` tries everything with CPU ranks in place of GPUs, in minutes.
    """
    options, nodes = list(session.posargs), "1"
    if "--nodes" in options:
        at = options.index("--nodes")
        nodes = "".join(options[at + 1 : at + 2])
        del options[at : at + 2]
    if not nodes.isdecimal() or int(nodes) < 1 or not set(options) <= {"--cpu", "--collect"}:
        session.error(f"nox -s gpu takes --cpu, --nodes N and --collect, not {' '.join(session.posargs)}")
    on_cpus = ["--cpu"] if "--cpu" in options else []
    if not on_cpus and shutil.which("nvidia-smi") is None:
        session.error("there is no nvidia-smi: install the NVIDIA driver, or try all on CPUs: nox -s gpu -- --cpu")
    install(session)
    base = Path("runs", "gpu-on-cpus" if on_cpus else "gpu")
    suite, *suite_options = TRIED_ON_CPUS if on_cpus else (GPU_SUITE,)
    steps, results = Steps(base / "steps", hidden=bool(on_cpus)), ("--results", str(base))
    tables, machines, work = base / "tables" / suite, base / "machines", base / "work"
    if "--collect" in options:
        steps.run("collect", tables, "shardbench", "collect", str(work), *results)
    else:
        for folder in (machines, work):  # no step is to find what an earlier session left
            shutil.rmtree(folder, ignore_errors=True)
        machines.mkdir()
        steps.run("machine", None, "shardbench", "doctor")
        tests = ("tests/test_cuda_path.py",) if on_cpus else ("-m", "gpu")
        steps.run("tests", None, "python", "-m", "pytest", *tests)
        quick = ["--quick"] if on_cpus else []
        calibrate = ("doctor", "--calibrate", *quick, "--nodes", nodes, "--out", str(machines))
        steps.run("calibration", machines, "shardbench", *calibrate)
        machine = next(machines.glob("*.toml"), machines / "not-calibrated.toml")
        measure = ("run", suite, *suite_options, "--machine", str(machine), "--fresh", *results)
        if nodes != "1":
            steps.run("folders", work, "shardbench", *measure, "--work", str(work), "--no-launch")
            steps.run("list", None, "shardbench", "collect", str(work), "--open")
            steps.end(session)
            ranks, torchrun = machine.stem.rpartition("x")[2], VENV.relative_to(ROOT) / "bin" / "torchrun"
            again = " ".join(["nox -s gpu --", *on_cpus, "--collect"])
            print(
                ON_EVERY_MACHINE.format(
                    nodes=nodes, ranks=ranks, torchrun=torchrun, again=again, list=steps.log("list")
                )
            )
            return
        steps.run("suite", tables, "shardbench", *measure)
    steps.run("prediction", base / "tables" / "prediction", "shardbench", "report", "prediction", *results)
    steps.run("page", base / "pages" / f"{suite}.html", "shardbench", "report", suite, "--page", *results)
    steps.end(session)


@nox.session
def micro(session: nox.Session) -> None:
    """Time our own code beside something else, as ratios: a plan beside a greedy one, counting beside sorting."""
    install(session)
    options = ("-m", "", "--benchmark-only", "--benchmark-quiet")
    run(session, "python", "-m", "pytest", "tools/micro", *options, *session.posargs)


@nox.session
def regression(session: nox.Session) -> None:
    """Say whether this working tree made a benchmark slower, larger or worse (minutes; benchmarks/README.md).

    It is compared with HEAD, or with another commit by `-- --base COMMIT`.
    """
    install(session)
    run(session, "python", "tools/regression", *session.posargs)


@nox.session
def page(session: nox.Session) -> None:
    """Check the page in a browser: links, sorting, charts, dark and light, 400 px, keyboard, accessibility (axe-core).

    Needs chromium, node and npm. `-- FOLDER` leaves screenshots there.
    """
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        session.error(f"the page is checked in a browser, and there is none: install one of {', '.join(BROWSERS)}")
    if shutil.which("npm") is None:
        session.error("the page is checked by scripts of node, and there is no npm: install node 20 or later")
    install(session)
    folder = Path(session.create_tmp()) / "page"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    listed = folder / "pages.txt"
    run(session, "python", str(CHECKS / "make_pages.py"), str(folder), str(listed))
    session.run("npm", "ci", "--prefix", str(CHECKS), "--silent", "--no-audit", "--no-fund", external=True)
    pictures = ("--screenshots", session.posargs[0]) if session.posargs else ()
    pages = listed.read_text().splitlines()
    check = ("node", str(CHECKS / "check.mjs"), "--chromium", browser, "--broken", str(CHECKS / "broken.html"))
    session.run(*check, *pictures, *pages, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, .nox/site/index.html: the leaderboard and all documents.

    A broken link and a resource from elsewhere are errors.
    """
    install(session)
    run(session, *PIP, "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS / "locked" / "docs.txt"))
    site = ROOT / ".nox" / "site"
    shutil.rmtree(site, ignore_errors=True)
    strict = ("--fail-on-warning", "--keep-going", "--quiet", "--fresh-env")
    folders = ("-d", str(ROOT / ".nox" / "doctrees"), "-c", str(ROOT / "docs"), str(ROOT), str(site))
    run(session, "python", "-m", "sphinx", *strict, *folders)
    # The leaderboard's page links to the records and tables that it is made of, so that they are in the site.
    for folder in ("environments", "records", "studies", "tables"):
        shutil.copytree(ROOT / "results" / folder, site / "results" / folder)
    run(session, "shardbench", "report", LEADERBOARD, "--page", "--results", str(site / "results"))
    run(session, "python", "-m", "pytest", "-m", "site", "tests/test_site.py")


@nox.session
def build(session: nox.Session) -> None:
    """Make wheel, source distribution and the archive of results in dist/, check them, and ask the wheel for a plan.

    It is installed into a new environment, with the newest versions that it allows and without torch. `-- archives`
    makes and checks alone, with nothing but what is locked. `-- engines` also installs the wheel beside each engine of
    src/shardbench/cli/tried.toml, as one who has TorchRec would, plans there, and rehearses tools/gpu_box.
    """
    if set(session.posargs) - {"archives", "engines"}:
        session.error(f"nox -s build takes archives, engines or nothing, not {' '.join(session.posargs)}")
    dist, work = ROOT / "dist", Path(session.create_tmp())
    shutil.rmtree(dist, ignore_errors=True)
    tools = new_environment(
        session, work / "tools", "--require-hashes", "-r", str(REQUIREMENTS / "locked" / "build.txt")
    )
    # The wheel is made of the source distribution, so that the latter lacks nothing.
    session.run(tools, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT), external=True)
    sdist, wheel = (str(next(dist.glob(pattern), dist / pattern)) for pattern in ("*.tar.gz", "*.whl"))
    session.run(tools, "-m", "twine", "check", "--strict", sdist, wheel, external=True)
    session.run(tools, "-m", "tarfile", "--list", sdist, external=True)
    session.run(tools, "-m", "zipfile", "--list", wheel, external=True)
    session.run(tools, str(ROOT / "tools" / "data_package.py"), external=True)
    if "archives" in session.posargs:
        return
    python = new_environment(session, work / "wheel", wheel)
    answer = work / "answer.json"
    with answer.open("w") as out:
        command = str(Path(python).with_name("shardbench"))
        session.run(command, *ASKED, "--json", env=ENVIRONMENT, stdout=out, stderr=None, external=True)
    session.run(python, "-m", "json.tool", str(answer), os.devnull, external=True)  # JSON, and nothing in front of it
    if "engines" not in session.posargs:
        return
    import tomllib  # noqa: PLC0415 - nox itself may run on an older Python

    project = tomllib.loads((REQUIREMENTS.parent / "pyproject.toml").read_text())
    for engine in tomllib.loads((ROOT / "src" / "shardbench" / "cli" / "tried.toml").read_text())["engines"]:
        place = work / f"torchrec-{engine['torchrec']}"
        # TorchRec 1.6 imports iopath, which later releases do without.
        packages = (*project["dependency-groups"]["engine"], "iopath")
        python = new_environment(session, place, f"torch=={engine.pop('torch')}", *packages)
        # TorchRec declares the CUDA build of FBGEMM.
        beside = [f"{name}=={version}" for name, version in engine.items()]
        session.run(python, *PIP[1:], "--no-deps", *beside, external=True)
        session.run(python, *PIP[1:], wheel, external=True)
        session.run(python, str(ROOT / "examples" / "plan_in_torchrec.py"), env=ENVIRONMENT, external=True)
        rehearsed = str(work / f"gpu-box-{engine['torchrec']}")
        shutil.rmtree(rehearsed, ignore_errors=True)
        session.run(python, str(ROOT / "tools" / "gpu_box"), "--cpu", "--out", rehearsed, external=True)
        shutil.rmtree(place)


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff, and mypy --strict against the built wheel (an editable install hides packaging faults)."""
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
    # Scripts import each other by name, and the cases of benchmarks/. The example is what `shardbench new` writes.
    python_path = os.pathsep.join(map(str, (site, ROOT / "tools", ROOT / "tools" / "regression", ROOT / "benchmarks")))
    scripts = (*map(str, sorted((ROOT / "tools").glob("*.py"))), "tools/fits", "tools/regression", EXAMPLE)
    run(session, "mypy", "--config-file", config, "--explicit-package-bases", *scripts, MYPYPATH=python_path)
    # By themselves: they have a __main__, too.
    programme = str(ROOT / "tools" / "gpu_box")
    python_path = os.pathsep.join((str(site), programme))
    run(session, "mypy", "--config-file", config, "--explicit-package-bases", programme, MYPYPATH=python_path)


@nox.session
def lock(session: nox.Session) -> None:
    """Write requirements/locked/ again: the newest versions that pyproject.toml allows, with hashes.

    `-- audit` writes nothing, and holds what is locked against known advisories (requirements/audit.py).
    """
    if set(session.posargs) - {"audit"}:
        session.error(f"nox -s lock takes audit or nothing, not {' '.join(session.posargs)}")
    tool, script = ("audit", "audit.py") if session.posargs else ("uv", "lock.py")
    locked = ("--require-hashes", "-r", str(REQUIREMENTS / "locked" / f"{tool}.txt"))
    python = new_environment(session, Path(session.create_tmp()) / tool, *locked)
    env = {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}
    session.run(python, str(REQUIREMENTS / script), env=env, external=True)


@nox.session
def pythons(session: nox.Session) -> None:
    """Install and try what is locked on each Python that the README names, or on one: `-- 3.12`.

    Each takes a gigabyte of disk, or six where torch comes with CUDA, and gives it back afterwards.
    """
    versions = tuple(session.posargs) or PYTHONS
    lacking = [version for version in versions if shutil.which(f"python{version}") is None]
    if lacking:
        session.error(f"no Python {', '.join(lacking)} on PATH; try those that are: nox -s pythons -- VERSION ...")
    for version in versions:
        place = Path(session.create_tmp()) / f"python{version}"
        python = str(place / "bin" / "python")
        session.run(f"python{version}", "-m", "venv", "--clear", str(place), external=True)
        session.run(python, str(REQUIREMENTS / "install.py"), "cpu", external=True)
        session.run(python, *PIP[1:], "--no-deps", "--no-build-isolation", ".", external=True)
        env = {**ENVIRONMENT, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        session.run(python, "-m", "pytest", "-q", *TRIED, env=env, external=True)
        shutil.rmtree(place)

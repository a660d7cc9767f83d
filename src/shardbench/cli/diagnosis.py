"""Looks at this machine: what it is, which jobs of the suites run on it, and what is in the way."""

from dataclasses import dataclass
from pathlib import Path

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment, missing_driver
from shardbench.base.memory import RANK_BYTES, free_memory_bytes
from shardbench.base.reading import toml_file
from shardbench.datasets.cards.card import kinds, load_card
from shardbench.model.machine import Machine
from shardbench.model.table import Table
from shardbench.records.trial import Backend
from shardbench.trials.jobcheck import impossible, lacking_devices, missing_engine
from shardbench.trials.suite import Job, Suite, load_suite, suite_names
from shardbench.workloads.kinds import workload_config

DEFAULT_SUITE = "quick"
TRIED = Path(__file__).with_name("tried.toml")


@dataclass(frozen=True, kw_only=True)
class JobFit:
    """A job of a suite, whether it can run here, and why not."""

    suite: str
    workload: str
    machine: str
    backend: str
    fits: bool
    reason: str
    """Why it cannot run, or what to know about it; empty where there is nothing to say."""
    missing_data: bool = False
    """Whether nothing is missing but data that the user must bring."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that ``shardbench doctor`` says."""

    environment: Environment
    free_memory_bytes: int
    jobs: tuple[JobFit, ...]
    datasets: dict[str, str]
    """Where each data set is that the user must bring, or what to do; by name."""
    engines_tried: tuple[dict[str, str], ...]
    """Versions by distribution of each engine that this release was tried with."""
    problems: tuple[str, ...]

    @property
    def engine_was_tried(self) -> bool:
        """Say whether the engine that is here, if any, is one of those."""
        return _engine(self.environment) in self.engines_tried

    @property
    def ok(self) -> bool:
        """Say whether the default suite can run here."""
        return not self.problems and all(
            job.fits for job in self.jobs if job.suite == DEFAULT_SUITE and not job.missing_data
        )


def diagnose(data: Path) -> Diagnosis:
    """Look at this machine; ``data`` is the folder of data sets."""
    environment = Environment.here()
    problems = _engine_problems()
    free = free_memory_bytes()
    jobs = tuple(
        _fit(suite, job, data, environment, free, engine=not problems)
        for suite in map(load_suite, suite_names())
        for job in suite.jobs
    )
    return Diagnosis(
        environment=environment,
        free_memory_bytes=free,
        jobs=jobs,
        datasets=_datasets(data),
        engines_tried=tuple(toml_file(TRIED)["engines"]),
        problems=problems,
    )


def _engine(environment: Environment) -> dict[str, str]:
    """Return the version of each part of the engine that is here, by distribution, without the build behind ``+``."""
    parts = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu")
    versions = {name: environment.versions[name] for name in parts}
    return {name: version.partition("+")[0] for name, version in versions.items() if version is not None}


def _engine_problems() -> tuple[str, ...]:
    remedy = "measured trials need it: `nox -s reproduce` installs the engine, requirements/ lists it"
    missing = [f"{distribution} is not installed; {remedy}" for distribution in missing_engine()]
    return (*missing, *filter(None, [missing_driver()]))


def _fit(suite: Suite, job: Job, data: Path, environment: Environment, free: int, *, engine: bool) -> JobFit:
    machine = job.load_machine()
    fits, reason, missing_data = True, "", False
    try:
        workload = suite.workload(job).build(data)
    except BadInput as error:
        fits, reason, missing_data = False, str(error), True
    else:
        reason = impossible(workload, machine, job)
        fits = not reason
        if fits and job.backend is Backend.MEASURED:
            need = memory_bytes(workload.tables, job, machine)
            fits, reason = _runs(machine, need, environment, free, engine=engine)
    return JobFit(
        suite=suite.name,
        workload=job.workload,
        machine=job.machine,
        backend=job.backend.value,
        fits=fits,
        reason=reason,
        missing_data=missing_data,
    )


def memory_bytes(tables: tuple[Table, ...], job: Job, machine: Machine) -> int:
    """Estimate the bytes that a measured job takes on all ranks together, for a plan's tables and the control's."""
    rows = sum(t.rows * (t.dim * job.precision.bytes + job.optimizer.state_bytes(t.dim)) for t in tables)
    return 2 * rows + machine.topology.world_size * RANK_BYTES


def _runs(machine: Machine, need: int, environment: Environment, free: int, *, engine: bool) -> tuple[bool, str]:
    topology = machine.topology
    if not engine:
        return False, "the engine cannot be loaded"
    shortfall = lacking_devices(machine, Backend.MEASURED)
    if shortfall:
        return False, shortfall
    notes = [f"about {need / 1e9:.1f} GB of memory"]
    if machine.device == "cpu":
        if need > free:
            return False, f"needs about {need / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
        if topology.world_size > environment.cores:
            cores = f"{topology.world_size} ranks share {environment.cores} cores"
            notes = [f"{cores}: times are not compared"]
    if topology.nodes > 1:
        notes.append(f"this machine stands for {topology.nodes} nodes: links between them are as fast as inside")
    return True, "; ".join(notes)


def _datasets(data: Path) -> dict[str, str]:
    """Say of each of our data sets that the user must bring where it is, or what to do; by kind."""
    states = {}
    for kind in kinds():
        # A card without a small instance is of data that cannot be made.
        if load_card(kind).instance is not None:
            continue
        try:
            workload_config({"dataset": kind, "name": kind}, "doctor").build(data)
        except BadInput as error:
            states[kind] = f"not here: {error}"
        else:
            states[kind] = f"found in {data}"
    return states


def ranks_here(ranks: int | None) -> tuple[str, int]:
    """Return ``cuda`` where there is a CUDA device for each rank, else ``cpu`` where there is none, and the ranks.

    None stands for as many ranks as there are devices, or two of a CPU. Raises BadInput for fewer devices than ranks,
    and where the engine is missing.
    """
    missing = _engine_problems()
    if missing:
        raise BadInput(missing[0])
    count = Environment.here().gpus.count
    ranks = ranks or count or 2
    if 0 < count < ranks:
        raise BadInput(f"--ranks {ranks}: here are {count} CUDA devices, and each rank needs one")
    return "cuda" if count else "cpu", ranks


def lines(diagnosis: Diagnosis) -> list[str]:
    """Give the diagnosis for people, one line an item."""
    here = diagnosis.environment
    report = [
        f"machine: {here.cpu}, {here.cores} cores, {here.memory_gib} GiB of memory "
        f"({diagnosis.free_memory_bytes / 2**30:.1f} free), {here.platform}",
        f"GPUs: {', '.join(here.gpus.names) or 'none'}",
        "software: python " + here.python,
    ]
    # FBGEMM comes as one of two distributions.
    report += [f"  {name} {version}" for name, version in here.versions.items() if version is not None]
    if diagnosis.engine_was_tried:
        report.append("engine: tried with this release")
    else:
        report.append(f"engine: {'not tried with this release' if _engine(here) else 'not here'}; tried on CPUs were")
        report += ["  " + ", ".join(map(" ".join, versions.items())) for versions in diagnosis.engines_tried]
    report.append("jobs:")
    for job in diagnosis.jobs:
        verdict = "fits" if job.fits else "does not fit"
        reason = f": {job.reason}" if job.reason else ""
        report.append(f"  {job.suite}: {job.workload} on {job.machine}, {job.backend}: {verdict}{reason}")
    report.append("data sets to bring:")
    report += [f"  {name}: {state}" for name, state in diagnosis.datasets.items()]
    report += [f"problem: {problem}" for problem in diagnosis.problems]
    verdict = "can run" if diagnosis.ok else "cannot run"
    return [*report, f"suite {DEFAULT_SUITE} {verdict} here"]

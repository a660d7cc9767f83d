"""Lists what there is to choose from, as plain data: strategies, workloads, machines, suites, papers."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from shardbench.base.code import REPRODUCTION
from shardbench.model.machine_file import load_machine, machine_files
from shardbench.trials.discovery import missing_modules, reproduction_home, reproduction_names, strategies
from shardbench.trials.planning import traits_of
from shardbench.trials.suite import read_suite, suite_names

Entry = dict[str, Any]


def list_strategies() -> list[Entry]:
    """List every strategy: name, first line of its docstring, role, what it sees and does, what it lacks here."""
    entries = []
    for name, strategy in strategies().items():
        missing = missing_modules(strategy)
        first_line = traits_of(strategy).about
        role = "" if strategy.role.value == "competitor" else f" [{strategy.role.value}]"
        lack = f" (not here: needs {', '.join(missing)})" if missing else ""
        entries.append(
            {
                "name": name,
                "description": first_line + role + lack,
                "role": strategy.role.value,
                "sees": sorted(strategy.sees),
                "moves": sorted(strategy.moves),
                "requires": list(strategy.requires),
                "missing": list(missing),
            }
        )
    return entries


def list_workloads() -> list[Entry]:
    """List the workloads of the suites that come with the project, and which suites use them."""
    entries: dict[str, Entry] = {}
    for suite in suite_names():
        # Not load_suite: validating workloads imports every data set's packages, which takes seconds.
        for config in read_suite(suite).workloads:
            entry = entries.setdefault(config["name"], {"name": config["name"], "datasets": [], "suites": []})
            if config["dataset"] not in entry["datasets"]:
                entry["datasets"].append(config["dataset"])
            entry["suites"].append(suite)
    for entry in entries.values():
        entry["description"] = f"{', '.join(entry['datasets'])} (suites: {', '.join(entry['suites'])})"
    return [entries[name] for name in sorted(entries)]


def list_machines() -> list[Entry]:
    """List name, description, shape and capacity of every machine, also of installed packages."""
    return [
        {
            "name": name,
            "description": machine.description,
            "device": machine.device,
            "nodes": machine.topology.nodes,
            "devices_per_node": machine.topology.devices_per_node,
            "hbm_bytes": machine.topology.hbm_bytes,
        }
        for name, machine in ((name, load_machine(name)) for name in machine_files())
    ]


def list_suites() -> list[Entry]:
    """List name, description and size of every suite that comes with the project."""
    suites = [read_suite(name) for name in suite_names()]
    return [{"name": s.name, "description": s.description, "jobs": len(s.jobs)} for s in suites]


def list_papers() -> list[Entry]:
    """List the baselines with studies or claims, which ``reproduce`` takes, and the first line of what they are."""
    # The package of a baseline says what it is, and not that of the reproduction in it.
    homes = {name: reproduction_home(name).removesuffix(f".{REPRODUCTION}") for name in reproduction_names()}
    documents = {name: import_module(home).__doc__ or "" for name, home in homes.items()}
    return [{"name": name, "description": text.strip().split("\n")[0]} for name, text in documents.items()]


LISTS: Mapping[str, Callable[[], list[Entry]]] = {
    "strategies": list_strategies,
    "workloads": list_workloads,
    "machines": list_machines,
    "suites": list_suites,
    "papers": list_papers,
}

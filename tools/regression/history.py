"""What benchmarks came to at commits, a file each, by the kind of machine."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from judging import Kind, Level
from running import Listed
from trees import Stopped, git


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What absolute numbers depend on."""

    cpu: str
    cores: int
    python: str
    torch: str

    @classmethod
    def of(cls, environment: dict[str, Any]) -> "Machine":
        """From what a worker says of its environment."""
        return cls(
            cpu=environment["cpu"],
            cores=environment["cores"],
            python=environment["python"],
            torch=environment["versions"].get("torch") or "none",
        )

    @property
    def kind(self) -> str:
        """Name of its folder."""
        text = f"{self.cpu} {self.cores} cores python {self.python} torch {self.torch}"
        return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


@dataclass(frozen=True, kw_only=True)
class Results:
    """Of one commit on one machine."""

    machine: Machine
    commit: str
    committed: str
    """When, ISO 8601 in UTC: files lie in that order."""
    levels: dict[str, Level]
    listed: dict[str, Listed]
    """The benchmarks as they were then."""

    @property
    def path(self) -> Path:
        """Below the folder of all results."""
        day = re.sub(r"[^0-9T]", "", self.committed)[:15]
        return Path(self.machine.kind) / f"{day}-{self.commit[:10]}.json"

    def write(self, folder: Path) -> Path:
        """A line a benchmark, sorted; gives the path."""
        rows = [
            json.dumps({**asdict(self.listed[name]), **_rounded(level)}) for name, level in sorted(self.levels.items())
        ]
        head = {"machine": asdict(self.machine), "commit": self.commit, "committed": self.committed}
        text = json.dumps(head)[:-1] + ',\n"benchmarks": [\n' + ",\n".join(rows) + "\n]}\n"
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Back; raises Stopped for a file that is none."""
        try:
            data = json.loads(path.read_text())
            rows = {row["name"]: row for row in data["benchmarks"]}
            return cls(
                machine=Machine(**data["machine"]),
                commit=data["commit"],
                committed=data["committed"],
                levels={name: Level(median=r["median"], spread=r["spread"], n=r["n"]) for name, r in rows.items()},
                listed={
                    name: Listed(name=name, kind=Kind(r["kind"]), unit=r["unit"], version=r["version"])
                    for name, r in rows.items()
                },
            )
        except (ValueError, LookupError, TypeError) as error:
            raise Stopped(f"{path} is no file of regression results: take it from git again") from error


def _rounded(level: Level) -> dict[str, float | int]:
    return {"median": float(f"{level.median:.6g}"), "spread": round(level.spread, 4), "n": level.n}


def measured(machine: Machine, commit: tuple[str, str], listed: list[Listed], levels: dict[str, Level]) -> Results:
    """Results of a commit (its hash, and when it was made)."""
    return Results(
        machine=machine,
        commit=commit[0],
        committed=commit[1],
        levels=levels,
        listed={one.name: one for one in listed if one.name in levels},
    )


def latest(folder: Path, root: Path, machine: Machine | None = None) -> Results | None:
    """The last results of a commit that HEAD comes from, on that kind of machine, or on any where None."""
    pattern = f"{machine.kind}/*.json" if machine else "*/*.json"
    for path in sorted(folder.glob(pattern), key=lambda path: path.name, reverse=True):
        found = Results.read(path)
        if _is_ancestor(root, found.commit):
            return found
    return None


def _is_ancestor(root: Path, commit: str) -> bool:
    try:
        git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    except Stopped:
        return False
    return True

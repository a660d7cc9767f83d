"""Faults of what ranks leave and say: broken results, a job folder that is removed, and words that are no text."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from faults.case import Fault, Seen, expected
from faults.ranks import LIMIT_S, WORLD, meanwhile, trial_folder
from shardbench.engine import rank as engine
from shardbench.engine.measure import gather
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.launch import run_ranks
from shardbench.records.trial import Failure, Outcome

EARLY = {
    "nothing": (None, "left no result"),
    "an empty result": ("", "left a broken result: rank[01].json: has no digest"),
    "half a result": ('{"rank": 1, "job": "', "left a broken result: rank[01].json: has no digest"),
    "nonsense": ("\x00\x7f", "left a broken result: rank[01].json: has no digest"),
}
"""What a rank leaves when it ends before its time, as if all were well, and what is said of it."""
LATE: dict[str, tuple[Callable[[str], str], str]] = {
    "a cut result": (lambda text: text[: len(text) // 2], "left a broken result: rank[01].json: has no digest"),
    "an edited result": (lambda text: text.replace('"took_s":', '"took_s":1'), "left a broken result: .* digest"),
    "a result without digest": (lambda text: text[: text.rindex(',"digest"')] + "}", "has no digest at its end"),
    "the result of another rank": (lambda text: text, "left the result of another rank"),
}
"""The same of one that ends in time, by what becomes of its result."""
REMOVED_IN = {"start": "all", "build": "all", "time": "some"}
"""The job whose ranks lose their folder, by the phase in which it is removed."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for repeat in range(2):
        for what in EARLY:
            yield Fault("rank", "time", f"leaves {what} and ends {repeat}", partial(_early, what))
        for phase in REMOVED_IN:
            yield Fault("rank", phase, f"folder removed {repeat}", partial(_removed, phase))
    for what in LATE:
        yield Fault("rank", "result", f"leaves {what}", partial(_late, what))
    for phase in ("build", "warmup", "time"):
        yield Fault("rank", phase, "says what is no text", partial(_says, phase))


def _outcome(body: Callable[[Path], int], trial: Path) -> Failure | None:
    try:
        run_ranks(body, trial, WORLD, LIMIT_S)
        gather(trial)
    except TrialFailed as error:
        return error.failure
    return None


def _early(what: str, folder: Path, rng: random.Random) -> Seen:
    trial, rank = trial_folder(folder, "all"), rng.randrange(WORLD)
    failure = _outcome(partial(ends_early, rank, EARLY[what][0]), trial)
    return expected(failure, Outcome.ERROR, f"rank {rank} exited with 0 in phase time and {EARLY[what][1]}", rank)


def _late(what: str, folder: Path, rng: random.Random) -> Seen:
    trial, rank = trial_folder(folder, "all"), rng.randrange(WORLD)
    failure = _outcome(partial(leaves_another, rank, what), trial)
    return expected(failure, Outcome.ERROR, f"rank {rank} exited with 0 .*{LATE[what][1]}", rank)


def _says(phase: str, folder: Path, rng: random.Random) -> Seen:
    trial, rank = trial_folder(folder, "all"), rng.randrange(WORLD)
    failure = _outcome(partial(says_no_text, rank, phase), trial)
    return expected(failure, Outcome.ERROR, r"ValueError: byte \\udc80 of a name", rank, phase)


def _removed(phase: str, folder: Path, rng: random.Random) -> Seen:
    """No rank is at fault, whichever finds it."""
    trial = trial_folder(folder, REMOVED_IN[phase])
    gone = folder / "gone"

    def remove(pid: int) -> None:
        # At once: ranks go on writing.
        trial.rename(gone)
        shutil.rmtree(gone)

    done = meanwhile(trial, rng.randrange(WORLD), phase, remove, rng.uniform(0.0, 0.3))
    failure = _outcome(partial(as_it_is), trial)
    if not done():
        raise RuntimeError(f"the folder was not removed in phase {phase}: {failure}")
    seen = expected(failure, Outcome.ERROR, f"the job folder {trial.name} was removed while its ranks ran")
    return Seen(seen.said, seen.outcome_right, failure is not None and failure.rank is None, seen.cause_right)


def _number() -> int:
    return int(os.environ["RANK"])


def as_it_is(folder: Path) -> int:
    """A rank of the program."""
    return engine.run_rank(folder)


def _at(phase: str, act: Callable[[Path], None], folder: Path) -> int:
    """A rank that does something of its own when it comes to a phase."""

    class Acts(engine.Rank):
        def phase(self, name: str) -> None:
            super().phase(name)
            if name == phase:
                act(folder)

    engine.Rank = Acts
    return engine.run_rank(folder)


def ends_early(of: int, left: str | None, folder: Path) -> int:
    """The rank ``of`` leaves something in place of a result and ends, while its peers need it."""

    def end(folder: Path) -> None:
        if left is not None:
            (folder / f"rank{of}.json").write_text(left)
        os._exit(0)

    return _at("time", end, folder) if _number() == of else as_it_is(folder)


def says_no_text(of: int, phase: str, folder: Path) -> int:
    """The rank ``of`` raises an error with a lone surrogate, as a file's name may have one."""

    def raises(folder: Path) -> None:
        raise ValueError("byte \udc80 of a name")

    return _at(phase, raises, folder) if _number() == of else as_it_is(folder)


def leaves_another(of: int, what: str, folder: Path) -> int:
    """The rank ``of`` ends well, and its result is not what it measured."""
    text_of = engine.result_text

    def changed(result: object) -> str:
        if what == "the result of another rank":
            result = result.model_copy(update={"rank": 1 - of})
        return LATE[what][0](text_of(result))

    if _number() == of:
        engine.result_text = changed
    return engine.run_rank(folder)

"""A trial: one (strategy, workload, machine, backend, seed), and how it can end."""

from enum import StrEnum
from typing import Annotated

import pydantic
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from shardbench.base.errors import one_line
from shardbench.base.serialise import StrictModel, content_hash
from shardbench.model.table import Exchanged, Name, Optimizer, Precision, Scheduled, StepSchedule


class Backend(StrEnum):
    """The source of a number; the two are never mixed in one row."""

    SIMULATED = "simulated"
    """The cost model, fed with exactly counted traffic."""
    MEASURED = "measured"
    """TorchRec on real ranks."""


class Outcome(StrEnum):
    """The ways in which a trial ends."""

    OK = "ok"
    INFEASIBLE = "infeasible"
    """No plan fits: the strategy declined, or the workload cannot run on the machine at all."""
    OOM = "oom"
    TIMEOUT = "timeout"
    ERROR = "error"
    INVALID = "invalid"
    """The plan breaks a rule (coverage, capacity, undeclared move or information)."""
    SKIPPED = "skipped"
    """Not tried: something it requires is missing, or this version cannot run the plan."""


TRAINING = ("precision", "optimizer", "exchange", "schedule")
"""Settings of how a model is trained: what trials must share to be compared."""


def unusual(exchange: Precision, schedule: StepSchedule) -> tuple[str, ...]:
    """List in words what training does that it does not do unless asked; empty for the ordinary exchange and step."""
    exchanged = () if exchange is Precision.FP32 else (f"exchanged as {exchange}",)
    return exchanged if schedule is StepSchedule.SEQUENTIAL else (*exchanged, schedule.value)


class TrialSpec(StrictModel):
    """The facts that identify a trial; equal specs are the same trial and are not run twice."""

    suite: Name
    workload: Name
    workload_fingerprint: str
    machine: Name
    machine_hash: str
    backend: Backend
    strategy: Name
    seed: NonNegativeInt
    repeat: NonNegativeInt = 0
    """Number of this repeat; repeats of one strategy are A/A trials and give the noise floor."""
    batch_size: PositiveInt
    iterations: PositiveInt
    warmup: NonNegativeInt = 0
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.SGD
    exchange: Exchanged = Precision.FP32
    schedule: Scheduled = StepSchedule.SEQUENTIAL
    plan_s: PositiveFloat
    fit_s: PositiveFloat
    timeout_s: PositiveFloat

    @property
    def key(self) -> str:
        """Return the key of the trial, 16 hex digits."""
        return content_hash(self)

    @property
    def text(self) -> str:
        """Write the trial in a few words."""
        seed = f" s{self.seed}" if self.seed else ""
        where = " ".join((self.backend, self.workload, self.machine, *unusual(self.exchange, self.schedule)))
        return f"{where} {self.strategy}{seed} r{self.repeat}"


LEFT_OUT = "repeat"
"""The phase of a repeat that was not measured, as its strategy was out by then (``trials.elimination``)."""
LONGEST_FAILURE = 1_000
"""Characters that a record keeps of a cause, whoever wrote it."""
LONGEST_NAME = 100
"""Characters that a record keeps of a failure's phase and rule."""


def _line(longest: int) -> pydantic.BeforeValidator:
    """Have a text in one line of so many characters, which can be encoded."""
    return pydantic.BeforeValidator(lambda text: one_line(text, longest) if isinstance(text, str) else text)


def _not_ok(outcome: Outcome) -> Outcome:
    if outcome is Outcome.OK:
        raise ValueError("what ended well is no failure")
    return outcome


Word = Annotated[str, _line(LONGEST_NAME)]
"""The name of a phase or a rule."""


class Failure(StrictModel):
    """The reason why a trial did not end ``ok``, in one line, and where it failed."""

    outcome: Annotated[Outcome, pydantic.AfterValidator(_not_ok)]
    cause: Annotated[str, _line(LONGEST_FAILURE), Field(min_length=1)]
    phase: Word
    """One of start, plan, validate, bound, count, control, build, warmup, time, bytes, reference; harness: its own;
    ``LEFT_OUT``."""
    rank: int | None = None
    rule: Word | None = None
    """The rule that a strategy or its plan broke, by the names of the conformance checks."""

"""What a process of its own says to the one that waits for it: a kind and its bytes, read as data.

A process that ran somebody's strategy can write whatever it likes into the pipe, so what it says is taken apart as
text and JSON. A pickle is read only where the caller says that the process runs this program's code alone.
"""

import pickle
from multiprocessing.reduction import ForkingPickler

from shardbench.base.errors import described
from shardbench.processes.failures import LONGEST_CAUSE, failed
from shardbench.records.trial import Failure, Outcome

BEGAN, MARK, TEXT, OBJECT, FAILED = "began", "mark", "text", "object", "failed"
"""Kinds of messages: it is there, a point that it reached, an answer as text or pickle, why there is none."""
LONGEST_FAILURE = 1 << 16
"""Bytes of a failure that are read."""


def message(kind: str, value: object) -> bytes:
    """Return one message, as ``taken_apart`` and ``read`` understand it; raises what pickling an answer raises."""
    if isinstance(value, Failure):
        content = value.model_dump_json().encode()
    elif kind == OBJECT:
        content = bytes(ForkingPickler.dumps(value))
    else:
        content = str(value).encode()
    return kind.encode() + b"\n" + content


def taken_apart(frame: bytes) -> tuple[str, bytes]:
    """Return the kind and the content of a message; raises TrialFailed where it is none."""
    kind, _, content = frame.partition(b"\n")
    for known in (BEGAN, MARK, TEXT, OBJECT, FAILED):
        if kind == known.encode():
            return known, content
    raise failed(Outcome.ERROR, "an answer that cannot be read: it is of no known kind", "answer")


def read(kind: str, content: bytes, *, text: bool) -> object:
    """Return an answer: a Failure, a string where ``text`` is wanted, or an object; raises TrialFailed otherwise."""
    if kind not in (FAILED, TEXT if text else OBJECT):
        raise failed(Outcome.ERROR, f"an answer that cannot be read: it is of kind {kind}", "answer")
    try:
        if kind == FAILED:
            return Failure.model_validate_json(content[:LONGEST_FAILURE])
        return content.decode() if text else pickle.loads(content)  # noqa: S301 - of this program's own code
    except Exception as error:
        raise failed(
            Outcome.ERROR, f"an answer that cannot be read: {described(error, LONGEST_CAUSE)}", "answer"
        ) from error

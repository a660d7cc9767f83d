"""RNN baseline: device placement by a sequence policy and REINFORCE on the oracle's costs."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardbench.learned.learner import Learner

if TYPE_CHECKING:
    from .training import RnnTraining


class RnnPlacer(Learner):
    """Whole tables placed by an LSTM encoder-decoder that learns from the cost of each of its placements.

    It places only on as many devices as it was fitted on.
    """

    name = "rnn-rl"
    version = 2

    def training_type(self) -> "type[RnnTraining]":
        """Import the class of its trainings."""
        from .training import RnnTraining  # noqa: PLC0415

        return RnnTraining


def strategies() -> Iterable[RnnPlacer]:
    """Give the one strategy of this folder."""
    return (RnnPlacer(),)

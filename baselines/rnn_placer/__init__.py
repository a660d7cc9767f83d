"""RNN baseline: device placement by a sequence policy and REINFORCE on the oracle's costs."""

from collections.abc import Iterable

from shardbench.learned.learner import Learner


class RnnPlacer(Learner):
    """Whole tables placed by an LSTM encoder-decoder that learns from the cost of each of its placements.

    It places only on as many devices as it was fitted on.
    """

    name = "rnn-rl"
    version = 2
    trainings = "shardbench.baselines.rnn_placer.training:RnnTraining"


def strategies() -> Iterable[RnnPlacer]:
    """Give the one strategy of this folder."""
    return (RnnPlacer(),)

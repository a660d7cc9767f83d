"""What strategies that learn have in common beside ``fit``: where a training is kept, and who is told of it."""

from collections.abc import Callable
from pathlib import Path

from shardbench.model.strategy import Strategy


class Learner(Strategy):
    """A strategy whose ``fit`` is a training that can be watched, killed and taken up again.

    ``fit`` has no argument for either: set the attributes before it.
    """

    folder: Path | None = None
    """Where ``fit`` keeps its state by content key, and goes on from; None keeps nothing."""
    progress: Callable[[str], None] | None = None
    """Is given one line after every stage of a training, such as ``print``; None for silence."""
    fit_cpu_s: float = 0.0
    """CPU seconds that the last ``fit``'s training took in all, those of earlier processes included."""

    def tell(self, stage: object) -> None:
        """Pass a stage of training on as one line."""
        if self.progress is not None:
            self.progress(f"{self.name}: {stage}")

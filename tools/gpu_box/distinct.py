"""Whether the engine runs here at all: each optimizer forward and backward in each tier, and one TorchRec step."""

from box import Box


def measure(box: Box) -> None:
    """To be written."""

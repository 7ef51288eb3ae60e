"""What every loss is: a small module over logits and labels."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from pluralis.inputs import Matrix, as_labels
from pluralis.labels import Labels

VARIANTS = ("paper", "released")
"""Where the code that a paper's authors published departs from the paper: the paper's way, or the code's."""


class Late(NamedTuple):
    """A part of a loss or a method that begins only after some epochs of a stage."""

    what: str  # what is missing without it, in words
    after: int  # epochs
    parameter: str = ""  # that says how many; "" where it is fixed


class Loss(nn.Module):
    """A loss over logits [N, C] and labels [N, C] in {+1, 0, -1}; a scalar comes back.

    `paper` is where the formula comes from. `start_bias` is the bias of the head that suits the loss at the start:
    "zero" (p = 1/2) or "log-odds" (p = the share of written labels, over `start_rate`, the share of present labels that
    the loss takes to be written at the start); `deep_start_bias` the one that suits it better where the backbone learns
    too, "" for none. `batch_coupled` says that the value of an entry depends on other entries of the batch, so that
    gradients of parts of a batch do not add up to those of the whole.
    On a CPU labels with other values are refused; a GPU, which would have to be waited for, takes their signs.
    """

    paper: ClassVar[str]
    start_bias: ClassVar[str] = "zero"
    deep_start_bias: ClassVar[str] = ""
    start_rate: float = 1.0
    batch_coupled: bool = False

    def __init__(self) -> None:  # so that the signature of a loss shows its own parameters and nothing else
        super().__init__()

    def start(self, labels: Matrix) -> None:
        """Take from all training labels, `Labels` or [N, C], what is needed before the first step, as class priors are.

        Many losses need nothing: for them this does nothing. Parameters stay the same objects.
        """
        self._start(as_labels(labels))

    def _start(self, labels: Labels) -> None:
        """What `start` does."""

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """What the loss learned, for the history of a run: one finite number a name."""
        return {}

    def late(self) -> list[Late]:
        """What begins only after some epochs."""
        return []

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in parameters(type(self)))


def parameters(loss: type[Loss]) -> dict[str, Any]:
    """Names and defaults of a loss's parameters."""
    return {name: p.default for name, p in inspect.signature(loss).parameters.items()}

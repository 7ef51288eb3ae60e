"""What each loss does to the logit of a label: gradients by autograd, of the losses as they are used in training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.canvas import COLOURS, GREY, legend, looks, new_figure, shorten
from pluralis.errors import RecipeError, nearest
from pluralis.params import choice, number, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result
    from pluralis.losses import Loss

_EPOCHS = 10
_OVERLAID = 7  # lines that can be told apart in one panel
_OTHERS = 0.05  # probability of labels that are not examined
_OWNER = "figure gradients"
KINDS = {"present": 1, "unknown": 0, "absent": -1}
_KEYS = ("loss", "name", "params", "epoch", "epochs")
_SAYS = {"loss": "name", "name": "text", "params": "table"}


@dataclass(frozen=True)
class Asked:
    """A loss at one epoch of training."""

    loss: str
    name: str = ""
    params: Mapping[str, Any] | None = None
    epoch: int = _EPOCHS - 1
    epochs: int = _EPOCHS

    @classmethod
    def read(cls, entry: Any) -> Asked:
        """From the name of a loss, or a table with `loss` and what else differs."""
        table: Any = {"loss": entry} if isinstance(entry, str) else entry
        if not isinstance(table, Mapping) or "loss" not in table:
            raise RecipeError(f"{_OWNER}: losses has {entry!r}; give the name of a loss, or a table with loss = …")
        for key in table:
            if key not in _KEYS:
                raise RecipeError(f"{_OWNER}: losses has a table with the key {key!r}; {nearest(key, _KEYS)}")
        epochs = whole(_OWNER, "epochs", table.get("epochs", _EPOCHS), low=1)
        epoch = whole(_OWNER, "epoch", table.get("epoch", epochs - 1), high=epochs)
        params = table.get("params", {})
        for key, value, kind in (
            ("loss", table["loss"], str),
            ("name", table.get("name", ""), str),
            ("params", params, Mapping),
        ):
            if not isinstance(value, kind):
                raise RecipeError(f"{_OWNER}: losses has a table with {key} = {value!r}; give a {_SAYS[key]}")
        return cls(table["loss"], table.get("name", table["loss"]), params, epoch, epochs)

    def make(self) -> Loss:
        from pluralis.losses import create_loss

        return create_loss(self.loss, **(self.params or {}))


def gradient(asked: Asked, label: str, p: npt.ArrayLike, classes: int = 20) -> npt.NDArray[np.float64]:
    """[P] ∂(N·C·L)/∂z of a label that is present, unknown or absent, at each of the probabilities p [P].

    Some losses see more than the label, so it stands in a batch of 2·P rows. One label of each row is present, at
    p = 1/2: that of class 0 in the first half, which holds the examined labels, and in the second half that of the
    other classes in turn. All other labels are at p = 1/20 and unknown, or absent, to examine a loss where all is known
    (`present`, `absent`). What leaves out the largest of a batch sees evenly spread predictions, where p is so.

    >>> gradient(Asked("an"), "unknown", [0.25, 0.5])
    array([0.25, 0.5 ])
    """
    import torch

    from pluralis.labels import Labels

    p = torch.as_tensor(np.asarray(p, dtype=np.float64))
    rest = 0 if KINDS[choice(_OWNER, "label", label, KINDS)] == 0 else -1
    labels = torch.full((2 * len(p), classes), rest, dtype=torch.int8)
    written = torch.cat([torch.zeros(len(p), dtype=torch.long), 1 + torch.arange(len(p)) % (classes - 1)])
    labels[torch.arange(2 * len(p)), written] = 1
    logits = torch.where(labels > 0, 0.0, math.log(_OTHERS / (1 - _OTHERS))).double()
    column = 0 if label == "present" else 1
    logits[: len(p), column] = torch.logit(p)
    logits.requires_grad_()
    loss = asked.make()
    loss.start(Labels.from_dense(labels.numpy()))
    loss.eval()
    value = loss(logits, labels, epoch=asked.epoch, epochs=asked.epochs) * logits.numel()
    (slope,) = torch.autograd.grad(value, logits)
    return np.asarray(slope[: len(p), column].numpy())


def gradients(
    runs: Sequence[Result] = (),
    losses: Sequence[Any] = (),
    against: str = "probability",
    classes: int = 20,
    highest: float = 1.1,
) -> Figure:
    """What each loss does to the logit of a label: above 0 it is pushed down, below 0 up (Zhou et al., ECCV 2022,
    Figure 2a; Chen et al., IJCAI 2024, Figure 1).

    No run is needed. Without `losses` there are all of them. Few share two panels; many have one each, with assume
    negative in grey. `classes` is how many the batch of `gradient` has. What is beyond ±`highest` is not shown.
    """
    from pluralis.losses import LOSSES

    choice(_OWNER, "against", against, ("probability", "logit"))
    number(_OWNER, "highest", highest, above=0.0)
    whole(_OWNER, "classes", classes, low=2, high=10_000)
    asked = [Asked.read(entry) for entry in losses or LOSSES]
    p = np.linspace(0.002, 0.998, 250) if against == "probability" else 1 / (1 + np.exp(-np.linspace(-6, 6, 250)))
    x = p if against == "probability" else np.log(p / (1 - p))
    found = {one.name: {label: gradient(one, label, p, classes) for label in ("present", "unknown")} for one in asked}
    if len(found) < len(asked):
        raise RecipeError(f"{_OWNER}: two of the losses have the same name: give each a name = … of its own")
    if len(found) <= _OVERLAID:
        figure, panels = new_figure(2, size=(4.2, 3.4))
        for axes, label, title in zip(
            panels, ("present", "unknown"), ("annotated positives", "unannotated labels"), strict=True
        ):
            for (name, values), look in zip(found.items(), looks(found).values(), strict=True):
                axes.plot(x, values[label], label=name, color=look["color"], lw=1.8)
            axes.set_title(title, fontsize=10)
        _frame(panels, against, highest)
        legend(figure, panels[0])
        return figure
    figure, panels = new_figure(len(found), columns=5, size=(2.1, 1.9))
    for axes, (name, values) in zip(panels, found.items(), strict=True):
        for label, plain, colour, title in (
            ("present", p - 1, COLOURS[0], "annotated positives"),
            ("unknown", p, COLOURS[1], "unannotated labels"),
        ):
            axes.plot(x, plain, color=GREY, lw=1, ls=":", label="assume negative" if label == "unknown" else None)
            axes.plot(x, values[label], color=colour, lw=1.8, label=title)
        axes.set_title(shorten(name, 24), fontsize=10)
    _frame(panels, against, highest)
    legend(figure, panels[0], above=True)
    return figure


def _frame(panels: Sequence[Axes], against: str, highest: float) -> None:
    for axes in panels:
        axes.axhline(0, color="#333333", lw=0.7)
        axes.set_ylim(-highest, highest)
    panels[0].figure.supxlabel(f"{against} of the label", fontsize=10)
    panels[0].figure.supylabel("gradient by the logit", fontsize=10)

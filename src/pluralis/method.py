"""The vocabulary of training: what a batch, a position in time and a method are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.losses.base import Late, Loss
from pluralis.models.network import Network
from pluralis.stage import Stage
from pluralis.state import LabelState

Predict = Callable[[Tensor], Tensor]
"""Images [B, 3, H, W] on the 0-255 scale, or features [B, D] -> logits [B, C]."""
PredictTrain = Callable[..., Tensor]
"""Predicts every training row, unaugmented and in row order, by the averaged weights where there are any: logits [N, C]
on the CPU; `views=` says how thoroughly, `rows=` of which rows alone."""
_WRAP = "make it a pluralis.models.Network(backbone, head)"


@dataclass(frozen=True)
class Setup:
    """What a method is built from, beside its parameters.

    A network is one of `create_model`, or any module from images to logits, which is then a backbone without a head.

    >>> setup = Setup(lambda: nn.Linear(8, 3), classes=3, labels=Labels.from_lists([[0], [2]], 3))
    >>> setup.rows, setup.make_net()
    (2, Linear(in_features=8, out_features=3, bias=True))
    """

    make_net: Callable[[], nn.Module]  # each call gives a network of its own; what starts at random differs
    classes: int
    labels: Labels | None = None  # of the training rows; None when a finished run is read back to predict
    further_images: int = 0  # training rows after those, of which there is only the image

    def __post_init__(self) -> None:
        if not isinstance(self.further_images, int) or self.further_images < 0:
            raise RecipeError(f"Setup: further_images is {self.further_images!r}; give how many there are")
        if isinstance(self.make_net, nn.Module) or not callable(self.make_net):
            raise RecipeError(
                f"Setup: make_net is {_kind(self.make_net)}; give a function that makes a new network at each call,"
                " such as lambda: MyNet()"
            )
        if self.labels is None:
            return
        if not isinstance(self.labels, Labels):
            raise RecipeError(f"Setup: labels is {_kind(self.labels)}; give pluralis.Labels.from_dense(labels)")
        if len(self.labels.classes) != self.classes:
            raise RecipeError(f"Setup: classes is {self.classes!r}, but the labels have {len(self.labels.classes)}")

    @property
    def rows(self) -> int:
        """Training rows with labels, 0 where label state is not needed."""
        return 0 if self.labels is None else len(self.labels)

    def make_network(self, owner: str) -> Network:
        """One whose backbone and head the method `owner` can tell apart."""
        net = self.make_net()
        if not isinstance(net, Network):
            raise RecipeError(
                f"{owner} works on the backbone and the head, which {_kind(net)} does not tell apart:"
                f" {_WRAP}, or use create_model"
            )
        return net

    def make_another(self, first: nn.Module) -> nn.Module:
        """A second network, which shares nothing with the first."""
        net, taken = self.make_net(), {id(p) for p in first.parameters()}
        if net is first or any(id(p) in taken for p in net.parameters()):
            raise RecipeError(
                "the method trains two networks, and Setup.make_net gave the same one twice:"
                " make a new one at each call, such as lambda: MyNet()"
            )
        return net


@dataclass(frozen=True)
class Batch:
    """Some rows of the training set."""

    views: tuple[Tensor, ...]  # as many as the method asks for, each [B, 3, H, W] on the 0-255 scale
    labels: Tensor  # [B, C] int8 in {+1, 0, -1}
    index: Tensor  # [B] row in the training set: joins a batch to label state
    weight: float = 1.0  # this process's share of the batch, 1 when it is alone


@dataclass(frozen=True)
class Clock:
    """Where training is. Everything scheduled or random is a function of it."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    epochs: int = 1


class Method(nn.Module):
    """Networks, losses and label state.

    `state_dict()` is all of its memory: whatever a method must remember between two steps is a
    parameter or a persistent buffer, so that a resumed run cannot be told from an uninterrupted one.
    """

    views: ClassVar[tuple[str | None, ...]] = (None,)
    """One augmentation a view; None stands for the one that the stage names."""
    batch_coupled: bool = False
    """Ranks or statistics over the batch: two processes do not give the numbers of one."""
    paper: ClassVar[str] = ""
    """One line: who, where, when."""
    start_bias: str = "zero"
    """What the heads' biases start from: `zero`, the `log-odds` of the observed frequencies, or `equal` ones."""
    deep_start_bias: str = ""
    """What they start from instead where the backbone learns with them, whatever the head; "" for no other."""
    start_rate: float = 1.0
    """The share of present labels that are taken to be written at the start: `log-odds` are those of f / start_rate."""
    restart_bias: str = "log-odds"
    """The same for heads that start anew in a later stage, to learn soft labels by cross-entropy."""
    learns_images: ClassVar[bool] = False
    """Whether rows of which there is only the image (`Setup.further_images`) can teach it anything."""
    kept_rows: int = 0
    """How many training rows it remembers something of, by their `Batch.index`, beside those of a `LabelState`."""
    memory: ClassVar[tuple[str, ...]] = ()
    """Prefixes of `state_dict()` keys that `predict` does not need: label state, queues."""

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Named loss terms; the engine sums them."""
        raise NotImplementedError

    def predict(self, x: Tensor) -> Tensor:
        """Logits [B, C] of images on the 0-255 scale."""
        raise NotImplementedError

    def stages(self, plan: Stage) -> list[Stage]:
        return [plan]

    def start_stage(self, clock: Clock, predict_train: PredictTrain) -> None:
        """Fresh weights, or labels made from the stage before."""

    def learned_rows(self, stage: int) -> Tensor | None:
        """The numbers [n] of the training rows that a stage learns from, on the CPU; None for all."""
        return None

    def joins(self, stage: int) -> bool:
        """Whether what is evaluated of a stage is the mean of its weights with those that the stage before left.

        Several in a row are the mean of all. Sound where each starts from the same weights and stays near to them, and
        where batch norms keep their statistics: those of a mean of weights are not the mean of theirs.
        """
        return False

    def start_epoch(self, clock: Clock, predict_train: PredictTrain) -> None:
        """Labels that are made once an epoch."""

    def after_step(self, clock: Clock) -> None:
        """What follows the optimizer's step, such as pushing to a queue."""

    def members(self) -> dict[str, Predict]:
        """Predictions worth a report beside `predict`, such as those of each of two networks."""
        return {}

    def guessed(self) -> dict[str, LabelState]:
        """What was guessed about unknown labels, and when, by what it says: `absent` or `present`."""
        return {}

    def soft_labels(self) -> LabelState | None:
        """What the last stage learned of unknown labels, where an earlier one worked it out."""
        return None

    def figures(self) -> dict[str, float]:
        """What the history tells of an epoch beside its losses, such as how many labels were guessed."""
        return {}

    def late(self) -> list[Late]:
        """What begins only after some epochs of its last stage, so that a shorter plan never comes to it."""
        return []

    def networks(self) -> Iterator[tuple[str, Network]]:
        for name, module in self.named_modules():
            if isinstance(module, Network):
                yield name, module

    def param_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """One group for each backbone, each head and each other module, and one for parameters of the method itself."""
        groups: list[dict[str, Any]] = []
        taken: set[int] = set()
        for name, net in self.networks():
            for part, named, factor in (
                ("backbone", net.backbone_parameters(), 1.0),
                ("head", net.head_parameters(), stage.head_lr),
            ):
                params = [p for _, p in named if p.requires_grad]
                groups.append({"name": f"{name}.{part}", "params": params, "lr_factor": factor})
            taken |= {id(p) for p in net.parameters()}
        if not groups:
            self._check_headless(stage)
        for name, module in (*self.named_children(), ("method", self)):
            params = [p for p in module.parameters() if p.requires_grad and id(p) not in taken]
            groups.append({"name": name, "params": params, "lr_factor": 1.0})
            taken |= {id(p) for p in params}
        return [group for group in groups if group["params"]]

    def _check_headless(self, stage: Stage) -> None:
        """What a stage asks of backbones and heads cannot be had where no network tells them apart."""
        for name, neutral in (("head_lr", 1.0), ("freeze", 0), ("freeze_bn", False)):
            if (value := getattr(stage, name)) not in (neutral, None):
                raise RecipeError(
                    f"train.{name} is {value!r}, but no network of {type(self).__name__} has a head that can be told"
                    f" from its backbone: set {name}={neutral!r}, under which all of it trains alike, or {_WRAP}"
                )

    def weights(self) -> dict[str, Tensor]:
        """What `predict` needs, as copies."""
        state = self.state_dict().items()
        return {k: v.detach().clone() for k, v in state if not (self.memory and k.startswith(self.memory))}


class LossMethod(Method):
    """Any plain loss over one network: one of `create_model`, or a module of your own from images to logits.

    Your own trains as a whole at the learning rate and weight decay of the plan, whose `head_lr` must be 1: nothing
    says which of its layers is the head. Set the bias of the last one to `start_bias(loss, labels)` before.

    >>> from pluralis.losses import create_loss
    >>> method = LossMethod(nn.Linear(8, 3), create_loss("an"))
    >>> [(group["name"], group["lr_factor"]) for group in method.param_groups(Stage(head_lr=1.0))]
    [('net', 1.0)]
    """

    memory = ("loss.tally.",)  # where a loss counts what its `figures` tell

    def __init__(self, net: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        if not isinstance(net, nn.Module) or isinstance(net, Loss):
            raise RecipeError(f"LossMethod: net is {_kind(net)}; give LossMethod(net, loss) with a network")
        self.net = net
        self.loss = loss
        self.batch_coupled = bool(getattr(loss, "batch_coupled", False))
        self.start_bias = str(getattr(loss, "start_bias", "zero"))
        self.deep_start_bias = str(getattr(loss, "deep_start_bias", ""))
        self.start_rate = float(getattr(loss, "start_rate", 1.0))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.net(batch.views[0])
        return {"loss": self.loss(logits, batch.labels, epoch=clock.epoch, epochs=clock.epochs)}

    def figures(self) -> dict[str, float]:
        """What the loss learned."""
        return self.loss.figures() if isinstance(self.loss, Loss) else {}

    def late(self) -> list[Late]:
        """What the loss begins late."""
        return self.loss.late() if isinstance(self.loss, Loss) else []

    def param_groups(self, stage: Stage) -> list[dict[str, Any]]:
        return loss_group(super().param_groups(stage), self.loss, stage)

    def predict(self, x: Tensor) -> Tensor:
        logits = self.net(x)
        assert isinstance(logits, torch.Tensor)
        return logits


def loss_group(groups: list[dict[str, Any]], loss: nn.Module, stage: Stage) -> list[dict[str, Any]]:
    """What a loss itself learns has a learning rate of its own (its `lr_factor`) and no weight decay.

    A step of Adam is as long as its learning rate: one above the loss's `lr_most` is cut down to it, but not below that
    of the weights.
    """
    factor = float(getattr(loss, "lr_factor", 1.0))
    if stage.optimizer != "sgd" and stage.lr > 0:
        factor = min(factor, max(1.0, float(getattr(loss, "lr_most", math.inf)) / stage.lr))
    for group in groups:
        if group["name"] == "loss":
            group |= {"lr_factor": factor, "weight_decay": 0.0}
    return groups


def _kind(thing: object) -> str:
    """What somebody gave, in words."""
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"an object of {type(thing).__name__}"

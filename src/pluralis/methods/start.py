"""What heads start from."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.method import Method
from pluralis.models.network import Network

START_BIASES = ("zero", "log-odds", "equal")
_EQUAL = 10  # labels an image at an `equal` start: from p = 1/2 many hundreds of classes hardly find their level


def bias_words(bias: str, rate: float = 1.0) -> str:
    """A starting bias with what a head says of every image by it; `rate` is the method's `start_rate`.

    >>> bias_words("log-odds", 0.5), bias_words("zero")
    ('log-odds (each label as often as it is written, over a rate of 0.5)', 'zero (each label with p = 1/2)')
    """
    often = "each label as often as it is written" + (f", over a rate of {rate:g}" if rate < 1 else "")
    says = {"zero": "each label with p = 1/2", "log-odds": often, "equal": "each label with the same p"}
    return f"{bias} ({says[bias]})"


def start_heads(method: Method, labels: Labels, bias: str = "method") -> None:
    """Show every head the labels, and set its starting bias: one of `START_BIASES`, or what suits head and `method`.

    A network that is not a `Network` keeps the bias that it has: set that of its last layer to `start_bias`.
    """
    if bias not in ("method", *START_BIASES):
        raise RecipeError(f"method.start_bias is {bias!r}; it must be method, {' or '.join(START_BIASES)}")
    if bias == "log-odds" and not any(method.networks()):
        raise RecipeError(
            f'method.start_bias is "log-odds", but no network of {type(method).__name__} has a head that can be told'
            " from its backbone: set the bias of its last layer to pluralis.start_bias(loss, labels)"
        )
    if bias != "method":  # what is stated holds wherever heads start
        method.start_bias = method.restart_bias = bias
    for _, net in method.networks():
        if bias == "method" and any(weight.requires_grad for weight in net.backbone.parameters()):
            method.start_bias = method.deep_start_bias or _above_learning(net, method.start_bias)
            method.restart_bias = _above_learning(net, method.restart_bias)
        net.head.start(labels)
        net.head.set_bias(start_values(labels, method.start_bias, method.start_rate))


def _above_learning(net: Network, own: str) -> str:
    """The start above a backbone that learns: some heads put another in the place of log-odds."""
    return net.head.start_bias if own == "log-odds" else own


def start_bias(suits: nn.Module, labels: Labels | Any, backbone_learns: bool = False) -> Tensor:
    """[C] the bias that a last layer should start from to suit a loss or a method, by labels [N, C] in {+1, 0, -1}.

    Zeros for most; for `selection`, `gr`, `bce` and a few more the log-odds of each class's observed frequency, or of
    twice that for a `selection` that learns its rate: it takes half of the labels to be written at the start. For
    `gr`, say with `backbone_learns` that more than the last layer learns: zeros are better then, or the log-odds of 10
    labels an image where there are more than twenty classes (`equal` of a recipe). So they are for all of these where
    the backbone learns below class maps that are pooled as the heads `lse` and `csra` do, unless there are few images
    (less than some 60 steps an epoch) and norms that keep their statistics.

    >>> from pluralis.losses import create_loss
    >>> labels = torch.tensor([[1, 0, 0], [1, 0, -1], [0, 1, 0]])
    >>> layer = nn.Linear(8, 3)
    >>> _ = layer.bias.data.copy_(start_bias(create_loss("selection"), labels))
    >>> layer.bias.data
    tensor([ 0.5108, -0.5108, -1.9459])
    """
    if not isinstance(suits, nn.Module):
        raise RecipeError(f"start_bias takes a loss or a method first, not an object of {type(suits).__name__}")
    known = labels if isinstance(labels, Labels) else Labels.from_dense(labels)
    deep = getattr(suits, "deep_start_bias", "") if backbone_learns else ""
    bias = str(deep or getattr(suits, "start_bias", "zero"))
    return start_values(known, bias, float(getattr(suits, "start_rate", 1.0)))


def start_values(labels: Labels, bias: str, rate: float = 1.0) -> Tensor:
    """[C] what a starting bias stands for.

    `zero`: zeros. `log-odds`: those of each class's observed frequency, with half a count added to each side. `equal`:
    the same for all classes, such that ten labels are expected in an image, or half of the classes if that is fewer.
    With a `rate` at which present labels are written, the frequency f is f / rate, and at most (1 + f) / 2.
    """
    classes = len(labels.classes)
    if bias == "zero" or (bias == "equal" and classes <= 2 * _EQUAL):
        return torch.zeros(classes)
    if bias == "equal":
        return torch.full((classes,), math.log(_EQUAL / (classes - _EQUAL)))
    return log_odds(labels, rate=rate)


def log_odds(labels: Labels, guessed: Tensor | None = None, rate: float = 1.0, further_rows: int = 0) -> Tensor:
    """[C] of each class's frequency, as `start_values` has it; of the written labels and `guessed` [C] further ones.

    Labels may be guessed of `further_rows` too, in which none is written.
    """
    counts = torch.as_tensor(labels.summary().positives, dtype=torch.float64)
    counts = torch.minimum(counts / rate, (len(labels) + counts) / 2) if rate < 1 else counts
    counts = counts if guessed is None else counts + guessed
    return torch.log((counts + 0.5) / (len(labels) + further_rows - counts + 0.5)).float()

"""What heads start from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.method import Method

START_BIASES = ("zero", "log-odds")


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
    for _, net in method.networks():
        learns = any(weight.requires_grad for weight in net.backbone.parameters())
        if bias == "method" and net.head.start_bias is not None and learns:
            bias = net.head.start_bias
    if bias != "method":  # what is stated, or the head's own, holds wherever heads start
        method.start_bias = method.restart_bias = bias
    for _, net in method.networks():
        net.head.start(labels)
        net.head.set_bias(start_values(labels, method.start_bias))


def start_bias(suits: nn.Module, labels: Labels | Any) -> Tensor:
    """[C] the bias that a last layer should start from to suit a loss or a method, by labels [N, C] in {+1, 0, -1}.

    Zeros for most; for `selection`, `gr`, `bce` and a few more the log-odds of each class's observed frequency. Where
    class maps are pooled otherwise than by their mean, as the heads `lse` and `csra` do, keep zeros for all.

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
    return start_values(known, str(getattr(suits, "start_bias", "zero")))


def start_values(labels: Labels, bias: str) -> Tensor:
    """[C] zeros, or the log-odds of each class's observed frequency, with half a count added to each side."""
    if bias == "zero":
        return torch.zeros(len(labels.classes))
    counts = torch.as_tensor(labels.summary().positives, dtype=torch.float64)
    return torch.log((counts + 0.5) / (len(labels) - counts + 0.5)).float()

"""What heads start from."""

from __future__ import annotations

import torch
from torch import Tensor

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.method import Method

START_BIASES = ("zero", "log-odds")


def start_heads(method: Method, labels: Labels, bias: str = "method") -> None:
    """Show every head the labels, and set its starting bias: one of `START_BIASES`, or what suits the `method`."""
    if bias not in ("method", *START_BIASES):
        raise RecipeError(f"method.start_bias is {bias!r}; it must be method, {' or '.join(START_BIASES)}")
    if bias != "method":  # what is stated holds wherever heads start
        method.start_bias = method.restart_bias = bias
    for _, net in method.networks():
        net.head.start(labels)
        net.head.set_bias(start_values(labels, method.start_bias))


def start_values(labels: Labels, bias: str) -> Tensor:
    """[C] zeros, or the log-odds of each class's observed frequency, with half a count added to each side."""
    if bias == "zero":
        return torch.zeros(len(labels.classes))
    counts = torch.as_tensor(labels.summary().positives, dtype=torch.float64)
    return torch.log((counts + 0.5) / (len(labels) - counts + 0.5)).float()

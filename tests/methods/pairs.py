"""Two networks whose logits are given, for tests of methods that compare them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from pluralis.method import Batch, Setup


class Given(nn.Module):
    """Whatever the image, these logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.clone()


def setup_of(f: Tensor, g: Tensor) -> Setup:
    """The first network gives the logits f, the second g."""
    nets: Iterator[Given] = iter([Given(f), Given(g)])
    return Setup(lambda: next(nets), f.shape[1])  # type: ignore[arg-type, return-value]


def batch_of(labels: Tensor) -> Batch:
    return Batch((torch.zeros(len(labels), 1),), labels.to(torch.int8), torch.arange(len(labels)))


def draw(rng: np.random.Generator, rows: int, classes: int, ties: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of two networks, float64, and labels with a few verified absent ones; whole numbers give ties."""
    f, g = (rng.normal(-1, 2, (rows, classes)) for _ in range(2))
    labels = rng.choice([-1, 0, 0, 0, 0, 1], (rows, classes))
    if ties:
        f, g = np.round(f), np.round(g)
    return torch.from_numpy(f), torch.from_numpy(g), torch.from_numpy(labels)


def cross_entropy(z: np.ndarray, present: np.ndarray) -> np.ndarray:
    return np.where(present, np.logaddexp(0, -z), np.logaddexp(0, z))

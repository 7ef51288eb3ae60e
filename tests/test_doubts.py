"""Whether a model tells images apart, by what was written for held-out rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pluralis.doubts import hardly_tells


def often(labels: Tensor) -> Tensor:
    """Log-odds of the classes, as of many rows like these."""
    return ((labels > 0).double().mean(0) + 1e-3).logit()


HOW: list[dict[str, Any]] = [
    {},
    {"unlabelled": "absent"},
    {"mechanism": "rate", "rate": 0.5, "unlabelled": "skip"},
    {"mechanism": "rate", "rate": None, "unlabelled": "absent", "learned": True},
]


def rows(count: int = 400, classes: int = 20, p: float = 0.1) -> tuple[Tensor, torch.Generator]:
    """The truth [count, classes], at least one label a row, and what else is drawn from."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(count, classes, generator=generator) < p
    truth[torch.arange(count), torch.randint(classes, (count,), generator=generator)] = True
    return truth, generator


def written(truth: Tensor, how: dict[str, Any], generator: torch.Generator) -> Tensor:
    if how.get("mechanism") == "rate":
        return (truth & (torch.rand(truth.shape, generator=generator) < 0.5)).int()
    picked = torch.multinomial(truth.float(), 1, generator=generator)
    return torch.zeros(truth.shape, dtype=torch.int).scatter_(1, picked, 1)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_frequencies_and_noise_hardly_tell_and_the_truth_does(how: dict[str, Any]) -> None:
    truth, generator = rows()
    labels = written(truth, how, generator)
    noise = torch.randn(truth.shape, generator=generator)
    assert hardly_tells(often(labels).expand(labels.shape), labels, often(labels), how)
    assert hardly_tells(noise, labels, often(labels), how)
    for scale in (0.3, 4.0, 40.0):  # whatever the calibration
        assert not hardly_tells(scale * (2.0 * truth - 1) + 3, labels, often(labels), how)
        assert not hardly_tells(scale * (2.0 * truth - 1 + noise / 2), labels, often(labels), how)


@pytest.mark.parametrize("how", [*HOW, {"mechanism": "rate", "rate": 0.0, "unlabelled": "skip"}], ids=str)
@pytest.mark.parametrize(
    ("classes", "p", "share"), [(80, 0.025, 0.1), (80, 0.025, 0.3), (300, 0.01, 0.1), (20, 0.1, 0.5)]
)
def test_which_labels_were_verified_is_no_fault_of_the_model(
    classes: int, p: float, share: float, how: dict[str, Any]
) -> None:
    truth, generator = rows(800, classes, p)
    known = torch.rand(truth.shape, generator=generator) < share
    labels = known * torch.where(truth, 1, -1)
    assert not hardly_tells(8.0 * truth - 4, labels, often(labels), how)
    assert not hardly_tells(
        2.0 * truth - 4 + torch.randn(truth.shape, generator=generator) / 2, labels, often(labels), how
    )
    assert hardly_tells(torch.randn(truth.shape, generator=generator), labels, often(labels), how)


def test_rows_that_say_nothing_of_what_is_missing_raise_no_doubt() -> None:
    z = torch.zeros(60, 3)
    for labels in (torch.zeros(60, 3), torch.tensor([[1, -1, -1]] * 60), torch.zeros(0, 3)):
        assert not hardly_tells(z[: len(labels)], labels.int(), torch.zeros(3), {})


def test_rows_without_a_label_count_where_somebody_looked() -> None:
    """A model that knows them, and nothing else, then tells something."""
    labels = torch.zeros(200, 4, dtype=torch.int)
    labels[torch.arange(100), torch.arange(100) % 4] = 1
    z = torch.zeros(200, 4)
    z[100:] = -8
    assert hardly_tells(z, labels, often(labels), {})
    assert not hardly_tells(z, labels, often(labels), {"unlabelled": "absent"})


def test_many_classes_and_few_rows_are_no_doubt_of_a_good_model() -> None:
    """Frequencies that were taken from the same few rows would beat it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.zeros(60, 300, dtype=torch.int)
    labels[torch.arange(60), torch.randint(300, (60,), generator=generator)] = 1
    z = torch.randn(60, 300, generator=generator) - 4 + 1.5 * labels
    assert not hardly_tells(z, labels, torch.full((300,), 1 / 300).logit(), {})
    assert hardly_tells(z, labels, often(labels), {})
    assert hardly_tells(z - 1.5 * labels, labels, torch.full((300,), 1 / 300).logit(), {})

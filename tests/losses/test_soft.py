"""Soft labels with weights: against the formula of the paper and of its published implementation."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.losses import functional
from pluralis.losses.soft import soft_em
from tests.losses.check_loss import Spec, check_loss, example, gradient

ALPHA, BETA, SOFT = 0.3, 0.4, 0.15


def three_kinds(logits: Tensor, labels: Tensor, eps: float = 0.0, reduction: str = "mean") -> Tensor:
    """+1: present, −1: a pseudo-label, 0: unknown."""
    sign = labels.double().sign()
    target, weight = ((sign > 0) + value * (sign < 0).double() for value in (SOFT, BETA))
    return soft_em(logits, target, weight, alpha=ALPHA, eps=eps, reduction=reduction)


def reference(z, y, frozen, eps):
    p = 1 / (1 + np.exp(-z))
    log_p, log_rest = np.log(p + eps), np.log(1 - p + eps)
    pseudo = -BETA * (SOFT * log_p + (1 - SOFT) * log_rest)
    return np.select([y > 0, y < 0], [-log_p, pseudo], ALPHA * (p * log_p + (1 - p) * log_rest))


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_soft_em(eps):
    loss, formula = partial(three_kinds, eps=eps), partial(reference, eps=eps)
    check_loss(Spec(f"soft em, eps {eps:g}", loss, formula, fades=eps > 0, weighed=True))


def test_hard_labels_are_those_of_em_to_the_last_bit():
    logits, labels = example()
    logits = logits.float()
    target, weight = (labels > 0).float(), (labels != 0).float()
    one = gradient(lambda z, y: soft_em(z, target, weight, ALPHA), logits, labels)
    other = gradient(lambda z, y: functional.em(z, y, ALPHA), logits, labels)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_released_logarithms_lose_the_gradient_of_a_positive_far_off():
    z = torch.tensor([[-12.0, -20.0]])
    ones = torch.ones(1, 2)
    _, slope = gradient(lambda z, y: soft_em(z, ones, ones, eps=1e-5, reduction="sum"), z, ones)
    np.testing.assert_allclose(slope.numpy(), [[-0.381, -2.06e-4]], rtol=2e-3)
    _, slope = gradient(lambda z, y: soft_em(z, ones, ones, reduction="sum"), z, ones)
    np.testing.assert_allclose(slope.numpy(), [[-1, -1]], rtol=1e-4)

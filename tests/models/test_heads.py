"""The linear head: pooling, both input shapes, dropout and the starting bias."""

from __future__ import annotations

import pytest
import torch

from pluralis.errors import RecipeError
from pluralis.models import HEADS, LinearHead


def test_map_and_its_average_give_the_same_logits() -> None:
    head = HEADS["linear"](6, 4)
    features = torch.randn(3, 6, 5, 7)
    expected = features.mean(dim=(2, 3)) @ head.fc.weight.T + head.fc.bias
    torch.testing.assert_close(head(features), expected)
    torch.testing.assert_close(head(features.mean(dim=(2, 3))), expected)


def test_bias_starts_at_zero_and_can_be_set() -> None:
    head = LinearHead(6, 4)
    assert torch.equal(head(torch.zeros(1, 6)), torch.zeros(1, 4))
    values = torch.tensor([-3.0, -2.0, 0.0, 1.5], dtype=torch.float64)
    head.set_bias(values)
    torch.testing.assert_close(head(torch.zeros(2, 6)), values.float().expand(2, 4))
    assert head.fc.bias.requires_grad
    assert head.fc.bias.is_leaf


def test_bias_of_another_length_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"shape \(3,\).*4 classes"):
        LinearHead(6, 4).set_bias(torch.zeros(3))


def test_infinite_log_odds_are_refused_and_change_nothing() -> None:
    head = LinearHead(6, 3)
    with pytest.raises(RecipeError, match="class 1"):
        head.set_bias(torch.tensor([0.0, -torch.inf, 1.0]))
    assert torch.equal(head.fc.bias, torch.zeros(3))


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    head = LinearHead(64, 2, dropout=0.5)
    features = torch.randn(4, 64)
    assert not torch.equal(head(features), head(features))
    head.eval()
    assert torch.equal(head(features), head(features))

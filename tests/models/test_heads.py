"""Heads: pooling, both input shapes, dropout, the starting bias and the boost of activation maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pluralis.errors import RecipeError
from pluralis.models import HEADS, LinearHead, create_model
from pluralis.models.heads import CamBoostHead, MLPHead


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


def boosted(head: CamBoostHead, features: np.ndarray) -> np.ndarray:
    """The formula, position by position."""
    weight, bias = head.fc.weight.detach().double().numpy(), head.fc.bias.detach().double().numpy()
    rows, _, height, width = features.shape
    logits = np.zeros((rows, len(bias)))
    for y in range(height):
        for x in range(width):
            cam = features[:, :, y, x] @ weight.T + bias
            logits += np.maximum(cam, head.alpha * cam) / (height * width)
    return logits


def test_cam_boost_is_its_formula_and_without_boost_the_linear_head() -> None:
    torch.manual_seed(0)
    head = CamBoostHead(6, 4, alpha=5.0).double()
    head.set_bias(torch.tensor([-1.0, 0.0, 0.5, -3.0]))
    features = torch.randn(3, 6, 5, 7, dtype=torch.float64)
    for mode in (True, False):  # in training and in prediction
        found = head.train(mode)(features).detach()
        np.testing.assert_allclose(found, boosted(head, features.numpy()), rtol=1e-12)
    single = features[:, :, :1, :1]
    torch.testing.assert_close(head(single[:, :, 0, 0]), head(single))
    linear, plain = LinearHead(6, 4), CamBoostHead(6, 4, alpha=1.0)
    plain.load_state_dict(linear.state_dict())
    torch.testing.assert_close(plain(features.float()), linear(features.float()))


@pytest.mark.parametrize("name", ["cam-boost", "mlp"])
def test_the_starting_bias_is_the_logit_of_nothing(name: str) -> None:
    """Where the last layer sees zeros, also after the boost of positive values."""
    head = HEADS[name](6, 4)
    assert torch.equal(HEADS[name](6, 4).fc.bias, torch.zeros(4))
    with torch.no_grad():
        head.fc.weight.zero_()
    values = torch.tensor([-3.0, -2.0, 0.0, 1.5])
    head.set_bias(values)
    for features in (torch.randn(2, 6), torch.randn(2, 6, 3, 3)):
        torch.testing.assert_close(head(features), values.expand(2, 4))
    with pytest.raises(RecipeError, match="4 classes"):
        head.set_bias(torch.zeros(3))
    with pytest.raises(RecipeError, match="class 1"):
        head.set_bias(torch.tensor([0.0, torch.inf, 0.0, 0.0]))


def test_mlp_is_two_layers_over_the_average() -> None:
    head = MLPHead(6, 4, hidden=16)
    features = torch.randn(3, 6, 5, 7)
    hidden = (features.mean((2, 3)) @ head.hidden.weight.T + head.hidden.bias).clamp(min=0)
    expected = hidden @ head.fc.weight.T + head.fc.bias
    torch.testing.assert_close(head(features), expected)
    torch.testing.assert_close(head(features.mean((2, 3))), expected)


@pytest.mark.parametrize("name", ["cam-boost", "mlp"])
def test_dropout_of_the_other_heads_acts_in_training_only(name: str) -> None:
    torch.manual_seed(0)
    head, features = HEADS[name](64, 2, dropout=0.5), torch.randn(4, 64)
    assert not torch.equal(head(features), head(features))
    head.eval()
    assert torch.equal(head(features), head(features))


def test_wrong_head_parameters_are_refused() -> None:
    with pytest.raises(RecipeError, match="alpha is 0.5"):
        CamBoostHead(6, 4, alpha=0.5)
    with pytest.raises(RecipeError, match="hidden is 0"):
        MLPHead(6, 4, hidden=0)


@pytest.mark.parametrize(("name", "params"), [("cam-boost", {"alpha": 3.0}), ("mlp", {"hidden": 32})])
def test_heads_fit_into_a_network(name: str, params: dict[str, float]) -> None:
    net = create_model("tiny", 3, name, head_params=params)
    logits = net(torch.zeros(2, 3, 24, 24))
    assert logits.shape == (2, 3)
    logits.sum().backward()
    assert all(p.grad is not None for _, p in net.head_parameters())


@pytest.mark.parametrize("name", ["linear", "cam-boost", "lse", "csra"])
def test_autocast_does_not_round_logits(name: str) -> None:
    """Images that differ keep scores that differ: bfloat16 has 128 numbers between 1 and 2."""
    torch.manual_seed(0)
    head = HEADS[name](8, 3).eval()
    features = torch.linspace(1, 2, 2000)[:, None, None, None] * torch.rand(1, 8, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(features)
    assert torch.equal(logits, head(features))
    assert logits[:, 0].unique().numel() > 1500


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("training", [True, False])
def test_a_head_says_whether_an_average_can_stand_for_a_map(name: str, training: bool) -> None:
    """In float64 and without a bias, so that a head which looks at places cannot seem to pool."""
    torch.manual_seed(0)
    params = {"attention_dropout": 0.0} if name == "label-decoder" else {}
    head, maps = HEADS[name](6, 4, **params).double().train(training), torch.randn(3, 6, 5, 7, dtype=torch.float64)
    found, expected = head(maps), head(maps.mean((2, 3)))
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12) == head.only_pools  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", HEADS)
def test_logits_are_float32_under_autocast(name: str) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert HEADS[name](8, 3)(torch.rand(2, 8, 3, 3)).dtype == torch.float32

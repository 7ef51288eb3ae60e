"""Pooled class maps: their formulas and limits, the starting bias, and pictures of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import Tensor

from pluralis.errors import RecipeError
from pluralis.features import frozen_network
from pluralis.losses import create_loss
from pluralis.method import Batch, Clock, LossMethod, Setup
from pluralis.methods import create_method
from pluralis.models import HEADS, LinearHead, create_model
from pluralis.models.map_pooling import CSRAHead, LogMeanExpHead, MapHead, heat_maps, overlay
from pluralis.stage import Stage

NAMES = ["lse", "csra"]


def class_maps(head: MapHead, features: Tensor) -> np.ndarray:
    """M [B, C, h·w] in float64, position by position."""
    weight, bias = head.fc.weight.detach().double().numpy(), head.fc.bias.detach().double().numpy()
    values = features.detach().double().numpy()
    rows, _, height, width = values.shape
    maps = np.zeros((rows, len(bias), height * width))
    for place in range(height * width):
        maps[:, :, place] = values[:, :, place // width, place % width] @ weight.T + bias
    return maps


def log_mean_exp(maps: np.ndarray, r: float) -> np.ndarray:
    centre = maps.mean(2, keepdims=True)
    return centre[..., 0] + np.log(np.exp(r * (maps - centre)).mean(2)) / r


def residual_attention(maps: np.ndarray, lam: float, temperature: float) -> np.ndarray:
    scores = np.exp(temperature * maps)
    return maps.mean(2) + lam * (scores * maps).sum(2) / scores.sum(2)


def filled(head: MapHead, seed: int = 0) -> MapHead:
    torch.manual_seed(seed)
    torch.nn.init.normal_(head.fc.weight)
    torch.nn.init.normal_(head.fc.bias)
    return head


@pytest.mark.parametrize("r", [1e-3, 0.5, 1.0, 4.0])
def test_lse_is_its_formula(r: float) -> None:
    head = filled(LogMeanExpHead(6, 4, r=r)).double()
    features = torch.randn(20, 6, 5, 7, dtype=torch.float64)
    np.testing.assert_allclose(head(features).detach(), log_mean_exp(class_maps(head, features), r), rtol=1e-10)


@pytest.mark.parametrize(("lam", "temperature"), [(0.3, 1.0), (1.5, 3.0), (0.2, 0.0)])
def test_csra_is_its_formula(lam: float, temperature: float) -> None:
    head = filled(CSRAHead(6, 4, lam=lam, temperature=temperature)).double()
    features = torch.randn(20, 6, 5, 7, dtype=torch.float64)
    expected = residual_attention(class_maps(head, features), lam, temperature)
    np.testing.assert_allclose(head(features).detach(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    head = filled(HEADS[name](3, 2)).double()  # type: ignore[arg-type]
    features = torch.randn(2, 3, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(head, features)
    assert torch.autograd.gradcheck(
        lambda w: torch.func.functional_call(head, {"fc.weight": w}, features.detach()),
        head.fc.weight.detach().requires_grad_(),
    )


def test_the_limits_of_lse_are_the_mean_and_the_maximum() -> None:
    linear, features = LinearHead(6, 4), torch.randn(3, 6, 5, 7)
    expected = linear(features)
    for r in (0.0, 1e-7, 1e-5):
        head = LogMeanExpHead(6, 4, r=r)
        head.load_state_dict(linear.state_dict())
        torch.testing.assert_close(head(features), expected, rtol=1e-5, atol=2e-5)
    sharp = LogMeanExpHead(6, 4, r=1e4)
    sharp.load_state_dict(linear.state_dict())
    torch.testing.assert_close(sharp(features), sharp.maps(features).amax((2, 3)), rtol=0, atol=1e-3)


def test_a_small_r_loses_no_digits_in_float32() -> None:
    head, features = filled(LogMeanExpHead(6, 4, r=1e-3)), 0.1 * torch.randn(3, 6, 14, 14)
    maps = class_maps(head, features)
    gain = log_mean_exp(maps, 1e-3) - maps.mean(2)  # what the pooling adds to the mean: 1e-5 and less
    np.testing.assert_allclose(head(features).detach().numpy() - maps.mean(2), gain, atol=1e-6)


def test_csra_without_attention_is_the_linear_head_and_weights_are_exchanged() -> None:
    linear, features = LinearHead(6, 4), torch.randn(3, 6, 5, 7)
    for head in (CSRAHead(6, 4, lam=0.0), LogMeanExpHead(6, 4, r=0.0)):
        head.load_state_dict(linear.state_dict())
        torch.testing.assert_close(head(features), linear(features))
        assert head.state_dict().keys() == linear.state_dict().keys()
        assert head.fc.weight.shape == (4, 6)
        LinearHead(6, 4).load_state_dict(head.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_features_without_a_map_are_one_place(name: str) -> None:
    head, features = filled(HEADS[name](6, 4)), torch.randn(3, 6)  # type: ignore[arg-type]
    assert torch.equal(head(features), head(features[:, :, None, None]))
    scale = 1.0 if name == "lse" else 1.3
    torch.testing.assert_close(head(features), scale * head.fc(features))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_maps_are_finite(name: str, dtype: torch.dtype) -> None:
    head = HEADS[name](1, 2).to(dtype)
    torch.nn.init.ones_(head.get_parameter("fc.weight"))
    places = torch.tensor([[1e4, -1e4, 0.0, 1e4], [-1e4, -1e4, -1e4, -1e4], [1e4, 1e4, 1e4, 1e4]], dtype=dtype)
    features = places[:, None, None].requires_grad_()
    logits = head(features)
    logits.sum().backward()
    assert logits.dtype == torch.float32
    assert bool(torch.isfinite(logits).all())
    assert features.grad is not None
    assert bool(torch.isfinite(features.grad).all())
    shift = 1.0 if name == "lse" else 1.3
    torch.testing.assert_close(logits[1:, 0], shift * places[1:, 0].float())  # a constant map is its own pooling
    assert float(features.grad[0, 0, 0, 0]) > 0.4  # the high place learns


@pytest.mark.parametrize("name", NAMES)
def test_autocast_pools_in_float32(name: str) -> None:
    head, features = filled(HEADS[name](32, 4)), torch.randn(3, 32, 5, 7)  # type: ignore[arg-type]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(features)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, head(features), rtol=0.05, atol=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_the_starting_bias_is_the_logit_of_nothing_and_moves_every_logit_by_itself(name: str) -> None:
    torch.manual_seed(0)
    head = HEADS[name](6, 4)
    assert torch.equal(head.get_parameter("fc.bias"), torch.zeros(4))
    values, features = torch.tensor([-3.0, -2.0, 0.0, 1.5]), torch.randn(2, 6, 3, 3)
    before = head(features)
    head.set_bias(values)
    torch.testing.assert_close(head(features) - before, values.expand(2, 4), rtol=0, atol=1e-5)
    for nothing in (torch.zeros(2, 6), torch.zeros(2, 6, 3, 3)):
        torch.testing.assert_close(head(nothing), values.expand(2, 4))
    with pytest.raises(RecipeError, match="4 classes"):
        head.set_bias(torch.zeros(3))


@pytest.mark.parametrize("name", NAMES)
def test_dropout_takes_a_channel_at_all_places_and_in_training_only(name: str) -> None:
    torch.manual_seed(0)
    head = HEADS[name](64, 2, dropout=0.5)
    assert isinstance(head, MapHead)
    constant = torch.randn(4, 64, 1, 1).expand(4, 64, 3, 3)
    maps = head.maps(constant)
    assert torch.allclose(maps, maps[:, :, :1, :1].expand_as(maps))
    assert not torch.equal(maps, head.maps(constant))
    head.eval()
    assert torch.equal(head(constant), head(constant))


@pytest.mark.parametrize("name", NAMES)
def test_dropout_may_take_each_place_on_its_own(name: str) -> None:
    torch.manual_seed(0)
    head = HEADS[name](64, 2, dropout=0.25, drop="place")
    assert isinstance(head, MapHead)
    torch.nn.init.eye_(head.fc.weight)  # the first two channels are the maps
    maps = head.maps(torch.ones(400, 64, 3, 3))
    kept = maps != 0
    torch.testing.assert_close(maps[kept], torch.full_like(maps[kept], 4 / 3))
    assert abs(float(kept.float().mean()) - 0.75) < 0.02
    assert bool((kept != kept[:, :, :1, :1]).any())
    head.eval()
    assert torch.equal(head.maps(torch.ones(2, 64, 3, 3)), torch.ones(2, 2, 3, 3))


def test_a_learned_sharpness_starts_at_a_half_and_follows_its_gradient() -> None:
    head, features = LogMeanExpHead(6, 4, r="learn"), torch.randn(20, 6, 5, 7, dtype=torch.float64)
    plain = LogMeanExpHead(6, 4)
    plain.load_state_dict({key: value for key, value in head.state_dict().items() if key != "log_r"})
    torch.testing.assert_close(head(features.float()), plain(features.float()))
    filled(head).double()
    assert head.log_r is not None
    for r in (0.05, 0.5, 3.0):
        torch.nn.init.constant_(head.log_r, math.log(r))
        maps, step = class_maps(head, features), 1e-5
        np.testing.assert_allclose(head(features).detach(), log_mean_exp(maps, r), rtol=1e-10)
        (slope,) = torch.autograd.grad(head(features).sum(), head.log_r)
        ends = [log_mean_exp(maps, r * math.exp(sign * step)).sum() for sign in (1, -1)]
        assert slope.item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_a_learned_sharpness_is_trained_stored_and_kept_within_bounds() -> None:
    torch.manual_seed(0)
    net = create_model("tiny", 3, "lse", head_params={"r": "learn"})
    method = LossMethod(net, create_loss("an"))
    assert isinstance(net.head, LogMeanExpHead)
    (group,) = [g for g in method.param_groups(Stage()) if g["name"] == "net.head"]
    assert any(parameter is net.head.log_r for parameter in group["params"])
    batch = Batch((torch.rand(2, 3, 48, 48) * 255,), torch.tensor([[1, 0, 0], [0, 1, -1]]), torch.arange(2))
    method(batch, Clock())["loss"].backward()
    torch.optim.Adam(group["params"], lr=0.1).step()
    learned = sharpness(net.head)
    assert abs(math.log(learned / 0.5)) == pytest.approx(0.1, rel=1e-3)
    again = create_model("tiny", 3, "lse", head_params={"r": "learn"})
    again.load_state_dict(net.state_dict())
    assert isinstance(again.head, LogMeanExpHead)
    assert sharpness(again.head) == learned
    assert "log_r" not in LogMeanExpHead(6, 4).state_dict()
    head, features = LogMeanExpHead(6, 4, r="learn"), 1e3 * torch.randn(3, 6, 5, 7)
    assert head.log_r is not None
    for log_r, r in ((-1e4, 0.01), (1e4, 100.0)):
        torch.nn.init.constant_(head.log_r, log_r)
        assert sharpness(head) == pytest.approx(r)
        np.testing.assert_allclose(head(features).detach(), log_mean_exp_far(head, features, r), rtol=1e-4)


def sharpness(head: LogMeanExpHead) -> float:
    return float(torch.as_tensor(head.r).detach())


def log_mean_exp_far(head: MapHead, features: Tensor, r: float) -> np.ndarray:
    """By SciPy, for maps whose exponentials no float holds."""
    maps = class_maps(head, features)
    return (logsumexp(r * maps, axis=2) - math.log(maps.shape[2])) / r


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: LogMeanExpHead(6, 4, r="auto"), "r is 'auto'"),
        (lambda: LogMeanExpHead(6, 4, drop="row"), "drop is 'row'"),
        (lambda: CSRAHead(6, 4, drop=""), "drop is ''"),
        (lambda: LogMeanExpHead(6, 4, r=-1.0), "r is -1.0"),
        (lambda: LogMeanExpHead(6, 4, r=float("inf")), "r is inf"),
        (lambda: CSRAHead(6, 4, lam=-0.1), "lam is -0.1"),
        (lambda: CSRAHead(6, 4, temperature=-1), "temperature is -1"),
    ],
)
def test_wrong_parameters_are_refused(build: object, part: str) -> None:
    with pytest.raises(RecipeError, match=part):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backbone", ["tiny", "resnet18", "efficientnet_lite0"])
def test_any_method_trains_with_them_on_any_backbone(name: str, backbone: str) -> None:
    torch.manual_seed(0)
    method = create_method("an", Setup(lambda: create_model(backbone, 3, name), 3))
    batch = Batch((torch.rand(2, 3, 64, 64) * 255,), torch.tensor([[1, 0, 0], [0, 1, -1]]), torch.arange(2))
    sum(method(batch, Clock()).values()).backward()  # type: ignore[union-attr]
    net = next(net for _, net in method.networks())
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for _, p in net.head_parameters())
    assert method.eval().predict(batch.views[0]).shape == (2, 3)


def test_methods_that_need_more_of_a_head_say_so() -> None:
    for name in NAMES:
        with pytest.raises(RecipeError, match="label-decoder"):
            create_method("lac", Setup(lambda name=name: create_model("tiny", 3, name), 3))  # type: ignore[misc]
        method = LossMethod(create_model("tiny", 3, name), create_loss("an"))
        with pytest.raises(RecipeError, match="places of a feature map"):
            frozen_network(method, Stage(freeze=-1, augment="none"))


@pytest.mark.parametrize("head", ["lse", "csra", "linear"])
def test_heat_maps_are_what_the_head_says_of_each_place(head: str) -> None:
    torch.manual_seed(0)
    net = create_model("tiny", 3, head, dropout=0.5)
    images = torch.rand(2, 3, 48, 32) * 255
    heat = heat_maps(net, images)
    assert net.training
    net.eval()
    features = net.features(images)
    each = torch.stack([net.head(features[:, :, y, x]) for y in range(6) for x in range(4)], 2).sigmoid()
    small = torch.nn.functional.interpolate(each.view(2, 3, 6, 4), (48, 32), mode="bilinear", align_corners=False)
    torch.testing.assert_close(heat, small)
    if isinstance(net.head, LogMeanExpHead):
        torch.testing.assert_close(each.view(2, 3, 6, 4), net.head.maps(features).sigmoid())


def test_an_overlay_colours_what_was_seen() -> None:
    image, heat = torch.zeros(3, 4, 6, dtype=torch.uint8), torch.zeros(4, 6)
    heat[1, 2] = 0.9
    made = overlay(image, heat)
    assert made.shape == (3, 4, 6)
    assert made.dtype == torch.uint8
    assert int(made[:, 1, 2].sum()) > 100
    assert int(made.sum()) == int(made[:, 1, 2].sum())


def test_heat_maps_of_a_network_that_raises_leave_it_in_training() -> None:
    net = create_model("tiny", 3)
    with pytest.raises(RuntimeError):
        heat_maps(net, torch.zeros(2, 5, 48, 32))  # five channels
    assert net.training
    net.eval()
    heat_maps(net, torch.zeros(1, 3, 48, 32))
    assert not net.training

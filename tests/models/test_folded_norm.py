"""A convolution with its batch norm folded in, against the two one after the other in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pluralis.models import create_model, efficientnet, resnet
from pluralis.models.base import Backbone
from pluralis.models.efficientnet import SameConv2d
from pluralis.models.folded_norm import normed
from pluralis.models.fused_norm import Norm
from pluralis.models.lgconv import LgConv

Net = TypeVar("Net", bound=nn.Module)


def in_turn(conv: nn.Module, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    out: Tensor = norm(conv(x))
    return out


def with_statistics(net: Net) -> Net:
    """In float64, with norms that are not those of the start."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            with torch.no_grad():
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.3)
    return net.double().eval()


def value_and_gradients(run: Callable[[Tensor], Tensor], net: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = run(x)
    slope = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return [out, *torch.autograd.grad(out, [x, *net.parameters()], slope)]


@pytest.mark.parametrize("relu6", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 6])
def test_value_and_every_gradient_are_those_of_the_two_layers(stride: int, groups: int, relu6: bool) -> None:
    torch.manual_seed(0)
    conv, norm = SameConv2d(6, 12, 3, stride, groups), Norm(12, 1e-3, 0.01, relu6)
    pair = with_statistics(nn.ModuleList([conv, norm]))
    x = torch.randn(8, 6, 7, 8, dtype=torch.float64)
    found = value_and_gradients(lambda x: normed(conv, norm, x), pair, x)
    wanted = value_and_gradients(lambda x: in_turn(conv, norm, x), pair, x)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


NETWORKS = ["resnet18", "resnet50", "efficientnet_lite0"]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_whole_network_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = with_statistics(create_model(name, 3))
    x = 255 * torch.rand(2, 3, 64, 64, dtype=torch.float64)
    found = value_and_gradients(net, net, x)
    for module in (resnet, efficientnet):
        monkeypatch.setattr(module, "normed", in_turn)
    wanted = value_and_gradients(net, net, x)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-4), (True, 0.05)])
def test_in_low_precision_it_is_near_float64(bf16: bool, tolerance: float) -> None:
    torch.manual_seed(0)
    exact = with_statistics(create_model("efficientnet_lite0", 3))
    net = copy.deepcopy(exact).float()
    x = 255 * torch.rand(2, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = net(x).double()
    assert (found - exact(x.double())).norm() < tolerance * exact(x.double()).norm()


@pytest.mark.parametrize("name", NETWORKS)
def test_norms_that_stay_are_not_computed_apart_where_maps_are_large(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = create_model(name, 3).eval()
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    large, calls, batch_norm = 255 * torch.rand(4, 3, 256, 256), [], F.batch_norm

    def counted(*given: Any, **more: Any) -> Tensor:
        calls.append(given)
        return batch_norm(*given, **more)

    def apart(x: Tensor) -> int:
        calls.clear()
        net(x)
        return len(calls)

    monkeypatch.setattr(F, "batch_norm", counted)
    with torch.no_grad():
        assert apart(large) < norms / 2
        assert apart(large[:1, :, :32, :32]) > norms / 2  # most weights are more numbers than their maps
        net.train()
        assert apart(large) == norms


def test_norms_that_learn_measure_the_batch() -> None:
    conv, norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
    out = normed(conv, norm, torch.randn(8, 3, 5, 5))
    assert norm.num_batches_tracked == 1
    assert out.mean((0, 2, 3)).abs().max() < 1e-5


class Doubled(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def replaced(norm: nn.Module) -> nn.Module:
    norm.forward = lambda x: 3 * x  # type: ignore[method-assign]
    return norm


PLAIN = nn.Conv2d(8, 8, 3, padding=1, bias=False)


@pytest.mark.parametrize(
    ("conv", "norm"),
    [
        (LgConv(PLAIN), nn.BatchNorm2d(8)),  # its global branch is added before the norm
        (nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)),
        (nn.Identity(), nn.BatchNorm2d(8)),
        (PLAIN, Doubled(8)),
        (PLAIN, replaced(nn.BatchNorm2d(8))),
        (PLAIN, nn.BatchNorm2d(8, affine=False)),
        (PLAIN, nn.BatchNorm2d(8, track_running_stats=False)),
        (PLAIN, nn.GroupNorm(2, 8)),
        (PLAIN, nn.Identity()),
    ],
)
def test_what_is_more_than_the_two_layers_is_not_folded(conv: nn.Module, norm: nn.Module) -> None:
    torch.manual_seed(0)
    pair = nn.Sequential(conv, norm).double().eval()
    for name, buffer in norm.named_buffers():
        if name in ("running_mean", "running_var"):
            buffer.uniform_(0.5, 2)
    x = torch.randn(4, 8, 12, 12, dtype=torch.float64)
    assert torch.equal(normed(conv, norm, x), pair(x))


@pytest.mark.parametrize("which", ["_conv_stem", "_bn0"])
def test_whoever_listens_to_a_layer_is_told(which: str) -> None:
    net = create_model("efficientnet_lite0", 3).eval()
    backbone: Backbone = net.backbone
    heard: list[Tensor] = []
    before = net(torch.zeros(1, 3, 64, 64))
    getattr(backbone, which).register_forward_hook(lambda module, given, out: heard.append(out))
    after = net(torch.zeros(1, 3, 64, 64))
    assert len(heard) == 1
    torch.testing.assert_close(before, after)

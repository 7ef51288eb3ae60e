"""A convolution with its batch norm folded in, against the two one after the other in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pluralis.models import create_model, efficientnet, resnet
from pluralis.models.base import Backbone
from pluralis.models.efficientnet import SameConv2d
from pluralis.models.folded_norm import normed
from pluralis.models.fused_norm import Norm
from pluralis.models.lgconv import LgConv


def in_turn(conv: nn.Module, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    out: Tensor = norm(conv(x))
    return out


def with_statistics(net: nn.Module) -> nn.Module:
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
    x = torch.randn(2, 6, 7, 8, dtype=torch.float64)
    found = value_and_gradients(lambda x: normed(conv, norm, x), pair, x)
    wanted = value_and_gradients(lambda x: in_turn(conv, norm, x), pair, x)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "module"), [("resnet18", resnet), ("resnet50", resnet), ("efficientnet_lite0", efficientnet)]
)
def test_a_whole_network_is_the_same(name: str, module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = with_statistics(create_model(name, 3))
    x = 255 * torch.rand(2, 3, 64, 64, dtype=torch.float64)
    found = value_and_gradients(net, net, x)
    for module in (resnet, efficientnet):
        monkeypatch.setattr(module, "normed", in_turn)
    wanted = value_and_gradients(net, net, x)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


def test_norms_that_learn_measure_the_batch() -> None:
    conv, norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
    out = normed(conv, norm, torch.randn(8, 3, 5, 5))
    assert norm.num_batches_tracked == 1
    assert out.mean((0, 2, 3)).abs().max() < 1e-5


def test_what_is_more_than_a_convolution_is_not_folded() -> None:
    """The global branch of LgConv is added before the norm."""
    torch.manual_seed(0)
    conv, norm = LgConv(nn.Conv2d(8, 8, 3, padding=1, bias=False)), nn.BatchNorm2d(8)
    pair = with_statistics(nn.ModuleList([conv, norm]))
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    assert torch.equal(normed(conv, norm, x), pair[1](pair[0](x)))  # type: ignore[index]


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

"""LgConv: the branch against its plain formula, the start next to the untouched network, and training while frozen."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.models import create_backbone, create_model
from pluralis.models.base import Backbone
from pluralis.models.lgconv import SMALL, GlobalBranch, LgConv, add_global_branches


def plainly(branch: GlobalBranch, x: Tensor) -> Tensor:
    """The formula as it is written: everything is a map, and A sees the mean of r too."""
    heads, (b, channels, h, w) = branch.heads, x.shape
    r = torch.relu(branch.reduce(x))
    both = torch.cat([r, r.mean((2, 3), keepdim=True).expand_as(r)], 1)
    idle = torch.randn(heads, r.shape[1])  # any weights of the mean in A: the softmax takes them away
    to_a = torch.cat([branch.attend.weight.flatten(1), idle.to(x)], 1)
    to_b = torch.cat([branch.gate.weight.flatten(1), branch.gate_mean.weight], 1)
    a = torch.softmax(torch.einsum("hc,bcxy->bhxy", to_a, both).reshape(b, heads, h * w) + 3.0, 2)
    gates = torch.sigmoid(torch.einsum("hc,bcxy->bhxy", to_b, both) + branch.gate.bias[:, None, None])
    v = torch.einsum("dc,bcxy->bdxy", branch.value.weight, x) + branch.value.bias[:, None, None]
    y = torch.zeros_like(x)
    size = channels // heads
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        g = (v[:, part].flatten(2) * a[:, head : head + 1]).sum(2)
        y[:, part] = g[:, :, None, None] * gates[:, head : head + 1]
    return branch.norm(branch.project(x + y if branch.residual else y))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("residual", [False, True])
def test_formula(stride: int, residual: bool) -> None:
    torch.manual_seed(0)
    branch = GlobalBranch(16, 24, stride, residual=residual).double()
    nn.init.uniform_(branch.norm.weight)
    x = torch.randn(3, 16, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(branch(x), plainly(branch, x), rtol=1e-9, atol=1e-11)
    assert branch(x).shape == nn.Conv2d(16, 24, 3, stride, 1).double()(x).shape


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_last_scale_starts_small(variant: str) -> None:
    scale = LgConv(nn.Conv2d(64, 4096, 3, padding=1), variant=variant).global_branch.norm.weight
    if variant == "paper":
        assert (scale == SMALL).all()
    else:
        assert scale.std().item() == pytest.approx(SMALL, rel=0.1)
        assert abs(scale.mean().item()) < SMALL / 10


def changed_by(backbone: Backbone, train: bool, variant: str) -> float:
    """By how much the branches move the features, relative to their size."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, 64)
    twin = copy.deepcopy(backbone)
    add_global_branches(twin, variant=variant)
    with torch.no_grad():
        before, after = backbone.train(train)(x), twin.train(train)(x)
    assert not torch.equal(before, after)
    return ((after - before).norm() / before.norm()).item()


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_network_is_hardly_disturbed_at_the_start(name: str, variant: str) -> None:
    torch.manual_seed(1)
    assert changed_by(create_backbone(name), train=False, variant=variant) < 1e-3


def test_nor_with_statistics_of_the_batch() -> None:
    """Batch norms over a few positions of two random images make much of any difference, hence the wider bound."""
    torch.manual_seed(1)
    assert changed_by(create_backbone("resnet18"), train=True, variant="paper") < 1e-2


def test_every_dense_3x3_convolution_of_a_resnet_gets_a_branch() -> None:
    backbone = create_backbone("resnet50")
    convolutions = [m for m in backbone.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert add_global_branches(backbone) == len(convolutions) == 16
    assert sum(isinstance(m, GlobalBranch) for m in backbone.modules()) == 16


def test_weights_keep_their_names_and_values() -> None:
    backbone = create_backbone("resnet18")
    before = {k: v.clone() for k, v in backbone.state_dict().items()}
    add_global_branches(backbone)
    after = backbone.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert all(".global_branch." in key for key in after.keys() - before.keys())
    other = create_backbone("resnet18")
    add_global_branches(other)
    other.load_state_dict(after)  # as a finished run is read back
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(other.eval()(x), backbone.eval()(x))


@pytest.mark.parametrize("name", ["efficientnet_lite0"])
def test_other_backbones_are_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="lgconv = false"):
        add_global_branches(create_backbone(name))


def test_the_stem_and_grouped_convolutions_stay() -> None:
    tiny = create_backbone("tiny")
    tiny.stage3.conv1 = nn.Conv2d(96, 96, 3, padding=1, groups=96)
    assert add_global_branches(tiny) == 5
    assert type(tiny.conv1) is type(tiny.stage3.conv1) is nn.Conv2d


def one_step(net: nn.Module) -> set[str]:
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.train()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 10.0)
    torch.manual_seed(0)
    net(255 * torch.rand(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    return {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])}


@pytest.mark.parametrize("stages", [3, "all"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_branches_train_in_frozen_stages(stages: int | str, batch_norm: bool) -> None:
    net = create_model("tiny", 5)
    add_global_branches(net.backbone)
    net.freeze(stages, batch_norm)  # type: ignore[arg-type]
    moved = one_step(net)
    free = ("head.",) if stages == "all" else ("head.", "backbone.stage3.")
    assert all(".global_branch." in key or key.startswith(free) for key in moved)
    branches = {k for k, p in net.named_parameters() if ".global_branch." in k}
    assert branches <= moved, "a part of a branch got no gradient"
    statistics = {k for k in moved if "running_" in k}
    first = "backbone.stage1.conv1.global_branch.norm.running_mean"
    assert not statistics if batch_norm else first in statistics


def test_freezing_without_branches_is_as_before_and_can_be_undone() -> None:
    net = create_model("tiny", 5)
    add_global_branches(net.backbone)
    net.freeze("all")
    assert {n.split(".")[-3] for n, p in net.backbone.named_parameters() if p.requires_grad} == {"global_branch"}
    net.freeze(0)
    assert all(p.requires_grad for p in net.parameters())

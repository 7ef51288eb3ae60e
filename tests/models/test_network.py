"""The network: normalisation, what freezing keeps and for how long, and the parameter lists."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.models import Network, create_model


def images(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (8, 3, 48, 48), generator=generator, dtype=torch.uint8)


def train_one_step(net: Network) -> None:
    net.train()  # what a training loop does at each epoch
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1, weight_decay=0.1)
    net(images()).square().sum().backward()
    optimizer.step()


def changed(before: dict[str, Tensor], net: Network) -> set[str]:
    return {key for key, value in net.state_dict().items() if not torch.equal(before[key], value)}


def snapshot(net: Network) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in net.state_dict().items()}


def test_uint8_float_and_normalised_input_agree() -> None:
    net = create_model("tiny", 5).eval()
    plain = create_model("tiny", 5, normalize=False).eval()
    plain.load_state_dict(net.state_dict())
    x = images()
    mean = torch.tensor(net.backbone.mean).view(3, 1, 1)
    std = torch.tensor(net.backbone.std).view(3, 1, 1)
    logits = net(x)
    assert logits.shape == (8, 5)
    torch.testing.assert_close(net(x.float()), logits)
    torch.testing.assert_close(plain((x.float() - mean) / std), logits)
    torch.testing.assert_close(net.head(net.features(x)), logits)


def test_double_precision_network_takes_uint8() -> None:
    assert create_model("tiny", 2).double()(images()).dtype == torch.float64


def test_state_dict_holds_only_backbone_and_head() -> None:
    assert {key.split(".")[0] for key in create_model("tiny", 5).state_dict()} == {"backbone", "head"}


@pytest.mark.parametrize("name", ["tiny", "resnet18", "efficientnet_lite0"])
def test_stages_cover_every_parameter_once(name: str) -> None:
    backbone = create_model(name, 1).backbone
    parameters = [
        id(p) for group in backbone.stage_names for module in group for p in backbone.get_submodule(module).parameters()
    ]
    assert sorted(parameters) == sorted(id(p) for p in backbone.parameters())


def test_nothing_is_frozen_at_first() -> None:
    net = create_model("tiny", 5)
    before = snapshot(net)
    train_one_step(net)
    assert changed(before, net) == set(before)


def test_frozen_stages_keep_parameters_and_statistics() -> None:
    net = create_model("tiny", 5)
    net.freeze(2, batch_norm=False)
    before = snapshot(net)
    train_one_step(net)
    frozen = ("backbone.conv1.", "backbone.bn1.", "backbone.stage1.")
    assert changed(before, net) == {key for key in before if not key.startswith(frozen)}


def test_freezing_all_leaves_only_the_head() -> None:
    net = create_model("tiny", 5)
    net.freeze("all", batch_norm=False)
    before = snapshot(net)
    train_one_step(net)
    assert changed(before, net) == {"head.fc.weight", "head.fc.bias"}


def test_frozen_batch_norm_keeps_statistics_but_trains_scale_and_shift() -> None:
    net = create_model("tiny", 5)
    net.freeze(0, batch_norm=True)
    before = snapshot(net)
    train_one_step(net)
    after = changed(before, net)
    assert not [key for key in after if "running_" in key or "num_batches" in key]
    assert {"backbone.bn1.weight", "backbone.bn1.bias", "backbone.conv1.weight"} <= after


def test_frozen_batch_norm_is_that_of_the_head_too() -> None:
    """With or without a frozen backbone."""
    for stages in (0, "all"):
        net = create_model("tiny", 5, "semantic-graph", head_params={"word_dim": 4})
        net.freeze(stages, batch_norm=True)  # type: ignore[arg-type]
        before = snapshot(net)
        assert "head.norm.running_mean" in before
        train_one_step(net)
        after = changed(before, net)
        assert not [key for key in after if "running_" in key or "num_batches" in key]
        assert {"head.norm.weight", "head.norm.bias"} <= after


def test_freeze_zero_undoes_all_at_once() -> None:
    net = create_model("tiny", 5).train()
    net.freeze("all", batch_norm=True)
    assert not any(module.training for module in net.backbone.modules())  # without another call of train()
    net.freeze(0, batch_norm=False)
    assert all(module.training for module in net.modules())
    before = snapshot(net)
    train_one_step(net)
    assert changed(before, net) == set(before)


def test_gradient_from_before_freezing_is_not_applied() -> None:
    net = create_model("tiny", 5)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(images()).square().sum().backward()
    net.freeze("all", batch_norm=False)
    before = snapshot(net)
    optimizer.step()
    assert changed(before, net) == {"head.fc.weight", "head.fc.bias"}


def test_freezing_keeps_the_mode_and_survives_a_copy() -> None:
    net = create_model("tiny", 5).eval()
    net.freeze(1, batch_norm=True)
    assert not any(module.training for module in net.modules())
    twin = copy.deepcopy(net).train()
    norms = [m for m in twin.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(m.training for m in norms)
    assert twin.head.training
    assert not twin.backbone.get_submodule("conv1").weight.requires_grad


@pytest.mark.parametrize("stages", [5, -1, "half", True])
def test_wrong_number_of_stages_names_the_limit(stages: object) -> None:
    net = create_model("tiny", 5)
    with pytest.raises(RecipeError, match="from 0 to 4"):
        net.freeze(stages, batch_norm=False)  # type: ignore[arg-type]


def test_every_stage_can_be_frozen_by_number() -> None:
    net = create_model("efficientnet_lite0", 5)
    net.freeze(len(net.backbone.stage_names), batch_norm=False)
    assert not any(p.requires_grad for p in net.backbone.parameters())


def test_parameter_lists_split_the_named_parameters() -> None:
    net = create_model("tiny", 5)
    both = net.backbone_parameters() + net.head_parameters()
    assert {name: id(p) for name, p in both} == {name: id(p) for name, p in net.named_parameters()}
    assert [name for name, _ in net.head_parameters()] == ["head.fc.weight", "head.fc.bias"]

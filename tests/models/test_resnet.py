"""ResNets: published sizes and key names, shapes, and the place of the stride."""

from __future__ import annotations

import pytest
import torch

from pluralis.models import create_backbone

# Totals of the published networks with their classifier of 1000 classes.
TOTALS = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032, "resnet101": 44_549_160}


@pytest.mark.parametrize("name", TOTALS)
def test_parameter_count_is_that_of_the_published_network(name: str) -> None:
    backbone = create_backbone(name)
    classifier = backbone.out_channels * 1000 + 1000
    assert sum(p.numel() for p in backbone.parameters()) == TOTALS[name] - classifier


@pytest.mark.parametrize(
    ("name", "depths", "convs"),
    [("resnet18", (2, 2, 2, 2), 2), ("resnet34", (3, 4, 6, 3), 2), ("resnet50", (3, 4, 6, 3), 3),
     ("resnet101", (3, 4, 23, 3), 3)],
)  # fmt: skip
def test_keys_are_those_of_published_checkpoints(name: str, depths: tuple[int, ...], convs: int) -> None:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", *(f"bn1.{n}" for n in norm)}
    for layer, depth in enumerate(depths, 1):
        for block in range(depth):
            at = f"layer{layer}.{block}"
            for i in range(1, convs + 1):
                expected |= {f"{at}.conv{i}.weight", *(f"{at}.bn{i}.{n}" for n in norm)}
            # A bottleneck widens in the first stage already; a basic block does not.
            if block == 0 and (layer > 1 or convs == 3):
                expected |= {f"{at}.downsample.0.weight", *(f"{at}.downsample.1.{n}" for n in norm)}
    assert set(create_backbone(name).state_dict()) == expected


@pytest.mark.parametrize(("name", "channels"), [("resnet18", 512), ("resnet50", 2048)])
def test_map_has_a_thirty_second_of_the_resolution(name: str, channels: int) -> None:
    backbone = create_backbone(name).eval()
    with torch.no_grad():
        features = backbone(torch.randn(2, 3, 64, 96))
    assert features.shape == (2, channels, 2, 3)
    assert backbone.out_channels == channels
    assert features.min() >= 0  # ends in a ReLU


def test_bottleneck_strides_in_the_3x3_convolution() -> None:
    block = create_backbone("resnet50").get_submodule("layer2.0")
    assert block.get_submodule("conv1").stride == (1, 1)
    assert block.get_submodule("conv2").stride == (2, 2)


def test_weight_shapes_of_a_bottleneck() -> None:
    state = create_backbone("resnet50").state_dict()
    assert state["conv1.weight"].shape == (64, 3, 7, 7)
    assert state["layer3.0.conv1.weight"].shape == (256, 512, 1, 1)
    assert state["layer3.0.conv2.weight"].shape == (256, 256, 3, 3)
    assert state["layer3.0.downsample.0.weight"].shape == (1024, 512, 1, 1)


def test_residual_branch_zeroed_leaves_the_skip() -> None:
    block = create_backbone("resnet18").eval().get_submodule("layer1.1")
    block.get_submodule("bn2").weight.data.zero_()
    x = torch.rand(1, 64, 4, 4)
    torch.testing.assert_close(block(x), x)


def test_statistics_are_imagenets_on_the_pixel_scale() -> None:
    backbone = create_backbone("resnet18")
    assert backbone.mean == pytest.approx([255 * v for v in (0.485, 0.456, 0.406)])
    assert backbone.std == pytest.approx([255 * v for v in (0.229, 0.224, 0.225)])

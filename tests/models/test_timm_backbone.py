"""`timm:NAME`: the message without timm, the wrapper against a stand-in, and real networks where timm is."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError, WeightsError
from pluralis.models import create_backbone, create_model

HAS_TIMM = importlib.util.find_spec("timm") is not None


class StandIn(nn.Module):
    """As much of a timm network as the wrapper uses; `layout` is how its family lays features out."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.num_features = 8
        self.num_prefix_tokens = 1
        self.pretrained_cfg = {"mean": (0.5, 0.4, 0.2), "std": (0.1, 0.2, 0.4)}
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.bn1 = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1))
        self.act = nn.ReLU()

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.blocks(self.bn1(self.stem(x)))
        if self.layout == "tokens":
            tokens = x.flatten(2).transpose(1, 2)
            return torch.cat([torch.full_like(tokens[:, :1], 1e6), tokens], 1)
        return x.permute(0, 2, 3, 1) if self.layout == "nhwc" else x


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, pretrained: bool, num_classes: int, global_pool: str) -> StandIn:
        assert (num_classes, global_pool) == (0, "")
        if pretrained and name == "tokens":
            raise OSError("no network")
        net = StandIn(name)
        if pretrained:
            nn.init.constant_(net.stem.weight, 0.25)
        return net

    names = ["nchw", "nhwc", "tokens"]
    timm = SimpleNamespace(create_model=create_model, is_model=names.__contains__, list_models=lambda: names)
    monkeypatch.setitem(sys.modules, "timm", timm)  # type: ignore[arg-type]


@pytest.mark.skipif(HAS_TIMM, reason="timm is installed")
def test_missing_timm_says_how_to_install_it() -> None:
    with pytest.raises(RecipeError, match=r"pip install 'pluralis\[timm\]'"):
        create_model("timm:resnet18", 3)


def test_broken_timm_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(RecipeError, match=r"does not import \(operator torchvision::nms"):
        create_backbone("timm:resnet18")


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "tokens"])
def test_every_layout_becomes_the_same_map(layout: str) -> None:
    backbone = create_backbone(f"timm:{layout}").eval()
    reference = StandIn("nchw").eval()
    reference.load_state_dict(backbone.weights_target().state_dict())
    x = torch.randn(2, 3, 16, 32)
    assert backbone.out_channels == 8
    torch.testing.assert_close(backbone(x), reference.forward_features(x))


@pytest.mark.usefixtures("stand_in")
def test_statistics_stages_and_freezing() -> None:
    net = create_model("timm:nchw", 2)
    assert net.backbone.mean == pytest.approx((127.5, 102.0, 51.0))
    assert net.backbone.std == pytest.approx((25.5, 51.0, 102.0))
    assert net.backbone.stage_names == (("model.stem", "model.bn1"), ("model.blocks.0",), ("model.blocks.1",))
    net.freeze(2)
    assert [n for n, p in net.backbone_parameters() if p.requires_grad] == [
        "backbone.model.blocks.1.weight",
        "backbone.model.blocks.1.bias",
    ]


@pytest.mark.usefixtures("stand_in")
def test_imagenet_weights_come_from_timm() -> None:
    net = create_model("timm:nchw", 2, weights="imagenet")
    assert (net.backbone.state_dict()["model.stem.weight"] == 0.25).all()
    with pytest.raises(WeightsError, match="no network"):
        create_model("timm:tokens", 2, weights="imagenet")


@pytest.mark.usefixtures("stand_in")
def test_unknown_timm_name_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'timm:nhwc'"):
        create_backbone("timm:nhwcc")


@pytest.mark.skipif(not HAS_TIMM, reason="timm is not installed (an extra)")
@pytest.mark.parametrize(("name", "size"), [("resnet18", 64), ("vit_tiny_patch16_224", 224)])
def test_real_networks_give_maps(name: str, size: int) -> None:
    assert isinstance(importlib.import_module("timm"), ModuleType)
    net = create_model(f"timm:{name}", 3).eval()
    with torch.no_grad():
        features = net.features(torch.zeros(1, 3, size, size))
    assert features.dim() == 4
    assert features.shape[1] == net.backbone.out_channels
    assert net.head(features).shape == (1, 3)

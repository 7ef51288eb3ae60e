"""`create_model`: names and their nearest neighbours, values out of range, and what it must not import."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pluralis.errors import RecipeError
from pluralis.models import BACKBONES, create_model


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_gives_logits(name: str) -> None:
    net = create_model(name, 7, dropout=0.2).eval()
    assert net.backbone.name == name
    with torch.no_grad():
        assert net(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).shape == (1, 7)
    assert net.head.dropout.p == 0.2


@pytest.mark.parametrize(
    ("wrong", "near"), [("resnet5O", "resnet50"), ("ResNet101", "resnet101"), ("efficientnet", "efficientnet_lite0")]
)
def test_unknown_backbone_names_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(RecipeError, match=f"there is no backbone '{wrong}'; did you mean '{near}'"):
        create_model(wrong, 2)


def test_unknown_head_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="there is no head 'liner'; did you mean 'linear'"):
        create_model("tiny", 2, head="liner")


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_dropout_out_of_range(dropout: float) -> None:
    with pytest.raises(RecipeError, match="dropout"):
        create_model("tiny", 2, dropout=dropout)


def test_no_class() -> None:
    with pytest.raises(RecipeError, match="at least one class"):
        create_model("tiny", 0)


@pytest.mark.parametrize("name", ["hidden", "dropout", "in_channels"])
def test_head_parameter_that_does_not_exist(name: str) -> None:
    with pytest.raises(RecipeError, match=f"head 'linear' has no parameter '{name}'"):
        create_model("tiny", 2, head_params={name: 3})


def test_import_needs_neither_timm_nor_torchvision() -> None:
    code = "import sys, pluralis.models; print(sorted({'timm', 'torchvision'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""Relabelling: the first stage's posterior becomes the second stage's labels, and the network starts anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pluralis.data.loader import Loader, TensorImages
from pluralis.engine import fit
from pluralis.errors import RecipeError
from pluralis.evaluate import predict
from pluralis.labels import Labels
from pluralis.losses import selection_posterior
from pluralis.method import Batch, Clock, LossMethod, Setup
from pluralis.methods import create_method, start_heads
from pluralis.methods.relabel import Relabel
from pluralis.models import create_model
from pluralis.views import VIEWS, Views
from tests.toys import SIZE, plan, scenes

LABELS = Labels.from_lists([[0], [1], [2]], 4, negatives=[[3], [], []])


def relabel(labels: Labels = LABELS, seed: int = 0, **params: Any) -> Relabel:
    torch.manual_seed(seed)
    classes = len(labels.classes)
    method = create_method("relabel", Setup(lambda: create_model("tiny", classes), classes, labels), params)
    assert isinstance(method, Relabel)
    return method


def test_the_first_stage_is_the_loss() -> None:
    data = scenes(16)
    torch.manual_seed(0)
    plain = create_method("selection", Setup(lambda: create_model("tiny", 10), 10, data.labels))
    assert isinstance(plain, LossMethod)
    fit(plain, data, plan(augment="none"), seed=3)
    both = relabel(data.labels, views="fast")
    seen: list[torch.Tensor] = []
    start = both.start_stage

    def start_stage(clock: Clock, predict_train: Any) -> None:
        if clock.stage == 1:
            seen.append(predict(both, data))
        start(clock, predict_train)

    both.start_stage = start_stage  # type: ignore[method-assign]
    fit(both, data, plan(augment="none"), seed=3)
    assert torch.equal(seen[0], predict(plain, data))


def test_labels_are_the_posterior_of_many_views_and_weights_are_the_first_ones() -> None:
    method = relabel(views="thorough", crop_weight=0.4)
    start_heads(method, LABELS)
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    first = {k: v.clone() for k, v in method.net.state_dict().items()}
    for parameter in method.net.parameters():
        torch.nn.init.normal_(parameter)
    logits = torch.randn(3, 4)
    asked: list[Views] = []

    def predict_train(views: Views) -> torch.Tensor:
        asked.append(views)
        return logits

    method.start_stage(Clock(stage=1), predict_train)
    assert asked == [Views(VIEWS["thorough"].scales, mirror=True, crop_weight=0.4)]
    assert all(torch.equal(method.net.state_dict()[k], v) for k, v in first.items())
    given = torch.from_numpy(LABELS.dense())
    value, guessed = method.soft(torch.arange(3))
    assert torch.equal(guessed, given == 0)
    expected = selection_posterior(logits, given)
    torch.testing.assert_close(value[guessed], expected[guessed], rtol=1e-3, atol=1e-6)


def test_the_second_stage_is_cross_entropy_with_soft_labels() -> None:
    method = relabel()
    method.soft.fill(torch.full((3, 4), 0.25), torch.from_numpy(LABELS.dense() == 0), 1)
    x = torch.randn(2, 3, 24, 24)
    batch = Batch((x,), torch.from_numpy(LABELS.dense([2, 0])), torch.tensor([2, 0]))
    method.eval()
    p = method.predict(x).double().sigmoid().detach().numpy()
    target = np.array([[0.25, 0.25, 1, 0.25], [1, 0.25, 0.25, 0]])
    expected = -(target * np.log(p) + (1 - target) * np.log(1 - p)).mean()
    assert method(batch, Clock(stage=1))["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_another_loss_is_calibrated_first() -> None:
    """Logits that are all far too high still count about as many labels as were written."""
    labels = Labels.from_lists([[row % 4] for row in range(200)], 4)
    logits = 3 * torch.nn.functional.one_hot(torch.arange(200) % 4, 4).float() + 4
    counts = {}
    for loss in ("selection", "an"):
        method = relabel(labels, loss=loss, views="fast")
        method.start_stage(Clock(stage=1), lambda views: logits)
        counts[loss] = float(method.soft.value.float().sum(1).mean())
    assert counts["an"] < 0.5 < counts["selection"]


class OfOneSize(torch.nn.Module):
    """As timm's transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[-1] == SIZE, f"input height ({x.shape[-1]}) is not {SIZE}"
        logits: torch.Tensor = self.last(x.float().mean((2, 3)) / 255)
        return logits


def test_a_network_of_one_size_is_refused_before_anything_is_trained() -> None:
    data = scenes(8)
    steps: list[int] = []

    def train(views: str) -> None:
        method = create_method("relabel", Setup(OfOneSize, 10, data.labels), {"views": views})
        fit(method, data, plan(), report=lambda clock, *_: steps.append(clock.step))

    for views in ("standard", "thorough"):
        with pytest.raises(RecipeError, match=r"(?s)no pictures of 30 px.*method\.params\.views"):
            train(views)
    assert not steps
    train("fast")
    assert steps


def test_features_are_refused_before_anything_is_trained() -> None:
    labels = Labels.from_lists([[0], [1], [2]] * 3, 3)
    data = Loader(TensorImages(torch.randn(9, 4)), labels, size=1)
    steps: list[int] = []
    method = create_method("relabel", Setup(lambda: torch.nn.Linear(4, 3), 3, labels))
    with pytest.raises(RecipeError, match=r"feature vectors.*method\.params\.views"):
        fit(method, data, plan(), report=lambda clock, *_: steps.append(clock.step))
    assert not steps


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"loss": "lac"}, "loss"),
        ({"views": "all"}, "views"),
        ({"crop_weight": 2}, "crop_weight"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_bad_parameters(params: dict[str, Any], part: str) -> None:
    with pytest.raises(RecipeError, match=part):
        relabel(**params)

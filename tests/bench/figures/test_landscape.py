from __future__ import annotations

import numpy as np
import pytest
import torch

from pluralis.bench.figures.landscape import (
    draw_landscape,
    filter_normalised,
    kept_landscape,
    landscape,
    run_landscape,
)
from pluralis.bench.store import Result
from pluralis.data.source import load_split
from pluralis.errors import RecipeError
from pluralis.evaluate import predict
from pluralis.seeding import generator
from pluralis.trained_run import load_run


def test_every_filter_of_a_direction_has_the_norm_of_that_filter() -> None:
    weights = {"conv": torch.randn(4, 3, 5, 5), "fc": torch.randn(6, 8), "bias": torch.ones(6)}
    weights["fc"][2] = 0
    way = filter_normalised(weights, generator(0, "test"))
    for name in ("conv", "fc"):
        assert way[name].flatten(1).norm(dim=1) == pytest.approx(weights[name].flatten(1).norm(dim=1), rel=1e-5)
    assert not way["bias"].any()
    assert not way["fc"][2].any()
    other = filter_normalised(weights, generator(1, "test"))
    cosine = torch.cosine_similarity(way["conv"].flatten(1), other["conv"].flatten(1))
    assert cosine.abs().max() < 0.6  # random, not along the weights
    assert (filter_normalised(weights, generator(0, "test"))["conv"] == way["conv"]).all()


def test_a_quadratic_loss_gives_its_parabola_and_leaves_the_weights() -> None:
    weight = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    ways = [{"w": torch.tensor([[1.0, 0.0]]).double()}, {"w": torch.tensor([[0.0, 3.0]]).double()}]
    steps = np.linspace(-1, 1, 5)
    found = landscape(lambda: float(weight.square().sum()), {"w": weight}, ways, steps)
    assert found.loss == pytest.approx((1 + steps[:, None]) ** 2 + (2 + 3 * steps[None]) ** 2)
    assert weight.tolist() == [[1, 2]]
    line = landscape(lambda: float(weight.square().sum()), {"w": weight}, ways[:1], steps)
    assert line.loss == pytest.approx((1 + steps) ** 2 + 4)


def test_weights_come_back_when_the_loss_fails() -> None:
    weight = torch.ones(1, 2)

    def fails() -> float:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        landscape(fails, {"w": weight}, [{"w": torch.ones(1, 2)}], np.array([0.5]))
    assert weight.tolist() == [[1, 1]]


def test_the_middle_is_the_training_loss_of_the_run(kept: list[Result]) -> None:
    run = kept[0]
    found = run_landscape(run, 1, np.array([-0.5, 0.0, 0.5]), images=60)
    trained = load_run(run.folder, "cpu")
    source = load_split(trained.recipe.data, trained.recipe.select).train
    z, y = predict(trained.method, trained.loader(source)).double(), torch.from_numpy(source.labels.dense())
    expected = torch.nn.functional.binary_cross_entropy_with_logits(z, (y > 0).double())
    assert found.loss[1] == pytest.approx(float(expected), rel=1e-6)
    assert found.loss[0] != found.loss[1] != found.loss[2]
    named = run_landscape(run, 1, np.array([0.0]), images=60, loss="dw")
    weighted = torch.nn.functional.binary_cross_entropy_with_logits(z, (y > 0).double(), torch.where(y > 0, 1.0, 0.1))
    assert named.loss[0] == pytest.approx(float(weighted), rel=1e-6)


def test_it_is_drawn_in_one_and_two_dimensions(kept: list[Result]) -> None:
    (axes,) = draw_landscape(kept[:2], steps=3, images=8, reach=0.5).axes
    assert axes.get_lines()[0].get_xdata().tolist() == [-0.5, 0, 0.5]
    figure = draw_landscape(kept[:1], dimensions=2, steps=3, images=8)
    assert figure.axes[0].get_title() == "an"
    assert figure.axes[1].get_ylabel() == "training loss above its lowest"


def test_a_method_that_is_more_than_a_loss_needs_a_name(kept: list[Result]) -> None:
    with pytest.raises(RecipeError, match='loss = "an"'):
        draw_landscape(kept[2:3], steps=3, images=8)
    assert draw_landscape(kept[2:3], steps=3, images=8, loss="an").axes
    with pytest.raises(RecipeError, match="loss is '../an'"):
        draw_landscape(kept[2:3], loss="../an")


def test_what_was_computed_is_read_again(kept: list[Result]) -> None:
    steps = np.array([-0.25, 0.0, 0.25])
    first = kept_landscape(kept[0], 1, steps, 8, "")
    assert (first.loss == run_landscape(kept[0], 1, steps, 8).loss).all()
    file = kept[0].folder / "figures" / "landscape-1-0.25-3-8-own.safetensors"
    before = file.stat().st_mtime_ns
    assert (kept_landscape(kept[0], 1, steps, 8, "").loss == first.loss).all()
    assert file.stat().st_mtime_ns == before
    assert (kept_landscape(kept[0], 1, steps, 9, "").loss != first.loss).any()

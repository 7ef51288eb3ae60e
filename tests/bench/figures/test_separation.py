from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from pluralis.bench.figures.false_negatives import draw_false_negatives
from pluralis.bench.figures.predicted import Predictions, predictions
from pluralis.bench.figures.separation import class_distances, densities, draw_densities, draw_distances
from pluralis.bench.store import Result
from pluralis.data.loader import TensorImages
from pluralis.data.scenes import make_scenes
from pluralis.errors import DataError, RecipeError
from pluralis.trained_run import load_run
from tests.bench.figures.runs import result, train_result


def made(seed: int = 0, rows: int = 400) -> Predictions:
    draw = np.random.default_rng(seed)
    truth = draw.choice([1, -1], (rows, 3), p=[0.3, 0.7]).astype(np.int8)
    given = np.where((truth > 0) & (draw.random(truth.shape) < 0.4), truth, 0).astype(np.int8)
    p = np.where(truth > 0, draw.beta(4, 3, truth.shape), draw.beta(2, 6, truth.shape))
    return Predictions(("cat", "dog", "cow"), p, given, truth)


def test_densities_are_the_histograms_of_unannotated_labels() -> None:
    one, two = made(0), made(1, 100)
    found = densities([one, two], bins=20)
    for values, sign in ((found.present, 1), (found.absent, -1)):
        chosen = np.concatenate([o.p[(o.given == 0) & (o.truth == sign)] for o in (one, two)])
        frozen = scipy.stats.rv_histogram(np.histogram(chosen, bins=20, range=(0, 1)))
        assert values == pytest.approx(frozen.pdf((found.edges[:-1] + found.edges[1:]) / 2), rel=1e-12)
        assert values.sum() / 20 == pytest.approx(1)
    assert sum(found.counts) == (one.given == 0).sum() + (two.given == 0).sum()


def test_constant_probabilities_and_no_present_label() -> None:
    flat = Predictions(("cat",), np.ones((6, 1)), np.zeros((6, 1), np.int8), -np.ones((6, 1), np.int8))
    found = densities([flat], bins=10)
    assert found.absent.tolist() == [0] * 9 + [10]  # p = 1 belongs to the last bin
    assert found.present.tolist() == [0] * 10
    assert found.counts == (0, 6)
    assert np.isnan(class_distances(flat)).all()


def test_distances_are_those_of_scipy_class_by_class() -> None:
    found = made()
    found.given[:, 2] = found.truth[:, 2].clip(0)  # every present label of a class was written
    distances = class_distances(found)
    for c in range(2):
        p, unknown = found.p[:, c], found.given[:, c] == 0
        reference = scipy.stats.wasserstein_distance(*(p[unknown & (found.truth[:, c] == s)] for s in (1, -1)))
        assert distances[c] == pytest.approx(reference, rel=1e-12)
    assert np.isnan(distances[2])


def test_predictions_come_from_the_kept_model_and_are_made_once(kept: list[Result]) -> None:
    run = kept[0]
    scenes = make_scenes("train", 60)
    expected = (
        load_run(run.folder, "cpu").probabilities(TensorImages(scenes.images)).numpy()
    )  # nothing is calibrated here
    found = predictions(run)
    assert np.allclose(found.p, expected, atol=1e-6)
    assert (found.truth == scenes.truth).all()
    assert (found.given.clip(0).sum(1) == 1).all()
    assert ((found.given == 0) | (found.given == found.truth)).all()
    file = run.folder / "figures" / "train.safetensors"
    before = file.stat().st_mtime_ns
    assert (predictions(run).p == found.p).all()
    assert file.stat().st_mtime_ns == before
    file.write_bytes(file.read_bytes()[:-1] + b"\0")  # damaged: made anew
    assert (predictions(run).p == found.p).all()
    repaired = file.stat().st_mtime_ns
    assert repaired > before
    assert (predictions(replace(run, data_hash="other")).p == found.p).all()  # of other data: made anew
    assert file.stat().st_mtime_ns > repaired


def test_test_rows_have_no_written_label(kept: list[Result]) -> None:
    found = predictions(kept[0], "test")
    assert found.p.shape == (40, 10)
    assert not found.given.any()
    assert (found.truth == make_scenes("test", 40).truth).all()


def test_one_class_is_drawn_with_the_numbers_of_both_kinds(kept: list[Result]) -> None:
    figure = draw_densities(kept[:2], of="3", bins=10)
    found = [predictions(run).of_class("3") for run in kept[:2]]
    hidden = sum(int(((one.given == 0) & (one.truth > 0)).sum()) for one in found)
    absent = sum(int((one.truth < 0).sum()) for one in found)
    assert figure.axes[0].get_title() == f"an: {hidden} present, {absent} absent"
    with pytest.raises(DataError, match="no class 'zebra'"):
        draw_densities(kept[:1], of="zebra")
    with pytest.raises(RecipeError, match="train, test"):
        draw_densities(kept[:1], part="trian")


def test_distances_are_drawn_against_the_baseline(kept: list[Result]) -> None:
    (axes,) = draw_distances(kept[:3], baseline="an").axes
    _, points = axes.get_lines()
    base = np.mean([class_distances(predictions(run)) for run in kept[:2]], axis=0)
    other = class_distances(predictions(kept[2]))
    both = np.isfinite(base) & np.isfinite(other)
    assert np.allclose(points.get_xdata(), base[both])
    assert np.allclose(points.get_ydata(), other[both])
    share = (other[both] > base[both]).mean()
    assert points.get_label() == f"em + apl: {share:.0%} of classes above"
    with pytest.raises(DataError, match="baseline 'ann'"):
        draw_distances(kept[:3], baseline="ann")


def test_runs_that_were_not_kept_or_have_no_truth_are_refused(kept: list[Result], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="keep = true"):
        draw_densities([result("an")])
    with pytest.raises(DataError, match="keep = true"):
        predictions(result("an", folder=tmp_path))
    complete = train_result(tmp_path / "run", "all", "bce", data__protocol="complete", data__test={}, train__epochs=1)
    with pytest.raises(DataError, match="no protocol hid any"):
        predictions(complete)
    with pytest.raises(DataError, match="no test set"):
        predictions(complete, "test")


def test_distances_are_compared_within_a_column(kept: list[Result]) -> None:
    runs = [replace(kept[0], column="a"), replace(kept[1], column="b")]
    runs += [replace(kept[2], column="b"), replace(kept[2], column="c")]
    (axes,) = draw_distances(runs, baseline="an").axes
    _, points = axes.get_lines()
    base, other = (class_distances(predictions(run)) for run in kept[1:3])
    both = np.isfinite(base) & np.isfinite(other)
    assert np.allclose(points.get_xdata(), base[both])
    assert str(points.get_label()).startswith("em + apl, b: ")


def test_a_row_whose_truth_is_not_known_is_left_out(kept: list[Result], tmp_path: Path) -> None:
    given = train_result(tmp_path / "given", "given", "bce", data__protocol="as-given", train__epochs=1)
    for figure in (draw_densities([kept[0], given]), draw_false_negatives([kept[0], given])):
        assert len(figure.axes) == 1
        assert figure.get_label().startswith("Left out: given, as the truth about the training labels")

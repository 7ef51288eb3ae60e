"""The calibration goes by how labels came to be written: by the method, or by what the labels themselves show."""

from __future__ import annotations

import doctest
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize
from scipy.special import expit, logit

from pluralis import Recipe, calibration, load_run, train, written_rates
from pluralis.calibration import (
    AT_A_RATE,
    AT_RATES,
    PICKED,
    Calibration,
    calibrate,
    calibrate_rows,
    how_written,
    likelihood_words,
    rate_given,
)
from pluralis.conditional_calibration import given_something, most_likely
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.scenes import make_scenes
from pluralis.errors import DataError
from pluralis.evaluate import Observed
from pluralis.labels import Labels
from pluralis.losses import Selection, selection_posterior
from pluralis.losses.selection import selection_nll
from pluralis.method import LossMethod
from pluralis.missing_labels import chances, look, own_rows
from pluralis.thresholds import best_thresholds, observed_thresholds
from pluralis.written_rates import fit_rates, rates_nll


def drawn(seed: int, rows: int = 1500, classes: int = 12, spread: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    """True log-odds [N, C], and which labels are present."""
    rng = np.random.default_rng(seed)
    z = rng.normal(rng.normal(-2.5, 0.8, classes), spread, (rows, classes))
    return z, rng.random(z.shape) < expit(z)


def written(present: np.ndarray, rate: Any, verified: float, seed: int = 1) -> np.ndarray:
    """Present labels at one rate, absent ones at another."""
    draw = np.random.default_rng(seed).random(present.shape)
    return np.where(present, draw < rate, -1 * (draw < verified)).astype(np.int8)


def single(present: np.ndarray, seed: int = 1) -> np.ndarray:
    """One of the present labels of each row."""
    order = np.random.default_rng(seed).random(present.shape) * present
    return ((order == order.max(1, keepdims=True)) & present).astype(np.int8)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def reference(z: np.ndarray, y: np.ndarray, present: Any, absent: float) -> np.ndarray:
    """[N] −log of the written-out likelihood; rows without an unknown label have no rates."""
    p = expit(z)
    partial = (y == 0).any(1, keepdims=True)
    rates = np.where(partial, present, 1.0), np.where(partial, absent, 1.0)
    each = np.where(y > 0, rates[0] * p, np.where(y < 0, rates[1] * (1 - p), 0))
    return -np.log(np.where(y == 0, (1 - rates[0]) * p + (1 - rates[1]) * (1 - p), each)).sum(1)


@pytest.mark.parametrize("present", [0.3, np.array([0.1, 0.9, 0.5, 0.7, 0.2])])
def test_the_likelihood_and_its_derivatives_are_those_written_out(present: Any) -> None:
    z, truth = drawn(0, rows=30, classes=5)
    y = written(truth, 0.5, 0.4)
    y[:4] = np.where(truth[:4], 1, -1)  # complete rows
    nll, slope, pulls = rates_nll(*tensors(z, y), torch.as_tensor(logit(present)), float(logit(0.2)))
    np.testing.assert_allclose(nll, reference(z, y, present, 0.2), rtol=1e-12)
    step = 1e-6
    for at in [(0, 0), (5, 2), (20, 4)]:
        more, less = z.copy(), z.copy()
        more[at] += step
        less[at] -= step
        change = reference(more, y, present, 0.2).sum() - reference(less, y, present, 0.2).sum()
        assert float(slope[at]) == pytest.approx(change / (2 * step), abs=1e-6)
    moved = (
        [(expit(logit(present) + s), 0.2) for s in (step, -step)],
        [(present, expit(logit(0.2) + s)) for s in (step, -step)],
    )
    for pull, (up, down) in zip(pulls.T, moved, strict=True):
        change = reference(z, y, *up) - reference(z, y, *down)
        np.testing.assert_allclose(pull, change / (2 * step), rtol=1e-6, atol=1e-6)


def test_logits_of_any_size_are_finite() -> None:
    y = torch.tensor([[1, -1, 0, 0]])
    for z in (1e4, -1e4, 4e8):
        for part in rates_nll(torch.full((1, 4), z, dtype=torch.float64), y, 3.0, -60.0)[:2]:
            assert bool(torch.isfinite(part).all())


@pytest.mark.parametrize(("rate", "verified"), [(0.2, 0.2), (0.6, 0.1), (0.3, 0.02)])
def test_the_fit_is_the_most_likely_one(rate: float, verified: float) -> None:
    z, truth = drawn(1, rows=400, classes=6)
    y, z = written(truth, rate, verified), 0.5 * z + 0.7
    told = (y != 0).any(1)

    def loss(x: np.ndarray) -> float:
        own = reference(np.exp(x[0]) * z[told] + x[1], y[told], expit(x[2]), expit(x[3])).sum()
        return float(own + x[0] ** 2 / 2 + x[1] ** 2 / 18 + (x[2] - x[3]) ** 2 / 18)

    starts = [(0, 0, logit(rate), logit(verified)), (0.7, -1, 0, -1)]
    options = {"maxiter": 4000, "maxfev": 8000, "xatol": 1e-6, "fatol": 1e-9}
    best = min((minimize(loss, s, method="Nelder-Mead", options=options) for s in starts), key=lambda found: found.fun)
    fit = fit_rates(*tensors(z, y))
    assert loss(np.array([*fit.theta, *logit(fit.rates)])) == pytest.approx(best.fun, abs=2e-3)
    np.testing.assert_allclose(fit.theta, best.x[:2], atol=0.02)
    np.testing.assert_allclose(fit.rates, expit(best.x[2:]), atol=0.01)
    np.testing.assert_allclose(
        fit.nll, reference(math.exp(fit.theta[0]) * z[told] + fit.theta[1], y[told], *fit.rates), rtol=1e-9
    )


@pytest.mark.parametrize("scale", [1.0, 3.0, 0.4])
@pytest.mark.parametrize(("rate", "verified"), [(0.1, 0.1), (0.2, 0.2), (0.9, 0.9), (0.6, 0.1)])
def test_verified_absent_labels_show_that_nobody_passed_over_the_others(
    rate: float, verified: float, scale: float
) -> None:
    z, truth = drawn(2, rows=3000)
    found, _ = calibrate(*tensors(scale * z, written(truth, rate, verified)))
    assert found.by == AT_RATES
    assert found.rates == pytest.approx((rate, verified), abs=0.05)
    p = found.probabilities(torch.from_numpy(scale * z)).numpy()
    assert p.sum(1).mean() == pytest.approx(truth.sum(1).mean(), rel=0.07)
    assert ((p - truth) ** 2).mean() < 1.02 * ((expit(z) - truth) ** 2).mean()


def test_one_picked_label_beside_a_few_verified_ones() -> None:
    z, truth = drawn(3, rows=3000)
    y = np.where(truth, single(truth), written(truth, 0, 0.05)).astype(np.int8)
    p = calibrate(*tensors(z, y))[0].probabilities(torch.from_numpy(z)).numpy()
    assert p.sum(1).mean() == pytest.approx(truth.sum(1).mean(), rel=0.1)


def test_where_nothing_is_verified_beside_unknown_labels_one_was_picked() -> None:
    """Also where other rows are complete: these say nothing of how labels of the rest came to be written."""
    z, truth = drawn(4, rows=300)
    for complete in (0, 40):
        y = single(truth)
        y[:complete] = np.where(truth[:complete], 1, -1)
        theta, nll = most_likely(*tensors(z, y), selection_nll)
        found = calibrate(*tensors(z, y))
        assert found == (Calibration(math.exp(theta[0]), float(theta[1]), by=PICKED), nll)
    everything = np.where(truth, 1, -1)
    assert likelihood_words(torch.from_numpy(everything)) == PICKED


def test_a_methods_rate_is_used_and_empty_rows_count_if_somebody_looked() -> None:
    z, truth = drawn(5, rows=3000)
    y = written(truth, 0.4, 0.0)
    how = Selection("rate", rate=0.4, unlabelled="absent").how_written()
    found, nll = calibrate(*tensors(0.5 * z + 1, y), how)
    assert (found.by, found.rates) == (AT_A_RATE, None)
    assert (0.5 * found.a, found.a + found.b) == pytest.approx((1, 0), abs=0.15)
    p = expit(found.a * (0.5 * z + 1) + found.b)
    assert nll == pytest.approx(reference(logit(p), y, 0.4, 0.0).mean(), rel=1e-9)
    assert len(calibrate_rows(*tensors(z, y), how)[1]) == 3000
    assert len(calibrate_rows(*tensors(z, y), {**how, "unlabelled": "skip"})[1]) == (y > 0).any(1).sum() < 3000
    by_pick = calibrate(*tensors(z, y))[0].probabilities(torch.from_numpy(z))
    assert float(by_pick.sum()) > 1.3 * truth.sum()  # without the method's word


def test_a_rate_for_each_class_and_a_rate_beside_verified_labels() -> None:
    z, truth = drawn(6, rows=3000, classes=4)
    rates = np.array([0.2, 0.5, 0.8, 0.4])
    for verified in (0.0, 0.4):
        how = {"mechanism": "rate", "rate": torch.from_numpy(rates), "a": 1.0, "unlabelled": "absent"}
        found, _ = calibrate(*tensors(z, written(truth, rates, verified)), how)
        assert (found.a, found.b) == pytest.approx((1, 0), abs=0.25)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rates_at_their_ends(rate: float) -> None:
    z, truth = drawn(7, rows=200)
    found, nll = calibrate(*tensors(z, written(truth, 1.0, 0)), {"mechanism": "rate", "rate": rate})
    assert np.isfinite([found.a, found.b, nll]).all()


def test_a_pick_by_another_law_and_rows_in_which_nothing_was_found() -> None:
    z, truth = drawn(8, rows=250, classes=4)
    y, how = single(truth), Selection(a=3.0, unlabelled="absent").how_written()

    sets = np.array(list(itertools.product((0, 1), repeat=4)))  # the first is empty
    wrote, pick = y.any(1), y.argmax(1)

    def loss(x: np.ndarray) -> float:
        p = expit(np.exp(x[0]) * z + x[1])
        chance = np.where(sets, p[:, None], 1 - p[:, None]).prod(2)
        share = 3.0 / (3.0 + sets.sum(1) - 1)  # ∫ t^{m−1} dBeta(3, 1)
        likely = np.where(wrote, (chance * sets[:, pick].T * share).sum(1), chance[:, 0])
        return float(-np.log(likely).sum() + x[0] ** 2 / 2 + x[1] ** 2 / 18)

    best = minimize(loss, (0, 0), method="Nelder-Mead")
    found, nll = calibrate(*tensors(z, y), how)
    assert (math.log(found.a), found.b) == pytest.approx(tuple(best.x), abs=2e-3)
    assert nll == pytest.approx((best.fun - best.x[0] ** 2 / 2 - best.x[1] ** 2 / 18) / 250, abs=1e-6)


def test_a_handful_of_rows_and_labels_of_one_kind() -> None:
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    one = torch.eye(3, dtype=torch.int8)
    both = (one - one.roll(1, 0)).repeat(2, 1)
    for times, by in ((1, PICKED), (8, PICKED), (9, AT_RATES)):  # 6, 48 and 54 verified absent labels
        found, nll = calibrate(z.repeat(times, 1), both.repeat(times, 1))
        assert found.by == by
        assert 0.1 < found.a < 10
        assert abs(found.b) < 6
        assert math.isfinite(nll)
    found, nll = calibrate(z, -one.repeat(2, 1))
    assert np.isfinite([found.a, found.b, nll]).all()
    for how in ({}, Selection(unlabelled="absent").how_written()):
        with pytest.raises(DataError, match=r"select\.rule"):
            calibrate(z, torch.zeros(6, 3), how)


def test_the_chances_of_unknown_labels_go_by_the_rates() -> None:
    z, truth = drawn(9, rows=4000)
    y = written(truth, 0.6, 0.1)
    found, _ = calibrate(*tensors(z, y))
    chances = found.chances(*tensors(z, y)).numpy()
    hidden = y == 0
    assert chances[hidden].sum() == pytest.approx(truth[hidden].sum(), rel=0.1)
    assert (chances[~hidden] == (y[~hidden] > 0)).all()
    one = Calibration(2.0, -1.0)
    assert torch.equal(
        one.chances(*tensors(z, single(truth))),
        selection_posterior(2 * torch.from_numpy(z) - 1, *tensors(single(truth))),
    )


@pytest.mark.parametrize("at_rate", [False, True])
def test_thresholds_follow(at_rate: bool) -> None:
    z, truth = drawn(10, rows=4000)
    y = written(truth, 0.4, 0.0 if at_rate else 0.4)
    how = Selection("rate", rate=0.4, unlabelled="absent").how_written() if at_rate else {}
    found = observed_thresholds(*tensors(0.5 * z + 1, y), how)
    assert found.labels_a_row == pytest.approx(truth.sum(1).mean(), rel=0.06)
    clean = best_thresholds(*tensors(0.5 * z + 1, truth))
    assert (found.values - clean).abs().mean() < 0.5


def test_a_calibration_is_stored_and_read() -> None:
    for one in (Calibration(2.0, -1.0, (0.2, 0.1), AT_RATES), Calibration(2.0, -1.0, by=PICKED)):
        assert Calibration.from_list(one.to_list()) == one
    assert Calibration.from_list([2.0, -1.0]) == Calibration(2.0, -1.0)


def test_the_rule_asks_the_method_and_says_which_likelihood_it_is() -> None:
    z, truth = drawn(11, rows=400, classes=5)
    net = torch.nn.Linear(5, 5)
    torch.nn.init.eye_(net.weight)
    torch.nn.init.zeros_(net.bias)
    losses = (Selection("rate", rate=0.4), Selection("rate"), torch.nn.Identity())
    at_rate, learned, other = (LossMethod(net, loss) for loss in losses)
    assert how_written(other) == rate_given(other) == {}
    assert rate_given(learned) == {**how_written(learned), "learned": True}

    def rule(y: np.ndarray, method: LossMethod) -> Observed:
        return Observed(Loader(TensorImages(torch.from_numpy(z).float()), Labels.from_dense(y), size=1), method)

    few, some = written(truth, 0.4, 0.0), written(truth, 0.4, 0.2)
    kinds = ((few, other, PICKED), (few, at_rate, AT_A_RATE), (few, learned, AT_RATES), (some, other, AT_RATES))
    for y, method, by in kinds:
        one = rule(y, method)
        figures = one.score(method)
        found, nll = calibrate(torch.from_numpy(z).float(), torch.from_numpy(y), rate_given(method))
        assert figures["score"] == -nll
        assert one.calibration(figures) == found
        assert found.by == by
        assert (by in one.describe()) == (by != PICKED)


@pytest.mark.parametrize("at_rate", [False, True])
def test_a_run_keeps_its_likelihood_and_relabels_by_it(at_rate: bool, tmp_path: Path) -> None:
    scenes = make_scenes("train", 60)
    lines = ["image,label,value"]
    for row, pixels in enumerate(scenes.images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"{row:02d}.png")
        present = torch.as_tensor(scenes.truth[row]) > 0
        lines += [f"{row:02d}.png,digit {int(present.int().argmax())},1"]
        absent = [] if at_rate else (~present).nonzero().flatten().tolist()[:5]
        lines += [f"{row:02d}.png,digit {digit},-1" for digit in absent]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    small = [
        "model.backbone=tiny",
        "model.weights=",
        "data.size=24",
        "train.epochs=1",
        "run.device=cpu",
        "run.workers=0",
    ]
    method = ["method.name=selection", 'method.params={mechanism="rate", rate=0.5}'] if at_rate else ["method.name=bce"]
    named = {"data.images": str(tmp_path), "data.labels": str(tmp_path / "labels.csv")}
    train(Recipe.load(None, [*small, *method], named), tmp_path / "run")
    trained = load_run(tmp_path / "run")
    held = own_rows(trained, tmp_path / "run")[1]
    assert held is not None
    part = look(trained, held)
    given = torch.from_numpy(part.labels.dense())
    expected, _ = calibrate(part.logits, given, how_written(trained.method))
    assert (trained.calibration.a, trained.calibration.b) == pytest.approx((expected.a, expected.b), rel=1e-3)
    assert trained.calibration.by == expected.by == (AT_A_RATE if at_rate else AT_RATES)
    assert expected.by in trained.rule
    found, words = chances(trained, part)
    if at_rate:
        assert torch.equal(found, selection_posterior(part.logits, given, "rate", 0.5))
    else:
        assert torch.equal(found, trained.calibration.chances(part.logits, given))
        assert AT_RATES in words


def test_a_sample_goes_by_the_likelihood_that_is_named() -> None:
    z, truth = drawn(12, rows=4000)
    y = written(truth, 0.5, 0.01)
    every, few = calibrate(*tensors(z, y))[0], tensors(z[:200], y[:200])
    assert (every.by, calibrate(*few)[0].by) == (AT_RATES, PICKED)
    sample = calibrate(*few, by=every.by)[0]
    assert sample.by == AT_RATES
    expected = sample.probabilities(torch.from_numpy(z)).sum(1).mean().item()
    assert expected == pytest.approx(truth.sum(1).mean(), rel=0.25)


def test_examples() -> None:
    for module in (calibration, written_rates):
        found = doctest.testmod(module)
        assert found.attempted
        assert not found.failed


def test_given_as_many_as_are_written_the_chances_of_all_choices_add_up_to_one() -> None:
    """Of k written labels: over all sets of k, given that as many are present; and the derivative by differences."""
    z = torch.tensor([[0.3, -1.2, 2.0, -0.4, 0.9]], dtype=torch.float64)
    for k in (1, 2, 3, 4):
        sets = list(itertools.combinations(range(5), k))
        labels = torch.zeros(len(sets), 5, dtype=torch.int8)
        for row, chosen in enumerate(sets):
            labels[row, list(chosen)] = 1
        nll, slope = given_something(z.expand(len(sets), 5), labels)
        assert float(nll.neg().exp().sum()) == pytest.approx(1, rel=1e-9)
        step = 1e-5 * torch.eye(5, dtype=torch.float64)
        for j in range(5):
            ahead, behind = (given_something((z + sign * step[j]).expand(len(sets), 5), labels)[0] for sign in (1, -1))
            torch.testing.assert_close((ahead - behind) / 2e-5, slope[:, j].double(), rtol=1e-5, atol=1e-7)

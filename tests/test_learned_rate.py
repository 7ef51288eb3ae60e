"""A learned rate is what it says it is: through the estimator, on data whose rate is known."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pluralis import PartialLabelClassifier
from pluralis.calibration import AT_A_RATE, AT_RATES, Calibration, how_written
from pluralis.config import Recipe
from pluralis.counting import count_labels
from pluralis.losses import create_loss, selection_posterior
from pluralis.method import LossMethod
from pluralis.methods import start_bias
from pluralis.missing_labels import chances, count_missing, look, own_rows
from pluralis.models import create_model
from pluralis.reported_rate import ReportedRate, reported_rate
from pluralis.run import load_run, train
from pluralis.written_rates import fit_rates, rate_error
from tests.toys import plan

TRUTHS = (0.25, 0.5, 0.75)
Data = tuple[np.ndarray, np.ndarray, np.ndarray]


def simulated(rate: float | np.ndarray, rows: int = 2000, features: int = 20, seed: int = 0) -> Data:
    """Features, what was written, and what is there: 10 classes that a line tells apart as well as it can be."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(rows, features)), np.zeros((features, 10))
    w[:20] = rng.normal(size=(20, 10)) * 2 / 20**0.5
    present = rng.random((rows, 10)) < 1 / (1 + np.exp(1.5 - x @ w))
    return x, (present & (rng.random((rows, 10)) < rate)).astype(np.int8), present


def fitted(x: np.ndarray, y: np.ndarray, **changes: Any) -> PartialLabelClassifier:
    params = {"mechanism": "rate", "unlabelled": "absent", **changes.pop("method_params", {})}
    return PartialLabelClassifier(method_params=params, random_state=0, epochs=20, **changes).fit(x, y)


@pytest.fixture(scope="module", params=TRUTHS)
def known(request: pytest.FixtureRequest) -> tuple[float, Data, PartialLabelClassifier]:
    data = simulated(request.param)
    return request.param, data, fitted(*data[:2], validation_fraction=0.4)


def test_the_loop_comes_near_the_rate(known: tuple[float, Data, PartialLabelClassifier]) -> None:
    truth, _, model = known
    assert abs(model.history_[-1]["rate"] - truth) < 0.16  # it starts at 1/2, and 20 epochs are few
    assert abs(model.history_[0]["rate"] - 0.5) < 0.1  # once it was 0.94 and more after the first


def test_held_out_rows_tell_the_rate_within_its_error(known: tuple[float, Data, PartialLabelClassifier]) -> None:
    truth, _, model = known
    assert model.rate_.held_out
    assert abs(model.rate_.rate - truth) < 3 * model.rate_.error
    assert 0.01 < model.rate_.error < 0.1
    assert "by held-out rows" in model.rate_.words()
    assert not model.rate_.warnings()


def test_probabilities_sum_to_what_is_there(known: tuple[float, Data, PartialLabelClassifier]) -> None:
    _, (x, _, present), model = known
    assert model.calibration_.by == AT_RATES
    assert model.predict_proba(x).sum() == pytest.approx(present.sum(), rel=0.2)


def test_labels_are_counted_by_the_rate_of_held_out_rows(known: tuple[float, Data, PartialLabelClassifier]) -> None:
    truth, (x, y, present), model = known
    z = model._logits(x)
    found = count_labels(z, y, (z[:800], y[:800]), mechanism="rate", unlabelled="absent", draws=200)
    assert found.calibration.rates is not None
    assert found.rate_error is not None
    assert abs(found.calibration.rates[0] - truth) < 3 * found.rate_error
    assert found.total.expected == pytest.approx(present.sum(), rel=0.25)
    assert found.total.low < found.total.expected < found.total.high


@pytest.mark.parametrize("truth", TRUTHS)
def test_rows_that_are_learned_by_heart_do_not_tell_the_rate(truth: float) -> None:
    """With 600 features the loop ends far above the rate: the held-out rows do not follow it."""
    x, y, _ = simulated(truth, features=600)
    model = fitted(x, y, validation_fraction=0.3)
    assert model.history_[-1]["rate"] > truth + 0.1
    assert abs(model.rate_.rate - truth) < 3 * model.rate_.error
    assert model.rate_.error > 2 * model.history_[-1]["rate error"]


def test_without_held_out_rows_it_says_so() -> None:
    x, y, _ = simulated(0.5, rows=300)
    model = fitted(x, y, validation_fraction=0.0)
    assert model.rate_ == ReportedRate(model.history_[-1]["rate"], model.history_[-1]["rate error"], held_out=False)
    assert "too high and too sure" in model.rate_.words()
    assert model.calibration_ == Calibration()


def test_rates_by_class_calibrate_as_learned_and_are_told_by_held_out_rows() -> None:
    truth = np.linspace(0.2, 0.9, 10)
    x, y, _ = simulated(truth, rows=3000)
    model = fitted(x, y, method_params={"rate": "class"}, validation_fraction=0.4)
    assert model.calibration_.by == AT_A_RATE
    assert model.calibration_.rates is None
    rates, errors = np.array(model.rate_.by_class).T
    assert model.rate_.held_out
    assert (abs(rates - truth) < 3 * errors).all()
    assert errors.max() < 0.2
    assert np.corrcoef(rates, truth)[0, 1] > 0.9
    assert model.rate_.rate == pytest.approx(rates.mean())
    assert "the mean over 10 classes, by held-out rows" in model.rate_.words()
    assert Calibration.from_list(json.loads(json.dumps(model.calibration_.to_list()))) == model.calibration_


def test_rates_by_class_do_not_follow_those_that_were_learned_by_heart() -> None:
    truth = np.linspace(0.2, 0.7, 10)
    x, y, _ = simulated(truth, rows=3000, features=600)
    model = fitted(x, y, method_params={"rate": "class"}, validation_fraction=0.4)
    learned = model.method_.loss.rates().numpy()  # type: ignore[operator]
    rates, errors = np.array(model.rate_.by_class).T
    assert (learned > truth + 0.1).mean() > 0.7
    assert (abs(rates - truth) < 2.5 * errors).mean() > 0.85
    assert abs((rates - truth).mean()) < 0.6 * (learned - truth).mean()


def test_rates_by_class_without_held_out_rows_are_those_of_the_training_rows() -> None:
    x, y, _ = simulated(0.5, rows=400)
    model = fitted(x, y, method_params={"rate": "class"}, validation_fraction=0.0)
    assert not model.rate_.held_out
    assert model.rate_.by_class == ()
    assert model.rate_.rate == pytest.approx(model.method_.loss.rates().mean().item())  # type: ignore[operator]


def test_rates_by_class_give_way_to_two_rates_where_absent_labels_are_verified() -> None:
    x, y, present = simulated(0.5, rows=1000)
    verified = np.where(~present & (np.random.default_rng(1).random(y.shape) < 0.1), -1, y)
    model = fitted(x, verified, method_params={"rate": "class"}, validation_fraction=0.4)
    assert model.calibration_.by == AT_RATES
    assert model.rate_.held_out
    assert abs(model.rate_.rate - 0.5) < 4 * model.rate_.error


def test_only_a_learned_rate_is_reported() -> None:
    x, y, _ = simulated(0.5, rows=200)
    assert PartialLabelClassifier("an", epochs=1).fit(x, y).rate_ is None
    assert fitted(x, y, method_params={"rate": 0.5}).rate_ is None


def test_a_rate_that_leaves_nothing_missing_is_warned_of() -> None:
    assert "do not rely" in ReportedRate(0.985, 0.01, True).warnings()[0]
    x, y, _ = simulated(1.0, rows=3000)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = fitted(x, y, validation_fraction=0.5)
    assert (model.rate_.rate >= 0.98) == any("Nearly all present labels" in str(one.message) for one in said)
    loss = create_loss("selection", mechanism="rate")
    method = LossMethod(create_model("tiny", 3), loss)
    found = reported_rate(method, Calibration(), {"rate": 0.999})
    assert found is not None
    assert found.warnings()
    assert np.isnan(found.error)
    assert "empty by chance" in found.words()  # rows without any label are left out by default
    assert "empty by chance" not in ReportedRate(0.5, 0.1, True).words()


@pytest.mark.parametrize("rule", ["observed", "last"])
def test_a_run_stores_it_and_counts_by_it(rule: str, tmp_path: Path) -> None:
    scenes = {
        "data.format": "scenes",
        "data.options": {"split": "train", "count": 96},
        "run.device": "cpu",
        "data.protocol": "single-positive",
    }
    small = {"model.backbone": "tiny", "model.weights": "", "data.size": 16, "train.epochs": 1, "run.workers": 0}
    method = {"method.name": "selection", "method.params": {"mechanism": "rate", "unlabelled": "absent"}}
    settings = {**scenes, **small, **method, "select.rule": rule, "select.fraction": 0.5 if rule == "observed" else 0.0}
    train(Recipe.load(None, [], settings), tmp_path / "run")
    trained = load_run(tmp_path / "run")
    rate = reported_rate(trained.method, trained.calibration, trained.history[trained.chosen])
    rows, kept = own_rows(trained, tmp_path / "run")
    part, held = look(trained, rows), look(trained, kept) if kept else None
    counts, (found, _) = count_missing(trained, part, held, draws=50), chances(trained, part)
    given = torch.from_numpy(part.labels.dense())
    assert rate is not None
    assert rate.held_out == (rule == "observed")
    if held is None:
        assert counts.rate == pytest.approx(rate.rate)
        assert counts.rate_error == rate.error
        assert torch.equal(found, selection_posterior(part.logits, given, **how_written(trained.method)))
        return
    assert counts.calibration.rates is not None
    assert counts.calibration.rates[0] == pytest.approx(rate.rate, rel=1e-3)
    assert counts.rate_error == pytest.approx(rate.error, rel=0.05)
    assert torch.equal(found, trained.calibration.chances(part.logits, given, every=True))


def test_the_error_is_that_of_a_bootstrap() -> None:
    """By the spread over data sets that are drawn anew."""
    rng = np.random.default_rng(0)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        z = 2 * rng.normal(size=(400, 8)) - 1
        present = rng.random(z.shape) < 1 / (1 + np.exp(-z))
        return torch.from_numpy(z), torch.from_numpy((present & (rng.random(z.shape) < 0.4)).astype(np.int8))

    draws = [draw() for _ in range(40)]
    found = [fit_rates(*one, every=True).rates[0] for one in draws]
    said = [rate_error(rate, *one, True) for rate, one in zip(found[:4], draws[:4], strict=True)]
    assert np.mean(found) == pytest.approx(0.4, abs=0.02)
    assert np.mean(said) == pytest.approx(np.std(found), rel=0.4)


def test_biases_start_where_the_rate_does() -> None:
    labels = torch.zeros(100, 3)
    labels[:10, 0], labels[:40, 1], labels[:, 2] = 1, 1, 1
    for given, shares in (({}, (0.2, 0.7, 1.0)), ({"rate": 0.5}, (0.1, 0.4, 1.0))):
        expected = [np.log((100 * p + 0.5) / (100 - 100 * p + 0.5)) for p in shares]
        found = start_bias(create_loss("selection", mechanism="rate", **given), labels)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [({"lr": 1e-4}, 100.0), ({"lr": 5e-3}, 20.0), ({"lr": 0.5}, 1.0), ({"lr": 5e-3, "optimizer": "sgd"}, 100.0)],
)
def test_a_step_of_adam_on_the_rate_is_no_longer_than_a_tenth(changes: dict[str, Any], factor: float) -> None:
    method = LossMethod(create_model("tiny", 3), create_loss("selection", mechanism="rate"))
    (group,) = (group for group in method.param_groups(plan(**changes)) if group["name"] == "loss")
    assert group["lr_factor"] == pytest.approx(factor)

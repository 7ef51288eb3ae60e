"""The scikit-learn estimator: its contract, its labels, its answers, and the loop that it shares with images."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import average_precision_score, get_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pluralis
from pluralis import estimator as module
from pluralis.calibration import AT_A_RATE, AT_RATES
from pluralis.estimator import PartialLabelClassifier, observed_score
from pluralis.methods import every_method

OTHER_VALUES = "its labels are not 1, 0 and -1"
NOT_APPLICABLE = {
    "check_estimators_dtypes": OTHER_VALUES,
    "check_classifier_data_not_an_array": OTHER_VALUES,
    "check_classifiers_classes": OTHER_VALUES,
    "check_fit2d_1feature": OTHER_VALUES,
}


@parametrize_with_checks([PartialLabelClassifier()], expected_failed_checks=lambda model: NOT_APPLICABLE)
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


# The checks count a 0, unknown here, as a class of its own, which `em` unlearns when it is trained for long.
@pytest.mark.slow
@parametrize_with_checks(
    [PartialLabelClassifier("an"), PartialLabelClassifier("em", standardize=False, validation_fraction=0, lr=0.004)],
    expected_failed_checks=lambda model: NOT_APPLICABLE,
)
def test_scikit_learn_contract_of_other_settings(estimator: Any, check: Any) -> None:
    check(estimator)


def table(rows: int = 240, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, the truth in {+1, -1}, and the one present label that was written."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 6))
    truth = np.where(X @ np.random.default_rng(9).normal(size=(6, classes)) > 0.5, 1, -1)
    given = np.zeros_like(truth)
    for row, present in enumerate(truth > 0):
        if present.any():
            given[row, rng.choice(np.flatnonzero(present))] = 1
    return X, truth, given


X, TRUTH, GIVEN = table()
FAST: dict[str, Any] = {"epochs": 8, "min_steps": 0, "lr": 0.02, "validation_fraction": 0, "random_state": 0}


def model(method: str = "an", **changes: Any) -> PartialLabelClassifier:
    return PartialLabelClassifier(method, **{**FAST, **changes})


def test_it_learns_all_labels_from_one() -> None:
    test_X, test_truth, _ = table(seed=1)
    found = model("gr", validation_fraction=0.1, choose_epoch=True).fit(X, GIVEN)
    assert found.score(test_X, test_truth) > 0.8  # 0.43 for guesses
    assert found.predict_proba(test_X).shape == (240, 4)
    assert np.isin(found.predict(test_X), (0, 1)).all()
    assert found.rule_.startswith("observed")
    assert len(found.history_) == 8


def test_sparse_labels_are_the_same_as_dense_ones() -> None:
    mixed = np.where(np.random.default_rng(2).random(TRUTH.shape) < 0.4, TRUTH, 0)
    dense = model("bce").fit(X, mixed)
    for kind in (sparse.csr_matrix, sparse.coo_array, sparse.lil_matrix):
        assert np.array_equal(dense.predict_proba(X), model("bce").fit(X, kind(mixed)).predict_proba(X))
    assert dense.score(X, sparse.csr_array(mixed)) == dense.score(X, mixed)


def test_a_bool_matrix_says_that_all_is_known() -> None:
    first, second = (model("bce").fit(X, labels).predict_proba(X) for labels in (TRUTH, TRUTH > 0))
    assert np.array_equal(first, second)


def test_score_is_the_mean_average_precision_of_known_labels() -> None:
    fitted = model("bce").fit(X, TRUTH)
    odds = fitted.decision_function(X)
    known = np.random.default_rng(3).random(TRUTH.shape) < 0.7
    each = [average_precision_score(TRUTH[k, c] > 0, odds[k, c]) for c, k in enumerate(known.T)]
    assert fitted.score(X, np.where(known, TRUTH, 0)) == pytest.approx(np.mean(each), rel=1e-12)
    complete = [average_precision_score(TRUTH[:, c] > 0, odds[:, c]) for c in range(4)]
    for truth in (TRUTH, TRUTH > 0, (TRUTH > 0).astype(int)):  # 0 and 1 alone: what is not written counts as absent
        assert fitted.score(X, truth) == pytest.approx(np.mean(complete), rel=1e-12)


def test_probabilities_follow_the_calibration() -> None:
    """Held-out labels give two numbers, p = σ(a·z + b), without which `em` finds nearly everything."""
    fitted = model("em", validation_fraction=0.3).fit(X, GIVEN)
    with torch.no_grad():
        logits = fitted.method_.predict(fitted._features(X)).double().numpy()
    a, b = fitted.calibration_.a, fitted.calibration_.b
    assert (a, b) != (1, 0)
    assert fitted.predict_proba(X) == pytest.approx(1 / (1 + np.exp(-(a * logits + b))), abs=1e-6)
    assert np.array_equal(fitted.predict(X), fitted.predict_proba(X) >= 0.5)
    raw = model("em").fit(X, GIVEN)
    assert (raw.calibration_.a, raw.calibration_.b, raw.rule_) == (1, 0, "last epoch")
    counts = [m.predict_proba(X).sum(1).mean() for m in (fitted, raw)]
    true = (TRUTH > 0).sum(1).mean()
    assert abs(counts[0] - true) < abs(counts[1] - true)


def test_threshold() -> None:
    fitted = model().fit(X, GIVEN)
    assert fitted.set_params(threshold=0.0).predict(X).all()
    assert not fitted.set_params(threshold=1.0).predict(X).any()


def test_same_seed_same_numbers_and_the_global_generators_are_left_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - the legacy generator is what must not move
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    first, second, other = (
        model(hidden=8, dropout=0.2, random_state=seed).fit(X, GIVEN).predict_proba(X) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])  # noqa: NPY002


def test_clone_pickle_pipeline_and_search() -> None:
    fitted = model("gr", method_params={"wT": 1.0}).fit(X, GIVEN)
    assert clone(fitted).get_params() == fitted.get_params()
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    pipe = make_pipeline(StandardScaler(), model(standardize=False, epochs=2))
    for scoring in (None, observed_score):
        search = GridSearchCV(pipe, {"partiallabelclassifier__lr": [1e-5, 0.02]}, cv=2, scoring=scoring)
        assert search.fit(X, GIVEN).best_params_ == {"partiallabelclassifier__lr": 0.02}


def test_numbers_of_numpy_are_numbers() -> None:
    values = {"hidden": np.int64(3), "epochs": np.int32(2), "batch_size": np.int64(50), "lr": np.float32(0.01)}
    plain = {"hidden": 3, "epochs": 2, "batch_size": 50, "lr": float(np.float32(0.01))}
    first, second = (model(**given).fit(X, GIVEN).predict_proba(X) for given in (values, plain))
    assert np.array_equal(first, second)


def test_features_are_standardised_and_constant_ones_do_no_harm() -> None:
    wide = np.hstack([X * 1000 + 5e6, np.full((len(X), 1), 7.3)])
    plain, scaled = model().fit(X, GIVEN), model().fit(wide, GIVEN)
    assert np.isfinite(scaled.predict_proba(wide)).all()
    assert scaled.score(wide, TRUTH) == pytest.approx(plain.score(X, TRUTH), abs=0.03)


def test_one_class_as_a_list() -> None:
    fitted = model().fit(X, GIVEN[:, 0])
    assert fitted.predict(X).shape == fitted.decision_function(X).shape == (240,)
    assert fitted.predict_proba(X).sum(1) == pytest.approx(np.ones(240))
    column = model().fit(X, GIVEN[:, :1])
    assert np.array_equal(column.predict_proba(X)[:, 0], fitted.predict_proba(X)[:, 1])


def test_a_list_that_holds_minus_one_is_answered_in_kind() -> None:
    """So that scikit-learn's own scorers compare like with like."""
    one = TRUTH[:, 0]
    for labels, classes in ((one, [-1, 1]), (one * (np.arange(240) % 3 > 0), [-1, 1]), (one > 0, [0, 1])):
        fitted = model("bce").fit(X, labels)
        assert fitted.classes_.tolist() == classes
        assert set(fitted.predict(X)) == set(classes)
        assert get_scorer("accuracy")(fitted, X, one if -1 in classes else one > 0) > 0.8
        assert get_scorer("roc_auc")(fitted, X, one) > 0.9
    assert np.isin(model("bce").fit(X, TRUTH).predict(X), (0, 1)).all()


def rated(rows: int = 1500, classes: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Features and the truth, from log-odds that are linear in them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 20))
    return X, rng.random((rows, classes)) < 1 / (1 + np.exp(2.5 - 3 * X @ rng.normal(size=(20, classes)) / 20**0.5))


@pytest.mark.parametrize("choose_epoch", [False, True])
def test_labels_written_at_a_rate_are_calibrated_by_it(choose_epoch: bool) -> None:
    X, truth = rated()
    given = (truth & (np.random.default_rng(1).random(truth.shape) < 0.4)).astype(int)
    how = {"mechanism": "rate", "rate": 0.4, "unlabelled": "absent"}
    fitted = PartialLabelClassifier(method_params=how, epochs=5, lr=0.02, choose_epoch=choose_epoch, random_state=0)
    p = fitted.fit(X, given).predict_proba(X)
    assert fitted.calibration_.by == AT_A_RATE
    assert choose_epoch == (AT_A_RATE in fitted.rule_)
    assert p.sum(1).mean() == pytest.approx(truth.sum(1).mean(), rel=0.2)  # thrice as many by one picked label


@pytest.mark.parametrize("method", ["bce", "selection"])
def test_labels_missing_at_random_are_calibrated_as_such(method: str) -> None:
    X, truth = rated()
    given = np.where(np.random.default_rng(1).random(truth.shape) < 0.2, np.where(truth, 1, -1), 0)
    fitted = PartialLabelClassifier(method, epochs=5, lr=0.02, random_state=0).fit(X[:1000], given[:1000])
    assert fitted.calibration_.by == AT_RATES
    p, there = fitted.predict_proba(X[1000:]), truth[1000:]
    assert p.sum(1).mean() == pytest.approx(there.sum(1).mean(), rel=0.15)
    found = p >= 0.5
    assert 2 * (found & there).sum() / (found.sum() + there.sum()) > 0.6


def test_names_of_features_and_classes() -> None:
    class Frame:
        """As much of a data frame as labels need."""

        columns = ("cat", "dog", "cow", "hen")

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return GIVEN

    fitted = model(epochs=1).fit(X, Frame())
    assert fitted.classes_.tolist() == ["cat", "dog", "cow", "hen"]
    assert fitted.n_features_in_ == 6


def test_few_rows_are_gone_through_more_often() -> None:
    def epochs(rows: int, **changes: Any) -> int:
        return len(model(**changes).fit(X[:rows], GIVEN[:rows]).history_)

    assert epochs(10, min_steps=50) == 50
    assert epochs(40, min_steps=50) == 25  # two steps each
    assert epochs(40, min_steps=51, batch_size=20) == 26
    assert epochs(240, min_steps=50) == epochs(10) == 8


@pytest.mark.parametrize("method", ["an", "em"])
def test_ten_rows_are_enough_for_what_is_always_there(method: str) -> None:
    """Whatever weights were drawn. A held-out row must not shift the others: the weights would go after the shift."""
    fitted = PartialLabelClassifier(method, random_state=2).fit(X[:10], np.ones(10))
    assert fitted.predict(X[10:20] / 2).all()


def test_only_rows_to_train_on_set_the_scale() -> None:
    fitted = model(validation_fraction=0.3, epochs=1).fit(X, GIVEN)
    with torch.no_grad():
        own = fitted.method_.predict(torch.from_numpy((X - X.mean(0)) / X.std(0)).float()).double().numpy()
    a, b = fitted.calibration_.a, fitted.calibration_.b
    assert np.abs(fitted.decision_function(X) - (a * own + b)).max() > 1e-3  # the scale is not that of all rows
    train = np.delete(X, module.split(len(X), 0.3, module.derive(_seed(0), "split") % 2**32)[1], axis=0)
    with torch.no_grad():
        own = fitted.method_.predict(torch.from_numpy((X - train.mean(0)) / train.std(0)).float()).double().numpy()
    assert fitted.decision_function(X) == pytest.approx(a * own + b, abs=1e-5)


def _seed(random_state: int) -> int:
    return int(np.random.RandomState(random_state).randint(2**31 - 1))


def test_a_refused_fit_changes_nothing() -> None:
    fitted = model().fit(X, GIVEN)
    before, expected = vars(fitted).copy(), fitted.predict_proba(X)
    for features, labels in ((X[:, :3], GIVEN * 2), (X[:, :3], GIVEN[:-1]), (X * np.nan, GIVEN)):
        with pytest.raises(ValueError, match="."):
            fitted.fit(features, labels)
    fitted.set_params(validation_fraction=0.999)  # found out late
    with pytest.raises(ValueError, match="validation_fraction"):
        fitted.fit(X[:, :3], GIVEN[:, :2])
    fitted.set_params(validation_fraction=0)
    assert vars(fitted) == before
    assert np.array_equal(fitted.predict_proba(X), expected)


def test_an_interrupted_fit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    fitted = model().fit(X, GIVEN)
    expected = fitted.predict_proba(X)
    monkeypatch.setattr(module, "fit", stop)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(X[:, :3], GIVEN[:, :2])
    assert np.array_equal(fitted.predict_proba(X), expected)


def test_a_first_fit_that_fails_is_no_fit() -> None:
    refused = model("grr")
    with pytest.raises(ValueError, match="grr"):
        refused.fit(X, GIVEN)
    for answer in (refused.predict, refused.predict_proba, refused.decision_function):
        with pytest.raises(NotFittedError):
            answer(X)
    assert not hasattr(refused, "n_features_in_")


@pytest.mark.parametrize("labels", [np.zeros_like(GIVEN), -np.ones_like(GIVEN), np.zeros(GIVEN.shape, bool)])
def test_nothing_to_measure(labels: np.ndarray) -> None:
    fitted = model().fit(X, GIVEN)
    with pytest.raises(ValueError, match="nothing can be measured"):
        fitted.score(X, labels)
    if not labels.any() and labels.dtype != bool:
        with pytest.raises(ValueError, match="nothing can be measured"):
            observed_score(fitted, X, labels)


def test_numbers_that_run_away_are_told_in_the_estimators_words() -> None:
    fitted = model().fit(X, GIVEN)
    with pytest.raises(ValueError, match="lower lr") as late:
        fitted.predict(X * 1e39)
    with pytest.raises(ValueError, match="standardize") as early:
        model(standardize=False).fit(X * 1e39, GIVEN)
    for error in (late, early):
        assert not [word for word in ("train.", "select.", "run.", "image") if word in str(error.value)]


def test_a_gpu_keeps_the_callers_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding reaches every GPU, so all of them are put back, if one is in use at all."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert module._generators(torch.device("cuda:1")) == [0, 1]
    assert module._generators(torch.device("cpu")) == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert module._generators(torch.device("cpu")) == [0, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_fit_leaves_the_generator_of_the_gpu_alone(device: str) -> None:
    torch.cuda.manual_seed(5)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(5)
    model(device=device, dropout=0.2).fit(X, GIVEN)
    assert torch.equal(torch.rand(3, device="cuda"), expected)


@pytest.mark.parametrize("labels", [GIVEN[GIVEN.any(1)][:1], -np.ones_like(GIVEN)])
def test_labels_that_say_little(labels: np.ndarray) -> None:
    for method in ("an", "em", "gr", "bce"):
        fitted = model(method, epochs=1).fit(X[: len(labels)], labels)
        assert np.isfinite(fitted.predict_proba(X)).all()


@pytest.mark.parametrize(
    ("changes", "labels", "part"),
    [
        ({"method": "grr"}, GIVEN, "did you mean 'gr'"),
        ({"method_params": {"alhpa": 1}, "method": "em"}, GIVEN, "alpha"),
        ({"threshold": 2}, GIVEN, "threshold"),
        ({"validation_fraction": 1.0}, GIVEN, "validation_fraction"),
        ({"hidden": -1}, GIVEN, "hidden"),
        ({"epochs": 0}, GIVEN, "epochs"),
        ({"start_bias": "middle"}, GIVEN, "log-odds"),
        ({"start_bias": "middle"}, GIVEN, "^PartialLabelClassifier: start_bias"),
        ({"device": "tpu"}, GIVEN, "^PartialLabelClassifier: device is 'tpu'"),
        ({"device": None}, GIVEN, "^PartialLabelClassifier: device"),
        ({"method": ["an"]}, GIVEN, "^PartialLabelClassifier: method is"),
        ({"method_params": [1]}, GIVEN, "^PartialLabelClassifier: method_params"),
        ({"method_params": {1: 2}}, GIVEN, "^PartialLabelClassifier: method_params"),
        ({"lr": -1.0}, GIVEN, "^PartialLabelClassifier: lr"),
        ({"weight_decay": "much"}, GIVEN, "^PartialLabelClassifier: weight_decay"),
        ({"dropout": 1.0}, GIVEN, "^PartialLabelClassifier: dropout"),
        ({"batch_size": 0}, GIVEN, "^PartialLabelClassifier: batch_size"),
        ({"min_steps": -1}, GIVEN, "^PartialLabelClassifier: min_steps"),
        ({"validation_fraction": 0.999}, GIVEN, "^PartialLabelClassifier: validation_fraction"),
        ({}, GIVEN * 2, "1 present, 0 unknown or -1 absent"),
        ({}, GIVEN * 0.5, "1 present, 0 unknown or -1 absent"),
        ({}, sparse.csr_array(GIVEN * 0.5), "1 present, 0 unknown or -1 absent"),
        ({}, GIVEN[:-1], "inconsistent"),
        ({}, GIVEN * 0, "names no label at all"),
        ({}, sparse.csr_array(GIVEN.shape), "names no label at all"),
    ],
)
def test_what_is_wrong_is_a_value_error(changes: dict[str, Any], labels: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        model(**{"method": "an", **changes}).fit(X, labels)


SEVERAL_VIEWS = [name for name, entry in every_method().items() if getattr(entry, "views", (None,)) != (None,)]


@pytest.mark.parametrize("method", [name for name in every_method() if name not in SEVERAL_VIEWS])
def test_every_method_on_features(method: str) -> None:
    fitted = model(method, epochs=2, batch_size=64, hidden=4).fit(X, GIVEN)
    assert np.isfinite(fitted.predict_proba(X)).all()
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X))


@pytest.mark.parametrize("method", SEVERAL_VIEWS)
def test_methods_that_need_images_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="needs augmented views of images"):
        model(method).fit(X, GIVEN)


def test_it_is_imported_only_when_asked_for() -> None:
    code = "import sys, pluralis; assert 'sklearn' not in sys.modules and 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert pluralis.PartialLabelClassifier is PartialLabelClassifier


def half_empty() -> np.ndarray:
    given = GIVEN.copy()
    given[::2] = 0
    return given


def test_rows_that_the_loss_passes_over_are_warned_of_once() -> None:
    given = half_empty()
    empty = int((given == 0).all(1).sum())
    with pytest.warns(UserWarning, match=f'{empty} of 240 training rows.*unlabelled="absent"') as said:
        model("selection", epochs=1).fit(X, given)
    assert len(said) == 1
    assert said[0].filename == __file__  # the line that called fit
    with pytest.warns(UserWarning, match="loss_params of relabel"):
        model("relabel", epochs=1).fit(X, given)


@pytest.mark.parametrize(
    ("method", "params", "given"),
    [
        ("selection", {"unlabelled": "absent"}, half_empty()),
        ("an", {}, half_empty()),  # which learns from them
        ("selection", {}, np.where(GIVEN.any(1, keepdims=True), GIVEN, -1)),
    ],
)
def test_no_warning_where_every_row_is_learned(method: str, params: dict[str, Any], given: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(method, epochs=1, method_params=params).fit(X, given)


def test_rows_that_were_looked_at_keep_the_sum_of_the_probabilities() -> None:
    """What the warning is about: 40 per cent of the rows have nothing to write."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1500, 6))
    present = rng.random((1500, 5)) < 1 / (1 + np.exp(2.5 - features @ rng.normal(size=(6, 5))))
    given = np.zeros((1500, 5), np.int8)
    for row in np.flatnonzero(present.any(1)):
        given[row, rng.choice(np.flatnonzero(present[row]))] = 1
    truth = present.sum(1).mean()
    sums = {}
    for unlabelled in ("skip", "absent"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = model("selection", validation_fraction=0.2, method_params={"unlabelled": unlabelled})
            sums[unlabelled] = found.fit(features, given).predict_proba(features).sum(1).mean()
    assert sums["absent"] == pytest.approx(truth, rel=0.15)
    assert sums["skip"] > 1.4 * truth

"""A scikit-learn estimator over feature matrices: any method, trained by the same `fit` as networks on images."""

from __future__ import annotations

import inspect
import math
import warnings
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from pluralis.calibration import Calibration, calibrate, rate_given, with_error
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.protocols import split
from pluralis.engine import fit
from pluralis.errors import NonFiniteLoss, PluralisError, RecipeError
from pluralis.evaluate import Last, Observed, predict
from pluralis.label_input import check_names, read_labels, take_labels
from pluralis.labels import Labels
from pluralis.method import Method, Setup
from pluralis.methods import START_BIASES, create_method, method_class, start_heads
from pluralis.metrics import mean_average_precision
from pluralis.models import create_model
from pluralis.params import choice, flag, number, whole
from pluralis.reported_rate import reported_rate
from pluralis.runtime import Runtime, choose_device
from pluralis.seeding import derive
from pluralis.stage import Stage

Floats = npt.NDArray[np.float64]
_NAME = "PartialLabelClassifier"


class PartialLabelClassifier(ClassifierMixin, BaseEstimator):
    """All labels of a row of features from the few that somebody wrote down.

    method               a name of `pluralis methods`; one that needs several views or feature maps is refused
    method_params        its parameters, where the defaults do not suit
    hidden               units of a hidden layer; 0 for a linear model
    dropout              before each layer
    epochs, batch_size, lr, weight_decay    of AdamW, with a cosine schedule
    min_steps            least number of AdamW's steps: few rows are gone through more than `epochs` times, since after
                         a handful of steps the weights are still those that were drawn; 0 for `epochs` in any case
    start_bias           of the outputs: "method" for what suits it, "zero", or "log-odds" of what was written
    standardize          give each feature mean 0 and deviation 1 first, as learned from the training rows
    validation_fraction  of the rows, held out to calibrate the probabilities by the likelihood of their written labels
                         (no clean label is needed; `calibration_.by` tells how it takes them to be written); not
                         calibrated with 0, or where those labels cannot tell: there are none, or there is one class
                         and all are present
    choose_epoch         keep the weights of the epoch under which those held-out labels are most likely, not the last;
                         with few rows the choice is a matter of luck
    threshold            least probability of a label in `predict`
    random_state         seed of everything random
    device               "cpu", "cuda", or "auto"

    Labels y [N, C] are +1 present, 0 unknown, -1 absent; in a scipy sparse matrix what is not stored is unknown; a bool
    matrix says that all is known. What a method makes of -1 is in its own description. y may be a list [N] for a single
    class: then answers have scikit-learn's shapes for two classes. Whatever is wrong raises a ValueError; a fit that
    fails leaves the estimator as it was.

    Of scikit-learn's own tools, `cross_val_predict` numbers labels anew, so that 0 and -1 lose their meaning: use
    `pluralis.folds.out_of_fold`. Its scorers compare with `predict`, which for a matrix gives 1 and 0: they need a
    complete matrix of 1 and 0 too. `score` and `observed_score` take labels as they are.

    Rows without any label: `selection`, the default, passes over them as if nobody had looked, and warns of it. If
    somebody looked and found nothing, set method_params={"unlabelled": "absent"}.

    After `fit`: `classes_` (names of y's columns, or their numbers; for a list 0 and 1, or -1 and 1 if it holds -1),
    `n_features_in_`, `method_`, `history_` (figures of each epoch), `rule_` (how the epoch was chosen), `calibration_`,
    and `rate_`, where the method learned the rate at which labels are written: it and its error, by the held-out rows
    where there are any.

    >>> X = np.random.default_rng(0).normal(size=(200, 4))
    >>> Y = np.where(X[:, :3] > 0, 1, -1)
    >>> Y[np.random.default_rng(1).random(Y.shape) < 0.5] = 0  # half of the labels are unknown
    >>> model = PartialLabelClassifier("bce", lr=0.02, random_state=0).fit(X, Y)
    >>> model.predict_proba(X).shape, bool(model.score(X, Y) > 0.95)
    ((200, 3), True)
    """

    def __init__(
        self,
        method: str = "selection",
        *,
        method_params: dict[str, Any] | None = None,
        hidden: int = 0,
        dropout: float = 0.0,
        epochs: int = 30,
        batch_size: int = 32,
        min_steps: int = 300,
        lr: float = 5e-3,
        weight_decay: float = 1e-2,
        start_bias: str = "method",
        standardize: bool = True,
        validation_fraction: float = 0.1,
        choose_epoch: bool = False,
        threshold: float = 0.5,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.method_params = method_params
        self.hidden = hidden
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.min_steps = min_steps
        self.lr = lr
        self.weight_decay = weight_decay
        self.start_bias = start_bias
        self.standardize = standardize
        self.validation_fraction = validation_fraction
        self.choose_epoch = choose_epoch
        self.threshold = threshold
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from features X [N, D] and labels y [N, C]."""
        before = vars(self).copy()
        try:
            self._fit(X, y)
        except BaseException as error:
            self.__dict__ = before
            if isinstance(error, PluralisError):
                raise ValueError(_in_own_words(error)) from error
            raise
        return self

    def _fit(self, X: Any, y: Any) -> None:
        device = self._check_parameters()
        values, columns = take_labels(y)
        X, y = validate_data(self, X, values, dtype=(np.float64, np.float32), multi_output=True)
        labels = read_labels(y)
        if not len(labels.values):
            raise ValueError(f"{_NAME}: y names no label at all, so there is nothing to learn: 0 means unknown")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=_generators(device)):  # a caller's own random numbers stay as they were
            self._train(X, labels, seed, Runtime(device, "fp32"))
        self._list = y.ndim == 1
        self._width = len(labels.classes)
        if self._list:
            self.classes_ = np.array([-1 if y.dtype != bool and y.min() < 0 else 0, 1])
        else:
            self.classes_ = np.arange(self._width) if columns is None else columns

    def decision_function(self, X: Any) -> Floats:
        """Calibrated log-odds [N, C] of each label being present; [N] for a single class given as a list."""
        odds = self._logits(X).double().numpy()
        odds = self.calibration_.a * odds + self.calibration_.b
        return odds[:, 0] if self._list else odds

    def predict_proba(self, X: Any) -> Floats:
        """Calibrated probability [N, C] of each label being present; [N, 2], absent and present, for a list."""
        odds = torch.from_numpy(self.decision_function(X))
        return (torch.stack([-odds, odds], 1) if self._list else odds).sigmoid().numpy()

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """1 where a label is found, 0 elsewhere: [N, C], or [N] for a list, -1 elsewhere if that holds -1."""
        found = self.predict_proba(X)
        if self._list:
            return np.where(found[:, 1] >= self.threshold, *self.classes_[::-1])
        return (found >= self.threshold).astype(np.int64)

    def score(self, X: Any, y: Any, sample_weight: None = None) -> float:
        """Mean average precision over the classes, from 0 to 1; unknown labels are left out.

        Where y names no absent label at all, whatever is not written counts as absent: right for a complete matrix of 0
        and 1, and for present labels alone a measure of how high those rank. To search over parameters on such labels,
        `scoring=observed_score` chooses better. Where no class can be measured, y is refused.
        """
        if sample_weight is not None:
            raise ValueError("score: rows have no weights here; leave sample_weight out")
        odds, truth = _pair(self, X, y)
        value = mean_average_precision(odds, truth if bool((truth < 0).any()) else truth > 0).value
        if not math.isfinite(value):
            raise ValueError("score: no class of y has present labels, so nothing can be measured: give some")
        return value

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False  # a label is there or not
        return tags

    def _check_parameters(self) -> torch.device:
        """Refuse what cannot be, before anything is done; the device of a run."""
        # A search over arrays of values hands over numpy's numbers.
        given = {k: v.item() if isinstance(v, np.generic) else v for k, v in self.get_params(deep=False).items()}
        for name, least in (("hidden", 0), ("epochs", 1), ("batch_size", 1), ("min_steps", 0)):
            whole(_NAME, name, given[name], least)
        for name, high in (("threshold", 1.0), ("lr", 1e3), ("weight_decay", 1e3)):
            number(_NAME, name, given[name], low=0, high=high)
        for name in ("dropout", "validation_fraction"):
            number(_NAME, name, given[name], low=0, below=1)
        for name in ("standardize", "choose_epoch"):
            flag(_NAME, name, given[name])
        choice(_NAME, "start_bias", given["start_bias"], ("method", *START_BIASES))
        for name in ("method", "device"):
            if not isinstance(given[name], str):
                raise RecipeError(f"{_NAME}: {name} is {given[name]!r}; give a name")
        params = given["method_params"]
        if params is not None and not (isinstance(params, dict) and all(isinstance(key, str) for key in params)):
            raise RecipeError(f"{_NAME}: method_params is {params!r}; give a dict of names and values, or None")
        views = getattr(method_class(self.method), "views", (None,))
        if len(views) != 1 or views[0] not in (None, "none"):
            raise RecipeError(f"method {self.method} needs augmented views of images, not features: choose another one")
        return choose_device(self.device)

    def _train(self, X: npt.NDArray[Any], labels: Labels, seed: int, runtime: Runtime) -> None:
        train_rows, held_rows = split(len(labels), self.validation_fraction, derive(seed, "split") % 2**32)
        if not len(train_rows):
            raise RecipeError(
                f"{_NAME}: validation_fraction is {self.validation_fraction}, and of {len(labels)} rows none is left to"
                " train on; make it smaller"
            )
        self._offset, self._scale = _scaling(X[train_rows], self.standardize)
        features = TensorImages(self._features(X))

        def loader(rows: npt.NDArray[np.int64]) -> Loader:
            return Loader(features.select(rows), labels.select(rows), size=1, cache="device", device=runtime.device)

        data = loader(train_rows)
        written = labels.select(held_rows).values
        telling = len(written) and (len(labels.classes) > 1 or (written < 0).any())
        held = loader(held_rows) if telling else None
        torch.manual_seed(derive(seed, "weights"))
        self.method_ = self._method(X.shape[1], data.labels)
        runtime.place(self.method_)
        plan = Stage(
            epochs=max(int(self.epochs), math.ceil(int(self.min_steps) / data.steps(int(self.batch_size)))),
            batch_size=int(self.batch_size),
            optimizer="adamw",
            lr=float(self.lr),
            head_lr=1.0,
            weight_decay=float(self.weight_decay),
            augment="none",
        )
        rule = Observed(held, self.method_) if held is not None and self.choose_epoch else Last()
        cautions: list[str] = []
        try:
            result = fit(self.method_, data, plan, rule=rule, seed=seed, runtime=runtime, warn=cautions.append)
        finally:
            for line in cautions:
                warnings.warn(f"{_NAME}: {line}", stacklevel=4)  # the line that called `fit`
        self.method_.eval()
        self.calibration_ = Calibration()
        if held is not None:
            given = torch.from_numpy(held.labels.dense())
            logits, how = predict(self.method_, held), rate_given(self.method_)
            self.calibration_ = with_error(calibrate(logits, given, how)[0], logits, given, how)
        self.rule_, self.history_ = result.rule, result.history
        self.rate_ = reported_rate(self.method_, self.calibration_, result.history[result.chosen])
        for line in self.rate_.warnings() if self.rate_ is not None else []:
            warnings.warn(f"{_NAME}: {line}", stacklevel=4)

    def _method(self, width: int, labels: Labels) -> Method:
        make_net = partial(
            create_model,
            f"features:{width}",
            len(labels.classes),
            "mlp" if self.hidden else "linear",
            dropout=float(self.dropout),
            normalize=False,
            head_params={"hidden": int(self.hidden)} if self.hidden else {},
        )
        looks = {"views": "fast"} if "views" in inspect.signature(method_class(self.method)).parameters else {}
        params = {**looks, **(self.method_params or {})}  # there is but one way to look at features
        method = create_method(self.method, Setup(make_net, len(labels.classes), labels), params)
        start_heads(method, labels, self.start_bias)
        return method

    def _features(self, X: npt.NDArray[Any]) -> Tensor:
        with np.errstate(over="ignore"):  # an infinite feature shows in the logits
            return torch.from_numpy(((X - self._offset) / self._scale).astype(np.float32))

    def _logits(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        device = next(self.method_.parameters()).device
        rows = Labels.from_lists([[]] * len(X), self._width)
        try:
            return predict(self.method_, Loader(TensorImages(self._features(X)), rows, size=1, device=device))
        except PluralisError as error:
            raise ValueError(_in_own_words(error)) from error


def observed_score(model: Any, X: Any, y: Any) -> float:
    """Mean log-likelihood of the written labels after a calibration by two numbers; needs no absent label.

    For `GridSearchCV(..., scoring=observed_score)`. Where only present labels are known: "somebody wrote down one of
    the labels that are present, any equally likely"; where absent ones are known too, both were written at a rate of
    their own, found from y (`calibration.calibrate`). It goes by y alone, whatever the model has been told of how
    labels come to be written, so that scores of any models compare. Rows without any label say nothing and are left
    out.
    """
    odds, truth = _pair(model, X, y)
    if not bool((truth != 0).any()):
        raise ValueError("observed_score: y names no label at all, so nothing can be measured: give rows with labels")
    return -calibrate(odds, truth)[1]


def _pair(model: Any, X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Log-odds [N, C] of a model or pipeline, and the labels [N, C]."""
    odds = torch.from_numpy(model.decision_function(X))
    odds = odds.reshape(len(odds), -1)
    given = take_labels(y)
    check_names(given, getattr(model, "classes_", None))
    labels = read_labels(check_array(given.values, accept_sparse="csr", ensure_2d=False, dtype=None, input_name="y"))
    if labels.shape != tuple(odds.shape):
        raise ValueError(f"y is a matrix of {labels.shape} for predictions of {tuple(odds.shape)}: give one label each")
    return odds, torch.from_numpy(labels.dense())


def _scaling(X: npt.NDArray[Any], standardize: bool) -> tuple[Floats, Floats]:
    """Mean and deviation [D] of each feature; a constant one is only shifted."""
    if not standardize:
        return np.zeros(X.shape[1]), np.ones(X.shape[1])
    scale = X.std(0, dtype=np.float64)
    return X.mean(0, dtype=np.float64), np.where(scale > 1e-12 * (1 + abs(X).max(0)), scale, 1.0)


def _generators(device: torch.device) -> list[int]:
    """GPUs whose random numbers a fit moves: seeding is for all of them as soon as one is in use."""
    used = device.type == "cuda" or torch.cuda.is_initialized()
    return list(range(torch.cuda.device_count())) if used else []


def _in_own_words(error: PluralisError) -> str:
    """An error of the parts below, which speak of recipes and images, for somebody who has an estimator and rows."""
    if isinstance(error, NonFiniteLoss):
        return f"{_NAME}: logits are NaN or infinite; lower lr, or let standardize=True bring features to one scale"
    return str(error).replace("run.device", f"{_NAME}: device")

"""What the written labels of held-out rows say about trained methods, with intervals over images."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pluralis.calibration import calibrate_rows
from pluralis.data.source import Source
from pluralis.evaluate import predict
from pluralis.features import FeatureRows
from pluralis.labels import Labels
from pluralis.metrics import mean_average_precision
from pluralis.runtime import Runtime
from pluralis.trained_run import TrainedRun, feature_cache, make_loader

Floats = npt.NDArray[np.float64]
LEVEL = 0.95  # of intervals, and of all comparisons together
DRAWS = 300  # of the images: their standard deviation is then known to 4 %
_ENTRIES = 400_000  # scores of which mAP is worked out in each draw


@dataclass(frozen=True)
class Interval:
    """A figure with the ends of its interval over images."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """One method: mean log likelihood of a row's written labels and mAP (per cent), each in all draws of the images."""

    likelihood: float
    likelihood_draws: Floats
    precision: float
    precision_draws: Floats


@dataclass(frozen=True)
class Gain:
    """Over another method, image by image."""

    likelihood: Interval
    precision: Interval


class Evidence:
    """Measures methods on the same held-out rows, and in the same draws of them, so that they can be compared in pairs.

    The likelihood is that of the rule `observed`, after its calibration. mAP is that of the known labels where labels
    were verified to be absent; otherwise all that is not written is taken as absent.
    """

    def __init__(self, labels: Labels, seed: int = 0) -> None:
        dense = torch.from_numpy(labels.dense())
        self.rows = torch.nonzero((dense != 0).any(1)).flatten()
        self._labels = dense[self.rows]
        known = [(self._labels > 0).any(0), (self._labels < 0).any(0)]
        self.verified = bool((known[0] & known[1]).sum() * 2 >= known[0].sum()) and bool(known[1].any())
        rng = np.random.default_rng(seed)
        self._few = np.linspace(0, len(self.rows) - 1, min(len(self.rows), _ENTRIES // dense.shape[1] + 1)).astype(int)
        self._draws = [rng.integers(len(self.rows), size=len(self.rows)) for _ in range(DRAWS)]
        self._few_draws = [rng.choice(self._few, size=len(self._few)) for _ in range(DRAWS)]

    def measure(self, logits: Tensor) -> Measured:
        """Of the logits [N, C] of all rows."""
        logits = logits[self.rows]
        each = -calibrate_rows(logits, self._labels)[1].numpy()
        return Measured(
            float(each.mean()),
            np.array([each[draw].mean() for draw in self._draws]),
            self._precision(logits, self._few),
            np.array([self._precision(logits, draw) for draw in self._few_draws]),
        )

    def _precision(self, logits: Tensor, rows: npt.NDArray[np.int64]) -> float:
        labels = self._labels[rows]
        measurable = not self.verified or bool((labels < 0).any())  # a draw may miss them all
        truth = labels if self.verified else labels > 0
        return 100 * mean_average_precision(logits[rows], truth).value if measurable else float("nan")


def gain(one: Measured, other: Measured, level: float) -> Gain:
    """`one` less `other`, each with the normal interval of the bootstrap's standard error."""
    return Gain(
        interval(one.likelihood - other.likelihood, one.likelihood_draws - other.likelihood_draws, level),
        interval(one.precision - other.precision, one.precision_draws - other.precision_draws, level),
    )


def interval(value: float, draws: Floats, level: float) -> Interval:
    """
    >>> interval(2.0, np.array([1.0, 3.0, 1.0, 3.0]), 0.95)
    Interval(value=2.0, low=-0.26..., high=4.26...)
    """
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(np.nanstd(draws, ddof=1))
    return Interval(value, value - reach, value + reach)


def held_logits(run: TrainedRun, held: Source) -> Tensor:
    """Of rows that the run did not learn from; a head on stored features has theirs looked up."""
    recipe, device = run.recipe, next(run.method.parameters()).device
    runtime = Runtime(device, recipe.run.precision)
    data = make_loader(held, recipe, device)
    if recipe.run.cache == "features":
        found = feature_cache(run.method, recipe, runtime).extract(held.images, recipe.run.workers).features
        data = make_loader(Source(FeatureRows(found, held.images), held.labels), recipe, device, cache="device")
    with torch.no_grad(), runtime.autocast():
        return predict(run.method, data)

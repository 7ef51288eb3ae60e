"""What becomes of the training rows' own labels, written or not, after each epoch: for curves, without influence."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pluralis.data.loader import Loader
from pluralis.evaluate import predict
from pluralis.labels import Labels
from pluralis.method import Method

Floats = npt.NDArray[np.float64]
_TINY = 1e-12  # below any mean of probabilities that says something, so that a log stays finite


class TrainingRows:
    """Looks at up to `count` rows of the training data, evenly spread, without augmentation: for `watch` of `fit`.

    `among` says how many of its first rows have labels at all, where others are there for their images alone.

    `truth` are the complete labels of all its rows, where a protocol hid some. What cannot be told is left out.
    """

    def __init__(
        self, data: Loader, truth: Labels | None, batch_size: int, count: int, among: int | None = None
    ) -> None:
        self._data, self._batch = data, batch_size
        total = len(data) if among is None else among
        rows = np.unique(np.linspace(0, total - 1, min(count, total)).astype(int))
        self._rows = torch.from_numpy(rows)
        self._given = data.labels.dense(rows)
        self._truth = None if truth is None else truth.dense(rows)

    def __call__(self, method: Method) -> dict[str, float]:
        logits = predict(method, self._data, rows=self._rows).double()
        p = logits.sigmoid().numpy()
        found = {
            "positive loss": positive_loss(logits, self._given),
            "p of annotated positives": _mean(p[self._given > 0]),
            "KL discrepancy": kl_discrepancy(p, self._given if self._truth is None else self._truth, self._batch),
        }
        if self._truth is not None:
            present, absent = unannotated(p, self._given, self._truth)
            found["Wasserstein"] = wasserstein(present, absent)
            found["p of unannotated positives"] = _mean(present)
            sizes = unannotated(logits.abs(), self._given, self._truth)
            for what, values in zip(("positives", "negatives"), sizes, strict=True):
                found[f"|z| of unannotated {what}"] = _mean(values)
        return {name: value for name, value in found.items() if math.isfinite(value)}


def positive_loss(logits: Tensor, given: npt.ArrayLike) -> float:
    """Mean of −log p over the labels that were written as present (L₊ of Zhou et al., ECCV 2022); NaN without any.

    >>> round(positive_loss(torch.tensor([[0.0, 5.0]]), [[1, 0]]), 4)
    0.6931
    """
    present = torch.as_tensor(given) > 0
    return float(torch.nn.functional.softplus(-logits[present].double()).mean())


def kl_discrepancy(p: npt.ArrayLike, labels: npt.ArrayLike, batch_size: int) -> float:
    """How far apart the mean probabilities of present and of absent labels are (PU-MLC, Yuan et al., 2023, Eq. 16).

        D = 1/(I·C) Σ_i Σ_c P_p log(P_p / P_n)

    with the means P_p over the present and P_n over the absent labels of class c in the i-th batch of rows. Pairs of
    batch and class that have only one of the two are left out, as are unknown labels; NaN where no pair is left.

    >>> round(kl_discrepancy([[0.8], [0.6], [0.1]], [[1], [1], [-1]], batch_size=3), 4)  # 0.7 · log(0.7 / 0.1)
    1.3621
    """
    p, labels = np.asarray(p, dtype=np.float64), np.asarray(labels)
    starts = np.arange(0, len(p), batch_size)

    def means(chosen: npt.NDArray[np.bool_]) -> Floats:
        counts = np.add.reduceat(chosen.astype(np.float64), starts)
        sums = np.add.reduceat(np.where(chosen, p, 0.0), starts)
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)

    if not len(p):
        return math.nan
    present, absent = means(labels > 0), means(labels < 0)
    each = present * np.log(np.maximum(present, _TINY) / np.maximum(absent, _TINY))
    each = each[np.isfinite(each)]
    return float(each.mean()) if each.size else math.nan


def unannotated(p: npt.ArrayLike, given: npt.ArrayLike, truth: npt.ArrayLike) -> tuple[Floats, Floats]:
    """The probabilities of labels that nobody wrote down: of those that are present, and of those that are absent.

    >>> present, absent = unannotated([[0.9, 0.4, 0.2]], given=[[1, 0, 0]], truth=[[1, 1, -1]])
    >>> present.tolist(), absent.tolist()
    ([0.4], [0.2])
    """
    p, unknown, truth = np.asarray(p, dtype=np.float64), np.asarray(given) == 0, np.asarray(truth)
    return p[unknown & (truth > 0)], p[unknown & (truth < 0)]


def wasserstein(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Wasserstein distance of two samples, ∫|F − G|; NaN where one of them is empty.

    >>> wasserstein([0.5, 0.7], [0.1, 0.1])
    0.5
    """
    from scipy.stats import wasserstein_distance

    one, other = np.asarray(one), np.asarray(other)
    return float(wasserstein_distance(one, other)) if one.size and other.size else math.nan


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else math.nan

"""How many labels are missing, without a clean label: counts by class and in total, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pluralis.conditional_calibration import calibrations
from pluralis.errors import DataError, LabelError
from pluralis.evaluate import Calibration
from pluralis.labels import Labels
from pluralis.losses.selection import MECHANISMS, selection_posterior
from pluralis.losses.selection_rate import UNLABELLED
from pluralis.params import choice, number, whole

Floats = npt.NDArray[np.float64]
Matrix = Tensor | npt.NDArray[Any] | Labels

_NAME = "count_labels"
_REACH = 2.0  # standard errors between the calibrations at which the counts are worked out in full
_FAR = 2.0  # times as far a calibration may lie from the best one: a parabola says nothing about more
_FEW = 100  # held-out rows below which two numbers are poorly known


@dataclass(frozen=True)
class Count:
    """Labels of one class, or of all: those written down, those expected to be present, and the interval of these."""

    name: str
    written: int
    expected: float
    low: float
    high: float

    @property
    def missing(self) -> float:
        return self.expected - self.written

    def row(self, places: int = 1) -> dict[str, str | int | float]:
        """For a table: written, expected, missing, and the interval of what is missing."""
        ends = (round(end - self.written, places) for end in (self.low, self.high))
        found = round(self.expected, places), round(self.missing, places)
        return dict(zip(COLUMNS, (self.name, self.written, *found, *ends), strict=True))


COLUMNS = ("label", "written", "expected", "missing", "missing from", "missing to")


@dataclass(frozen=True)
class Counts:
    """What `count_labels` found for a number of images."""

    rows: int
    classes: tuple[Count, ...]
    total: Count
    calibration: Calibration
    held_out: int  # rows with a label that the calibration was fitted to

    @property
    def per_image(self) -> tuple[float, float, float]:
        """Labels an image: expected, and the ends of the interval."""
        return self.total.expected / self.rows, self.total.low / self.rows, self.total.high / self.rows

    def table(self, places: int = 1) -> list[dict[str, str | int | float]]:
        """A row for each class, in their order, and one for all."""
        return [count.row(places) for count in (*self.classes, self.total)]

    def caveats(self) -> list[str]:
        """When these numbers are biased, as sentences for the reader."""
        said = [
            "Right if one of the labels of every image was picked at random: where people write down what is large or"
            " unusual, other labels are under-counted, and the interval does not contain it.",
            "Classes that the model cannot tell apart are counted wrongly, too low or too high: the single labels of"
            " 'either' and of 'both' look alike. The two numbers of the calibration are shared by all classes, so that"
            " the total is surer than the single classes.",
        ]
        if not self.held_out:
            said.append("Nothing was calibrated: the probabilities are taken as right; the interval holds only if so.")
        elif self.held_out < _FEW:
            said.append(f"The calibration rests on {self.held_out} rows only: hold out more to rely on the interval.")
        return said


def count_labels(
    logits: Tensor | npt.NDArray[Any],
    labels: Matrix,
    held_out: tuple[Tensor | npt.NDArray[Any], Matrix] | None = None,
    *,
    classes: Sequence[str] | None = None,
    mechanism: str = "one",
    rate: float | Tensor | None = None,
    unlabelled: str = "skip",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Counts:
    """How many labels are present in these images, by class and in all: N_c = Σ_n r_nc, with intervals.

    r is the chance of a label being present given what was written (`selection_posterior`): 1 on written labels, 0 on
    verified absent ones. It is worked out from p = σ(a·z + b), the two numbers being those under which the labels of
    the `held_out` rows are most likely, given that there was something to write (`conditional_calibration`), so that
    logits of any method will do; without held-out rows, p = σ(z). They should be rows that the model was not trained
    on, and may be among those that are counted.

    The interval is for the number that is truly there in *these* images. Two things are uncertain, and each of `draws`
    draws has both. One is the calibration, which is fitted anew to a bootstrap sample of the held-out images. The other
    is chance: given p, N_c has the variance Σ_n r (1 − r), and all labels of the images together ∂(Σ r)/∂b, since the
    chance of a set of hidden labels is an exponential family in their logits. The images that are counted are not drawn
    again: that would tell how others differ from these.

    logits: [N, C]. labels: [N, C] in {+1, 0, −1}, or `Labels`, whose class names are used unless `classes` has others.
    mechanism, rate, unlabelled: how labels came to be written, see `losses.functional.selection`; rows without any
    written label are expected to hold Σp ("skip": nobody looked), or nothing ("absent", where one label is picked). A
    calibration is for one picked label, so with mechanism "rate" there are no held-out rows.

    >>> z = torch.zeros(14, 3)
    >>> found = count_labels(z, torch.tensor([[1, 0, 0]] * 14))     # r = 5/14 for each of the others
    >>> [round(count.expected, 6) for count in (*found.classes, found.total)]
    [14.0, 5.0, 5.0, 24.0]
    """
    choice(_NAME, "mechanism", mechanism, MECHANISMS)
    choice(_NAME, "unlabelled", unlabelled, UNLABELLED)
    draws, level = whole(_NAME, "draws", draws, low=2, high=10**6), number(_NAME, "level", level, above=0.0, below=1.0)
    z, y = _pair(logits, labels, "the rows to count")
    names = tuple(classes or (labels.classes if isinstance(labels, Labels) else map(str, range(z.shape[1]))))
    if len(names) != z.shape[1]:
        raise LabelError(f"{_NAME}: {len(names)} class names for logits of {z.shape[1]} classes; give one each")
    rng = np.random.default_rng(whole(_NAME, "seed", seed))
    how = {"mechanism": mechanism, "rate": rate, "unlabelled": unlabelled}

    def chances(theta: Floats) -> Tensor:
        """[N, C] r, and 0 on what is known."""
        return selection_posterior(math.exp(theta[0]) * z + float(theta[1]), y, **how).masked_fill_(y != 0, 0.0)  # type: ignore[arg-type]

    best, spread, rows = np.zeros(2), np.zeros((draws, 2)), 0
    if held_out is not None:
        if mechanism == "rate":
            raise DataError(f"{_NAME}: a calibration is for one picked label; with mechanism='rate' leave out held_out")
        held = _pair(*held_out, "the held-out rows")
        if held[0].shape[1] != z.shape[1]:
            raise LabelError(f"{_NAME}: {z.shape[1]} classes to count, {held[0].shape[1]} in the held-out rows")
        best, spread, rows = calibrations(*held, draws, rng)

    found = chances(best)
    unknown = (y == 0).sum(0).double().numpy()
    room = np.append(unknown, unknown.sum())  # by class, and in all
    missing = _sums(found)
    step = np.array([0.0, 1e-3])
    together = (_sums(chances(best + step)) - _sums(chances(best - step)))[-1] / (2 * step[1])
    variance = np.append((found * (1 - found)).sum(0).numpy(), max(together, 0.0))
    drawn = _surface(chances, best, spread, room) if rows else missing
    drawn = drawn + np.sqrt(variance) * rng.standard_normal((draws, len(room)))
    ends = np.quantile(drawn.clip(0, room), [(1 - level) / 2, (1 + level) / 2], axis=0)

    written = _sums((y > 0).double()).astype(int)
    counts = [
        Count(name, int(w), float(w + m), float(w + low), float(w + high))
        for name, w, m, low, high in zip((*names, "all"), written, missing, *ends, strict=True)
    ]
    return Counts(len(z), tuple(counts[:-1]), counts[-1], Calibration(math.exp(best[0]), float(best[1])), rows)


def _surface(chances: Callable[[Floats], Tensor], best: Floats, spread: Floats, room: Floats) -> Floats:
    """[draws, C + 1] missing labels at the calibrations best + spread.

    Worked out in full at nine of them; between, the log-odds of a label being present are a parabola in each direction.
    """
    values, vectors = np.linalg.eigh(np.cov(spread.T) + 1e-12 * np.eye(2))
    axes = vectors * np.sqrt(values) * _REACH
    at = np.linalg.solve(axes, spread.T).clip(-_FAR, _FAR)
    weights = np.stack([at * (at - 1) / 2, 1 - at**2, at * (at + 1) / 2])  # [3, 2, draws]: Lagrange's at −1, 0, 1
    log_odds = np.zeros((len(spread), len(room)))
    for i, first in enumerate((-1, 0, 1)):
        for j, second in enumerate((-1, 0, 1)):
            share = (_sums(chances(best + axes @ [first, second])) / room.clip(1)).clip(1e-15, 1 - 1e-15)
            log_odds += np.outer(weights[i, 0] * weights[j, 1], np.log(share / (1 - share)))
    return room / (1 + np.exp(-log_odds))


def _sums(values: Tensor) -> Floats:
    """[C + 1] by class, and in all."""
    by_class = values.sum(0).numpy()
    return np.append(by_class, by_class.sum())


def _pair(logits: Tensor | npt.NDArray[Any], labels: Matrix, what: str) -> tuple[Tensor, Tensor]:
    z = torch.as_tensor(logits).detach().cpu().double()
    y = torch.as_tensor(labels.dense() if isinstance(labels, Labels) else labels).cpu()
    if z.dim() != 2 or z.shape != y.shape:
        raise LabelError(
            f"{_NAME}, {what}: logits of shape {tuple(z.shape)} and labels of shape {tuple(y.shape)}; "
            "give both as [rows, classes]"
        )
    if not len(z):
        raise DataError(f"{_NAME}: there are no rows in {what}; give at least one")
    if not bool(torch.isfinite(z).all()):
        raise DataError(f"{_NAME}, {what}: some logits are NaN or infinite; training diverged, lower its learning rate")
    return z, y.sign().to(torch.int8)

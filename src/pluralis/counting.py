"""How many labels are missing, without a clean label: counts by class and in total, with intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pluralis.calibration import ALL_WRITTEN, AT_RATES, Calibration, likelihood_words
from pluralis.conditional_calibration import calibrations, given_something, most_likely, telling
from pluralis.errors import DataError, LabelError
from pluralis.inputs import Array, Matrix, as_tensor, check_labels
from pluralis.labels import Labels
from pluralis.losses.selection import Rate, check_writing, selection_posterior
from pluralis.losses.selection_rate import UNLABELLED
from pluralis.params import choice, number, whole
from pluralis.written_rates import DrawnRates, draw_rates

Floats = npt.NDArray[np.float64]

_NAME = "count_labels"
_REACH = 2.0  # standard errors between the calibrations at which the counts are worked out in full
_FAR = 2.0  # times as far a calibration may lie from the best one: a parabola says nothing about more
FEW = 100  # held-out rows below which two numbers are poorly known
LITTLE = 0.05  # of the log likelihood of class frequencies: a model that wins less hardly tells images apart
_EVERYWHERE, _SELDOM, _ENOUGH = 0.9, 0.5, 20  # of the images: expected in more, written in fewer; and there are some
_NAMED = 3  # classes in a message
_UNSURE = 0.25  # of a rate: with a larger error it is hardly known


WEAK = (
    "On held-out rows the model is hardly better than the frequencies of the classes: it cannot tell how many labels an"
    " image has."
)
MEASURED = (
    "The interval is of sampling alone, and too narrow. Where one label was picked and the truth is known, 95 % ones"
    " after `selection` held the total of 41 out of 60 sets of rows, and on VOC 2012 those of single classes held 48 to"
    " 49 % of them. Totals after it came out 15 to 16 % too low in scenes of digits, 12 to 13 % too high in photographs"
    " of landscapes, and within 4 % on VOC 2012; after `relabel` of networks that learned 1,715 photographs of it 2 to"
    " 8 % too high with 4,002 rows held out, and 15 to 22 % too high with 429. Totals of VOC 2012's test images came"
    " out 8 to 9 % too high after `gr` and `em`, and 12 % too low after `an`; after `an` in one table 70 % too low."
)
"""What docs/results/counting.json and counting_runs.json have of it, as a sentence for the reader."""


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


def everywhere(names: Sequence[str], written: Floats, expected: Floats, rows: int) -> list[str]:
    """A sentence about classes that nearly every image should have, though few say so; none where there is none.

    >>> print(everywhere(["cat", "sky"], np.array([60.0, 5.0]), np.array([99.0, 99.0]), 100)[0][:79])
    1 of 2 classes is expected in nearly every image, and written in few: sky. Look
    """
    likely = (expected > _EVERYWHERE * rows) & (written < _SELDOM * rows)
    found = [name for name, there in zip(names, likely, strict=True) if there]
    if not found or rows < _ENOUGH:
        return []
    are, more = "is" if len(found) == 1 else "are", ", …" if len(found) > _NAMED else ""
    return [
        f"{len(found):,} of {len(names):,} classes {are} expected in nearly every image, and written in few:"
        f" {', '.join(found[:_NAMED])}{more}. Look at some of these images first: if it is not there, do not rely on"
        " the model, and train it in another way."
    ]


COLUMNS = ("label", "written", "expected", "missing", "missing from", "missing to")


@dataclass(frozen=True)
class Counts:
    """What `count_labels` found for a number of images."""

    rows: int
    classes: tuple[Count, ...]
    total: Count
    calibration: Calibration
    held_out: int  # rows with a label that the calibration was fitted to
    gain: float | None = None  # share of −log likelihood that the model saves on them, beside class frequencies
    a: float = 1.0
    rate: float | None = None  # at which labels are taken to be written, the mean over classes; None: none was given
    rate_error: float | None = None  # of a rate that was fitted to the held-out rows, or that a run learned
    unlabelled: str = "skip"  # rows without any label: nobody looked, or ("absent") somebody found nothing to write
    class_rates: bool = False  # whether each class has a rate of its own

    @property
    def per_image(self) -> tuple[float, float, float]:
        """Labels an image: expected, and the ends of the interval."""
        return self.total.expected / self.rows, self.total.low / self.rows, self.total.high / self.rows

    def table(self, places: int = 1) -> list[dict[str, str | int | float]]:
        """A row for each class, in their order, and one for all."""
        return [count.row(places) for count in (*self.classes, self.total)]

    def warnings(self) -> list[str]:
        """What the reader should know before reading the numbers, as sentences; empty where all is well."""
        said = self.calibration.warnings()
        if 0 < self.held_out < FEW:
            said.append(f"The calibration rests on {self.held_out} rows only: hold out more to rely on the interval.")
        if not self.held_out and self.rate is None and self.a == 1.0:
            said.append(
                "There are no held-out rows to calibrate by: the counts and the interval are right only if the model's"
                " probabilities are, which those of most methods are not. Hold out rows (select.fraction)."
            )
        if self.gain is not None and self.gain < LITTLE:
            said.append(f"{WEAK} Do not rely on the counts, nor on the interval.")
        written, expected = np.array([(count.written, count.expected) for count in self.classes]).reshape(-1, 2).T
        said += everywhere([count.name for count in self.classes], written, expected, self.rows)
        return said + self._rate_warnings()

    def _rate_warnings(self) -> list[str]:
        """Of a rate that was learned or fitted: a given one is the user's own."""
        rate = self.rate if self.calibration.rates is None else self.calibration.rates[0]
        if rate is None or self.rate_error is None:
            return []
        said = []
        if self.rate_error > _UNSURE * rate:
            said.append(
                f"The rate of writing, {rate:.2f}, is hardly known: its error is {self.rate_error:.2f}. Do not rely on"
                " it, nor on the counts."
            )
        if self.calibration.rates is None and rate >= ALL_WRITTEN:
            said.append(
                f"Nearly all present labels seem to be written (a rate of {rate:.3f}), and hardly any to be missing."
                " Networks that learn their rows by heart learn such a rate: do not rely on it without held-out rows."
            )
        return said

    def caveats(self) -> list[str]:
        """When these numbers are biased, as sentences for the reader."""
        if self.calibration.rates is not None:
            present, absent = self.calibration.rates
            looked = (
                "Images without any label count as looked at: nobody found anything to write. If nobody looked"
                " (unlabelled = skip), there are more labels than this."
                if self.unlabelled == "absent"
                else "Images without any label say nothing, as if nobody had looked. If people did, and found nothing"
                " to write (unlabelled = absent), there are fewer labels than this."
            )
            error = "" if self.rate_error is None else f" (± {self.rate_error:.2g})"
            return [
                (
                    "Right if present labels were written with one chance and absent ones verified with another,"
                    f" whatever else is there: {present:.2f} and {absent:.2f}, as fitted to held-out rows. Where"
                    if absent > 0
                    else "Right if every present label was written with the same chance, whatever else is there:"
                    f" {present:.2f}{error}, as fitted to held-out rows. Where"
                )
                + " people looked first at what is large or likely, labels are counted wrongly, and the interval does"
                " not contain it.",
                looked,
                "The interval is of sampling alone, and too narrow where the model's probabilities are wrong in shape."
                " All classes share the numbers of the calibration: single classes are far less sure than the total.",
            ]
        return [
            self._right_if(),
            "Where the model is weak labels are counted wrongly, too low or too high. If one picked label is assumed,"
            " so they are where those who see more write more, and where labels were verified to be absent.",
            "Classes that the model cannot tell apart are counted wrongly, too low or too high: the single labels of"
            " 'either' and of 'both' look alike."
            + (" The two numbers of the calibration are shared by all classes: single" if self.held_out else " Single")
            + " classes are far less sure than the total.",
            MEASURED,
            "The probabilities are calibrated here given that an image has a label at all, which those of `predict` and"
            " `relabel` are not: sums of these differ from the counts."
            if self.held_out
            else "Nothing was calibrated: the probabilities are taken as right; the interval holds only if so.",
        ]

    def _right_if(self) -> str:
        if self.rate is not None:
            error = "" if self.rate_error is None else f" (its own error: {self.rate_error:.2g})"
            learned = (
                ""
                if self.rate_error is None
                else " It was learned from the rows that the network was trained on: too high, and surer than it"
                " should be, where these are learned by heart; then labels are under-counted."
            )
            chance = "chance of its class" if self.class_rates else "same chance, the rate"
            return (
                f"Right if every present label was written with the {chance}, {self.rate:.2f} on average,"
                f" whatever else is there. It is taken as exact{error}, so the true interval is wider.{learned}"
            )
        if self.a != 1.0:
            return f"Right if labels were written as `selection` with a = {self.a:g} has it, which is taken as exact."
        return (
            "Right if one of the labels of every image was picked at random: where people write down what is large or"
            " unusual, other labels are under-counted, and the interval does not contain it."
        )


def count_labels(
    logits: Array,
    labels: Matrix,
    held_out: tuple[Array, Matrix] | None = None,
    *,
    classes: Sequence[str] | None = None,
    mechanism: str = "one",
    rate: Rate | None = None,
    a: float = 1.0,
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
    on, and may be among those that are counted. Where 50 or more labels are verified to be absent in held-out rows that
    have unknown ones, nobody picked just one: present labels are then written at one rate and absent ones at another,
    both fitted along with the two numbers (`written_rates`), and r = (1−ρ₊)p / ((1−ρ₊)p + (1−ρ₋)(1−p)).

    The interval is for the number that is truly there in *these* images. Two things are uncertain, and each of `draws`
    draws has both. One is the calibration, which is fitted anew to a bootstrap sample of the held-out images. The other
    is chance: given p, N_c has the variance Σ_n r (1 − r), and all labels of the images together ∂(Σ r)/∂b, since the
    chance of a set of hidden labels is an exponential family in their logits. The images that are counted are not drawn
    again: that would tell how others differ from these.

    logits: [N, C]. labels: [N, C] in {+1, 0, −1}, or `Labels`, whose class names are used unless `classes` has others.
    mechanism, rate, a, unlabelled: how labels came to be written, see `losses.functional.selection`; rows without any
    written label are expected to hold Σp ("skip": nobody looked), or nothing ("absent", where one label is picked; at a
    rate, Σr). With a rate or another a there are no held-out rows, and the rate or a is taken as exact; with mechanism
    "rate" and no rate, it is fitted to the held-out rows along with the two numbers, and drawn with them.

    >>> z = torch.zeros(14, 3)
    >>> found = count_labels(z, torch.tensor([[1, 0, 0]] * 14))     # r = 5/14 for each of the others
    >>> [round(count.expected, 6) for count in (*found.classes, found.total)]
    [14.0, 5.0, 5.0, 24.0]
    """
    choice(_NAME, "unlabelled", unlabelled, UNLABELLED)
    draws, level = whole(_NAME, "draws", draws, low=2, high=10**6), number(_NAME, "level", level, above=0.0, below=1.0)
    z, y = _pair(logits, labels, "the rows to count")
    names = tuple(classes or (labels.classes if isinstance(labels, Labels) else map(str, range(z.shape[1]))))
    if len(names) != z.shape[1]:
        raise LabelError(f"{_NAME}: {len(names)} class names for logits of {z.shape[1]} classes; give one each")
    rng = np.random.default_rng(whole(_NAME, "seed", seed))
    fitted = mechanism == "rate" and rate is None and a == 1.0 and held_out is not None
    written_at = None if fitted else check_writing(_NAME, mechanism, rate, a, z.shape[1])
    how: dict[str, Any] = {"mechanism": mechanism, "rate": written_at, "a": a, "unlabelled": unlabelled}

    def chances(theta: Floats) -> Tensor:
        """[N, C] r, and 0 on what is known."""
        if by_rates is not None:
            return by_rates.chances(z, y, theta, unlabelled == "absent").masked_fill_(y != 0, 0.0)
        return selection_posterior(math.exp(theta[0]) * z + float(theta[1]), y, **how).masked_fill_(y != 0, 0.0)

    best, spread, rows, gain = np.zeros(2), np.zeros((draws, 2)), 0, None
    by_rates: DrawnRates | None = None
    if held_out is not None:
        if mechanism == "rate" and not fitted:
            raise DataError(f"{_NAME}: a calibration is for one picked label; with mechanism='rate' leave out held_out")
        if a != 1.0:
            raise DataError(f"{_NAME}: a calibration is for a = 1, not {a:g}; leave out held_out, or a")
        held = _pair(*held_out, "the held-out rows")
        if held[0].shape[1] != z.shape[1]:
            raise LabelError(f"{_NAME}: {z.shape[1]} classes to count, {held[0].shape[1]} in the held-out rows")
        if fitted or likelihood_words(held[1]) == AT_RATES:
            by_rates = draw_rates(*held, draws, rng, unlabelled == "absent")
            best, spread, rows, gain = by_rates.best, by_rates.steps, by_rates.rows, by_rates.gain
        else:
            best, spread, rows = calibrations(*held, draws, rng)
            gain = _gain(*held, best)

    found = chances(best)
    unknown = (y == 0).sum(0).double().numpy()
    room = np.append(unknown, unknown.sum())  # by class, and in all
    missing = _sums(found)
    step = 1e-3 * np.eye(len(best))[1]
    together = (_sums(chances(best + step)) - _sums(chances(best - step)))[-1] / 2e-3
    variance = np.append((found * (1 - found)).sum(0).numpy(), together).clip(0)
    drawn = _surface(chances, best, spread, room) if rows else missing
    drawn = drawn + np.sqrt(variance) * rng.standard_normal((draws, len(room)))
    ends = np.quantile(drawn.clip(0, room), [(1 - level) / 2, (1 + level) / 2], axis=0)

    written = _sums((y > 0).double()).astype(int)
    counts = [
        Count(name, int(w), float(w + m), float(w + low), float(w + high))
        for name, w, m, low, high in zip((*names, "all"), written, missing, *ends, strict=True)
    ]
    scale = Calibration(math.exp(best[0]), float(best[1]))
    if by_rates is not None:
        scale = replace(scale, rates=by_rates.rates, by=AT_RATES)
    mean_rate = None if written_at is None else float(torch.as_tensor(written_at).mean())
    error = by_rates.error if by_rates is not None else None
    own = written_at is not None and torch.as_tensor(written_at).numel() > 1
    return Counts(len(z), tuple(counts[:-1]), counts[-1], scale, rows, gain, a, mean_rate, error, unlabelled, own)


def _gain(z: Tensor, y: Tensor, best: Floats) -> float:
    """The share of −log likelihood of the held-out labels that the model saves, beside the frequencies of the classes.

    These are logits that are the same for every image, and calibrated as the model's are.
    """
    z, y = telling(z, y)
    written = ((y > 0).double().sum(0) + 0.5) / (len(y) + 1)
    plain = written.logit().expand(len(y), -1)
    model = float(given_something(math.exp(best[0]) * z + float(best[1]), y)[0].mean())
    _, without = most_likely(plain, y, given_something)
    return (without - model) / without if without > 0 else 0.0


def _surface(chances: Callable[[Floats], Tensor], best: Floats, spread: Floats, room: Floats) -> Floats:
    """[draws, C + 1] missing labels at the calibrations best + spread.

    Worked out in full at nine of them (27 with rates); between, the log-odds of a label being present are a parabola in
    each direction.
    """
    directions = spread.shape[1]
    values, vectors = np.linalg.eigh(np.cov(spread.T) + 1e-12 * np.eye(directions))
    axes = vectors * np.sqrt(values) * _REACH
    at = np.linalg.solve(axes, spread.T).clip(-_FAR, _FAR)
    weights = np.stack([at * (at - 1) / 2, 1 - at**2, at * (at + 1) / 2])  # [3, k, draws]: Lagrange's at −1, 0, 1
    log_odds = np.zeros((len(spread), len(room)))
    for place in itertools.product((0, 1, 2), repeat=directions):
        share = (_sums(chances(best + axes @ np.array(place) - axes.sum(1))) / room.clip(1)).clip(1e-15, 1 - 1e-15)
        weight = np.prod([weights[at_one, k] for k, at_one in enumerate(place)], axis=0)
        log_odds += np.outer(weight, np.log(share / (1 - share)))
    return room / (1 + np.exp(-log_odds))


def _sums(values: Tensor) -> Floats:
    """[C + 1] by class, and in all."""
    by_class = values.sum(0).numpy()
    return np.append(by_class, by_class.sum())


def _pair(logits: Array, labels: Matrix, what: str) -> tuple[Tensor, Tensor]:
    owner = f"{_NAME}, {what}"
    z = as_tensor(owner, "logits", logits).detach().cpu().double()
    y = as_tensor(owner, "labels", labels).cpu()
    if z.dim() != 2 or z.shape != y.shape:
        raise LabelError(
            f"{owner}: logits of shape {tuple(z.shape)} and labels of shape {tuple(y.shape)}; "
            "give both as [rows, classes]"
        )
    if not len(z):
        raise DataError(f"{_NAME}: there are no rows in {what}; give at least one")
    if not bool(torch.isfinite(z).all()):
        raise DataError(f"{owner}: some logits are NaN or infinite; training diverged, lower its learning rate")
    check_labels(owner, y)
    return z, y.to(torch.int8)

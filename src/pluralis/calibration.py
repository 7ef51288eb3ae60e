"""Two numbers that make logits mean probabilities, by the likelihood of what was written and of how it came to be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pluralis.class_rates import rates_by_class
from pluralis.conditional_calibration import Likelihood, most_likely, telling
from pluralis.losses.rowwise import walk_rows
from pluralis.losses.selection import Selection, selection_nll, selection_posterior
from pluralis.losses.selection_one import one_likelihood
from pluralis.method import Method
from pluralis.written_rates import chances_by_rates, fit_rates, rate_error

PICKED = "one of the present labels was picked"  # or as many as are written
AT_A_RATE = "each present label was written at the method's rate"
AT_RATES = "present and absent labels were each written at a rate of their own"
ALL_WRITTEN = 0.98  # a rate of present labels from which on hardly any can be missing
_ENOUGH = 50  # verified absent labels of which a rate can be told: fewer leave the pick the better guess


@dataclass(frozen=True)
class Calibration:
    """p = σ(a·z + b): two numbers that make a method's logits mean probabilities."""

    a: float = 1.0
    b: float = 0.0
    rates: tuple[float, float] | None = None  # of present and of absent labels being written, where they were fitted
    by: str = ""  # how labels came to be written, as the fit has it; empty where nothing was fitted
    rate_error: float | None = None  # of the rate of present labels, where a method learned one (`with_error`)
    class_rates: tuple[tuple[float, float], ...] = ()  # and its error, of each class, where a method learned these

    @classmethod
    def from_list(cls, values: list[Any]) -> Calibration:
        """From `to_list`, or from a and b alone."""
        a, b, rates, by, error, each = (*values, *(None, "", None, ())[len(values) - 2 :])[:6]
        return cls(a, b, None if rates is None else (rates[0], rates[1]), by, error, tuple(map(tuple, each)))

    def to_list(self) -> list[Any]:
        """For JSON."""
        rates = None if self.rates is None else list(self.rates)
        return [self.a, self.b, rates, self.by, self.rate_error, [list(each) for each in self.class_rates]]

    def warnings(self) -> list[str]:
        """What to know before relying on it, as sentences; empty where all is well."""
        if self.rates is None or self.rates[0] < ALL_WRITTEN:
            return []
        all_there = (
            f"Nearly all present labels seem to be written ({self.rates[0]:.3f} of them), and hardly any to be missing."
            " It seems so, too, where "
        )
        if self.rates[1] > 0:
            return [
                f"{all_there}people verified what was likely, such as labels that `relabel` suggested: then do not rely"
                " on it, and train without the labels that were verified to be absent in this way."
            ]
        return [
            f"{all_there}the model cannot tell the classes apart: then do not rely on it, and give a rate that is known"
            " from elsewhere, such as from a few rows with complete labels."
        ]

    def log_odds(self, logits: Tensor) -> Tensor:
        return self.a * logits + self.b

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(self.log_odds(logits.double())).float()

    def chances(self, logits: Tensor, labels: Tensor, every: bool = False) -> Tensor:
        """[N, C] of each label being present given what was written, where the method does not say how.

        Rows without any label keep their p, unless rates are known and somebody looked at `every` row.
        """
        if self.rates is None:
            return selection_posterior(self.log_odds(logits), labels)
        return chances_by_rates(self.log_odds(logits), labels, self.rates, every)


def how_written(method: Method) -> dict[str, Any]:
    """How labels came to be written, as the method has it: keywords of `selection_posterior`, if it has."""
    loss = getattr(method, "loss", None)
    return loss.how_written() if isinstance(loss, Selection) else {}


def rate_given(method: Method) -> dict[str, Any]:
    """`how_written` for `calibrate`, with `learned`: whether one rate was learned with the network and errs as it does.

    Rates that were learned for each class are taken as given: held-out rows are too few to find them again.
    """
    how, loss = how_written(method), getattr(method, "loss", None)
    if not isinstance(loss, Selection) or loss.rate_log_odds is None:
        return how
    return {**how, "learned": len(loss.rate_log_odds) == 1}


def likelihood_words(labels: Tensor, how: Mapping[str, Any] | None = None) -> str:
    """By which likelihood `calibrate` goes: PICKED, AT_A_RATE or AT_RATES.

    >>> likelihood_words(torch.tensor([[1, 0, -1], [-1, -1, -1]]))
    'one of the present labels was picked'
    >>> likelihood_words(torch.tensor([[1, 0, -1], [0, -1, 0]]).repeat(25, 1))
    'present and absent labels were each written at a rate of their own'
    """
    partial = labels[(labels == 0).any(1)]
    if not how or how.get("unlabelled") != "absent":
        partial = partial[(partial != 0).any(1)]  # rows without any label say nothing
    at_a_rate = how is not None and how.get("mechanism") == "rate"
    if how and at_a_rate and "learned" not in how:
        return AT_A_RATE
    if int((partial < 0).sum()) >= _ENOUGH:
        return AT_RATES
    if how and at_a_rate:
        return AT_RATES if how["learned"] and len(partial) else AT_A_RATE  # complete rows say nothing of a rate
    return PICKED


def calibrate(
    logits: Tensor, labels: Tensor, how: Mapping[str, Any] | None = None, by: str = ""
) -> tuple[Calibration, float]:
    """The calibration under which the written labels are most likely, and their mean −log likelihood.

    The likelihood is that of how labels came to be written, `by` if it is named. `how` is what the method says
    (`rate_given`); the rest is decided by the labels:

    one picked   somebody looked and wrote down one of the labels that are present, any of them equally likely
                 (`losses.selection`): where hardly any label is verified to be absent
    a rate       each present label was written at the rate that the method was given, or those that it learned for
                 each class
    two rates    present labels were written at one rate and absent ones verified at another, both fitted along
                 (`written_rates`): where rows with unknown labels have 50 or more verified absent ones. A label that
                 is missing at random then says nothing, while a picker would have passed over it. Also where the
                 method learned one rate for all classes: that one follows the rows that it was trained on, and where
                 no label is verified to be absent the other rate is 0.

    Rows without any label say nothing and are left out, unless the method has it that somebody looked at them
    (unlabelled = "absent"). A weak prior (log a and b normal around 0, with deviations 1 and 3) keeps a handful of rows
    from running away; with hundreds it is not felt.

    One picked is not the likelihood given that something is present, by which labels are counted: that one cannot tell
    "either" from "both", ranks models worse (VOC 2012) or about as well (two tables), and can leave hardly any p above
    1/2. The price is a p that is too high in sum, most of all where rows have hardly more than one label (measured by
    benchmarks/selection_rules.py).
    """
    calibration, nll = calibrate_rows(logits, labels, how, by)
    return calibration, float(nll.sum()) / len(nll)


def with_error(calibration: Calibration, logits: Tensor, labels: Tensor, how: Mapping[str, Any]) -> Calibration:
    """With the error of the rate, by a bootstrap over the rows of the fit, if the method learned one (`rate_given`).

    If it learned one for each class, with these rates as the rows tell them, and their errors (`class_rates`): from p
    calibrated along with one rate for all, since a calibration by rates that were learned would repeat them.
    """
    if "learned" not in how:
        return calibration
    every = how["unlabelled"] == "absent"
    if calibration.rates is not None:
        return replace(calibration, rate_error=rate_error(calibration.rates[0], logits, labels, every))
    partial = labels[(labels == 0).any(1) & ((labels != 0).any(1) | every)]
    if how["learned"] or not bool((partial > 0).any()):
        return calibration
    fit = fit_rates(logits, labels, every=every)
    rates, errors = rates_by_class(math.exp(fit.theta[0]) * logits.double() + float(fit.theta[1]), labels, every)
    return replace(calibration, class_rates=tuple(zip(rates.tolist(), errors.tolist(), strict=True)))


def calibrate_rows(
    logits: Tensor, labels: Tensor, how: Mapping[str, Any] | None = None, by: str = ""
) -> tuple[Calibration, Tensor]:
    """As `calibrate`, with the −log likelihood of each row that has a part in it [n]."""
    how = how or {}
    by, every = by or likelihood_words(labels, how), how.get("unlabelled") == "absent"
    if by == PICKED:
        likelihood = _picked(float(how.get("a", 1.0)), every)
        theta, _ = most_likely(logits, labels, likelihood, every)
        calibration = Calibration(math.exp(theta[0]), float(theta[1]), by=by)
        z, y = telling(logits, labels, every)
        return calibration, likelihood(calibration.log_odds(z), y)[0]
    fit = fit_rates(logits, labels, how["rate"] if by == AT_A_RATE else None, every)
    a, b = math.exp(fit.theta[0]), float(fit.theta[1])
    if by == AT_A_RATE:  # the method's own rates are with the method
        return Calibration(a, b, by=by), fit.nll
    return Calibration(a, b, fit.rates, by), fit.nll


def _picked(a: float, absent: bool) -> Likelihood:
    if a == 1.0 and not absent:
        return selection_nll

    def likelihood(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        nll, slope, _ = walk_rows(one_likelihood(a, absent), logits, labels)
        assert slope is not None
        return nll, slope

    return likelihood

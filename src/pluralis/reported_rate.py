"""What a fit tells of a rate of writing that it learned: from held-out rows, where there are any."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pluralis.calibration import ALL_WRITTEN, Calibration, rate_given
from pluralis.method import Method


@dataclass(frozen=True)
class ReportedRate:
    """The chance that a present label is written, its standard error, and whether held-out rows tell it."""

    rate: float  # the mean over classes, where each has its own
    error: float  # NaN where nothing is known of it
    held_out: bool
    skipped: bool = False  # rows without any label were left out
    by_class: tuple[tuple[float, float], ...] = ()  # each class's, with its error, where held-out rows tell them

    def words(self) -> str:
        """One line for a person.

        >>> ReportedRate(0.25, 0.031, True).words()
        'present labels are written at a rate of 0.25 ± 0.031, by held-out rows'
        """
        error = f" ± {self.error:.2g}" if math.isfinite(self.error) else ""
        mean = f", the mean over {len(self.by_class):,} classes" if self.by_class else ""
        found = f"present labels are written at a rate of {self.rate:.2f}{error}{mean}"
        empty = "; too high where rows came out empty by chance, since those are left out" if self.skipped else ""
        if self.held_out:
            return f"{found}, by held-out rows{empty}"
        return (
            f"{found}, by the training rows: too high and too sure where the model can learn rows by heart;"
            f" hold out rows for one that is neither{empty}"
        )

    def warnings(self) -> list[str]:
        """What to know before relying on it; empty where all is well."""
        if self.rate < ALL_WRITTEN:
            return []
        return [
            f"Nearly all present labels seem to be written (a rate of {self.rate:.3f}), and hardly any to be missing."
            " It seems so, too, where a model learns its rows by heart or cannot tell the classes apart: do not rely on"
            " it, nor on counts and probabilities that follow from it."
        ]


def reported_rate(method: Method, calibration: Calibration, figures: Mapping[str, float]) -> ReportedRate | None:
    """Of a method that learned a rate: the one of its calibration, or else that of the history; None for any other."""
    how = rate_given(method)
    if "learned" not in how:
        return None
    skipped = how["unlabelled"] == "skip"
    if calibration.rates is not None and calibration.rate_error is not None:
        return ReportedRate(calibration.rates[0], calibration.rate_error, True, skipped)
    if each := calibration.class_rates:
        rate, error = (sum(values) / len(each) for values in zip(*each, strict=True))  # at most: were all errors alike
        return ReportedRate(rate, error, True, skipped, each)
    return ReportedRate(figures["rate"], figures.get("rate error", math.nan), False, skipped)

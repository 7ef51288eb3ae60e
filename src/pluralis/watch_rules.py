"""Every selection rule's score, and F1 at every kind of threshold, after each epoch: what other rules would give."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pluralis.calibration import Calibration, calibrate, rate_given
from pluralis.data.loader import Loader
from pluralis.evaluate import measure, predict
from pluralis.labels import Labels
from pluralis.method import Method
from pluralis.metrics import mean_average_precision
from pluralis.thresholds import best_thresholds, f1_at, observed_thresholds

MEASURED = ("mAP", "CF1", "OF1")


class EveryRule:
    """Looks at the held-out rows and the test rows of a run: for `watch` of `fit`.

    `shown` are the labels that training would see of the held-out rows, `complete` all that is known of them. Gives the
    scores of the rules, `clean score` (where every label is known) and `observed score`; and on the test set mAP and F1

        raw         at p = 1/2
        calibrated  at p = 1/2 after the calibration by two numbers that `observed` fits
        observed    at a threshold for each class, from the written labels of the held-out rows
        clean       at a threshold for each class, from their complete labels: what a user without them cannot have
        expected    at the thresholds `observed`, as far as the written labels tell: no test row is looked at

    and `labels expected` and `labels true`, the labels of a held-out row.
    """

    def __init__(self, held: Loader, shown: Labels, complete: Labels, test: Loader | None) -> None:
        self._held, self._test = held, test
        self._shown, self._complete = (torch.from_numpy(labels.dense()) for labels in (shown, complete))
        self._clean = bool((self._complete != 0).all())

    def __call__(self, method: Method) -> dict[str, float]:
        held = predict(method, self._held)
        how = rate_given(method)
        calibration, nll = calibrate(held, self._shown, how)
        observed = observed_thresholds(held, self._shown, how)
        found = {"observed score": -nll, "labels expected": observed.labels_a_row}
        found |= {"expected CF1": 100 * observed.cf1, "expected OF1": 100 * observed.of1}
        thresholds = {"observed": observed.values}
        if self._clean:
            present = self._complete > 0
            found["clean score"] = mean_average_precision(held, self._complete).value
            found["labels true"] = float(present.sum()) / len(present)
            thresholds["clean"] = best_thresholds(held, present)
        if self._test is not None:
            found |= self._tested(method, self._test, calibration, thresholds)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _tested(
        self, method: Method, data: Loader, calibration: Calibration, thresholds: dict[str, Tensor]
    ) -> dict[str, float]:
        logits, truth = predict(method, data), torch.from_numpy(data.labels.dense())
        found = _figures("", logits, truth, calibration)
        for name, member in method.members().items():
            found |= _figures(f"{name} ", predict(method, data, member=member), truth, calibration)
        for kind, values in thresholds.items():
            found |= {f"{kind} {key}": value for key, value in f1_at(logits, truth, values).items()}
        return found


def _figures(prefix: str, logits: Tensor, truth: Tensor, calibration: Calibration) -> dict[str, float]:
    """mAP, and F1 without and with the calibration; `prefix` names a member of the method."""
    found: dict[str, float] = {}
    for kind, how in (("raw ", None), ("calibrated ", calibration)):
        figures = measure(logits, truth, how)
        found |= {f"{prefix}{'' if key == 'mAP' else kind}{key}": figures[key] for key in MEASURED}
    return found

"""Whether a model tells images apart at all, by the rows that its run held out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pluralis.calibration import calibrate
from pluralis.counting import LITTLE
from pluralis.labels import Labels

_JUDGED = 2000  # held-out rows by which a run is judged: enough for a mean


def hardly_tells(nll: float, held: Labels, how: Mapping[str, Any], by: str) -> bool:
    """Whether the mean −log likelihood `nll` of held-out labels is hardly better than that of the classes' frequencies.

    `how` is what the method says of the writing of labels (`calibration.rate_given`), `by` the likelihood of its
    calibration. False where the rows cannot tell: what nobody left out says nothing about what is missing.

    >>> held = Labels.from_lists([[0], [1], [2], [0]], 3)
    >>> [hardly_tells(nll, held, {}, "one of the present labels was picked") for nll in (1.2, 0.3)]
    [True, False]
    """
    some = np.unique(np.linspace(0, len(held) - 1, min(len(held), _JUDGED)).astype(int))
    labels = torch.from_numpy(held.select(some).dense())
    if how.get("unlabelled") != "absent":  # rows without any label had no part in the likelihood
        labels = labels[(labels != 0).any(1)]
    if not bool(((labels == 0).any(1) & (labels > 0).any(1)).any()):
        return False
    often = (((labels > 0).double().sum(0) + 0.5) / (len(labels) + 1)).logit().expand(len(labels), -1)
    _, without = calibrate(often, labels, how, by)
    return nll > (1 - LITTLE) * without

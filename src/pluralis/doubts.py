"""Whether a model tells images apart at all, by the rows that its run held out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pluralis.calibration import AT_RATES, calibrate, likelihood_words
from pluralis.counting import LITTLE
from pluralis.written_rates import gain_of_known


def hardly_tells(logits: Tensor, labels: Tensor, often: Tensor, how: Mapping[str, Any]) -> bool:
    """Whether logits [N, C] of held-out rows are hardly better than the frequencies of the classes.

    `often` [C] are the log-odds of these in the rows that were trained on: those of the held-out rows themselves are
    C numbers that nobody could know beforehand, a better guess of few rows than many a good model.

    By the likelihood of what was written, as the method has it (`how`, of `calibration.rate_given`). Where enough
    labels are verified to be absent by the cross-entropy of the known ones: which labels somebody looked at is chance
    that no model saves. False where nothing was left out or written, which says nothing of what is missing.

    >>> import torch
    >>> labels = torch.eye(4).int().repeat(3, 1)
    >>> alike = torch.zeros(4)
    >>> hardly_tells(torch.zeros(12, 4), labels, alike, {}), hardly_tells(4 * labels, labels, alike, {})
    (True, False)
    """
    looked = (labels != 0).any(1) | (how.get("unlabelled") == "absent")
    logits, labels = logits[looked], labels[looked]
    if not bool(((labels == 0).any(1) & (labels > 0).any(1)).any()):
        return False
    if likelihood_words(labels) == AT_RATES:
        scale, _ = calibrate(logits, labels, by=AT_RATES)
        assert scale.rates is not None
        return (
            gain_of_known(scale.log_odds(logits.double()) + math.log(scale.rates[0] / scale.rates[1]), labels) < LITTLE
        )
    by = likelihood_words(labels, how)
    model, without = (calibrate(z, labels, how, by)[1] for z in (logits, often.expand(len(labels), -1)))
    return model > (1 - LITTLE) * without

"""A threshold for each class where F1 is highest: from complete labels, or from the written ones alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pluralis.calibration import AT_A_RATE, PICKED, calibrate, likelihood_words
from pluralis.conditional_calibration import given_something, most_likely
from pluralis.errors import LabelError
from pluralis.losses.selection import selection_posterior
from pluralis.metrics import f1_scores


@dataclass(frozen=True)
class ObservedThresholds:
    """Thresholds [C] on logits, and what the labels that they were fitted to let one expect of them."""

    values: Tensor
    cf1: float  # fractions between 0 and 1
    of1: float
    labels_a_row: float  # written and unwritten ones together


def best_thresholds(scores: Tensor, chances: Tensor) -> Tensor:
    """[C] the thresholds at which the F1 of each class is highest, float64 in the middle between two scores.

        F1_c(t) = 2 Σ_{n: s_nc ≥ t} r_nc / (#{n: s_nc ≥ t} + Σ_n r_nc)

    scores [N, C]; chances r [N, C] of each label being present, which are 0 or 1 where all of them are known. With
    chances it is the ratio of expectations, which is close to the expected F1 where rows are many. A class that is
    present nowhere says nothing, and has the threshold that is best for all classes together.

    >>> best_thresholds(torch.tensor([[3.0], [1.0], [0.0], [-2.0]]), torch.tensor([[1], [1], [0], [0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    if scores.dim() != 2 or scores.shape != chances.shape or not scores.numel():
        raise LabelError(
            f"thresholds: scores have shape {tuple(scores.shape)} and chances {tuple(chances.shape)};"
            " give [N, C] for both, with at least one row and class"
        )
    scores, chances = scores.detach().cpu().double(), chances.detach().cpu().double()
    found = _best(scores, chances)
    empty = chances.sum(0) == 0
    if bool(empty.any()):
        found[empty] = _best(scores.reshape(-1, 1), chances.reshape(-1, 1))[0]
    return found


def observed_thresholds(logits: Tensor, labels: Tensor, how: Mapping[str, Any] | None = None) -> ObservedThresholds:
    """Thresholds by the written labels alone: `best_thresholds` of the chance of each label given what was written.

    The chances are 1 on written labels and 0 on verified absent ones. Where one label was picked they are those of
    `selection_posterior` after the calibration by which labels are counted (`conditional_calibration`). Where labels
    are written at rates, as `how` says or verified absent labels show, they follow `calibrate`. logits [N, C] of
    held-out rows; labels [N, C] in {+1, 0, −1}, of which some row must have one. The expected CF1 and OF1 are those of
    the same rows, so that they are a little too high where rows are few.

    >>> z = torch.tensor([[4.0, -4.0], [-4.0, 4.0]] * 50)
    >>> found = observed_thresholds(z, torch.tensor([[1, 0], [0, 1]] * 50))
    >>> found.values.tolist(), round(found.labels_a_row, 2), round(found.cf1, 2)
    ([0.0, 0.0], 1.0, 1.0)
    """
    chances = _chances(logits.double(), labels, how or {})
    values = best_thresholds(logits, chances)
    chosen = logits.double() >= values
    hits, predicted, actual = (chances * chosen).sum(0), chosen.sum(0).double(), chances.sum(0)
    cp, cr = (float(_ratio(hits, whole).mean()) for whole in (predicted, actual))
    cf1 = 2 * cp * cr / (cp + cr) if cp + cr else 0.0
    of1 = float(_ratio(2 * hits.sum(), predicted.sum() + actual.sum()))
    return ObservedThresholds(values, cf1, of1, float(actual.sum()) / len(logits))


def f1_at(logits: Tensor, truth: Tensor, thresholds: float | Tensor) -> dict[str, float]:
    """CF1 and OF1 in per cent, where a logit is taken as present from its threshold on."""
    found = f1_scores(logits.double(), truth, thresholds)
    return {"CF1": 100 * found.cf1, "OF1": 100 * found.of1}


def _chances(logits: Tensor, labels: Tensor, how: Mapping[str, Any]) -> Tensor:
    """[N, C] of each label being present given what was written."""
    if likelihood_words(labels, how) == PICKED:
        (log_a, b), _ = most_likely(logits, labels, given_something)
        return selection_posterior(math.exp(log_a) * logits + float(b), labels)
    found, _ = calibrate(logits, labels, how)
    if found.by == AT_A_RATE:
        own = {key: value for key, value in how.items() if key != "learned"}
        return selection_posterior(found.log_odds(logits), labels, **own)
    return found.chances(logits, labels, how.get("unlabelled") == "absent")


def _best(scores: Tensor, chances: Tensor) -> Tensor:
    ranked, order = scores.sort(dim=0, descending=True)
    hits = chances.gather(0, order).cumsum(0)
    taken = torch.arange(1, len(scores) + 1, dtype=torch.float64)[:, None]
    f1 = 2 * hits / (taken + hits[-1])
    f1[:-1][ranked[:-1] == ranked[1:]] = -1.0  # equal scores go together
    at = f1.argmax(0, keepdim=True)
    here, below = ranked.gather(0, at), ranked.gather(0, (at + 1).clamp(max=len(scores) - 1))
    return ((here + below) / 2)[0]


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below.clamp(min=1e-300), torch.zeros_like(above))

"""Average precision, mAP and F1 scores of many classes at once, on the device of the scores.

Truth is +1 present, -1 absent, 0 unknown, and unknown entries are left out, class by class; a bool truth means that
everything is known. Scores and truth are tensors or numpy arrays, and truth may be `Labels`. Values are fractions
between 0 and 1, computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pluralis.errors import LabelError, RecipeError
from pluralis.inputs import Array, Matrix, as_tensor, check_labels

ENTRIES_PER_BLOCK = 16_777_216  # scores sorted at once; bounds the memory where there are many rows and classes


@dataclass(frozen=True)
class MeanAP:
    """`value` is the mean of `per_class` [C]; `skipped` classes have no present label in the truth.

    They are NaN in `per_class`; the variant "paper" leaves them out of the mean and "released" counts them as 0.
    """

    value: float
    per_class: Tensor
    skipped: int
    variant: str


@dataclass(frozen=True)
class F1Scores:
    """cp, cr: precision and recall averaged over classes; cf1 is their harmonic mean, not the mean of the F1 scores.

    op, or_, of1: the same from the counts of all classes together. precision, recall, f1: per class [C], float64.
    A ratio without a denominator is 0: the precision of a class that is never predicted, the recall of a class that is
    never present, an F1 of neither. All classes count in cp and cr; `empty` of them have no present label.
    """

    cp: float
    cr: float
    cf1: float
    op: float
    or_: float
    of1: float
    precision: Tensor
    recall: Tensor
    f1: Tensor
    empty: int


def average_precision(scores: Array, truth: Matrix) -> Tensor:
    """Area under the raw precision-recall curve of each class: Σ_k (R_k − R_{k−1}) P_k over the distinct scores.

    Equal scores make one step of the curve, as in scikit-learn, so that the order of rows never matters.
    scores [N, C] any real dtype, truth [N, C]; returns float64 [C], NaN for a class without a present
    label, and for one of which some labels are unknown and none is known to be absent.

    >>> average_precision(torch.tensor([[0.9], [0.8], [0.8]]), torch.tensor([[1], [1], [-1]]))
    tensor([0.8333], dtype=torch.float64)
    """
    scores, truth = _checked(scores, truth)
    # bfloat16 and float16 fit into float32 without loss; the other types are sorted as they are.
    scores = scores.detach()
    scores = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    by_class = _class_after_class if scores.device.type == "cpu" else _all_at_once
    step = max(1, ENTRIES_PER_BLOCK // scores.shape[0])
    blocks = [slice(i, i + step) for i in range(0, scores.shape[1], step)]
    found = torch.cat([by_class(scores[:, b].t().contiguous(), truth[:, b].t().contiguous()) for b in blocks])
    # With some labels unknown and none known to be absent, any order of the rows would score 1.
    empty = (truth == 0).any(0) & ~(truth < 0).any(0)
    return found.masked_fill_(empty, torch.nan)


def _class_after_class(scores: Tensor, truth: Tensor) -> Tensor:
    """For the CPU, from scores and truth [C, N]: for each positive the share of positives in what scores at least as
    much, averaged.

    NumPy's sort of values alone is several times faster than a sort that carries an order along, and only the
    positives, which are few, have to be looked up afterwards.
    """
    result = torch.full((len(scores),), torch.nan, dtype=torch.float64)
    for c, (score, label) in enumerate(zip(scores.numpy(), truth.numpy(), strict=True)):
        known = score if label.all() else score[label != 0]
        hits = np.sort(score[label > 0])
        if len(hits):
            seen = len(known) - np.searchsorted(np.sort(known), hits)
            found = len(hits) - np.searchsorted(hits, hits)
            result[c] = float(np.mean(found / seen))
    return result


def _all_at_once(scores: Tensor, truth: Tensor) -> Tensor:
    """For accelerators, from scores and truth [C, N]: the steps of all curves in a fixed number of operations."""
    ranked, order = scores.sort(dim=1, descending=True)
    label = truth.gather(1, order)
    hits = (label > 0).cumsum(1, dtype=torch.int32)
    seen = (label != 0).cumsum(1, dtype=torch.int32)
    last = torch.ones_like(label, dtype=torch.bool)  # of a run of equal scores
    torch.ne(ranked[:, 1:], ranked[:, :-1], out=last[:, :-1])
    # Hits at the end of the run before: they never fall, so a running maximum over the ends finds them.
    before = torch.zeros_like(hits)
    before[:, 1:] = hits.masked_fill(~last, 0).cummax(1).values[:, :-1]
    gained = (hits - before).masked_fill_(~last, 0)
    precision = hits.double().div_(seen.clamp_(min=1))
    return precision.mul_(gained).sum(1) / hits[:, -1]  # 0/0 = NaN where there is no positive


def mean_average_precision(scores: Array, truth: Matrix, variant: str = "paper") -> MeanAP:
    """mAP over the classes that can be measured; `variant="released"` counts the others as 0.

    The published evaluation code of single-positive learning does the latter. NaN when no class counts.

    >>> result = mean_average_precision(torch.tensor([[0.9, 0.1], [0.2, 0.3]]), torch.tensor([[1, -1], [-1, -1]]))
    >>> result.value, result.skipped
    (1.0, 1)
    """
    if variant not in ("paper", "released"):
        raise RecipeError(f"mAP: unknown variant {variant!r}; use 'paper' or 'released'")
    per_class = average_precision(scores, truth)
    empty = per_class.isnan()
    counted = per_class.nan_to_num(0.0) if variant == "released" else per_class[~empty]
    return MeanAP(float(counted.mean()), per_class, int(empty.sum()), variant)


def f1_scores(scores: Array, truth: Matrix, threshold: float | Array = 0.5) -> F1Scores:
    """Precision, recall and F1 by class and overall, of scores [N, C] or of decisions (bool [N, C]).

    A score equal to the threshold counts as present, so a float32 score of 0.7 reaches a threshold of 0.7;
    `threshold` is one number or one for each class [C].

    >>> f1_scores(torch.tensor([[0.9, 0.1], [0.7, 0.8]]), torch.tensor([[1, -1], [-1, 1]])).cf1
    0.8571428571428571
    """
    scores, truth = _checked(scores, truth)
    if isinstance(threshold, np.ndarray):
        threshold = as_tensor("F1", "threshold", threshold)
    if isinstance(threshold, Tensor) and threshold.shape not in ((), (scores.shape[1],)):
        raise RecipeError(
            f"F1: {tuple(threshold.shape)} thresholds for {scores.shape[1]} classes; give one number or one per class"
        )
    if isinstance(threshold, Tensor):
        threshold = threshold.to(scores.device)
    chosen = scores if scores.dtype == torch.bool else scores >= threshold
    present = truth > 0
    hits = (chosen & present).sum(0).double()
    predicted = (chosen & (truth != 0)).sum(0).double()
    actual = present.sum(0).double()
    precision, recall = _ratio(hits, predicted), _ratio(hits, actual)
    f1 = _ratio(2 * hits, predicted + actual)
    cp, cr = precision.mean(), recall.mean()
    op, orr = _ratio(hits.sum(), predicted.sum()), _ratio(hits.sum(), actual.sum())
    return F1Scores(
        cp=float(cp),
        cr=float(cr),
        cf1=float(_ratio(2 * cp * cr, cp + cr)),
        op=float(op),
        or_=float(orr),
        of1=float(_ratio(2 * op * orr, op + orr)),
        precision=precision,
        recall=recall,
        f1=f1,
        empty=int((actual == 0).sum()),
    )


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below, torch.zeros_like(above))


def _checked(scores: Array, truth: Matrix) -> tuple[Tensor, Tensor]:
    """The scores, and truth as int8 in {+1, 0, -1} on their device; raises for what cannot be measured."""
    scores, truth = as_tensor("metrics", "scores", scores), as_tensor("metrics", "truth", truth)
    if scores.dim() != 2 or scores.shape != truth.shape:
        raise LabelError(
            f"metrics: scores have shape {tuple(scores.shape)} and truth {tuple(truth.shape)}; give [N, C] for both"
        )
    if not scores.numel():
        raise LabelError(f"metrics: nothing to measure in shape {tuple(scores.shape)}; give at least one row and class")
    if scores.is_floating_point() and bool(scores.isnan().any()):
        row, column = (int(i) for i in scores.isnan().nonzero()[0])
        raise LabelError(f"metrics: the score of row {row}, class {column} is NaN; look for a diverged model")
    truth = truth.to(scores.device)
    if truth.dtype == torch.bool:
        return scores, truth.to(torch.int8).mul_(2).sub_(1)
    check_labels("metrics, truth", truth)
    truth = truth.to(torch.int8)
    if not bool((truth < 0).any()) and bool((truth == 0).any()):
        raise LabelError(
            "metrics: truth has zeros (unknown) but no -1 (absent), so every class would score 1; "
            "write absent labels as -1, or pass a bool truth if all labels are known"
        )
    return scores, truth

"""Ways of hiding or spoiling labels and of splitting rows: the published ones, and annotators with a preference.

All use NumPy's legacy generator, whose stream NumPy promises never to change: the papers' label
files can only be had again by drawing the same numbers in the same order.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_DRAWS = 1 << 20  # numbers drawn at once: the stream is the same for any number, the memory is not


def single_positive(labels: Labels, seed: int = 1200) -> Labels:
    """Keep one positive of each row of a complete label matrix, drawn at random; hide all other labels.

    The protocol of Cole et al., "Multi-Label Learning from Single Positive Labels" (CVPR 2021). A row
    without any positive stays without labels. The result has the shape, classes and ids of `labels`.
    """
    _require_complete(labels)
    rng = _generator(seed)
    rows, columns = [], []
    for row in range(len(labels)):
        present, absent = labels.positives(row), labels.negatives(row)
        rng.shuffle(present)
        # No negative is kept, but the published labels were drawn with this shuffle in between.
        rng.shuffle(absent)
        if len(present):
            rows.append(row)
            columns.append(int(present[0]))
    ones = np.ones(len(rows), np.int64)
    return Labels.from_entries(rows, columns, ones, labels.shape, labels.classes, labels.row_ids)


def one_positive_all_negatives(labels: Labels, seed: int = 1200) -> Labels:
    """Keep one positive of each row of a complete label matrix and all its absent labels; hide the other positives.

    The protocol between all labels and one of Cole et al. (CVPR 2021), "1 positive, all negatives" in the tables of
    the field. The positive is the one that `single_positive` keeps with the same seed. A row without any positive
    keeps its absent labels.

    >>> kept = one_positive_all_negatives(Labels.from_dense([[1, -1, 1], [-1, 1, -1]]))
    >>> kept.dense().tolist()
    [[0, -1, 1], [-1, 1, -1]]
    """
    keep = labels.values < 0
    rows, columns, _ = single_positive(labels, seed).entries()
    keep[rows * len(labels.classes) + columns] = True
    return _keep(labels, keep)


def pick(labels: Labels, weights: Any, seed: int = 1200) -> Labels:
    """Keep one positive of each row of a complete label matrix, drawn in proportion to its weight; hide the others.

        P(c | row) = w_c / Σ_{j present} w_j

    An annotator for whom some labels catch the eye more than others. Equal weights are `single_positive` in
    distribution, not in its draw. Where all positives of a row have the weight 0 they are equally likely; elsewhere
    one of weight 0 is never picked. A row without any positive stays without labels.

    weights: [N, C], dense or a SciPy sparse matrix, or [C] for all rows; at least 0, read at the positives alone.

    >>> labels = Labels.from_dense([[1, 1, -1]] * 1000)
    >>> pick(labels, [3.0, 1.0, 9.0]).summary().positives.tolist()                  # three to one
    [760, 240, 0]
    """
    rows, columns = _positives(labels)
    weight = _weights(labels, weights, rows, columns)
    weight[np.bincount(rows, weight, len(labels))[rows] == 0] = 1.0
    # Of clocks that ring at rates w, the first to ring is c with the chance above. Logarithms cannot overflow.
    with np.errstate(divide="ignore", invalid="ignore"):
        rings = np.log(_generator(seed).standard_exponential(len(rows))) - np.log(weight)
    return _first_of_each_row(labels, rows, columns, rings)


def pick_largest(labels: Labels, weights: Any) -> Labels:
    """Keep the positive with the largest weight of each row, the first class where several have it; nothing is drawn.

    Weights, and rows without any positive, as for `pick`.

    >>> pick_largest(Labels.from_dense([[1, 1, -1], [1, 1, 1]]), [2.0, 2.0, 3.0]).dense().tolist()
    [[1, 0, 0], [0, 0, 1]]
    """
    rows, columns = _positives(labels)
    return _first_of_each_row(labels, rows, columns, -_weights(labels, weights, rows, columns))


def pick_rarest(labels: Labels) -> Labels:
    """Keep the positive of each row whose class is present in the fewest of all rows; ties go to the first class.

    >>> pick_rarest(Labels.from_dense([[1, 1, -1], [1, -1, -1], [1, 1, 1]])).dense().tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    """
    rows, columns = _positives(labels)
    return _first_of_each_row(labels, rows, columns, labels.summary().positives[columns])


def known_ratio(labels: Labels, ratio: float, seed: int = 0) -> Labels:
    """Keep each label of a complete matrix, present or absent, with probability `ratio`; hide the others.

    The protocol of partial labels (Durand et al., CVPR 2019; Chen et al., AAAI 2022; Pu et al., AAAI 2022): one
    uniform number for each entry, row by row, and an entry stays known where its number is below `ratio`. So the
    labels of a smaller ratio are among those of a larger one. A row may be left without any label.

    The draw goes with the order of the rows. The partial labels of PU-MLC on COCO were drawn in the order of the
    annotation file; `read` sorts rows by id, so for the same labels read that file with order="file".

    >>> kept = known_ratio(Labels.from_dense([[1, -1, -1], [-1, 1, 1]]), 0.6)
    >>> kept.dense().tolist()
    [[1, 0, 0], [-1, 1, 0]]
    """
    _require_complete(labels)
    _require_share("ratio", ratio)
    return _keep(labels, _below(ratio, len(labels.values), seed))


def drop_positives(labels: Labels, rate: float, seed: int = 0) -> Labels:
    """Drop each positive of a complete matrix with probability `rate`; hide all absent labels.

    The protocol of Lyu et al., "Addressing Multi-Label Learning with Partial Labels: From Sample Selection to Label
    Selection" (AAAI 2025), with `rate` 0.25, 0.5 and 0.75. One uniform number for each positive, row by row, and it
    is dropped where its number is below `rate`. The paper says nothing of images that lose all their positives, but
    makes a point of keeping every image: the row stays, without labels. No seed was published.

    >>> left = drop_positives(Labels.from_dense([[1, -1, 1], [-1, 1, 1]]), 0.6)
    >>> left.dense().tolist()
    [[0, 0, 1], [0, 1, 0]]
    """
    _require_complete(labels)
    _require_share("rate", rate)
    keep = labels.values > 0
    keep[keep] = ~_below(rate, int(keep.sum()), seed)
    return _keep(labels, keep)


def fixed_per_class(labels: Labels, count: int, seed: int = 0, negatives: bool = True) -> Labels:
    """Keep `count` present and as many absent labels of each class of a complete matrix, at random; hide the others.

    "Fixed per class" (FPC) of Ben-Baruch et al., "Multi-label Classification with Partial Annotations using
    Class-aware Selective Loss" (CVPR 2022), with `count` 1000 and more on COCO. Class after class, `count` rows are
    drawn without replacement among those where it is present, then among those where it is absent. A class with
    fewer keeps all that it has. A row may be left without any label. No seed was published.

    negatives=False hides the absent labels too, for methods that learn from present ones alone (PU-MLC, Table 12);
    they are drawn all the same, so the present labels that stay are the same ones.

    >>> full = Labels.from_dense([[1, -1], [1, -1], [-1, 1], [1, -1]])
    >>> fixed_per_class(full, 2).dense().tolist()
    [[0, -1], [1, 0], [-1, 1], [1, -1]]
    """
    _require_complete(labels)
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
        raise DataError(f"the count {count!r} is not possible; give how many labels of a class stay, such as 1000")
    rng = _generator(seed)
    signs = labels.values.reshape(labels.shape)
    keep = np.zeros(labels.shape, bool)
    for column in range(len(labels.classes)):
        for sign in (1, -1):
            rows = np.flatnonzero(signs[:, column] == sign)
            drawn = rng.choice(rows, min(count, len(rows)), replace=False) if len(rows) else rows
            keep[drawn, column] = sign > 0 or negatives
    return _keep(labels, keep.reshape(-1))


def flip_positives(labels: Labels, rate: float, seed: int = 0) -> Labels:
    """Turn each positive of a complete matrix into -1 with probability `rate`: wrong labels, none hidden.

    The false negatives of Yuan et al., "Positive Label Is All You Need for Multi-Label Classification" (PU-MLC),
    Table 8, with `rate` 0.1, 0.5 and 0.9. One uniform number for each positive, row by row, and it is flipped where
    its number is below `rate`, so a larger rate flips the same ones and more. No seed was published.

    >>> flip_positives(Labels.from_dense([[1, -1, 1], [-1, 1, 1]]), 0.6).dense().tolist()
    [[-1, -1, 1], [-1, 1, -1]]
    """
    _require_complete(labels)
    _require_share("rate", rate)
    values = labels.values.copy()
    positives = np.flatnonzero(values > 0)
    values[positives[_below(rate, len(positives), seed)]] = -1
    return Labels(labels.indptr, labels.indices, values, labels.classes, labels.row_ids)


def split(rows: int, fraction: float = 0.2, seed: int = 1200) -> tuple[Ints, Ints]:
    """Part the numbers 0 … rows - 1 at random into (training, validation), both ascending.

    Validation gets round(fraction · rows) of them, a half being rounded to the even number.
    """
    if not isinstance(rows, Integral) or rows < 0 or not isinstance(fraction, Real) or not 0 <= fraction <= 1:
        raise DataError(f"cannot hold out {fraction} of {rows} rows; give a fraction between 0 and 1")
    held_out = int(np.round(fraction * rows))
    order = _generator(seed).permutation(rows)
    return np.sort(order[: rows - held_out]), np.sort(order[rows - held_out :])


def _positives(labels: Labels) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Row and class numbers [K] of the positives of complete labels, by row and then by class."""
    _require_complete(labels)
    rows, columns, values = labels.entries()
    return rows[values > 0], columns[values > 0]


def _weights(labels: Labels, weights: Any, rows: Ints, columns: npt.NDArray[np.int32]) -> Floats:
    """[K] the weights of the positives."""
    shape, wanted = np.shape(weights), labels.shape
    if shape not in (wanted, wanted[1:]):
        raise DataError(f"weights of shape {shape} for labels of shape {wanted}; give one for each label or each class")
    every: Any = weights.tocsr() if issparse(weights) else np.broadcast_to(weights, wanted)
    found = every[rows, columns]
    weight: Floats = np.array(found.toarray() if issparse(found) else found, np.float64).reshape(-1)
    wrong = ~((weight >= 0) & (weight < np.inf))
    if wrong.any():
        at = int(np.argmax(wrong))
        where = f"row {labels.id(int(rows[at]))!r}, class {labels.classes[columns[at]]!r}"
        raise DataError(f"{where}: the weight {weight[at]} is not possible; give a finite number of at least 0")
    return weight


def _first_of_each_row(labels: Labels, rows: Ints, columns: npt.NDArray[np.int32], key: npt.NDArray[Any]) -> Labels:
    """Of the positives the one with the smallest key of its row; where several have it, the first class."""
    starts = np.unique(rows, return_index=True)[1]
    chosen = np.lexsort((key, rows))[starts]  # stable, and `rows` ascend: row by row the places stay the same
    ones = np.ones(len(chosen), np.int64)
    return Labels.from_entries(rows[chosen], columns[chosen], ones, labels.shape, labels.classes, labels.row_ids)


def _below(bound: float, count: int, seed: int) -> npt.NDArray[np.bool_]:
    """[count] whether each of as many uniform numbers in [0, 1) is below `bound`."""
    rng = _generator(seed)
    sizes = (min(_DRAWS, count - start) for start in range(0, count, _DRAWS))
    return np.concatenate([np.zeros(0, bool), *(rng.random_sample(size) < bound for size in sizes)])


def _keep(labels: Labels, keep: npt.NDArray[np.bool_]) -> Labels:
    """Of complete labels those for which `keep` [rows · classes] holds; the others become unknown."""
    counts = keep.reshape(labels.shape).sum(1)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return Labels(indptr, labels.indices[keep], labels.values[keep], labels.classes, labels.row_ids)


def _generator(seed: int) -> np.random.RandomState:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed < 2**32:
        raise DataError(f"the seed {seed!r} is not possible; give a whole number from 0 to {2**32 - 1}")
    return np.random.RandomState(int(seed))


def _require_share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        raise DataError(f"the {name} {value!r} is not possible; give a number from 0 to 1")


def _require_complete(labels: Labels) -> None:
    counts = np.diff(labels.indptr)
    short = np.flatnonzero(counts != len(labels.classes))
    if len(short):
        row = int(short[0])
        unknown = labels.classes[int(np.flatnonzero(labels.dense([row])[0] == 0)[0])]
        raise LabelError(
            f"row {labels.id(row)!r}, class {unknown!r} is unknown ({len(short)} rows have unknown labels); "
            "this protocol draws from complete labels: give them, or say that unlisted means absent"
        )

"""The published ways of hiding labels and of splitting rows, bit for bit.

Both use NumPy's legacy generator, whose stream NumPy promises never to change: the papers' label
files can only be had again by drawing the same numbers in the same order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels

Ints = npt.NDArray[np.int64]


def single_positive(labels: Labels, seed: int = 1200) -> Labels:
    """Keep one positive of each row of a complete label matrix, drawn at random; hide all other labels.

    The protocol of Cole et al., "Multi-Label Learning from Single Positive Labels" (CVPR 2021). A row
    without any positive stays without labels. The result has the shape, classes and ids of `labels`.
    """
    _require_complete(labels)
    rng = np.random.RandomState(seed)
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


def split(rows: int, fraction: float = 0.2, seed: int = 1200) -> tuple[Ints, Ints]:
    """Part the numbers 0 … rows - 1 at random into (training, validation), both ascending.

    Validation gets round(fraction · rows) of them, a half being rounded to the even number.
    """
    if rows < 0 or not 0 <= fraction <= 1:
        raise DataError(f"cannot hold out {fraction} of {rows} rows; give a fraction between 0 and 1")
    held_out = int(np.round(fraction * rows))
    order = np.random.RandomState(seed).permutation(rows)
    return np.sort(order[: rows - held_out]), np.sort(order[rows - held_out :])


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

"""The five ways in which the field writes labels as numbers, translated to +1, -1 and 0 unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pluralis.errors import LabelError, shown


@dataclass(frozen=True)
class Convention:
    """What the numbers of a dense array mean: `meaning` maps each allowed value to +1, -1 or 0 unknown.

    With `guesses_below_zero` every finite value below 0 is allowed too, and is unknown.
    """

    meaning: dict[int, int]
    description: str
    guesses_below_zero: bool = False


# Never guessed from the data: an array of 0 and 1 reads equally well as "complete" and as "zero-unknown".
CONVENTIONS: dict[str, Convention] = {
    "signed": Convention(
        {1: 1, -1: -1, 0: 0},
        "1 present, -1 absent, 0 unknown (Cole observed labels, HCP, PU-MLC)",
    ),
    "complete": Convention(
        {1: 1, 0: -1},
        "1 present, 0 absent, nothing unknown (Cole full labels)",
    ),
    "zero-unknown": Convention(
        {1: 1, 0: 0},
        "1 present, 0 unknown, nothing absent (LL, GR, BoostLU, LAC, Hill, SPLC, ASL)",
    ),
    "minus-unknown": Convention(
        {1: 1, 0: -1, -1: 0},
        "1 present, 0 absent, -1 unknown (CSL, DualCoOp, BoostLU on OpenImages)",
    ),
    "soft-negative": Convention(
        {1: 1, 0: 0},
        "1 present, 0 unknown, below 0 a soft pseudo-label, which is a guess and so unknown (EM+APL)",
        guesses_below_zero=True,
    ),
}


def to_signed(
    array: Any,
    convention: str,
    classes: Sequence[str] | None = None,
    ids: Sequence[object] | None = None,
) -> npt.NDArray[np.int8]:
    """Translate an array, tensor or nested list [N, C] to int8 [N, C] in {+1 present, 0 unknown, -1 absent}.

    `classes` and `ids` only serve to name the place of a value that the convention does not know.
    """
    rule = CONVENTIONS.get(convention)
    if rule is None:
        raise LabelError(f"there is no label convention {convention!r}; choose from {_listing()}")
    dense = as_matrix(array)
    signed = np.zeros(dense.shape, np.int8)
    allowed = np.zeros(dense.shape, bool)
    for value, label in rule.meaning.items():
        hit = dense == value
        allowed |= hit
        signed += hit.view(np.int8) * np.int8(label)  # no two hits overlap; assigning by mask is slower
    if rule.guesses_below_zero:
        allowed |= (dense < 0) & np.isfinite(dense)
    if not allowed.all():
        row, column = (int(i) for i in np.unravel_index(np.argmin(allowed), allowed.shape))
        row_id = ids[row] if ids is not None and row < len(ids) else row
        name = classes[column] if classes is not None and column < len(classes) else column
        raise LabelError(
            f"row {shown(row_id)}, class {shown(name)}: the value {dense[row, column]} means nothing in the convention "
            f"{convention!r}; state the one that the array follows, out of {_listing()}"
        )
    return signed


def as_matrix(array: Any) -> npt.NDArray[Any]:
    """Any array-like of numbers as a numpy matrix [N, C]."""
    if hasattr(array, "detach"):  # a tensor: it may sit on an accelerator or in a type that numpy lacks
        array = array.detach().cpu()
        array = array.float().numpy() if array.is_floating_point() else array.numpy()
    if hasattr(array, "toarray"):
        raise LabelError(
            f"labels are a sparse matrix ({type(array).__name__}); give its toarray(), or its rows, columns and values "
            "to Labels.from_entries"
        )
    try:
        dense = np.asarray(array)
    except ValueError as error:
        raise LabelError(f"labels must be a matrix of rows × classes: {error}") from None
    if dense.ndim != 2:
        found = f"of shape {dense.shape}" if dense.ndim else f"a {type(array).__name__}"
        raise LabelError(f"labels must be a matrix of rows × classes, not {found}")
    if dense.dtype.kind == "b":
        return dense.view(np.int8)
    if dense.dtype.kind not in "iuf":
        raise LabelError(f"labels must be numbers, not {dense.dtype}; see the conventions {_listing()}")
    return dense


def _listing() -> str:
    return "; ".join(f"{name!r}: {rule.description}" for name, rule in CONVENTIONS.items())

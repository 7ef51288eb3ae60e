"""What people hand over as scores and labels: tensors, arrays or `Labels`, and whether the labels mean anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pluralis.errors import LabelError
from pluralis.labels import Labels

Array = Tensor | npt.NDArray[Any]
Matrix = Array | Labels


def as_tensor(owner: str, what: str, given: Matrix) -> Tensor:
    """A tensor as it is, anything else as one on the CPU; bool stays bool.

    >>> as_tensor("metrics", "truth", Labels.from_lists([[1]], 2))
    tensor([[0, 1]], dtype=torch.int8)
    """
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Labels):
        return torch.from_numpy(given.dense())
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise LabelError(f"{owner}: {what} must be a matrix of rows × classes: {error}") from None
    if array.dtype.kind not in "biuf":
        raise LabelError(
            f"{owner}: {what} is a {type(given).__name__}, of which no matrix of numbers can be made; give a tensor, a "
            "numpy array or Labels (of a sparse matrix its toarray(), of a table one whose columns are all numbers)"
        )
    kind = np.int64 if array.dtype.kind == "u" and array.itemsize > 1 else array.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(array, kind, ["C", "W"]))


def as_labels(given: Matrix) -> Labels:
    """`Labels` as they are; a matrix in {+1, 0, −1}, or a bool one of present and unknown, becomes some.

    >>> as_labels(torch.tensor([[1, 0], [-1, 0]]))
    Labels(2 rows × 2 classes, 1 present, 1 absent)
    """
    return given if isinstance(given, Labels) else Labels.from_dense(given)


def check_labels(owner: str, labels: Tensor) -> None:
    """Raise unless every label is +1, 0 or −1, or a bool; the host waits for a label on a device.

    >>> check_labels("loss", torch.tensor([[0.0, 0.3]]))
    Traceback (most recent call last):
    pluralis.errors.LabelError: loss: the label of row 0, class 1 is 0.3; give +1 present, 0 unknown or -1 absent
    """
    if labels.dtype == torch.bool or not labels.numel():
        return
    if labels.is_floating_point():
        right = torch.equal(labels, labels.sign())  # false for NaN
    else:
        low, high = labels.aminmax()
        right = low.item() >= -1 and high.item() <= 1
    if right:
        return
    place = tuple((labels != labels.sign()).nonzero()[0].tolist())
    value = labels[place].item()
    where = f"row {place[0]}, class {place[1]}" if len(place) == 2 else f"place {place}"
    turned = ", which uint8 cannot hold: cast to int8 instead" if labels.dtype == torch.uint8 and value == 255 else ""
    raise LabelError(
        f"{owner}: the label of {where} is {round(value, 6)}; give +1 present, 0 unknown or -1 absent{turned}"
    )

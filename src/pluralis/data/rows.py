"""Some of the rows of a data set, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset
from pluralis.data.image_paths import ImagePaths
from pluralis.errors import DataError, shown


def select_rows(data: Dataset, rows: Sequence[int] | npt.NDArray[np.int64]) -> Dataset:
    """The images, labels and hints of `rows`, in that order; no row twice."""
    chosen = np.asarray(rows, np.int64)
    hints = data.hints and data.hints.select(chosen, len(data))
    return Dataset(ImagePaths.of(data.images).take(chosen), data.labels.select(chosen), hints)


def leave_out(data: Dataset, names: set[str], where: Path) -> Dataset:
    """The rows whose image is not among `names`; a name that there is not is an error, not a quiet nothing."""
    ids = data.labels.ids
    strange = names.difference(ids)
    if strange:
        raise DataError(f"{where}: {len(strange)} of its images are not in the data, such as {shown(min(strange))}")
    return select_rows(data, [row for row, name in enumerate(ids) if name not in names])

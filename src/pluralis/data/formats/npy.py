"""NumPy files in the layout of the single-positive literature: `formatted_<split>_images.npy` and `…_labels.npy`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset, require_files
from pluralis.data.safe_io import resolve_inside
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels


def read(
    path: str | Path,
    images: str | Path | None = None,
    split: str = "train",
    classes: str = "",
) -> Dataset:
    """Read the images and the complete labels of one split, "train" or "val".

    `path` is the folder that holds `formatted_<split>_images.npy`, an array [N] of file names, and
    `formatted_<split>_labels.npy`, a matrix [N, C] of 1 present and 0 absent, as made by the scripts of
    Cole et al. (CVPR 2021) for VOC, COCO, NUS-WIDE and CUB. The names start from the folder `images`, if it
    is not `path` itself. `classes` is a text file below `path` with the name of a class in each line; without
    it classes are named by their number.

    Rows keep the order of the file: the published labels were drawn in it.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
        raise DataError(f"split={split!r} is not possible; choose 'train' or 'val'")
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"there is no folder {str(root)!r}; give the one that holds formatted_{split}_images.npy")
    base = root if images is None else Path(images)
    if not base.is_dir():
        raise DataError(f"there is no image folder {str(base)!r}; give the one that the names start from")
    names_file, labels_file = (root / f"formatted_{split}_{what}.npy" for what in ("images", "labels"))
    names = _names(names_file)
    matrix = _load(labels_file)
    if matrix.ndim != 2 or len(matrix) != len(names):
        shape = " × ".join(map(str, matrix.shape))
        raise DataError(f"{labels_file}: labels of shape {shape} for the {len(names)} images of {names_file.name}")
    listed = _class_names(resolve_inside(root, classes), matrix.shape[1]) if classes else None
    try:
        labels = Labels.from_dense(matrix, listed, names, convention="complete")
    except LabelError as error:
        raise DataError(f"{labels_file}: {error}") from None
    try:
        found = [resolve_inside(base, name) for name in names]
    except DataError as error:
        raise DataError(f"{names_file}: {error}") from None
    require_files(found, names_file)
    return Dataset(found, labels)


def _load(path: Path) -> npt.NDArray[Any]:
    """The array of a .npy file; never a pickle, and never more memory than the file is long."""
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in path.parent.glob("formatted_*.npy"))[:8]) or "none"
        raise DataError(f"{path} is not there; files of this layout in the folder: {there}")
    try:
        # Mapping fails where the header promises more than the file holds; reading would take the memory first.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy promises no list: a damaged header raises what Python's parsers do
        words = " ".join(str(error).split())[:200]
        hint = "save it again with numpy.save, names as numpy.array(names, dtype=str) rather than as objects"
        raise DataError(f"{path}: no plain NumPy array: {words}; {hint}") from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: an archive of arrays; save the one array with numpy.save")
    return array


def _names(path: Path) -> list[str]:
    array = _load(path)
    if array.ndim != 1 or array.dtype.kind != "U":
        shape = " × ".join(map(str, array.shape))
        raise DataError(f"{path}: {array.dtype} of shape {shape}; give a list of file names as text")
    # NumPy takes any 4 bytes for a character, and Python's own functions stumble over those that are none.
    codes = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    if (codes > sys.maxunicode).any():
        raise DataError(f"{path}: a name holds characters that do not exist; save it again")
    names: list[str] = array.tolist()
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if first.setdefault(name, place) != place:
            raise DataError(f"{path}: image {name!r} is in place {first[name]} and {place}; keep one of them")
    return names


def _class_names(path: Path, count: int) -> list[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}; give a text file with a class name in each line") from None
    if len(names) != count or len(set(names)) < len(names):
        raise DataError(f"{path}: {len(set(names))} different class names for {count} classes; give one in each line")
    return names

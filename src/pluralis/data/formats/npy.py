"""NumPy files: a dense matrix of labels in any of the field's conventions, beside a list of file names.

The layout of the single-positive literature is a folder with `formatted_<split>_images.npy`, an array [N] of
names, `formatted_<split>_labels.npy`, all labels [N, C], and `formatted_<split>_labels_obs.npy`, those that are shown.
"""

from __future__ import annotations

import filecmp
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pluralis.conventions import CONVENTIONS
from pluralis.data.dataset import Dataset
from pluralis.data.formats.folder import Folder
from pluralis.data.formats.listing import file_names, refuse_twice
from pluralis.data.formats.text_lines import lines
from pluralis.data.safe_io import own_file, resolve_inside
from pluralis.data.whole_file import alone, make_folder, unchanged, whole_files
from pluralis.errors import DataError, LabelError, nearest, shown
from pluralis.labels import Labels

_CELLS = 1 << 22  # of the matrix that are looked at together
_MOST_CLASSES = 1 << 20  # a matrix without rows may claim any number
_FILES = {"labels": "complete", "labels_obs": "signed"}  # as Cole et al. write them


def read(
    path: str | Path,
    images: str | Path | None = None,
    split: str = "train",
    classes: str = "",
    file: str = "labels",
    convention: str | None = None,
) -> Dataset:
    """Read the images and the labels of one split, "train" or "val".

    `path` is the folder that holds `formatted_<split>_images.npy`, an array [N] of file names, and
    `formatted_<split>_<file>.npy`, a matrix [N, C] of numbers, as made by the scripts of Cole et al. (CVPR 2021)
    for VOC, COCO, NUS-WIDE and CUB. `file` is "labels", all of them, 1 present and 0 absent, or "labels_obs", the
    observed ones, 1 present, -1 absent and 0 unknown; `convention` is one of CONVENTIONS where the numbers mean
    something else. The names start from the folder `images`, if it is not `path` itself. `classes` is a text file
    below `path` with the name of a class in each line; without it classes are named by their number.

    Rows keep the order of the file: the published labels were drawn in it.
    """
    names_file, labels_file, rule = _places(path, split, file, convention)
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"there is no folder {str(root)!r}; give the one that holds {names_file.name}")
    folder = Folder(root if images is None else images)
    with unchanged(names_file, labels_file, *([root / classes] if classes else [])):
        labels = _labels(root, names_file, labels_file, classes, rule)
    names = labels.ids
    try:
        found = folder.locate(names)
    except DataError as error:
        raise DataError(f"{names_file}: {error}") from None
    refuse_twice(found, names, names_file)
    return Dataset(folder.tell(found, names_file), labels)


def _labels(root: Path, names_file: Path, labels_file: Path, classes: str, rule: str) -> Labels:
    names = _names(own_file(root, names_file))
    matrix = _load(own_file(root, labels_file))
    if matrix.ndim != 2 or len(matrix) != len(names):
        shape = " × ".join(map(str, matrix.shape))
        raise DataError(f"{labels_file}: labels of shape {shape} for the {len(names)} images of {names_file.name}")
    if matrix.shape[1] > _MOST_CLASSES:
        words = f"{matrix.shape[1]:,} classes are over the limit of {_MOST_CLASSES:,}; save one image a row"
        raise DataError(f"{labels_file}: {words}")
    listed = _class_names(resolve_inside(root, classes), matrix.shape[1]) if classes else None
    try:
        return Labels.from_dense(matrix, listed, names, rule)
    except LabelError as error:
        raise DataError(f"{labels_file}: {error}") from None


def write(
    path: str | Path,
    data: Dataset | Labels,
    images: str | Path | None = None,
    split: str = "train",
    classes: str = "",
    file: str = "labels",
    convention: str | None = None,
) -> None:
    """Write the files that `read` takes with the same options; the folder `path` is made if it is not there.

    A convention that has no number for a label in `data`, such as "complete" for an unknown one, is an error. An image
    is named by its path below the folder `images`; without, by its id if that is where its path ends.

    The files of the split are replaced together: a killed write may leave the file of labels missing, never labels of
    other images or classes. Other label files in the folder stay, if their images and classes are the ones that are
    written; else it is an error.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    names_file, labels_file, rule = _places(path, split, file, convention)
    number = {label: value for value, label in CONVENTIONS[rule].meaning.items()}
    names, step = np.array(file_names(data, images), str), max(1, _CELLS // max(1, len(labels.classes)))
    for label, word in ((1, "present"), (0, "unknown"), (-1, "absent")):
        rows = _rows_with(labels, label)
        if label not in number and len(rows):
            raise LabelError(
                f"row {labels.id(int(rows[0]))!r} holds an {word} label, which the convention {rule!r} cannot write;"
                " choose 'signed' or 'minus-unknown'"
            )
    broken = [name for name in labels.classes if name.strip().splitlines() != [name]]
    if classes and broken:
        raise LabelError(f"class {shown(broken[0])} does not fit in a line of {classes}; rename it")
    table = np.array([number.get(label, 0) for label in (0, 1, -1)], np.int8)  # in the order of the index -1
    make_folder(path)
    beside = [resolve_inside(path, classes)] if classes else []
    # Other files of labels may go by the names and classes, as long as those stay: what may be missing is the labels.
    with alone(Path(path) / "formatted"), whole_files(names_file, *beside, labels_file) as parts:
        with parts[-1].open("wb") as out:
            header = {"descr": "|i1", "fortran_order": False, "shape": labels.shape}
            np.lib.format.write_array_header_1_0(out, header)
            for first in range(0, len(labels), step):
                out.write(table[labels.dense(np.arange(first, min(first + step, len(labels))))].tobytes())
        with parts[0].open("wb") as out:
            np.save(out, names, allow_pickle=False)
        others = sorted(set(Path(path).glob("formatted_*_labels*.npy")) - {labels_file})
        own = {labels_file.with_name(f"formatted_{split}_{what}.npy") for what in _FILES}
        _refuse_mixture([other for other in others if other in own], parts[0], names_file)
        if classes:
            parts[1].write_text("".join(f"{name}\n" for name in labels.classes), encoding="utf-8")
            _refuse_mixture(others if beside[0].exists() else [], parts[1], beside[0])


def _refuse_mixture(staying: list[Path], new: Path, old: Path) -> None:
    """Raise where label files that stay would be read with other names of images or classes than they were."""
    if staying and not (old.is_file() and filecmp.cmp(new, old, shallow=False)):
        raise DataError(
            f"{staying[0]} is of other data, and would be read with the new {old.name}: remove it, or write to another"
            " folder"
        )


def _places(path: str | Path, split: str, file: str, convention: str | None) -> tuple[Path, Path, str]:
    """The files of names and of labels, and the convention of the latter."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
        raise DataError(f"split={split!r} is not possible; choose 'train' or 'val'")
    if file not in _FILES:
        raise DataError(f"file={file!r} is not possible; {nearest(file, _FILES)}")
    if convention is not None and convention not in CONVENTIONS:
        raise DataError(f"there is no label convention {convention!r}; {nearest(convention, CONVENTIONS)}")
    names, labels = (Path(path) / f"formatted_{split}_{what}.npy" for what in ("images", file))
    return names, labels, convention or _FILES[file]


def _rows_with(labels: Labels, label: int) -> npt.NDArray[np.int64]:
    """The rows that hold a certain label."""
    if label == 0:
        return np.flatnonzero(np.diff(labels.indptr) < len(labels.classes))
    return np.searchsorted(labels.indptr, np.flatnonzero(labels.values == label), side="right") - 1


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
    if len(set(names)) == len(names):
        return names
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if first.setdefault(name, place) != place:
            raise DataError(f"{path}: image {shown(name)} is in place {first[name]} and {place}; keep one of them")
    return names


def _class_names(path: Path, count: int) -> list[str]:
    names = [name for _, name in lines(path)]
    if len(names) != count or len(set(names)) < len(names):
        raise DataError(f"{path}: {len(set(names))} different class names for {count} classes; give one in each line")
    return names

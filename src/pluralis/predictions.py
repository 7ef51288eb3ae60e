"""Predictions as rows of a CSV file or as JSON."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from pluralis.data.check import read_list
from pluralis.data.formats.csv import neutralise
from pluralis.data.image_endings import ENDINGS, is_other, is_picture
from pluralis.data.whole_file import make_folder, whole_text
from pluralis.errors import DataError, RecipeError, shown

HEADER = ("image", "label", "probability")
LIST = "`pluralis data check --images FOLDER --out LIST`"


def find_images(
    paths: Sequence[Path], leave_out: Path | None = None, every: bool = False
) -> tuple[list[Path], list[str]]:
    """All pictures in files and folders (with their sub-folders), and how they are to be named.

    `leave_out` is a list of names to go without. A picture in a folder of a kind that is not decoded is a DataError, as
    everywhere: it would be left out unseen. With `every` it is among those found. What a Mac writes beside files
    (`._a.jpg`) is no picture.
    """
    files: list[Path] = []
    names: list[str] = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if is_picture(p.name) and p.is_file()]
            files += inside
            names += [_text(p.relative_to(path)) for p in inside]
        elif path.is_file():
            files.append(path)
            names.append(_text(path.name))
        else:
            raise DataError(f"there is no image or folder {path}")
    unwanted = read_list(leave_out) if leave_out is not None else set()
    if sum(path.is_dir() for path in paths) > 1 or len(set(names)) < len(names):  # whose file is it?
        names = [_text(path) for path in files]
    if unwanted and unwanted.isdisjoint(names):  # some may be gone already, but not all
        raise DataError(f"{leave_out}: none of its {len(unwanted)} images is there, such as {shown(min(unwanted))}")
    pairs = [(file, name) for file, name in zip(files, names, strict=True) if name not in unwanted]
    others = [file for file, _ in pairs if is_other(file.name) and file not in paths]
    if others and not every:
        raise DataError(
            f"{len(others)} pictures are of kinds that are not decoded, such as {shown(str(others[0]))}: convert them"
            f" to PNG or JPEG, take them out, or list them ({LIST}) and add --leave-out"
        )
    if not pairs:
        raise DataError(f"no image in {', '.join(map(str, paths))}; known endings: {', '.join(ENDINGS)}")
    return [file for file, _ in pairs], [name for _, name in pairs]


def check_out(path: Path, force: bool) -> None:
    """Refuse a file that cannot be written or that is there, before any work is done."""
    if path.suffix.lower() not in (".csv", ".json"):
        raise RecipeError(f"--out is {path}; its name must end with .csv or .json")
    if path.exists() and not force:
        raise RecipeError(f"{path} is there already: name another file with --out, or write over it with --force")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RecipeError(f"--out is {path}, but nothing can be written in {folder}: name another place")


def check_choice(classes: int, threshold: float, top_k: int) -> None:
    """Refuse what cannot be chosen before any work is done."""
    if not 0 <= threshold <= 1:
        raise RecipeError(f"--threshold is {threshold}; it must be from 0 to 1")
    if not 0 <= top_k <= classes:
        raise RecipeError(f"--top-k is {top_k}; it must be from 1 to the {classes} classes of the run")


def chosen_labels(
    probabilities: Tensor, classes: Sequence[str], threshold: float = 0.5, top_k: int = 0
) -> list[list[tuple[str, float]]]:
    """For each row the labels above the threshold, or its `top_k` most likely ones, most likely first."""
    values, order = probabilities.sort(dim=1, descending=True, stable=True)
    rows = []
    for row_values, row_order in zip(values.tolist(), order.tolist(), strict=True):
        pairs = [(classes[c], v) for c, v in zip(row_order, row_values, strict=True)]
        rows.append(pairs[:top_k] if top_k else [pair for pair in pairs if pair[1] >= threshold])
    return rows


def write_predictions(path: Path, names: Sequence[str], rows: Sequence[Sequence[tuple[str, float]]]) -> None:
    """`.json`: a list of {image, labels}; otherwise CSV with one line a label (an image without any has one too)."""
    if path.suffix.lower() == ".json":
        content = [
            {"image": name, "labels": [{"label": label, "probability": p} for label, p in row]}
            for name, row in zip(names, rows, strict=True)
        ]
        make_folder(path.parent)
        with whole_text(path) as file:
            json.dump(content, file, indent=1, ensure_ascii=False)
        return
    pairs = zip(names, rows, strict=True)
    cells = ((name, [(neutralise(label), f"{p:.6f}") for label, p in row]) for name, row in pairs)
    write_csv(path, HEADER, ((neutralise(name), *rest) for name, row in cells for rest in row or [("", "")]))


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Iterable[object]]) -> None:
    """The header and the lines, as they come; `path` holds the old file or the whole new one."""
    make_folder(path.parent)
    with whole_text(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)


def _text(path: Path | str) -> str:
    """A file name as text that can be written, also where it is not valid UTF-8."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")

"""Predictions as rows of a CSV file or as JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from pluralis.data.formats.csv import neutralise
from pluralis.data.image_endings import ENDINGS, is_image
from pluralis.data.whole_file import make_folder, whole_text
from pluralis.errors import DataError, RecipeError

HEADER = ("image", "label", "probability")


def find_images(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """All pictures in files and folders (with their sub-folders), and how they are to be named.

    A picture in a folder of a kind that is not decoded is a DataError, as everywhere: it would be left out unseen.
    """
    files: list[Path] = []
    names: list[str] = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if p.is_file() and is_image(str(p))]
            files += inside
            names += [_text(p.relative_to(path)) for p in inside]
        elif path.is_file():
            files.append(path)
            names.append(_text(path.name))
        else:
            raise DataError(f"there is no image or folder {path}")
    if not files:
        raise DataError(f"no image in {', '.join(map(str, paths))}; known endings: {', '.join(ENDINGS)}")
    return files, names if len(set(names)) == len(names) else [_text(path) for path in files]


def check_choice(classes: int, threshold: float, top_k: int, out: Path) -> None:
    """Refuse what cannot be chosen or written before any work is done."""
    if not 0 <= threshold <= 1:
        raise RecipeError(f"--threshold is {threshold}; it must be from 0 to 1")
    if not 0 <= top_k <= classes:
        raise RecipeError(f"--top-k is {top_k}; it must be from 1 to the {classes} classes of the run")
    if out.suffix.lower() not in (".csv", ".json"):
        raise RecipeError(f"--out is {out}; its name must end with .csv or .json")


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

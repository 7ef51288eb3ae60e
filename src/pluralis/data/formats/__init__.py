"""Readers for the files that labelling tools and data sets come in: one module per format."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pluralis.data.dataset import Dataset
from pluralis.data.formats import coco, csv, npy, voc
from pluralis.errors import DataError, nearest

__all__ = ["FORMATS", "Dataset", "read"]

FORMATS: dict[str, Callable[..., Dataset]] = {
    "coco": coco.read,
    "csv": csv.read,
    "npy": npy.read,
    "voc": voc.read,
}


def read(format: str, path: str | Path, **options: Any) -> Dataset:
    """Read the data set at `path`, a file or folder in one of FORMATS; `options` are those of its reader."""
    reader = FORMATS.get(format)
    if reader is None:
        raise DataError(f"there is no format {format!r}; {nearest(format, list(FORMATS))}")
    try:
        inspect.signature(reader).bind(path, **options)
    except TypeError as error:
        accepted = ", ".join(list(inspect.signature(reader).parameters)[1:])
        raise DataError(f"format {format!r}: {error}; its options are {accepted}") from None
    return reader(path, **options)

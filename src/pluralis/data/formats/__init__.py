"""The files that labelling tools and data sets come in: one module per format, a reader and often a writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pluralis.data.dataset import Dataset, require_files
from pluralis.data.formats import (
    coco,
    csv,
    cub,
    cvat,
    fiftyone,
    imagefolder,
    jsonl,
    labelstudio,
    lvis,
    npy,
    nus,
    openimages,
    parquet,
    shards,
    voc,
)
from pluralis.data.formats.hints_file import read_hints, write_hints
from pluralis.data.formats.options import fit_option, fit_options
from pluralis.data.whole_file import unchanged
from pluralis.errors import DataError, nearest
from pluralis.labels import Labels

__all__ = ["FORMATS", "Dataset", "Format", "read", "read_hints", "write", "write_hints"]


class Format(NamedTuple):
    """`read(path, **options)` gives a `Dataset`; `write(path, data, **options)` takes one, or bare `Labels`."""

    read: Callable[..., Dataset]
    write: Callable[..., None] | None = None


FORMATS: dict[str, Format] = {
    "coco": Format(coco.read, coco.write),
    "csv": Format(csv.read, csv.write),
    "cub": Format(cub.read),
    "cvat": Format(cvat.read, cvat.write),
    "fiftyone": Format(fiftyone.read, fiftyone.write),
    "imagefolder": Format(imagefolder.read),
    "jsonl": Format(jsonl.read, jsonl.write),
    "labelstudio": Format(labelstudio.read, labelstudio.write),
    "lvis": Format(lvis.read, lvis.write),
    "npy": Format(npy.read, npy.write),
    "nus": Format(nus.read),
    "openimages": Format(openimages.read, openimages.write),
    "parquet": Format(parquet.read, parquet.write),
    "shards": Format(shards.read),
    "voc": Format(voc.read),
}


def read(format: str, path: str | Path, **options: Any) -> Dataset:
    """Read the data set at `path`, a file or folder in one of FORMATS; `options` are those of its reader.

    Rows are sorted by image id, unless the reader says that the order of its files is a published one.
    With every format `hints` may name a file of hints, as `write_hints` writes it: they are kept beside the labels.
    """
    found = read_listed(format, path, **options)
    require_files(found.images)
    return found


def read_listed(format: str, path: str | Path, **options: Any) -> Dataset:
    """As `read`, but images may be missing, which `ImagePaths.missing` tells: for those who leave them out."""
    given = read_options(format, options)
    hints = given.pop("hints", None)
    with unchanged(*([] if hints is None else [hints])):  # which go away before labels are written over
        found = FORMATS[format].read(path, **given)
        if not found.labels.classes:
            raise DataError(f"{path}: there is no class in the file; label at least one image")
        return found if hints is None else read_hints(hints, found)


def write(format: str, path: str | Path, data: Dataset | Labels, **options: Any) -> None:
    """Write the labels of `data` to `path` in one of FORMATS; `options` are those of its writer.

    `read` with the same format, classes and images gives the same labels back.
    """
    _writer(format)(path, data, **write_options(format, options))


def read_options(format: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for reading a format, `hints` among them, in the kinds that its reader declares."""
    given = dict(options)
    hints = fit_option(format, "hints", given.pop("hints", None), str | Path | None)
    return fit_options(format, _entry(format).read, 1, given) | ({} if hints is None else {"hints": hints})


def write_options(format: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for writing a format, in the kinds that its writer declares."""
    return fit_options(format, _writer(format), 2, options)


def _entry(format: str) -> Format:
    if format not in FORMATS:
        raise DataError(f"there is no format {format!r}; {nearest(format, list(FORMATS))}")
    return FORMATS[format]


def _writer(format: str) -> Callable[..., None]:
    writer = _entry(format).write
    if writer is None:
        able = ", ".join(repr(name) for name, entry in FORMATS.items() if entry.write)
        raise DataError(f"format {format!r} can be read but not written; choose from {able}")
    return writer

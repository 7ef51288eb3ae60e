"""Labels in Parquet, long or wide like CSV: the columns image, label and perhaps value, or image and the classes.

1 is present, -1 absent and null unknown; a null label lists an image that has none. Texts may be dictionaries.
A 0, and false, mean absent to some and unknown to others: `unlisted` says what it means here. The index that pandas
writes beside the columns of a data frame is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import file_names
from pluralis.data.formats.parquet_columns import (
    Ints,
    check_sizes,
    check_types,
    import_arrow,
    opened,
    read_batches,
    texts_of,
)
from pluralis.data.formats.table import Table, check_classes
from pluralis.data.whole_file import whole_file
from pluralis.errors import DataError, shown
from pluralis.labels import Labels

Batches = Iterator[tuple[Ints, Any]]  # the numbers of the rows, from 1, and the rows

_CELLS = 1 << 20  # read or written at once
_LONG = (["image", "label"], ["image", "label", "value"])
_NOTE = b"pluralis.classes"
_NULL = 2
_INDEX = re.compile(r"__index_level_\d+__")  # a data frame's numbers or names of its rows


def read(
    path: str | Path,
    images: str | Path,
    classes: Sequence[str] | None = None,
    unlisted: str | None = None,
) -> Dataset:
    """Read the labels in `path` of images below the folder `images`; the id of an image is its name there.

    `classes` fixes the classes and their order; otherwise they are the columns (wide), or those that `write` has noted
    in the file, or all labels in it, sorted (long). `unlisted`, "unknown" or "absent", is what a 0 means and, in the
    long format, what holds for a class that no row gives for an image (unless stated: unknown). Needs pyarrow.
    """
    table = Table(path, images, classes, unlisted, unit="row")
    with opened(path) as open_file:
        file = open_file()
        schema = file.schema_arrow
        index = [name for name in schema.names if _INDEX.fullmatch(name)]
        schema = import_arrow().schema([field for field in schema if field.name not in index], schema.metadata)
        header = schema.names
        if "image" not in header or len(set(header)) < len(header):
            raise DataError(f"{path}: the columns are {_some(header)}; give 'image' and others, each once")
        long = sorted(header) in _LONG
        texts = ["image", "label"] if long else ["image"]
        check_types(path, schema, texts)
        check_sizes(path, file.metadata)
        columns = header if index else None
        batches = _numbered(read_batches(path, open_file, texts, _CELLS // len(header), columns))
        if long:
            _fix_classes(table, schema.metadata or {})
            _add_long(table, batches)
        else:
            _add_wide(table, batches, [name for name in header if name != "image"])
    return table.dataset(complete=long and unlisted == "absent", sort_classes=long and not table.fixed)


def write(path: str | Path, data: Dataset | Labels, layout: str = "long", images: str | Path | None = None) -> None:
    """Write labels in the `layout` "long" or "wide"; `path` holds the old file or the whole new one, never a part.

    An image is named by its path below the folder `images`; without, by its id if that is where its path ends.
    Needs pyarrow.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    if layout not in ("long", "wide"):
        raise DataError(f"layout={layout!r} is not possible; choose 'long' or 'wide'")
    arrow, names = import_arrow(), file_names(data, images)
    if layout == "wide" and ("image" in labels.classes or sorted(["image", *labels.classes]) in _LONG):
        raise DataError(f"{path}: the classes {_some(labels.classes)} read as columns of a long file; write it long")
    if layout == "wide" and any(map(_INDEX.fullmatch, labels.classes)):
        raise DataError(f"{path}: a class has the name of a data frame's index, which is not read; write it long")
    blocks = (_long_blocks if layout == "long" else _wide_blocks)(arrow, labels, names)
    with whole_file(path) as part:
        first = next(blocks)
        with arrow.parquet.ParquetWriter(part, first.schema) as writer:
            writer.write_table(first)
            for block in blocks:
                writer.write_table(block)


def _long_blocks(arrow: Any, labels: Labels, names: list[str]) -> Iterator[Any]:
    """Tables of some rows each; a row without a label has a line of its own."""
    kinds = {"image": arrow.string(), "label": arrow.dictionary(arrow.int32(), arrow.string()), "value": arrow.int8()}
    schema = arrow.schema(kinds, metadata={_NOTE: json.dumps(labels.classes)})
    classes, step = arrow.array(labels.classes, arrow.string()), _CELLS // 16
    for first in range(0, max(1, len(labels)), step):
        ends = labels.indptr[first : first + step + 1]
        counts = np.diff(ends)
        image = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
        empty = np.repeat(counts == 0, np.maximum(counts, 1))
        label, value = np.zeros(len(image), np.int32), np.zeros(len(image), np.int8)
        label[~empty], value[~empty] = labels.indices[ends[0] : ends[-1]], labels.values[ends[0] : ends[-1]]
        columns = [
            arrow.array(names[first : first + step], arrow.string()).take(arrow.array(image)),
            arrow.DictionaryArray.from_arrays(arrow.array(label, mask=empty), classes),
            arrow.array(value, mask=empty),
        ]
        yield arrow.Table.from_arrays(columns, schema=schema)


def _wide_blocks(arrow: Any, labels: Labels, names: list[str]) -> Iterator[Any]:
    """Tables of some rows each."""
    step = max(1, _CELLS // max(1, len(labels.classes)))
    for first in range(0, max(1, len(labels)), step):
        signed = labels.dense(np.arange(first, min(first + step, len(labels))))
        columns = [arrow.array(np.ascontiguousarray(part), mask=part == 0) for part in signed.T]
        images = arrow.array(names[first : first + step], arrow.string())
        yield arrow.Table.from_arrays([images, *columns], names=["image", *labels.classes])


def _add_long(table: Table, batches: Batches) -> None:
    """Rows of an image, a label and perhaps a value."""
    without: dict[int, int] = {}
    for lines, batch in batches:
        image, label = texts_of(batch, "image"), texts_of(batch, "label")
        blank = label.of < 0
        value = _signs(table, batch, "value", lines) if "value" in batch.schema.names else np.where(blank, _NULL, 1)
        _refuse(table, lines, image.of < 0, "the image is null; name its file")
        empty = [place for place, name in enumerate(label.different) if not name]
        words = "the label is an empty text; make it null for an image without a label"
        _refuse(table, lines, np.isin(label.of, empty), words)
        _refuse(table, lines, blank & (value != _NULL), "the value has no label; name the class")
        _refuse(table, lines, ~blank & (value == _NULL), "the value is null; write 1 or -1, or take the row out")
        row = image.numbers(table.row, lines)
        column = label.numbers(table.column, lines)
        for place in np.flatnonzero(blank):
            line = int(lines[place])
            if without.setdefault(int(row[place]), line) != line:
                first, name = without[int(row[place])], image.different[image.of[place]]
                raise table.error(line, f"image {shown(name)} without a label: row {first} says so too")
        table.extend(row[~blank], column[~blank], value[~blank], lines[~blank])
        if len(table.entries[0]) > len(table.rows) * len(table.classes):
            table.dataset()  # more labels than places: it tells which one is there twice, before more are read


def _add_wide(table: Table, batches: Batches, names: list[str]) -> None:
    """Rows of an image and a value for each class."""
    if not names or "" in names:
        raise DataError(f"{table.path}: the wide format wants a column for each class, each with its name")
    columns = np.array([table.column(name, 0) for name in names])
    for lines, batch in batches:
        image = texts_of(batch, "image")
        _refuse(table, lines, image.of < 0, "the image is null; name its file")
        for name, line in zip((image.different[place] for place in image.of), lines.tolist(), strict=True):
            table.new_row(name, line)
        signed = np.stack([_signs(table, batch, name, lines) for name in names], axis=1)
        table.add_rows(np.where(signed == _NULL, np.int8(0), signed), columns)


def _signs(table: Table, batch: Any, name: str, lines: Ints) -> npt.NDArray[np.int8]:
    """1, -1, 0 unknown or _NULL of each row of a column [n]."""
    arrow, column = import_arrow(), batch.column(name)
    kind = column.type
    if arrow.types.is_null(kind):
        return np.full(len(lines), _NULL, np.int8)
    null = column.is_null().to_numpy(zero_copy_only=False)
    value = column.fill_null(False if arrow.types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~np.isin(value, (-1, 0, 1)))
    if len(wrong):
        hint = f"column {shown(name)}: the value {value[wrong[0]]} is no label; write 1 present, -1 absent or null"
        raise table.error(int(lines[wrong[0]]), hint)
    zero = np.flatnonzero((value == 0) & ~null)
    signs = np.where(null, _NULL, value).astype(np.int8)
    if len(zero):
        signs[zero] = table.zero(int(lines[zero[0]]))
    return signs


def _refuse(table: Table, lines: Ints, wrong: npt.NDArray[np.bool_], words: str) -> None:
    if wrong.any():
        raise table.error(int(lines[np.argmax(wrong)]), words)


def _fix_classes(table: Table, metadata: dict[bytes, bytes]) -> None:
    """Take the classes that `write` has noted, unless they are given."""
    if _NOTE in metadata and not table.fixed:
        classes = json.loads(metadata[_NOTE])
        try:
            check_classes(classes)
        except DataError as error:
            raise DataError(f"{table.path}: its note of the classes: {str(error)[:200]}") from None
        table.classes, table.fixed = {name: number for number, name in enumerate(classes)}, True


def _numbered(batches: Iterator[Any]) -> Batches:
    first = 1
    for batch in batches:
        yield np.arange(first, first + len(batch)), batch
        first += len(batch)


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:80]) for name in names[:8]) + (", …" if len(names) > 8 else "") if names else "none"

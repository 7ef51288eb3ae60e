"""The columns of a Parquet file that somebody else made: bounded before they are unpacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pluralis.errors import DataError, shown

Ints = npt.NDArray[np.int64]
Opener = Callable[..., Any]  # gives an open `ParquetFile`; takes its options

_LONGEST = 4096  # bytes of a name, as for files
_MOST = 2**31  # rows of a file: as many as a table of labels takes
_ROWS = 1 << 20  # whose names are measured at once
_FEW = 64  # the same, where a text may be far longer than what the file holds of it
_BYTES = 1 << 26  # of a column of names that are unpacked at once
_LIMITS = {"thrift_string_size_limit": 1 << 26, "thrift_container_size_limit": 1 << 20}
_TYPES = b"\x18\x0cARROW:schema\x18"  # a key and where its value begins: no name of a column or class looks so


@contextmanager
def opened(path: str | Path) -> Iterator[Opener]:
    """What opens the file, as often as there are ways to read it; texts are plain texts, whatever wrote them."""
    arrow = import_arrow()
    if not Path(path).is_file():  # also keeps away from pipes and devices, on which reading may hang
        raise DataError(f"{path}: is not there, or not a plain file; check the path")
    try:
        with arrow.OSFile(str(path)) as source:
            yield partial(arrow.parquet.ParquetFile, source, metadata=_metadata(arrow, source), **_LIMITS)
    # Arrow's errors are of its own kind or of many of Python's.
    except (arrow.ArrowException, OSError, ValueError, LookupError, TypeError, RuntimeError, MemoryError) as error:
        words = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: is not a sound Parquet file: {words}; write it again") from None


def _metadata(arrow: Any, source: Any) -> Any:
    """The file's footer without Arrow's note of the types, such as dictionaries, that were written.

    Arrow would give those back, and mistakes names for others where a dictionary in the file has an entry twice.
    """
    size = source.size()
    end = source.read_at(min(8, size), max(0, size - 8))  # the length of the footer, and a word
    start = max(0, size - 8 - int.from_bytes(end[:4], "little"))
    footer = source.read_at(size - start, start).replace(_TYPES, _TYPES.replace(b":", b"-"))
    return arrow.parquet.ParquetFile(arrow.BufferReader(b"PAR1" + footer), **_LIMITS).metadata


def check_types(path: str | Path, schema: Any, texts: Sequence[str]) -> None:
    """Raise unless the columns `texts` hold names and all others numbers; before anything is unpacked."""
    kinds = import_arrow().types
    for field in schema:
        kind = field.type
        if field.name in texts:
            if not (kinds.is_string(kind) or kinds.is_null(kind)):
                raise DataError(f"{path}: the column {shown(field.name)} holds {kind}; give texts")
        elif not (kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_null(kind)):
            words = f"holds {kind}; give numbers, 1 present and -1 absent"
            raise DataError(f"{path}: the column {shown(field.name)} {words}")


def check_sizes(path: str | Path, metadata: Any) -> None:
    """Raise where the file says that its rows are far larger than rows of names and numbers can be.

    A few packed bytes can stand for a text of any length, and a page of a column is unpacked as a whole. A file that
    says something false of its sizes gets by: only Arrow bounds what its pages take, to 2 GiB each.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    rows = sum(group.num_rows for group in groups)  # as many as Arrow reads, whatever `metadata.num_rows` says
    if rows > _MOST:
        raise DataError(f"{path}: {rows:,} rows are over the limit of {_MOST:,}; split the file")
    row = 2 * _LONGEST + 16 * metadata.num_columns  # bytes
    for group in groups:
        if group.total_byte_size > row * group.num_rows + (1 << 20):
            words = f"{group.num_rows:,} of its rows take {group.total_byte_size:,} bytes"
            raise DataError(f"{path}: {words}; it holds more than names and labels, or names that are too long")


def read_batches(
    path: str | Path, open_file: Opener, texts: list[str], rows: int, columns: list[str] | None = None
) -> Iterator[Any]:
    """The file, or these columns of it, at most `rows` at a time; DataError where a name in `texts` is too long.

    Names are measured before they are unpacked: a file may hold a text of a megabyte once, as an entry of a dictionary,
    for a million rows, which would take a terabyte. As dictionaries they take their memory once.
    """
    file, packed = open_file(), open_file(read_dictionary=texts)
    for groups in _runs(file.metadata):
        try:
            longest = _longest(path, packed.iter_batches(_ROWS, groups, texts))
        except OSError:
            # The file is damaged, which shows again, or in an encoding that Arrow does not read as dictionaries. In
            # DELTA_BYTE_ARRAY a text is told as the beginning of the one before it and an end of its own, so that each
            # may be as long as all ends together. (What the footer says of encodings does not help: on a damaged one
            # pyarrow ends the process.)
            longest = _longest(path, file.iter_batches(_FEW, groups, texts))
        yield from file.iter_batches(max(1, min(rows, _BYTES // longest)), groups, columns)


def _runs(metadata: Any) -> Iterator[list[int]]:
    """Groups of rows to be read together: for each of many small ones Arrow would look at the whole footer again."""
    groups: list[int] = []
    rows = 0
    for number in range(metadata.num_row_groups):
        more = metadata.row_group(number).num_rows
        if groups and rows + more > _ROWS:
            yield groups
            groups, rows = [], 0
        groups.append(number)
        rows += more
    if groups:
        yield groups


def _longest(path: str | Path, batches: Iterator[Any]) -> int:
    """Bytes of the longest name in columns of names, and at least 1."""
    arrow, longest = import_arrow(), 1
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            names = column.dictionary if arrow.types.is_dictionary(column.type) else column
            if not arrow.types.is_null(names.type):
                longest = max(longest, arrow.compute.max(arrow.compute.binary_length(names)).as_py() or 0)
            if longest > _LONGEST:
                raise DataError(f"{path}: a name in the column {shown(name)} is over {_LONGEST:,} bytes; shorten it")
    return longest


class Texts(NamedTuple):
    """A column of names: the `different` ones in the order of their `first` rows, and which of them each row has.

    `of` [n] is -1 where a row has none.
    """

    different: list[str]
    first: Ints
    of: Ints

    def numbers(self, number: Callable[[str, int], int], lines: Ints) -> Ints:
        """The number [n] of each row's name, which `number` gives for a name and a line; 0 where there is none."""
        pairs = zip(self.different, lines[self.first].tolist(), strict=True)
        return np.array([*(number(name, line) for name, line in pairs), 0], np.int64)[self.of]


def texts_of(batch: Any, name: str) -> Texts:
    """The names of a column. One that many rows share is kept once: written out for each it could fill the memory."""
    arrow, column = import_arrow(), batch.column(name)
    if arrow.types.is_null(column.type):
        return Texts([], np.zeros(0, np.int64), np.full(len(column), -1))
    numbered = column.dictionary_encode()
    of = numbered.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(of), prepend=-1))  # a name is numbered where it is first met
    return Texts(numbered.dictionary.to_pylist(), first, of)


def import_arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise DataError("the format parquet needs pyarrow; install it with: pip install 'pluralis[parquet]'") from None
    return pyarrow

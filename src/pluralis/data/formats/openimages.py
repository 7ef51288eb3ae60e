"""Open Images: CSV files of image-level labels, those that people verified and those that a machine proposed."""

from __future__ import annotations

import csv
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats.csv import neutralise, restore
from pluralis.data.formats.hints_file import confidence as share
from pluralis.data.formats.listing import check_images, file_names, left_out, locate
from pluralis.data.formats.table import rows_of
from pluralis.data.formats.text_lines import open_text
from pluralis.data.safe_io import own_file
from pluralis.data.whole_file import alone, unchanged, whole_files
from pluralis.errors import DataError, shown
from pluralis.labels import Labels

_HEADER = ["ImageID", "Source", "LabelName", "Confidence"]
_VERIFIED = {"1": 1, "1.0": 1, "0": -1, "0.0": -1}


def read(
    path: str | Path,
    images: str | Path | None = None,
    split: str = "train",
    names: str | Path | None = None,
    machine: str | Path | None = None,
    boxes: str | Path | None = None,
    missing: str = "error",
    suffix: str = ".jpg",
) -> Dataset:
    """Read which labels people verified as present (confidence 1) or absent (0); all others are unknown.

    `path` is a CSV file with the columns ImageID, Source, LabelName and Confidence, or a folder that holds
    `…<split>-annotations-human-imagelabels.csv` and the images in `<split>`. `machine` names a file of machine labels
    and `boxes` one of boxes, each of which makes its class present. Lines with the source "machine", and lines with
    a fraction as confidence, become hints beside the labels, whichever file they are in.

    `names` is the file of class descriptions (LabelName,DisplayName): then the classes are all of its, in its order
    and with its names, to which the code is added where two share a name. Without it the classes are the codes that
    occur, sorted. The image of an id is `<id><suffix>` in the folder `images`; `missing` = "drop" leaves out the
    images that are not there, for a part of the data set. Rows are sorted by id.
    """
    if missing not in ("error", "drop"):
        raise DataError(f"missing={missing!r} is not possible; choose 'error' or 'drop'")
    file, folder = _places(Path(path), images, split)
    sources = [Path(source) for source in (file, machine, boxes) if source is not None]
    with unchanged(*sources, *([] if names is None else [names])):
        table = _Table(None if names is None else _descriptions(Path(names)))
        for source in sources:
            table.add(source)
    return table.dataset(folder, suffix, drop=missing == "drop")


def write(
    path: str | Path, data: Dataset | Labels, names: str | Path | None = None, images: str | Path | None = None
) -> None:
    """Write the known labels as verified ones and the hints as those of a machine; `names` gets all the classes.

    An image without labels and hints cannot be told in this format. With `images` an image is named by its path below
    that folder, less the ending where it is .jpg for all; without, by its id. Read again with the same `names`, and
    with suffix="" where the names are whole file names.

    Both files are replaced together: a killed write may leave `path` missing, never labels with other classes.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    hints = data.hints if isinstance(data, Dataset) else None
    lone = np.diff(labels.indptr) == 0
    if hints is not None:
        lone[hints.rows] = False
    if lone.any():
        row = int(np.argmax(lone))
        raise DataError(
            f"row {shown(labels.id(row))} has no label, and this format lists no such image; write csv instead"
        )
    codes = [neutralise(name) for name in labels.classes]
    ids = [neutralise(name) for name in (labels.ids if images is None else _named(data, images))]
    with alone(path), whole_files(*([] if names is None else [names]), path) as [*described, listed]:
        for part in described:
            with part.open("w", encoding="utf-8", newline="\n") as file:
                writer = csv.writer(file)
                writer.writerow(["LabelName", "DisplayName"])
                writer.writerows(zip(codes, codes, strict=True))
        with listed.open("w", encoding="utf-8", newline="\n") as file:
            writer = csv.writer(file)
            writer.writerow(_HEADER)
            for name, columns, values in rows_of(labels, ids):
                known = zip(columns, values, strict=True)
                writer.writerows((name, "verification", codes[c], int(v > 0)) for c, v in known)
            if hints is not None:
                entries = zip(hints.rows, hints.columns, hints.confidence, strict=True)
                writer.writerows((ids[r], "machine", codes[c], f"{sure:.9g}") for r, c, sure in entries)


def _named(data: Dataset | Labels, images: str | Path) -> list[str]:
    """The paths of the images below the folder, as `read` finds them again."""
    found = file_names(data, images)
    whole = not all(PurePosixPath(name).suffix == ".jpg" for name in found)
    return found if whole else [name.removesuffix(".jpg") for name in found]


class _Table:
    """Gathers the lines of several files, numbering images and classes as they come."""

    def __init__(self, described: dict[str, str] | None) -> None:
        self.described = described
        self.files: list[Path] = []
        self.ids: dict[str, int] = {}
        self.codes = {code: number for number, code in enumerate(described or ())}
        self.rows, self.columns, self.values = array("i"), array("i"), array("b")
        self.hint_rows, self.hint_columns, self.confidence = array("i"), array("i"), array("f")

    def add(self, path: Path) -> None:
        """All lines of one file. The loop is short on purpose: files of this kind have tens of millions of lines."""
        self.files.append(path)
        # By the cell as it stands in the file: '=a and =a, which a spreadsheet would run, are one name.
        images, codes = dict[str, int](), dict[str, int]()
        for line, image, source, code, confidence in _lines(path):
            row = images.get(image)
            if row is None:
                row = images[image] = self._number(path, line, image, "ImageID", self.ids)
            column = codes.get(code)
            if column is None:
                column = codes[code] = self._number(path, line, code, "LabelName", self.codes)
                if self.described is not None and column >= len(self.described):
                    raise DataError(
                        f"{path}, line {line}: the class {code[:80]!r} is not described; give the descriptions of this "
                        "release, or none"
                    )
            value = _VERIFIED.get(confidence)
            if value is None or source == "machine":
                self.hint_rows.append(row)
                self.hint_columns.append(column)
                self.confidence.append(share(path, line, confidence))
            else:
                self.rows.append(row)
                self.columns.append(column)
                self.values.append(value)

    def dataset(self, folder: Path, suffix: str, drop: bool) -> Dataset:
        ids = sorted(self.ids)
        names = [f"{name}{suffix}" for name in ids]
        places, found = locate(folder, names, self.files[0], drop)
        notes = left_out(self.files[0], names, places, folder)
        ids = [ids[place] for place in places]
        codes = list(self.codes) if self.described is not None else sorted(self.codes)
        row, column = _ranks(self.ids, ids), _ranks(self.codes, codes)
        labels = self._labels(row, column, codes, ids)
        hints = None
        if len(self.hint_rows):
            at = row[np.frombuffer(self.hint_rows, np.int32)]
            kept = at >= 0
            hint_columns = column[np.frombuffer(self.hint_columns, np.int32)]
            hints = Hints.gather(at[kept], hint_columns[kept], np.frombuffer(self.confidence, np.float32)[kept])
        return Dataset(found, labels, hints, notes)

    def _labels(
        self, row: npt.NDArray[np.int64], column: npt.NDArray[np.int64], codes: list[str], ids: list[str]
    ) -> Labels:
        """Compressed rows out of lines in any order: one sort of one number a line, no matrix."""
        if not self.rows:
            return Labels(np.zeros(len(ids) + 1, np.int64), [], [], self._class_names(codes), ids)
        at = row[np.frombuffer(self.rows, np.int32)]
        key = (at * len(codes) + column[np.frombuffer(self.columns, np.int32)]) * 2
        key += np.frombuffer(self.values, np.int8) > 0
        key = key[at >= 0]
        del at
        self.rows, self.columns, self.values = array("i"), array("i"), array("b")  # their memory is needed from here
        key.sort()
        again = np.zeros(len(key), bool)
        again[1:] = (key[1:] ^ key[:-1]) < 2  # the same image and class
        conflict = np.flatnonzero(again[1:] & (key[1:] != key[:-1]))
        if len(conflict):
            r, c = divmod(int(key[conflict[0]]) >> 1, len(codes))
            raise self._conflict(ids[r], codes[c])
        key = key[~again]
        values = (key & 1).astype(np.int8) * 2 - 1
        key >>= 1
        counts = np.bincount(key // len(codes), minlength=len(ids))
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        columns = (key % len(codes)).astype(np.int32)
        del key
        return Labels(indptr, columns, values, self._class_names(codes), ids)

    def _class_names(self, codes: list[str]) -> list[str]:
        if self.described is None:
            return codes
        shared = Counter(self.described.values())
        named = ((code, self.described[code]) for code in codes)
        return [name if shared[name] < 2 else f"{name} ({code})" for code, name in named]

    def _conflict(self, image: str, code: str) -> DataError:
        """Looks the lines up again: keeping the number of every line would take more memory than the labels."""
        places = [
            f"{path}, line {line}"
            for path in self.files
            for line, i, source, c, confidence in _lines(path)
            if restore(i) == image and restore(c) == code and source != "machine" and confidence in _VERIFIED
        ]
        return DataError(
            f"image {image[:200]!r}, class {code[:80]!r}: verified as present and as absent, "
            f"in {' and '.join(places[:4])}; keep one of them"
        )

    def _number(self, path: Path, line: int, cell: str, column: str, numbers: dict[str, int]) -> int:
        """The number of a name, new or known."""
        if not cell:
            raise DataError(f"{path}, line {line}: {column} is empty; fill it in, or take the line out")
        return numbers.setdefault(restore(cell), len(numbers))


def _lines(path: Path) -> Iterator[tuple[int, str, str, str, str]]:
    """Line number, image, source, class and confidence of every line."""
    line = 0
    try:
        if not path.is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{path}: is not there, or not a plain file; check the path")
        with open_text(path, newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            line = reader.line_num
            if any(name not in header for name in _HEADER):
                raise DataError(f"{path}, line 1: the columns {', '.join(_HEADER)} are not all there; name them")
            image, source, code, confidence = (header.index(name) for name in _HEADER)
            width = len(header)
            for cells in reader:
                line = reader.line_num
                if len(cells) != width:
                    if not cells:
                        continue
                    raise DataError(f"{path}, line {line}: {len(cells)} cells where the header has {width}; mend it")
                yield line, cells[image], cells[source], cells[code], cells[confidence]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {line + 1} or later: not UTF-8 ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path}, line {line + 1}: {error}; check the quotes and the length of the cells") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}; check the path") from None


def _descriptions(path: Path) -> dict[str, str]:
    """Code -> name of every class, in the order of the file; older releases have no header."""
    described: dict[str, str] = {}
    try:
        if not path.is_file():
            raise DataError(f"{path}: is not there, or not a plain file; check the path of the class descriptions")
        with open_text(path, newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                if not cells or (cells == ["LabelName", "DisplayName"] and not described):
                    continue
                code = restore(cells[0])
                if len(cells) != 2 or not all(cells) or code in described:
                    raise DataError(
                        f"{path}, line {reader.line_num}: not a code that is new and a name; give LabelName,DisplayName"
                    )
                described[code] = restore(cells[1])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        words = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: cannot be read: {words}; give the class descriptions as CSV in UTF-8") from None
    if not described:
        raise DataError(f"{path}: describes no class; give lines of LabelName,DisplayName")
    return described


def _ranks(numbers: dict[str, int], order: list[str]) -> npt.NDArray[np.int64]:
    """Number -> place in `order`, or -1."""
    ranks = np.full(len(numbers), -1, np.int64)
    ranks[[numbers[name] for name in order]] = np.arange(len(order))
    return ranks


def _places(path: Path, images: str | Path | None, split: str) -> tuple[Path, Path]:
    """The file of verified labels and the folder of the images."""
    if not path.is_dir():
        return path, check_images(images, path)
    if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
        raise DataError(f"split={split!r} is not possible; give a name such as 'train' or 'validation'")
    found = sorted(path.glob(f"*{split}-annotations-human-imagelabels.csv"))
    if len(found) != 1:
        what = ", ".join(p.name for p in found) or "none"
        raise DataError(
            f"{path}: there should be one *{split}-annotations-human-imagelabels.csv, but there are: {what}; "
            "name the file itself"
        )
    return own_file(path, found[0]), check_images(path / split if images is None else images, found[0])

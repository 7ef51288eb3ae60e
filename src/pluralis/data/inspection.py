"""What a person should know of a data set before training on it: counts, what goes together, duplicates, bad files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, triu

from pluralis.data.check import in_threads
from pluralis.data.dataset import Hints
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Images, Progress
from pluralis.data.shard_images import ShardImages
from pluralis.errors import DataError
from pluralis.label_summary import LabelSummary
from pluralis.labels import Labels

Ints = npt.NDArray[np.int64]
_BLOCK = 1 << 18  # entries of the table of pairs that are made at once


@dataclass(frozen=True)
class Pair:
    """Two classes (their numbers) that are both written as present for `together` rows.

    `lift` is how many times as often as if the two were independent: N · together / (positives a · positives b).
    """

    a: int
    b: int
    together: int
    lift: float


@dataclass(frozen=True)
class FileFacts:
    """What the files are like, without decoding their pixels."""

    sizes: Ints  # [N] bytes
    sides: Ints  # [N] the shorter side in pixels; 0 where the header cannot be read
    unreadable: list[tuple[int, str]]  # row and reason
    copies: list[list[int]]  # rows whose files hold the same bytes
    disagreeing: int  # of these groups, those with different labels


@dataclass(frozen=True)
class HintFacts:
    """How many labels a machine guessed, by what people wrote of the same labels, and how sure it was."""

    present: int
    absent: int
    unknown: int
    images: int
    confidence: tuple[float, float, float]  # the lowest, the median, the highest


@dataclass(frozen=True)
class Inspection:
    """All of it; `files` is None where the images are no files, or were not looked at."""

    summary: LabelSummary
    pairs: list[Pair]
    patterns: int  # rows of labels that differ from one another; rows without labels are one of them
    repeated: int  # rows whose labels another row has as well
    files: FileFacts | None
    hints: HintFacts | None = None


def inspect_data(
    images: Images,
    labels: Labels,
    hints: Hints | None = None,
    *,
    pairs: int = 20,
    look: bool = True,
    progress: Progress | None = None,
) -> Inspection:
    """Count labels and hints, find the `pairs` classes that go together most and, with `look`, read headers of files.

    >>> labels = Labels.from_dense([[1, 1, -1], [1, 1, 0], [0, 0, 1]], classes=["sea", "boat", "cat"])
    >>> found = inspect_data(ImageFiles([]), labels, look=False)
    >>> found.pairs
    [Pair(a=0, b=1, together=2, lift=1.5)]
    >>> found.patterns, found.repeated
    (3, 0)
    """
    kinds = row_kinds(labels)
    _, counts = np.unique(kinds, return_counts=True)
    files = _look(images, kinds, progress) if look and isinstance(images, ImageFiles | ShardImages) else None
    repeated = int(counts[counts > 1].sum())
    return Inspection(labels.summary(), _pairs(labels, pairs), len(counts), repeated, files, _hint_facts(labels, hints))


def together(labels: Labels, classes: Sequence[int] | Ints) -> csr_matrix:
    """[K, K] in how many rows two of the `classes` are both written as present; the diagonal counts each class."""
    shown = _present(labels)[:, classes]
    return shown.T @ shown


def row_kinds(labels: Labels) -> npt.NDArray[np.uint64]:
    """[N] a number that is the same for rows with the same labels: the sum of one random number for each label."""
    rows, columns, values = labels.entries()
    names = np.random.default_rng(0).integers(0, 2**64, (2, len(labels.classes)), np.uint64)
    kinds = np.zeros(len(labels), np.uint64)
    np.add.at(kinds, rows, names[(values > 0).astype(np.int64), columns])  # wraps around, which is as good
    return kinds


def _pairs(labels: Labels, count: int) -> list[Pair]:
    positives = labels.summary().positives
    best = np.zeros((3, 0), np.int64)  # the classes and the rows they share, those with most rows first
    for first, block in _together(labels):
        both = triu(block, k=first + 1).tocoo()
        # A pair of a later block comes behind those with as many rows.
        more = both.data > (best[2, -1] if 0 < count == best.shape[1] else 0)
        found = np.stack([both.row[more] + first, both.col[more], both.data[more]])
        best = np.concatenate([best, found], 1)
        best = best[:, np.lexsort((best[1], best[0], -best[2]))[:count]]
    pairs = best.T.tolist()
    return [Pair(a, b, n, float(len(labels) * n / (int(positives[a]) * int(positives[b])))) for a, b, n in pairs]


def _present(labels: Labels) -> csr_matrix:
    """[N, C] with a 1 for each label that is written as present."""
    present = labels.values > 0
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(present)])[labels.indptr]
    return csr_matrix((np.ones(ends[-1], np.int32), labels.indices[present], ends), labels.shape)


def _together(labels: Labels) -> Iterator[tuple[int, csr_matrix]]:
    """In how many rows each class is present together with each other one, for some classes after the other.

    Their first number, and [some, C]. With many classes the whole [C, C] may be much larger than the labels are.
    """
    shown = _present(labels)
    of_class = shown.T.tocsr()
    work = np.cumsum(of_class @ np.diff(shown.indptr))  # numbers that the product adds up, and so at least its size
    first, width = 0, len(labels.classes)
    while first < width:
        done = work[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(work, done + _BLOCK, side="right")))
        yield first, of_class[first:last] @ shown
        first = last


def _hint_facts(labels: Labels, hints: Hints | None) -> HintFacts | None:
    if hints is None or not len(hints):
        return None
    rows, columns, values = labels.entries()
    width = len(labels.classes)
    known, asked = rows * width + columns, hints.rows * width + hints.columns  # both ascend
    at = np.searchsorted(known, asked)
    found = at < len(known)
    found[found] = known[at[found]] == asked[found]
    said = values[at[found]]
    present, absent = int((said > 0).sum()), int((said < 0).sum())
    low, middle, high = (float(value) for value in np.quantile(hints.confidence, (0, 0.5, 1)))
    unknown = len(hints) - present - absent
    return HintFacts(present, absent, unknown, len(np.unique(hints.rows)), (low, middle, high))


def _look(images: ImageFiles | ShardImages, kinds: npt.NDArray[np.uint64], progress: Progress | None) -> FileFacts:
    sizes, sides = np.zeros(len(images), np.int64), np.zeros(len(images), np.int64)
    unreadable: list[tuple[int, str]] = []

    def header(row: int) -> tuple[int, int, str]:
        try:
            return _size(images, row), min(images.sides(row)), ""
        except DataError as error:
            return _size(images, row), 0, str(error)

    for row, (size, side, reason) in in_threads(header, range(len(images))):
        sizes[row], sides[row] = size, side
        if reason:
            unreadable.append((row, reason))
        if progress is not None and row % 256 == 255:
            progress(row + 1, len(images))
    copies = list(_copies(images, sizes))
    disagreeing = sum(len(set(kinds[rows].tolist())) > 1 for rows in copies)
    return FileFacts(sizes, sides, unreadable, copies, disagreeing)


def _copies(images: ImageFiles | ShardImages, sizes: Ints) -> Iterator[list[int]]:
    """Rows whose files are the same; only files that share their size with another are read."""
    _, kind, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    order = np.argsort(sizes, kind="stable")
    shared = order[(counts[kind[order]] > 1) & (sizes[order] > 0)].tolist()
    size, same = 0, dict[bytes, list[int]]()
    for row, digest in in_threads(lambda row: _digest(images, row), shared):
        if sizes[row] != size:
            yield from (rows for name, rows in same.items() if name and len(rows) > 1)
            size, same = int(sizes[row]), {}
        same.setdefault(digest, []).append(row)
    yield from (rows for name, rows in same.items() if name and len(rows) > 1)


def _size(images: ImageFiles | ShardImages, row: int) -> int:
    """Bytes of one row's file; 0 where there is none."""
    if isinstance(images, ShardImages):
        return int(images.places[row, 2])
    path = images.paths[row]
    return path.stat().st_size if path.exists() else 0


def _digest(images: ImageFiles | ShardImages, row: int) -> bytes:
    try:
        return images.digest(row)
    except DataError:  # it cannot be opened, and is listed as unreadable
        return b""

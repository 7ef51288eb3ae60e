"""What `pluralis data inspect` prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
from rich.table import Table
from rich.text import Text

from pluralis.config import DataPart
from pluralis.data.image_endings import is_picture
from pluralis.data.image_paths import ImagePaths
from pluralis.data.images import ImageFiles
from pluralis.data.inspection import HintFacts, Inspection
from pluralis.data.loader import Images
from pluralis.errors import visible

_TABLES = ("csv", "jsonl", "parquet")  # formats whose folder of pictures holds nothing else


def row_lines(found: Inspection) -> Iterator[str]:
    """The counts of labels and rows."""
    known = found.summary
    yield f"{len(known.row_positives):,} images × {len(known.classes):,} classes, {known.known_ratio:.2%} known"
    yield f"present {known.positives.sum():,}, absent {known.negatives.sum():,}, unknown {known.unknown.sum():,}"
    counts = np.bincount(known.row_positives)
    shown = [f"{number}: {count:,}" for number, count in enumerate(counts[:10]) if count]
    more = f", more: {counts[10:].sum():,}" if len(counts) > 10 else ""
    yield f"present labels an image {known.cardinality:.2f}; images by their number: {', '.join(shown)}{more}"
    yield f"images without any label {len(known.empty_rows):,}"
    yield f"different rows of labels {found.patterns:,}; images whose labels another image has too {found.repeated:,}"
    if found.hints is not None:
        yield hint_line(found.hints)


def unlisted_line(images: Images, part: DataPart) -> str:
    """How many pictures lie in the folder that no label file lists; nothing where there are none.

    Of tables alone: the folders of other formats hold masks and splits that are not read.
    """
    folder = part.images
    if part.format not in _TABLES or not isinstance(images, ImageFiles) or not os.path.isdir(folder):
        return ""
    listed = {os.path.realpath(path) for path in ImagePaths.of(images.paths).texts()}
    names = (os.path.join(at, name) for at, _, files in os.walk(folder) for name in files if is_picture(name))
    count = sum(os.path.realpath(name) not in listed for name in names)
    return f"{count:,} image files in the folder are not listed (`pluralis predict` tags them)" if count else ""


def hint_line(hints: HintFacts) -> str:
    """Guesses that stay beside the labels, by what people wrote."""
    count = hints.present + hints.absent + hints.unknown
    low, middle, high = hints.confidence
    return (
        f"hints of a machine, not labels: {count:,} for {hints.images:,} images, confidence {low:.2f} to {high:.2f},"
        f" median {middle:.2f}; people wrote present {hints.present:,}, absent {hints.absent:,},"
        f" nothing {hints.unknown:,}"
    )


def classes_table(found: Inspection, lines: int) -> Table:
    """The most frequent classes and, where there are too many, the rarest."""
    known = found.summary
    order = np.argsort(-known.positives, kind="stable").tolist()
    head, tail = (order, []) if len(order) <= lines else (order[: -(-lines // 2)], order[len(order) - lines // 2 :])
    least = f" and {len(tail):,} least" if tail else ""
    title = f"{len(order):,} classes"
    table = Table(title=title if len(head) == len(order) else f"{len(head):,} most{least} frequent of {title}")
    for name in ("class", "present", "absent", "unknown", "of images"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for group in (head, tail):
        for c in group:
            counts = (f"{array[c]:,}" for array in (known.positives, known.negatives, known.unknown))
            share = known.positives[c] / max(1, len(known.row_positives))
            last = bool(tail) and c == head[-1]
            table.add_row(Text(visible(known.classes[c])), *counts, f"{share:.1%}", end_section=last)
    return table


def pairs_table(found: Inspection) -> Table:
    """Classes that are both written as present for an image."""
    names = found.summary.classes
    table = Table(title="classes that go together")
    for name in ("class", "and", "images", "times chance"):
        table.add_column(name, justify="right" if name in ("images", "times chance") else "left")
    for pair in found.pairs:
        both = (Text(visible(names[c])) for c in (pair.a, pair.b))
        table.add_row(*both, f"{pair.together:,}", f"{pair.lift:.2f}")
    return table


def files_lines(found: Inspection, name: Callable[[int], str], lines: int) -> Iterator[str]:
    """What the files are like; nothing where they were not looked at."""
    files = found.files
    if files is None:
        return
    good = files.sides[files.sides > 0]
    if len(good):
        low, middle, high = (int(value) for value in np.quantile(good, (0, 0.5, 1)))
        yield f"files {files.sizes.sum() / 1e6:,.1f} MB; shorter side {low} to {high} pixels, median {middle}"
    copies = sum(map(len, files.copies))
    groups = f"{len(files.copies):,} groups, {files.disagreeing:,} of them with different labels"
    yield f"files with the same bytes {copies:,} in {groups}"
    yield from (f"  {', '.join(name(row) for row in rows[:4])}" for rows in files.copies[:lines])
    yield f"headers that cannot be read {len(files.unreadable):,} (`pluralis data check` opens every image)"
    yield from (f"  {reason}" for _, reason in files.unreadable[:lines])

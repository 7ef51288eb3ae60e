"""From the data part of a recipe to pictures and labels: what is read, what is shown, what is held out."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pluralis.config import DataPart, SelectPart
from pluralis.data import protocols
from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats import FORMATS, coco, read, read_listed, read_options, voc
from pluralis.data.formats.options import fit_options
from pluralis.data.image_paths import ImagePaths
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Images, TensorImages
from pluralis.data.near_names import near_note
from pluralis.data.shard_images import pictures
from pluralis.errors import DataError
from pluralis.labels import Labels

Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """Pictures, their labels, and what a machine said of them, row by row."""

    images: Images
    labels: Labels
    hints: Hints | None = None

    def select(self, rows: np.ndarray) -> Source:
        hints = None if self.hints is None else self.hints.select(rows, len(self.labels))
        return Source(self.images.select(rows), self.labels.select(rows), hints)


@dataclass(frozen=True)
class Split:
    """What training sees, what the selection rule sees, and the test set if there is one."""

    train: Source
    held: Source | None
    test: Source | None
    every_image: Images  # of which training and held-out rows are a part
    order: np.ndarray  # where in these the training rows are and, after them, the held-out ones
    truth: Labels | None = None  # of the training rows, where the recipe's protocol hid labels: for reports alone
    held_labels: tuple[Labels, Labels] | None = None  # of the held-out rows: those that are shown, and all
    dropped: int = 0  # rows without a label, which data.unlabelled = "drop" left out

    def with_held_images(self) -> Source:
        """The training rows and, after them, the held-out images without any label of theirs."""
        if self.held is None:
            return self.train
        return Source(self.every_image.select(self.order), self.train.labels.with_blank_rows(self.held.labels.ids))

    def counts(self) -> str:
        """How many images there are of what, in words."""
        held, test = (0 if source is None else len(source.labels) for source in (self.held, self.test))
        more = f", {held:,} held out" * bool(held) + f", {test:,} to test" * bool(test)
        left = f"; {self.dropped:,} without a label left out" * bool(self.dropped)
        return f"{len(self.train.labels):,} images to train on{more}, {len(self.train.labels.classes):,} classes{left}"

    def fingerprint(self) -> str:
        """Changes with classes, names, labels and sizes of the images that are used; not with where they lie."""
        digest = hashlib.sha256(repr(self.train.labels.classes).encode())
        for source in (self.train, self.held):
            if source is not None:
                digest.update("\0".join(source.labels.ids).encode() + b"\0\0" + source.images.signature())
                for array in source.labels.entries():
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def load_source(part: DataPart, say: Say = warnings.warn, missing: bool = False) -> Source:
    """Everything that the recipe's format finds, labels as given; `say` is told what is left out.

    With `missing` images may be there whose files are not.
    """
    if part.format == "scenes":
        from pluralis.data.scenes import make_scenes

        options = {"split": "train", "count": 2000, **part.options}
        scenes = make_scenes(**fit_options("scenes", make_scenes, 0, options))
        return Source(TensorImages(scenes.images), Labels.from_dense(scenes.truth, scenes.classes))
    found = load_dataset(part, say, missing)
    return Source(pictures(part.images, found.images), found.labels, found.hints)


def load_dataset(part: DataPart, say: Say = warnings.warn, missing: bool = False) -> Dataset:
    """What the reader of the recipe's format gives; the labels may lie elsewhere than the images."""
    path, options = _place(part)
    found = (read_listed if missing else read)(part.format, path, **options)
    if len(found.labels) == 0:
        raise DataError(f"{'; '.join(found.notes) or f'{path} lists no image'}: there is nothing to train on")
    for note in found.notes:
        say(note)
    if not isinstance(options.get("classes"), list):  # whoever states the names means them
        near = near_note(found.labels)
        if near:
            say(f"{path}: {near}")
    return found


def place_of(part: DataPart) -> str:
    """A text that is the same for the same data in the same place."""
    places = [os.path.abspath(place) if place else "" for place in (part.images, part.labels)]
    return json.dumps([part.format, *places, part.options], sort_keys=True, default=str)


def other_data(part: DataPart, values: Mapping[str, Any]) -> DataPart:
    """The part with `values` of other images, whose label file is not that of these where they have another format."""
    own = {"labels": ""} if values.get("format", part.format) != part.format else {}
    return replace(part, **{**own, **values})


def without_hints(part: DataPart) -> DataPart:
    """For other images than those of the recipe, whose file of hints does not know them."""
    return replace(part, options={key: value for key, value in part.options.items() if key != "hints"})


def _place(part: DataPart) -> tuple[Path, dict[str, Any]]:
    """What the reader is asked to read, and its options."""
    if not part.images:
        raise DataError("no data: name the folder of the images (--images DIR, or data.images in the recipe)")
    options: dict[str, Any] = dict(part.options)
    path = Path(part.images)
    reader = inspect.signature(FORMATS[part.format].read).parameters if part.format in FORMATS else {}
    if "images" in reader and reader["images"].default is inspect.Parameter.empty and not part.labels:
        raise DataError(
            "no labels: name the label file (--labels FILE, or data.labels in the recipe), or, where each class has a"
            " folder of its images, say --format imagefolder"
        )
    if part.labels and reader and "images" not in reader:
        raise DataError(
            f"format {part.format!r} has no label file, so {part.labels} would not be read: leave out --labels"
            " (data.labels), or name its format (--format)"
        )
    if part.labels:
        path, options = Path(part.labels), {"images": Path(part.images), **options}
    reserved = {"path", "format"} & options.keys()
    if reserved:
        raise DataError(f"data.options has no {min(reserved)!r}: name the data with data.images and data.labels")
    return path, read_options(part.format, options)


def load_split(part: DataPart, select: SelectPart, say: Say = warnings.warn) -> Split:
    """The training rows under the recipe's protocol, the held-out rows, and the test set."""
    source = load_source(part, say)
    shown = apply_protocol(source.labels, part)
    train_rows, held_rows = protocols.split(len(shown), select.fraction, select.seed)
    if select.fraction and len(held_rows) == 0:
        raise DataError(
            f"{len(shown)} images are too few to hold out {select.fraction:.0%} of them:"
            ' add images, or set select.rule = "last" and select.fraction = 0'
        )
    seen = Source(source.images, shown, source.hints)
    if part.unlabelled == "error":
        _refuse_unlabelled(seen)
    train, held, both = seen.select(train_rows), None, None
    truth = source.labels.select(train_rows) if shown is not source.labels else None
    if len(held_rows):
        held = (source if select.rule == "clean" else seen).select(held_rows)
        both = shown.select(held_rows), source.labels.select(held_rows)
    if part.unlabelled == "drop":
        some = _labelled_rows(train)
        truth = truth and truth.select(some)
        train, train_rows = train.select(some), train_rows[some]
        if held is not None and both is not None:
            some = _labelled_rows(held)
            held, held_rows = held.select(some), held_rows[some]
            both = both[0].select(some), both[1].select(some)
    test = load_source(other_data(without_hints(part), {"test": {}, **part.test}), say) if part.test else None
    if test is not None:
        check_classes(test.labels, shown.classes, "the test set")
        _refuse_overlap(source, test)
    left = len(train.labels) + (0 if held is None else len(held.labels))
    order = np.concatenate([train_rows, held_rows])
    return Split(train, held, test, source.images, order, truth, both, len(shown) - left)


def apply_protocol(labels: Labels, part: DataPart) -> Labels:
    if part.protocol == "as-given":
        return labels
    summary = labels.summary()
    if summary.known_ratio < 1:
        raise DataError(
            f'data.protocol = "{part.protocol}" needs every label to be known, but {1 - summary.known_ratio:.1%} are'
            f" unknown: {_how_to_complete(part)} (to train on labels as they are, leave data.protocol as-given)"
        )
    if part.protocol == "single-positive":
        return protocols.single_positive(labels, part.draw_seed)
    if part.protocol == "one-positive-all-negatives":
        return protocols.one_positive_all_negatives(labels, part.draw_seed)
    if part.protocol == "known-ratio":
        return protocols.known_ratio(labels, part.protocol_share, part.draw_seed)
    if part.protocol == "drop-positives":
        return protocols.drop_positives(labels, 1 - part.protocol_share, part.draw_seed)
    if part.protocol == "fixed-per-class":
        return protocols.fixed_per_class(labels, part.protocol_count, part.draw_seed)
    if part.protocol == "flip-positives":
        return protocols.flip_positives(labels, 1 - part.protocol_share, part.draw_seed)
    if part.protocol == "pick-rarest":
        return protocols.pick_rarest(labels)
    if part.protocol == "pick-largest":
        return protocols.pick_largest(labels, load_areas(part, labels))
    if part.protocol == "pick-area":
        return protocols.pick(labels, load_areas(part, labels), part.draw_seed)
    return labels


def _how_to_complete(part: DataPart) -> str:
    """What leaves no label unknown in the part's format."""
    if part.format == "cub":
        return "take what was written of parts that are not visible with --set data.options.not_visible=as-given"
    reader = inspect.signature(FORMATS[part.format].read).parameters if part.format in FORMATS else {}
    ways = ["--set data.options.difficult=absent"] if "difficult" in reader else []
    if "unlisted" in reader and (part.format != "voc" or part.options.get("source") == "xml"):
        ways.append("--unlisted absent")
    return f"if they are absent, say so with {' and '.join(ways)}" if ways else "give complete labels"


def load_areas(part: DataPart, labels: Labels) -> np.ndarray:
    """[N, C] pixels that the boxes of each class cover in each image, where the format has boxes."""
    if part.format == "voc":
        return voc.areas(part.images, labels)
    if part.format == "coco":
        path, options = _place(part)
        return coco.areas(path, labels, **{key: options[key] for key in ("images", "split", "ids") if key in options})
    raise DataError(
        f'data.protocol = "{part.protocol}" goes by the areas of boxes, which are read from voc and coco alone,'
        f' not from {part.format}: use data.protocol = "single-positive" or "pick-rarest"'
    )


def check_classes(
    labels: Labels, classes: tuple[str, ...], what: str, then: str = "use data with the run's classes"
) -> None:
    """Refuse data whose classes are not those of the run, naming the difference and what to do `then`."""
    if labels.classes == classes:
        return
    extra = [c for c in labels.classes if c not in classes]
    missing = [c for c in classes if c not in labels.classes]
    both = (("extra", extra), ("missing", missing))
    differences = [f"{word} {', '.join(names[:3])}" for word, names in both if names]
    raise DataError(
        f"{what} has {len(labels.classes)} classes, the run has {len(classes)}"
        f" ({'; '.join(differences) or 'the same ones in another order'}): {then}"
    )


def _labelled_rows(source: Source) -> np.ndarray:
    """The rows that have a label at all."""
    return np.setdiff1d(np.arange(len(source.labels)), source.labels.summary().empty_rows)


def _refuse_overlap(source: Source, test: Source) -> None:
    """Figures on pictures that were trained on would say nothing."""
    if not isinstance(source.images, ImageFiles) or not isinstance(test.images, ImageFiles):
        return
    both = set(ImagePaths.of(source.images.paths).texts()).intersection(ImagePaths.of(test.images.paths).texts())
    if both:
        raise DataError(
            f"{len(both)} of the {len(test.labels)} test images are among the training images, such as {min(both)}:"
            " name other files or another split in data.test"
        )


def _refuse_unlabelled(source: Source) -> None:
    empty = source.labels.summary().empty_rows
    if len(empty):
        names = ", ".join(source.images.name(int(row)) for row in empty[:3])
        raise DataError(
            f"{len(empty)} images have no label at all, such as {names}: label them, or say what they mean with"
            " --set data.unlabelled=drop (leave them out) or =keep (all their labels are unknown)"
        )

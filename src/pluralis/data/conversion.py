"""What `pluralis data` writes: a label file in one format, and files beside it for what that cannot hold."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pluralis.config import parse_option, toml_text
from pluralis.data.dataset import Dataset
from pluralis.data.formats import FORMATS, write, write_hints, write_options
from pluralis.data.formats.coco import numbered
from pluralis.data.formats.listing import file_names
from pluralis.data.shards import is_shards
from pluralis.data.whole_file import alone, make_folder, set_aside
from pluralis.errors import LabelError, RecipeError

Say = Callable[[str], None]
_OF_SHARDS = ("csv", "jsonl", "parquet")  # the formats whose files may name members of tar shards
_LONGEST = 500  # characters of a list of classes that somebody would copy


@dataclass(frozen=True)
class Target:
    """The file or folder `out` in the format `to`; names of images start from the folder `images`."""

    to: str
    out: Path
    images: str
    options: dict[str, Any]
    force: bool = False

    @classmethod
    def parse(cls, to: str, out: Path, images: str, options: Sequence[str], force: bool = False) -> Target:
        """From `key=value` texts; added is what keeps the classes, and lets the same `images` find the files again."""
        given: dict[str, Any] = {}
        for text in options:
            key, equals, value = text.partition("=")
            if not equals:
                raise RecipeError(f"--option {text!r}: write it as key=value")
            given[key.strip()] = parse_option(value.strip())
        given = write_options(to, given)
        writer = FORMATS[to].write if to in FORMATS else None
        accepted = inspect.signature(writer).parameters if writer is not None else {}
        if "unlisted" in accepted and "unlisted" not in given:
            raise RecipeError(
                f"--to {to} lists the present labels alone: say what all others are with --option unlisted=unknown"
                " or --option unlisted=absent"
            )
        if writer is not None and to not in _OF_SHARDS and is_shards(given.get("images", images)):
            raise RecipeError(
                f"--to {to} wants a folder of image files, not tar shards: write --to csv, jsonl or parquet"
            )
        added = {"images": images} if "images" in accepted else {}
        added |= {"openimages": {"names": f"{out}.names.csv"}, "npy": {"classes": "classes.txt"}}.get(to, {})
        return cls(to, out, images, {**added, **given}, force)

    def refuse_existing(self) -> None:
        """Raise where something that is there would be written over, unless that was asked for."""
        names = [Path(str(self.options["names"]))] if self.to == "openimages" else []
        for place in () if self.force else (self.out, self._hints, *names):
            refuse_existing(place)

    def write(self, data: Dataset, say: Say) -> None:
        """Write all of it, and say what lies where and how to read it again."""
        self._refuse_spaces(data.labels.classes)
        make_folder(self.out.parent)
        hints = data.hints if self.to != "openimages" else None  # which holds them with the labels
        with alone(self._hints):  # not `out`, for which a writer may do so
            self.refuse_existing()  # another process may have been faster
            with set_aside(self._hints):  # hints of the labels that are written over
                write(self.to, self.out, data, **self.options)
            if hints:
                write_hints(self._hints, data, self.options.get("images", self.images))
        known = data.labels.summary()
        present, absent = int(known.positives.sum()), int(known.negatives.sum())
        say(f"{len(data):,} images, {present:,} present and {absent:,} absent labels: {self.out}")
        if hints:
            say(f"{len(hints):,} hints beside them: {self._hints}")
        needed = self._to_read_again(data, say)
        say(f"to read it again: {self._words({**needed, 'hints': str(self._hints)} if hints else needed)}")

    def _refuse_spaces(self, classes: Sequence[str]) -> None:
        """Readers of tables take such a name for a mistake where the classes are not stated."""
        wrong = [name for name in classes if name != name.strip()]
        if wrong and (self.to == "csv" or (self.to == "parquet" and self.options.get("layout") == "wide")):
            raise LabelError(
                f"the class {wrong[0][:80]!r} begins or ends with white space, which is refused when {self.to} is read:"
                " rename it, or write --to jsonl"
            )

    @property
    def _hints(self) -> Path:
        """The file of the hints beside the labels."""
        return Path(f"{self.out}.hints.csv")

    def _words(self, options: Mapping[str, Any]) -> str:
        """What a command has to be told to find the same images, classes and labels."""
        format = [] if self.to == "csv" else ["--format", self.to]
        words = [*format, "--images", str(self.options.get("images", self.images)), "--labels", str(self.out)]
        for key, value in options.items():
            words += ["--unlisted", value] if key == "unlisted" else ["--set", f"data.options.{key}={_text(value)}"]
        return shlex.join(words)

    def _to_read_again(self, data: Dataset, say: Say) -> dict[str, Any]:
        """The options of the reader that are not as it takes them by itself; what they cannot bring back is said."""
        reader = inspect.signature(FORMATS[self.to].read).parameters
        shared = {key: value for key, value in self.options.items() if key in reader and key != "images"}
        needed = {key: value for key, value in shared.items() if value != reader[key].default}
        if self.to == "openimages" and not all(path.suffix == ".jpg" for path in data.images):
            needed["suffix"] = ""  # the images are named with their endings
        if self.to == "coco" and (data.labels.summary().row_positives == 0).any():
            needed["empty"] = "keep"
        if self.to in ("coco", "lvis") and not _numbers(data):
            needed["ids"] = "file"
        if self.to != "npy" and any(a > b for a, b in pairwise(self._ids(data))):  # npy keeps any order
            if self.to == "coco":
                needed["order"] = "file"
            else:
                say(
                    f"note: the rows of {self.out} are read in the order of the file names, and were in another one: a"
                    " later draw, such as `split` or that of training, falls on other images; --to npy keeps the order"
                )
        if self.to == "labelstudio" or (self.to == "csv" and self.options.get("layout") != "wide"):
            needed |= self._classes(data, say)
        return needed

    def _ids(self, data: Dataset) -> Sequence[str]:
        """The ids by which the reader sorts the rows."""
        if self.to in ("coco", "lvis") and _numbers(data):
            return data.labels.ids
        names = file_names(data, self.options.get("images", self.images))
        bare = self.to == "openimages" and all(name.endswith(".jpg") for name in names)
        return [name.removesuffix(".jpg") for name in names] if bare else names

    def _classes(self, data: Dataset, say: Say) -> dict[str, Any]:
        """The classes, for a format that names only those with a label and keeps no order."""
        classes, known = data.labels.classes, data.labels.summary()
        counts = known.positives if self.to == "labelstudio" else known.positives + known.negatives
        lacking = [name for name, count in zip(classes, counts, strict=True) if not count]
        if not lacking and list(classes) == sorted(classes):
            return {}
        short = len(_text(classes)) <= _LONGEST
        if lacking or not short:
            some = ", ".join(lacking[:3]) + (", …" if len(lacking) > 3 else "")
            what = f"does not name {len(lacking)} classes that have no label in it ({some})"
            wide = "it with --option layout=wide or " if self.to == "csv" else ""
            say(
                f"note: {self.out} {what if lacking else 'does not keep the order of the classes'}: write {wide}--to"
                " jsonl, or give all to --set data.options.classes"
            )
        return {"classes": classes} if short else {}


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise RecipeError(f"{path} is there already: name another file or folder, or write over it with --force")


def _numbers(data: Dataset) -> bool:
    """Whether the ids of the rows are such as COCO has."""
    return tuple(map(str, numbered(data.labels))) == data.labels.ids


def _text(value: Any) -> str:
    """A value as `parse_option` takes it, also where it is stripped before."""
    return value if isinstance(value, str) and parse_option(value.strip()) == value else toml_text(value)

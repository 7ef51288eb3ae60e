"""What `pluralis data` writes: a label file in one format, and files beside it for what that cannot hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pluralis.config import parse_value
from pluralis.data.dataset import Dataset
from pluralis.data.formats import FORMATS, write, write_hints
from pluralis.errors import LabelError, RecipeError
from pluralis.labels import Labels

Say = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """The file or folder `out` in the format `to`; names of images start from the folder `images`."""

    to: str
    out: Path
    images: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, to: str, out: Path, images: str, options: Sequence[str]) -> Target:
        """From `key=value` texts; added is what keeps the classes, and lets the same `images` find the files again."""
        given: dict[str, Any] = {}
        for text in options:
            key, equals, value = text.partition("=")
            if not equals:
                raise RecipeError(f"--option {text!r}: write it as key=value")
            given[key.strip()] = parse_value(value.strip())
        writer = FORMATS[to].write if to in FORMATS else None
        accepted = inspect.signature(writer).parameters if writer is not None else {}
        if "unlisted" in accepted and "unlisted" not in given:
            raise RecipeError(
                f"--to {to} lists the present labels alone: say what all others are with --option unlisted=unknown"
                " or --option unlisted=absent"
            )
        added = {"images": images} if "images" in accepted else {}
        added |= {"openimages": {"names": f"{out}.names.csv"}, "npy": {"classes": "classes.txt"}}.get(to, {})
        return cls(to, out, images, {**added, **given})

    def refuse_existing(self) -> None:
        """Raise where something that is there would be written over."""
        names = [Path(str(self.options["names"]))] if self.to == "openimages" else []
        for place in (self.out, self._hints, *names):
            refuse_existing(place)

    def write(self, data: Dataset, say: Say) -> None:
        """Write all of it, and say what lies where and how to read it again."""
        self._refuse_spaces(data.labels.classes)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write(self.to, self.out, data, **self.options)
        known = data.labels.summary()
        present, absent = int(known.positives.sum()), int(known.negatives.sum())
        say(f"{len(data):,} images, {present:,} present and {absent:,} absent labels: {self.out}")
        if data.hints is not None and len(data.hints) and self.to != "openimages":  # which holds them with the labels
            write_hints(self._hints, data, self.options.get("images", self.images))
            again = f"(to read it again: --set data.options.hints={self._hints})"
            say(f"{len(data.hints):,} hints beside them: {self._hints} {again}")
        else:
            self._hints.unlink(missing_ok=True)  # of the labels that were written over
        for line in self._to_read_again(data):
            say(line)

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

    def _to_read_again(self, data: Dataset) -> list[str]:
        """What the reader has to be told."""
        lines = []
        key = {"openimages": "names", "npy": "classes"}.get(self.to)
        if key is not None and self.options[key]:
            file = self.options[key]
            place = self.out / file if self.to == "npy" else file
            lines.append(f"the names of the classes: {place} (to read it again: --set data.options.{key}={file})")
        if self.to == "openimages" and not all(path.suffix == ".jpg" for path in data.images):
            lines.append("the images are named with their endings (to read it again: --set data.options.suffix=)")
        bare = int((data.labels.summary().row_positives == 0).sum())
        if self.to == "coco" and bare:
            lines.append(f"{bare:,} images have no present label (to read them again: --set data.options.empty=keep)")
        lacking = _lacking(data.labels)
        if lacking and (self.to == "labelstudio" or (self.to == "csv" and self.options.get("layout") != "wide")):
            shown = ", ".join(lacking[:3]) + (", …" if len(lacking) > 3 else "")
            lines.append(
                f"note: {self.out} does not name {len(lacking)} classes that have no label in it ({shown}):"
                " write it with --option layout=wide or --to jsonl, or give all to --set data.options.classes"
            )
        return lines


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise RecipeError(f"{path} is there already: name another file or folder, or write over it with --force")


def _lacking(labels: Labels) -> list[str]:
    """Classes without any known label."""
    known = labels.summary()
    return [name for name, count in zip(labels.classes, known.positives + known.negatives, strict=True) if not count]

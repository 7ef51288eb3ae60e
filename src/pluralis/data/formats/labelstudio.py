"""Label Studio: choices made for images, in its JSON and JSON-MIN exports, and tasks to import there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import numpy as np

from pluralis.data.dataset import Dataset, Hints, require_files
from pluralis.data.formats.listing import check_images, check_unlisted, file_names, from_lists, to_lists
from pluralis.data.safe_io import resolve_inside
from pluralis.data.safe_json import Document, short, write_lists
from pluralis.errors import DataError, nearest
from pluralis.labels import Labels

_LOCAL = "/data/local-files/?d="
_UPLOAD = re.compile(r"^[0-9a-f]{8}-")
_STEPS = 16  # folders of an address that are looked at, from its end


def read(
    path: str | Path,
    images: str | Path | None = None,
    unlisted: str | None = None,
    classes: Sequence[str] | None = None,
    control: str | None = None,
    key: str = "image",
    several: str = "agree",
    unscored: float | None = None,
) -> Dataset:
    """Read the choices made for each task's image; results of other kinds, such as boxes, are passed over.

    `unlisted` must be stated: "absent" where an annotator who submits has thought of every choice, else "unknown".
    A task without a submitted annotation stays unknown either way. Cancelled annotations do not count, and where
    some are marked as ground truth the others do not. Of several annotations of a task, `several` = "last" takes
    the one updated last. With "agree" and unlisted="absent" a class is present where all chose it, absent where
    none did, and unknown where they differ; with unlisted="unknown" one choice is enough, since the others say
    nothing. Choices of predictions become hints with their score; those without any get the score `unscored`, or are
    left out, which a note counts.

    `control` is the name of the choices in the labelling interface; it may be left out of a JSON export with one.
    `key` is that of the image in a task's data. The image is the longest end of its address (of what follows `?d=`
    for local files) that is a file in the folder `images`, at last its name without the eight characters that an
    upload puts before it; this is also the row's id. `classes` fixes the classes; else those chosen, sorted.
    """
    unlisted = check_unlisted(unlisted)
    if several not in ("agree", "last"):
        raise DataError(f"several={several!r} is not possible; choose 'agree' or 'last'")
    if unscored is not None and (isinstance(unscored, str) or not 0 <= unscored <= 1):
        raise DataError(f"unscored={unscored!r} is not possible; give a number from 0 to 1")
    folder = check_images(images, path)
    export = _Export(Document(path), folder, control, key, unscored)
    tasks = sorted(export.tasks(), key=lambda task: task.name)
    names = _class_list(export.document, tasks, classes)
    number = {name: place for place, name in enumerate(names)}
    present: list[set[int] | None] = []
    unsure: list[tuple[int, int]] = []
    hints: list[tuple[int, int, float]] = []
    for row, task in enumerate(tasks):
        given = [{number[name] for name in chosen} for _, chosen in sorted(task.given, key=lambda g: g[0])]
        given = given[-1:] if several == "last" else given
        anybody = set[int]().union(*given)
        present.append(anybody if given else None)
        if unlisted == "absent":
            unsure += [(row, column) for column in anybody if any(column not in one for one in given)]
        hints += [(row, number[name], score) for name, score in task.hints]
    labels = _without(from_lists(present, unlisted, names, [task.name for task in tasks]), unsure)
    found = [task.path for task in tasks]
    require_files(found, path)
    words = f"{path}: {export.without:,} choices of predictions have no score and are left out"
    notes = (f"{words}; data.options.unscored=1 makes them hints of that confidence",) if export.without else ()
    return Dataset(found, labels, Hints.gather(*zip(*hints, strict=True)) if hints else None, notes)


def write(
    path: str | Path,
    data: Dataset | Labels,
    unlisted: str | None = None,
    images: str | Path | None = None,
    control: str = "choice",
    to: str = "image",
    key: str = "image",
    prefix: str = _LOCAL,
    threshold: float = 0.5,
) -> None:
    """Write tasks to import: known labels as annotations, hints of at least `threshold` as a prediction.

    The labelling interface needs `<Image name="{to}" value="${key}"/>` and `<Choices name="{control}" …>`. The
    score of a prediction is the smallest confidence among its choices; all confidences are in the task's data under
    `scores`. Addresses are `prefix` and the name of the file below the folder `images`. `unlisted` must be stated,
    as for reading: the format cannot say absent beside unknown, except that a whole image may be unknown.
    """
    labels = data.labels if isinstance(data, Dataset) else data
    hints = data.hints if isinstance(data, Dataset) else None
    listed, names = to_lists(labels, unlisted, blank=True), file_names(data, images)

    def results(columns: list[int]) -> list[dict[str, Any]]:
        chosen = {"choices": [labels.classes[c] for c in columns]}
        return [{"from_name": control, "to_name": to, "type": "choices", "value": chosen}] if columns else []

    def tasks() -> Iterator[dict[str, Any]]:
        for row, (present, name) in enumerate(zip(listed, names, strict=True)):
            task: dict[str, Any] = {"data": {key: prefix + quote(name)}, "annotations": [], "predictions": []}
            if present is not None:
                task["annotations"].append({"result": results(present), "was_cancelled": False})
            if hints is not None:
                mine = slice(*np.searchsorted(hints.rows, [row, row + 1]))
                pairs = zip(hints.columns[mine], hints.confidence[mine], strict=True)
                said = {int(c): float(str(sure)) for c, sure in pairs}  # the shortest that comes back in 32 bits
                shown = [c for c, score in said.items() if score >= threshold]
                task["data"]["scores"] = {labels.classes[c]: score for c, score in said.items()}
                if shown:
                    score = min(said[c] for c in shown)
                    task["predictions"] = [{"model_version": "pluralis", "score": score, "result": results(shown)}]
            yield task

    write_lists(path, tasks())


@dataclass
class _Task:
    """One image: what each annotation chose, with the time of its last change, and what predictions chose."""

    name: str
    path: Path
    address: str
    given: list[tuple[tuple[str, int], set[str]]] = field(default_factory=list)
    hints: list[tuple[str, float]] = field(default_factory=list)


class _Export:
    """Walks through the tasks of one file."""

    def __init__(self, document: Document, folder: Path, control: str | None, key: str, unscored: float | None) -> None:
        self.document, self.folder, self.key, self.unscored = document, folder, key, unscored
        self.control, self.stated = control, control is not None
        self.without = 0  # choices of predictions that are left out

    def tasks(self) -> list[_Task]:
        found: dict[Path, _Task] = {}
        for where, entry in self.document.objects(self.document.content, "tasks"):
            full = "data" in entry or "annotations" in entry
            if full:
                data, place = self.document.mapping(entry.get("data"), f"{where}.data"), f"{where}.data.{self.key}"
            else:
                data, place = entry, f"{where}.{self.key}"
            address = self.document.text(data.get(self.key), place)
            name, path = self._image(address, place)
            task = found.get(path)
            if task is not None and (full or task.address != address):  # JSON-MIN has a line for each annotator
                both = f"the image {short(name)} has a task already, under {short(task.address)}"
                raise self.document.error(f"{place}: {both}; keep one of them")
            task = found.setdefault(path, _Task(name, path, address))
            if full:
                self._annotations(task, entry, where)
                self._predictions(task, entry, where)
            else:
                task.given.append((self._when(entry, where, len(task.given)), self._flat(entry, where)))
        return list(found.values())

    def _annotations(self, task: _Task, entry: dict[str, Any], where: str) -> None:
        made = list(self.document.objects(entry.get("annotations"), f"{where}.annotations"))
        made = [(place, a) for place, a in made if a.get("was_cancelled") is not True]
        made = [(place, a) for place, a in made if a.get("ground_truth") is True] or made
        for place, annotation in made:
            chosen = {name for name, _ in self._choices(annotation, place)}
            task.given.append((self._when(annotation, place, len(task.given)), chosen))

    def _predictions(self, task: _Task, entry: dict[str, Any], where: str) -> None:
        if not entry.get("predictions"):
            return
        for place, prediction in self.document.objects(entry["predictions"], f"{where}.predictions"):
            for name, score in self._choices(prediction, place):
                score = prediction.get("score") if score is None else score
                score = self.unscored if score is None else score
                if score is None:
                    self.without += 1
                else:
                    task.hints.append((name, self.document.share(score, f"{place}.score")))

    def _choices(self, annotation: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        """Every choice of an annotation or prediction, with the score of its result if there is one."""
        for place, result in self.document.objects(annotation.get("result"), f"{where}.result"):
            if result.get("type") != "choices":
                continue
            control = self.document.text(result.get("from_name"), f"{place}.from_name")
            if self.control is None:
                self.control = control
            elif control != self.control:
                if self.stated:
                    continue
                both = f"{short(self.control)} and {short(control)}"
                raise self.document.error(f"{place}: there are choices named {both}; say which of them (control=NAME)")
            value = self.document.mapping(result.get("value"), f"{place}.value")
            for name in self._texts(value.get("choices"), f"{place}.value.choices"):
                yield name, result.get("score")

    def _flat(self, entry: dict[str, Any], where: str) -> set[str]:
        """The choices of one line of JSON-MIN: a text, an object with choices, or nothing."""
        if self.control is None:
            raise self.document.error(f"{where} is JSON-MIN, which does not mark its choices; say control=NAME")
        value = entry.get(self.control)
        if value is None:
            return set()
        if isinstance(value, str):
            return {self.document.text(value, f"{where}.{self.control}")}
        listed = self.document.mapping(value, f"{where}.{self.control}").get("choices")
        return set(self._texts(listed, f"{where}.{self.control}.choices"))

    def _texts(self, value: Any, where: str) -> list[str]:
        listed = self.document.listed(value, where)
        return [self.document.text(name, f"{where}[{place}]") for place, name in enumerate(listed)]

    def _when(self, entry: dict[str, Any], where: str, place: int) -> tuple[str, int]:
        """The time of the last change as written, which sorts as text, and the place in the file."""
        time = entry.get("updated_at") or entry.get("created_at") or ""
        if not isinstance(time, str):
            raise self.document.error(f"{where}.updated_at is not a text; give a time such as 2024-05-01T10:00:00Z")
        return time, place

    def _image(self, address: str, where: str) -> tuple[str, Path]:
        """The name of an image below the folder, and its path."""
        try:
            parts = urlsplit(address)
            local = parse_qs(parts.query).get("d") if parts.path.endswith("/local-files/") else None
        except ValueError as error:
            raise self.document.error(f"{where}: {error}; give the address of an image") from None
        steps = (local[0] if local else unquote(parts.path)).lstrip("/").split("/")
        names = ["/".join(steps[start:]) for start in range(max(0, len(steps) - _STEPS), len(steps))]
        names.append(_UPLOAD.sub("", steps[-1]))
        try:
            found = [(name, resolve_inside(self.folder, name)) for name in names]
        except DataError as error:
            raise self.document.error(f"{where}: {error}") from None
        return next((pair for pair in found if pair[1].is_file()), found[0])


def _class_list(document: Document, tasks: list[_Task], classes: Sequence[str] | None) -> list[str]:
    """The classes as stated, or all that were chosen, sorted."""
    chosen = {name for task in tasks for _, names in task.given for name in names}
    chosen |= {name for task in tasks for name, _ in task.hints}
    if classes is None:
        return sorted(chosen)
    listed = list(classes)
    if isinstance(classes, str) or not all(isinstance(c, str) and c for c in listed) or len(set(listed)) < len(listed):
        raise DataError(f"classes={classes!r} is not possible; give a list of different names")
    other = chosen.difference(listed)
    if other:
        first, names = min(other), [name[:80] for name in listed]
        raise document.error(f"the choice {short(first)} is not among the classes; {nearest(first[:80], names)}")
    return listed


def _without(labels: Labels, unsure: list[tuple[int, int]]) -> Labels:
    """The labels less those (row, class) that annotators did not agree on."""
    if not unsure:
        return labels
    rows, columns, values = labels.entries()
    out = np.array(unsure, np.int64) @ [len(labels.classes), 1]
    keep = ~np.isin(rows * len(labels.classes) + columns, out)
    counts = np.bincount(rows[keep], minlength=len(labels))
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return Labels(indptr, columns[keep], values[keep], labels.classes, labels.ids)

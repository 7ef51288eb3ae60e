"""The tasks in an export of Label Studio: their images, what annotators and models chose, and what is no choice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pluralis.data.safe_io import resolve_inside
from pluralis.data.safe_json import Document, short
from pluralis.errors import DataError, nearest

_UPLOAD = re.compile(r"^[0-9a-f]{8}-")
_NO_RESULTS = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")  # keys of JSON-MIN
_STEPS = 16  # folders of an address that are looked at, from its end


@dataclass
class Task:
    """One image: what each annotation chose, with the time of its last change, and what predictions chose."""

    name: str
    path: Path
    address: str
    given: list[tuple[tuple[str, int], set[str]]] = field(default_factory=list)
    hints: list[tuple[str, float]] = field(default_factory=list)


class Export:
    """Walks through the tasks of one file, and counts what it passes over."""

    def __init__(self, document: Document, folder: Path, control: str | None, key: str, unscored: float | None) -> None:
        self.document, self.folder, self.key, self.unscored = document, folder, key, unscored
        self.control, self.stated = control, control is not None
        self.results = 0  # that are choices of this control
        self.others = Counter[str]()  # results that are passed over, by their kind
        self.controls = set[str]()  # names of choices among them
        self.without = 0  # choices of predictions that are left out

    def tasks(self) -> list[Task]:
        found: dict[Path, Task] = {}
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
            task = found.setdefault(path, Task(name, path, address))
            if full:
                self._annotations(task, entry, where)
                self._predictions(task, entry, where)
            else:
                task.given.append((self._when(entry, where, len(task.given)), self._flat(entry, where)))
        if not self.results and self.controls:
            known = nearest(self.control or "", sorted(self.controls))
            raise self.document.error(f"there are no choices named {short(self.control)}; {known} (control=NAME)")
        if not self.results and self.others:
            raise self.document.error(
                f"there are no choices, but {self._counted()}; boxes are read from an export as COCO"
            )
        return list(found.values())

    def notes(self) -> Iterator[str]:
        """What is left out, a line each."""
        if self.others:
            words = f"{self.document.file}: results other than the choices {short(self.control)} are left out"
            yield f"{words}: {self._counted()}"
        if self.without:
            words = f"{self.document.file}: {self.without:,} choices of predictions have no score and are left out"
            yield f"{words}; data.options.unscored=1 makes them hints of that confidence"

    def _counted(self) -> str:
        """The results of other kinds, the most frequent first."""
        kinds = [f"{count:,} {kind}" for kind, count in self.others.most_common(10)]
        return ", ".join(kinds) + (", …" if len(self.others) > 10 else "")

    def _annotations(self, task: Task, entry: dict[str, Any], where: str) -> None:
        made = list(self.document.objects(entry.get("annotations"), f"{where}.annotations"))
        made = [(place, a) for place, a in made if a.get("was_cancelled") is not True]
        made = [(place, a) for place, a in made if a.get("ground_truth") is True] or made
        for place, annotation in made:
            chosen = {name for name, _ in self._choices(annotation, place)}
            task.given.append((self._when(annotation, place, len(task.given)), chosen))

    def _predictions(self, task: Task, entry: dict[str, Any], where: str) -> None:
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
                self.others[short(result.get("type"))] += 1
                continue
            control = self.document.text(result.get("from_name"), f"{place}.from_name")
            if self.control is None:
                self.control = control
            elif control != self.control:
                if self.stated:
                    self.controls.add(control)
                    self.others[f"choices named {short(control)}"] += 1
                    continue
                both = f"{short(self.control)} and {short(control)}"
                raise self.document.error(f"{place}: there are choices named {both}; say which of them (control=NAME)")
            self.results += 1
            value = self.document.mapping(result.get("value"), f"{place}.value")
            for name in self._texts(value.get("choices"), f"{place}.value.choices"):
                yield name, result.get("score")

    def _flat(self, entry: dict[str, Any], where: str) -> set[str]:
        """The choices of one line of JSON-MIN: a text, an object with choices, or nothing."""
        if self.control is None:
            raise self.document.error(f"{where} is JSON-MIN, which does not mark its choices; say control=NAME")
        for name, other in entry.items():
            if name in (self.control, self.key, *_NO_RESULTS):
                continue
            if isinstance(other, list) or (isinstance(other, dict) and "choices" in other):
                self.others[short(name)] += 1
            if isinstance(other, str | dict):  # a text may be a choice, or something that belongs to the task
                self.controls.add(name)
        value = entry.get(self.control)
        if value is None:
            return set()
        self.results += 1
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

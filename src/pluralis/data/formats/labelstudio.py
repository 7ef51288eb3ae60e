"""Label Studio: choices made for images, in its JSON and JSON-MIN exports, and tasks to import there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from pluralis.data.dataset import Dataset, Hints, look_for
from pluralis.data.formats.labelstudio_tasks import Export, Task
from pluralis.data.formats.listing import check_images, check_unlisted, file_names, from_lists, to_lists
from pluralis.data.safe_json import Document, short, write_lists
from pluralis.errors import DataError, nearest
from pluralis.labels import Labels

_LOCAL = "/data/local-files/?d="


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
    """Read the choices made for each task's image; results of other kinds, such as boxes, are passed over and counted.

    `unlisted` must be stated: "absent" where an annotator who submits has thought of every choice, else "unknown".
    A task without a submitted annotation stays unknown either way. Cancelled annotations do not count, and where
    some are marked as ground truth the others do not. Of several annotations of a task, `several` = "last" takes
    the one updated last. With "agree" and unlisted="absent" a class is present where all chose it, absent where
    none did, and unknown where they differ; with unlisted="unknown" one choice is enough, since the others say
    nothing. Choices of predictions become hints with their score; those without any get the score `unscored`, or are
    left out, which a note counts.

    `control` is the name of the choices in the labelling interface; it may be left out of a JSON export with one. A
    file whose results are all of other names or kinds is refused: nobody said that nothing is there.
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
    export = Export(Document(path), folder, control, key, unscored)
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
    found = look_for([task.path for task in tasks], path)
    return Dataset(found, labels, Hints.gather(*zip(*hints, strict=True)) if hints else None, tuple(export.notes()))


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


def _class_list(document: Document, tasks: list[Task], classes: Sequence[str] | None) -> list[str]:
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

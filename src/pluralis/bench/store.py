"""The folder of a bench: finished results under the keys of their runs, with checksums, and a lock for each run."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pluralis.bench.runs import Run
from pluralis.data.whole_file import whole_text
from pluralis.errors import CheckpointError, RecipeError


@dataclass(frozen=True)
class Result:
    """What one finished run gave, at its place in the table."""

    key: str
    row: str
    column: str
    seed: int
    draw: int
    spec_row: str
    grid: dict[str, Any]
    recipe: dict[str, Any]  # as trained, with nothing left open
    data_hash: str
    code_version: str
    code_hash: str
    classes: list[str]
    history: list[dict[str, float]]
    chosen: int
    rule: str
    test: dict[str, float | None]  # per cent; None where nothing could be measured
    per_class_ap: dict[str, float | None]  # per cent
    seconds: float
    device: str
    versions: dict[str, str]
    date: str
    folder: Path | None = None  # of the run, where it is kept
    selection: str = ""  # the rule under which it stands here, where a spec has several
    failure: str = ""  # why there are no figures: the run diverged, and will do so again

    @property
    def score(self) -> float | None:
        """On held-out rows, of the epoch that was chosen; one that diverged is the worst of all."""
        if self.failure:
            return -math.inf
        return self.history[self.chosen].get(f"rules {self.selection} score" if self.selection else "score")


_NAMES = {"spec_row": "spec row", "data_hash": "data hash", "code_version": "code version", "code_hash": "code hash"}
_NAMES |= {"per_class_ap": "per class AP"}
_ELSEWHERE = ("folder", "selection", "failure")
_FIELDS = {name: _NAMES.get(name, name) for name in Result.__dataclass_fields__ if name not in _ELSEWHERE}


FOLDERS = ("results", "runs", "logs", "locks")
_THREADS = ".threads"


def cores() -> int:
    """Those that this process may use: of a shared machine maybe some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Store:
    """Results, run folders, logs and locks under one folder. Several benches may use it at the same time."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def folder(self, key: str) -> Path:
        return self.out / "runs" / key

    def log(self, key: str) -> Path:
        return self.out / "logs" / f"{key}.log"

    def file(self, key: str) -> Path:
        return self.out / "results" / f"{key}.json"

    def prepare(self) -> None:
        """Make the folders; a folder with other things in it is refused."""
        if self.out.exists() and not self.out.is_dir():
            raise RecipeError(f"{self.out} is a file: name a folder with --out")
        begun = (self.out / "results").is_dir()
        if self.out.exists() and not begun and any(not p.name.startswith(".") for p in self.out.iterdir()):
            raise RecipeError(f"{self.out} is not empty and holds no bench: name a new folder with --out")
        for name in FOLDERS:
            (self.out / name).mkdir(parents=True, exist_ok=True)

    def threads(self, jobs: int) -> int:
        """Of each process that makes runs: a share of the cores among `jobs`, and for later commands the same.

        On a CPU sums of another number of threads differ in the last digits, and tables with them.
        """
        file = self.out / _THREADS
        with self.lock("threads", wait=True):
            text = file.read_text() if file.exists() else ""
            if not text.strip().isdecimal() or int(text) < 1:
                text = str(max(1, cores() // jobs))
                with whole_text(file) as out:
                    out.write(text)
        return int(text)

    def write(self, key: str, values: dict[str, Any]) -> None:
        failure = {"failure": values["failure"]} if values.get("failure") else {}
        body = _finite({name: values[name] for name in _FIELDS.values()} | failure)
        with whole_text(self.file(key)) as file:
            file.write(_text(body))

    def read(self, run: Run) -> Result | None:
        """The result of a run, at the run's own place in the table; None if there is none yet."""
        file = self.file(run.key)
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}): it will be made anew") from None
        try:
            body = json.loads(text)["body"]
            whole = text == _text(body) and body["key"] == run.key
            values = {name: body[key] for name, key in _FIELDS.items()} | {"failure": body.get("failure", "")}
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            raise CheckpointError(f"{file} is damaged: its checksum does not match, so the run is made anew")
        folder = self.folder(run.key)
        return placed(Result(**values, folder=folder if (folder / "model.json").exists() else None), run)

    def forget(self, key: str) -> None:
        """For who has the lock of the run."""
        self.file(key).unlink(missing_ok=True)

    @contextmanager
    def lock(self, key: str, wait: bool = False) -> Iterator[bool]:
        """Whether this process has the run to itself. A process that dies leaves no lock behind."""
        with open(self.out / "locks" / key, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def is_running(self, key: str) -> bool:
        """Whether some process has the lock."""
        if not (self.out / "locks" / key).exists():
            return False
        with self.lock(key) as free:
            return not free


def placed(result: Result, run: Run) -> Result:
    """A result at the place of a run: one training may stand in several.

    Its data lie where this command says: the run may have been made on another machine.
    """
    data = {key: getattr(run.recipe.data, key) for key in ("images", "labels", "test")}
    recipe = {**result.recipe, "data": {**result.recipe["data"], **data}}
    place = replace(result, row=run.row, column=run.column, draw=run.draw, spec_row=run.spec_row, grid=run.grid)
    return replace(place, recipe=recipe)


def _text(body: Any) -> str:
    """The one way in which a result is written, so that any other byte shows an alteration."""
    plain = json.dumps(body, sort_keys=True, ensure_ascii=False, allow_nan=False)
    digest = hashlib.sha256(plain.encode()).hexdigest()
    return json.dumps({"body": body, "sha256": digest}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

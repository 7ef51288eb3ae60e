"""Snapshots of a run on disk: safetensors for the numbers, JSON for the rest, both under a hash.

A generation is `<position>.safetensors` and `<position>.json`. The JSON holds the hash of the
safetensors file and of itself, and is written last, by rename: a generation without a valid JSON
does not exist. Two generations are kept, so a damaged or half-written one costs one interval.
Nothing in a snapshot names code.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pluralis.data.whole_file import part_of, put
from pluralis.errors import CheckpointError

_GENERATIONS = 2
_TRIES = 3


@dataclass(frozen=True)
class Snapshot:
    """The whole memory of a run: named tensors, and a JSON document."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any] = field(default_factory=dict)


def state_hash(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, dtypes, shapes and bytes: equal exactly when the states are."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write `path`.safetensors and then `path`.json, each through a temporary file that is synced first."""
    from safetensors.torch import save

    for name, value in snapshot.tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(
                f"{name} holds NaN or infinite values and was not saved to {path}: the last checkpoint is"
                " intact; lower the learning rate or set train.clip, then run again"
            )
    content = save({k: v.detach().cpu().contiguous() for k, v in snapshot.tensors.items()})
    body = {"meta": snapshot.meta, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    text = _text({"body": body, "sha256": _hash_json(body)})
    write_file(_with(path, ".safetensors"), content)
    write_file(_with(path, ".json"), text)


def read_snapshot(path: Path) -> Snapshot:
    """Read what `write_snapshot` wrote; anything else is refused with a `CheckpointError`."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        text = _with(path, ".json").read_bytes()
        document = json.loads(text)
        body = document["body"]
        if document["sha256"] != _hash_json(body) or text != _text(document):
            raise CheckpointError(f"{_with(path, '.json')} was altered: its hash does not match")
        content = _with(path, ".safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != body["sha256"]:
            raise CheckpointError(f"{_with(path, '.safetensors')} was altered: its hash does not match")
        return Snapshot(load(content), body["meta"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint: {error}") from error


def write_file(path: Path, content: bytes) -> None:
    """Replace `path` in one step. A failed write is tried again, and leaves the old file as it was."""
    for attempt in range(1, _TRIES + 1):
        try:
            with part_of(path) as part:
                with part.open("wb") as file:
                    written = file.write(content)
                    if written != len(content):
                        raise OSError(f"only {written} of {len(content)} bytes were written")
                put(part, path)
            return
        except OSError as error:
            if attempt == _TRIES:
                raise CheckpointError(
                    f"cannot write {path}: {error.strerror or error}; what was saved before is intact:"
                    " make room or fix the disk, then run the same command to go on"
                ) from error
            time.sleep(0.1 * attempt)


class Store:
    """The checkpoints of one run: the newest two generations in a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        every_seconds: float = 60.0,
        every_steps: int = 0,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._every_seconds = every_seconds
        self._every_steps = every_steps
        self._warn = warn
        self._last = time.monotonic()

    def due(self, steps: int) -> bool:
        """Whether it is time to save, after so many steps of this epoch."""
        if self._every_steps:
            return steps % self._every_steps == 0
        return time.monotonic() - self._last >= self._every_seconds

    def save(self, position: str, snapshot: Snapshot) -> None:
        """Add a generation; positions must sort in the order of time."""
        write_snapshot(self.folder / position, snapshot)
        for old in self._positions()[:-_GENERATIONS]:
            self._remove(old)
        self._last = time.monotonic()

    def load(self) -> Snapshot | None:
        """The newest generation that can be trusted; None if nothing was ever saved."""
        self._sweep()
        positions = self._positions()
        problem: CheckpointError | None = None
        damaged: list[str] = []
        for position in reversed(positions):
            try:
                snapshot = read_snapshot(self.folder / position)
                for other in damaged:  # a bad generation must not count as one of the two that are kept
                    self._remove(other)
                return snapshot
            except CheckpointError as error:
                problem = error
                self._warn(f"{error}; going back one generation")
                damaged.append(position)
        if problem is not None:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be trusted ({problem}); delete the folder to start this run again"
            )
        return None

    def _positions(self) -> list[str]:
        return sorted(p.stem for p in self.folder.glob("*.json") if not p.name.startswith("."))

    def _remove(self, position: str) -> None:
        for suffix in (".json", ".safetensors"):
            _with(self.folder / position, suffix).unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove what a killed process left behind: temporary files, tensors without their JSON."""
        known = set(self._positions())
        for path in self.folder.iterdir():
            if path.suffix == ".tmp" or (path.suffix == ".safetensors" and path.stem not in known):
                path.unlink(missing_ok=True)


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _text(document: Any) -> bytes:
    """The one way in which a document is written, so that any other byte shows an alteration."""
    return json.dumps(document, indent=1).encode()


def _hash_json(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

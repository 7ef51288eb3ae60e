"""What a run is known by: its recipe, its data and the code, and nothing about where files lie."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import pluralis
from pluralis.config import DRAWN, DataPart, Recipe
from pluralis.data.source import Source, apply_protocol, load_source, other_data
from pluralis.errors import WeightsError
from pluralis.labels import Labels
from pluralis.models.weights import published_hash

DIGITS = "digits"
"""As `model.weights`: the tiny backbone trained on single digits, which the bench makes when it is needed."""
_STORING = ("perform", "run_folders", "store")  # modules of benches that decide what a result holds
_BY_BOXES = ("pick-area", "pick-largest")  # protocols that look at more than the labels


def run_key(recipe: Recipe, views: list[str], data: str) -> str:
    """The same for runs that must give the same result, another one for all others."""
    return _digest([decides(recipe), sorted(set(views) - {"fast"}), data, pluralis.__version__])[:16]


def decides(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe decides a result or what is kept of it: no paths, devices, workers or caches."""
    values = replace(recipe, data=placeless(recipe.data)).to_dict()
    data, model, run = values["data"], values["model"], values["run"]
    data["protocol_seed"] = recipe.data.draw_seed if data["protocol"] in DRAWN else 0
    if model["weights"] not in ("", "imagenet", DIGITS):
        model |= {"weights": _weights(model["backbone"], Path(model["weights"])), "sha256": ""}
    kept = {key: run[key] for key in ("seed", "precision", "deterministic", "watch_test", "watch_train")}
    if not values["select"]["images"]:  # as keys were before it was there
        del values["select"]["images"]
    more = {"watch_rules": True} if run["watch_rules"] else {}  # without it the keys are those from before it was there
    values["run"] = {**kept, **more, "features": run["cache"] == "features"}
    return values


def placeless(part: DataPart) -> DataPart:
    """The same without where its files lie."""
    test = {key: value for key, value in part.test.items() if key not in ("images", "labels")}
    return replace(part, images="", labels="", test=test)


def data_hash(part: DataPart) -> str:
    """Changes with names, labels and sizes of the images, of the test set too; not with where they lie.

    Where boxes decide which labels are shown, it changes with what they show.
    """
    digest = hashlib.sha256()
    parts = [replace(part, test={}), *([other_data(part, {"test": {}, **part.test})] if part.test else [])]
    for number, source in enumerate(map(load_source, parts)):
        _add(digest, source)
        if part.protocol in _BY_BOXES and number == 0:
            _add_labels(digest, apply_protocol(source.labels, part))
    return digest.hexdigest()


def source_part(part: DataPart) -> str:
    """Parts with the same text have the same hash: what is shown, other than by boxes, and how large, comes later."""
    shown = (part.protocol, part.draw_seed) if part.protocol in _BY_BOXES else ()
    read = (part.format, part.images, part.labels, part.options, part.test, *shown)
    return json.dumps(read, sort_keys=True, default=str)


@cache
def code_hash() -> str:
    """Of the package's modules, apart from those that only run benches and show results."""
    root = Path(pluralis.__file__).parent
    return _digest([[str(path), file_sha256(root / path)] for path in deciding_modules(root)])[:16]


def deciding_modules(root: Path) -> list[Path]:
    """Those of the package in `root` that decide what a result holds: all that trains, and what stores it."""
    files = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    storing = [Path("bench") / f"{name}.py" for name in _STORING]
    return [path for path in files if path in storing or not ("bench" in path.parts or path.stem.endswith("cli"))]


def _add(digest: Any, source: Source) -> None:
    digest.update(repr(source.labels.classes).encode())
    digest.update("\0".join(source.labels.ids).encode() + b"\0\0" + source.images.signature())
    _add_labels(digest, source.labels)


def _add_labels(digest: Any, labels: Labels) -> None:
    for array in labels.entries():
        digest.update(np.ascontiguousarray(array).tobytes())


def _weights(backbone: str, path: Path) -> str:
    """The hash of a file; "imagenet" for the published weights of the backbone, wherever they lie."""
    try:
        facts = path.expanduser().stat()
        found = _file_hash(path.expanduser(), facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise WeightsError(f"cannot read the weights {path} ({error.strerror}): check model.weights") from error
    published = published_hash(backbone)
    return "imagenet" if published and found.startswith(published) else f"sha256:{found}"


@cache
def _file_hash(path: Path, size: int, changed: int) -> str:
    """Of a file that has this size and time of change: hundreds of runs ask for the same one."""
    return file_sha256(path)


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

"""Where the tables of each spec lie in the folder of a bench, and whose they are: none overwrites those of another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pluralis.bench.spec import Spec
from pluralis.bench.store import FOLDERS, Store
from pluralis.data.whole_file import whole_text
from pluralis.errors import RecipeError

_SPEC = ".spec"  # beside the tables: whose they are
_SET = "set"  # in it: what the command line laid over the spec
_SPEED = ("device", "workers", "decoded", "features", "save_seconds", "compile", "autotune", "record")
_FILES = ("data.images", "data.labels", "data.test.images", "data.test.labels", "model.weights", "model.sha256")
_ELSEWHERE = (*_FILES, *(f"run.{name}" for name in _SPEED))
_TABLES = ("table.md", "table.tex", "table.csv", "table.html")
_TAKEN = (*FOLDERS, *_TABLES, "index.html", "figures", "decoded", "digits.safetensors", "digits.sha256")


def table_folders(specs: Sequence[Spec], out: Path) -> list[str]:
    """A name below `out` for each spec; for one that has `out` to itself it is "", which is `out`."""
    names = [spec.file.stem for spec in specs]
    if len(names) == 1 and not any(out.glob(f"*/{_SPEC}")) and _is_free(out, specs[0]):
        return [""]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"two specs are called {name!r}, which is the folder of their tables: rename one")
        if name in _TAKEN or name.startswith(".") or (out / name).is_file():
            raise RecipeError(f"a spec is called {name!r}, a name that the bench needs for something else: rename it")
    return names


def take_folders(specs: Sequence[Spec], names: Sequence[str], store: Store, settings: Sequence[str] = ()) -> list[str]:
    """Make the folders, before any run, or refuse those that hold other tables; returns what the user should know.

    `settings` lie over those of the specs: what was made with others is another table.
    """
    folders = [store.out / name for name in names]
    with store.lock("tables", wait=True):  # another bench may do the same
        for spec, folder in zip(specs, folders, strict=True):
            _refuse(spec, folder, settings)
        new = [folder for folder in folders if folder != store.out and not folder.exists()]
        for spec, folder in zip(specs, folders, strict=True):
            folder.mkdir(exist_ok=True)
            with whole_text(folder / _SPEC) as file:
                json.dump({**_identity(spec), _SET: _deciding(settings)}, file, indent=1)
    if not new or not (store.out / _TABLES[0]).exists():
        return []
    return [f"{store.out / 'table.*'} stay as they are: new tables go to {', '.join(map(str, folders))}"]


def _identity(spec: Spec) -> dict[str, str]:
    content = hashlib.sha256(spec.file.read_bytes()).hexdigest()
    return {"file": str(spec.file.resolve()), "sha256": content, "scale": spec.scale_name}


def _deciding(settings: Sequence[str]) -> list[str]:
    """Those that change figures: not where files lie, nor how fast a run is made. Of one key the last one counts."""
    each = {key.strip(): value.strip() for key, _, value in (text.partition("=") for text in settings)}
    if each.get("run.cache") != "features":
        each.pop("run.cache", None)
    return sorted(f"{key}={value}" for key, value in each.items() if key not in _ELSEWHERE)


def _owner(folder: Path) -> dict[str, str] | None:
    """The identity of the spec whose tables lie in a folder; None where nobody said so."""
    file = folder / _SPEC
    try:
        found = json.loads(file.read_bytes())
        owner = {key: str(found[key]) for key in ("file", "sha256", "scale")}
        before = found.get(_SET)  # older folders do not say it
        return owner if before is None else {**owner, _SET: " ".join(before)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            f"{file}, which says whose tables lie there, cannot be read ({error!r}): remove it if they may be replaced"
        ) from None


def _is_same(owner: dict[str, str], spec: Spec) -> bool:
    """A spec may be edited where it lies, or lie elsewhere as it was."""
    mine = _identity(spec)
    return owner["file"] == mine["file"] or owner["sha256"] == mine["sha256"]


def _is_free(folder: Path, spec: Spec) -> bool:
    owner = _owner(folder)
    return owner is None or _is_same(owner, spec)


def _refuse(spec: Spec, folder: Path, settings: Sequence[str]) -> None:
    owner = _owner(folder)
    if owner is None:
        return
    if not _is_same(owner, spec):
        raise RecipeError(
            f"{folder} holds the tables of another spec, {owner['file']}: rename {spec.file}, or name another folder"
            f" with --out (if they are the same spec, remove {folder / _SPEC})"
        )
    if owner["scale"] != spec.scale_name:
        raise RecipeError(
            f"{folder} holds the tables of this spec at the scale {owner['scale']}, not {spec.scale_name}: name another"
            " folder with --out"
        )
    mine = " ".join(_deciding(settings))
    if owner.get(_SET, mine) != mine:
        before = f"--set {owner[_SET]}" if owner[_SET] else "nothing set over it"
        raise RecipeError(
            f"{folder} holds the tables of this spec with {before}, not {f'--set {mine}' if mine else 'as it stands'}:"
            " name another folder with --out"
        )

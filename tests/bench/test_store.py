"""Stored results: whole or refused, and one process at a time for each run."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pluralis.bench.runs import Run
from pluralis.bench.store import Store
from pluralis.config import DataPart, Recipe
from pluralis.errors import CheckpointError, RecipeError
from tests.bench.benches import result
from tests.children import exit_code, start_child

RUN = Run("k1", "an", "an", "VOC", 0, 1200, {}, Recipe(), [], "d")
NAMES = {"spec_row": "spec row", "data_hash": "data hash", "code_version": "code version", "code_hash": "code hash"}
NAMES |= {"per_class_ap": "per class AP"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "out")
    found.prepare()
    return found


def values(**more: Any) -> dict[str, Any]:
    made = result(**{"key": "k1", "column": "VOC", "draw": 1200, **more})
    return {NAMES.get(f.name, f.name): getattr(made, f.name) for f in fields(made) if f.name != "folder"}


def test_what_is_written_is_read_at_the_place_that_asks(store: Store) -> None:
    assert store.read(RUN) is None
    store.write("k1", values(test={"mAP": 81.25, "CF1": float("nan")}, history=[{"score": 0.5}]))
    found = store.read(RUN)
    assert found is not None
    assert found.test == {"mAP": 81.25, "CF1": None}
    assert (found.score, found.seconds, found.folder) == (0.5, 3.0, None)
    other = store.read(
        replace(RUN, row="an, lr 1", column="COCO", grid={"train.lr": 1})
    )  # the same run in another spec
    assert other is not None
    assert (other.row, other.column, other.grid) == ("an, lr 1", "COCO", {"train.lr": 1})
    data = DataPart(images="here", labels="here.csv", test={"labels": "test.csv"})
    moved = store.read(replace(RUN, recipe=Recipe(data=data)))  # and its data elsewhere on this machine
    assert moved is not None
    where = {"images": "here", "labels": "here.csv", "test": {"labels": "test.csv"}}
    assert moved.recipe == {"model": {"backbone": "tiny"}, "data": {"size": 24, **where}}
    store.folder("k1").mkdir()
    (store.folder("k1") / "model.json").write_text("")
    kept = store.read(RUN)
    assert kept is not None
    assert kept.folder == store.folder("k1")


def test_any_changed_bit_is_seen(store: Store) -> None:
    store.write("k1", values())
    whole = store.file("k1").read_bytes()
    chance = random.Random(0)
    for _ in range(300):
        place, bit = chance.randrange(len(whole)), chance.randrange(8)
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        store.file("k1").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="k1.json"):
            store.read(RUN)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"body": {}, "sha256": ""}', b"\xff", b"[" * 100_000])
def test_what_is_no_result_is_refused(store: Store, content: bytes) -> None:
    store.file("k1").write_bytes(content)
    with pytest.raises(CheckpointError, match="made anew"):
        store.read(RUN)


def test_a_result_under_another_key_is_refused(store: Store) -> None:
    store.write("k2", values(key="k2"))
    store.file("k1").write_bytes(store.file("k2").read_bytes())
    with pytest.raises(CheckpointError, match="damaged"):
        store.read(RUN)


def test_a_write_that_fails_leaves_the_old_result(store: Store) -> None:
    store.write("k1", values())
    before = store.file("k1").read_bytes()
    with pytest.raises(TypeError):
        store.write("k1", values(date=object()))
    assert store.file("k1").read_bytes() == before
    assert [path.name for path in store.file("k1").parent.iterdir()] == ["k1.json"]


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RecipeError, match="is not empty and holds no bench"):
        Store(tmp_path).prepare()
    with pytest.raises(RecipeError, match="is a file"):
        Store(tmp_path / "thesis.tex").prepare()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def hold(out: str, flag: str) -> None:
    with Store(Path(out)).lock("k1") as mine:
        Path(flag).write_text(str(mine))
        time.sleep(60)


def test_a_lock_is_that_of_a_living_process(store: Store, tmp_path: Path) -> None:
    assert not store.is_running("k1")
    child = start_child(hold, str(store.out), str(tmp_path / "flag"))
    while not (tmp_path / "flag").exists():
        time.sleep(0.01)
    assert store.is_running("k1")
    assert not store.is_running("k2")
    with store.lock("k1") as mine:
        assert not mine
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
    assert not store.is_running("k1")
    with store.lock("k1") as mine:
        assert mine
        assert store.is_running("k1")


def test_later_commands_have_the_threads_of_the_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))
    assert store.threads(jobs=3) == 4
    assert store.threads(jobs=1) == Store(store.out).threads(jobs=12) == 4
    for broken in ("", "0", "many"):
        (store.out / ".threads").write_text(broken)
        assert store.threads(jobs=24) == 1

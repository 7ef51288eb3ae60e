"""Snapshots: exact, atomic, hashed, two generations, safe on a failing disk."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from pluralis import checkpoint
from pluralis.checkpoint import Snapshot, Store, read_snapshot, state_hash, write_snapshot
from pluralis.data import whole_file
from pluralis.errors import CheckpointError


def snapshot(value: float = 1.0) -> Snapshot:
    tensors = {
        "w": torch.full((3, 4), float(value)),
        "half": torch.arange(5).bfloat16(),
        "count": torch.tensor(7),
        "labels": torch.tensor([[1, 0, -1]], dtype=torch.int8),
        "strided": torch.arange(12.0).reshape(3, 4).t(),
    }
    return Snapshot(tensors, {"clock": [0, 1, 2], "history": [{"loss": 0.1 + 0.2}], "best": None})


def same(a: Snapshot, b: Snapshot) -> bool:
    return state_hash(a.tensors) == state_hash(b.tensors) and a.meta == b.meta


def test_round_trip(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "x", snapshot())
    assert same(read_snapshot(tmp_path / "x"), snapshot())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "x.safetensors"]


def test_the_hash_sees_every_bit_name_and_shape() -> None:
    base = {"a": torch.zeros(4)}
    others = [{"b": torch.zeros(4)}, {"a": torch.zeros(2, 2)}, {"a": torch.zeros(4).int()}, {"a": -torch.zeros(4)}]
    assert len({state_hash(t) for t in [base, *others]}) == 5
    assert state_hash({"a": torch.zeros(4)}) == state_hash(base)


def test_two_generations_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in range(5):
        store.save(f"{step:03d}", snapshot(step))
    assert sorted(p.stem for p in tmp_path.glob("*.json")) == ["003", "004"]
    loaded = store.load()
    assert loaded is not None
    assert same(loaded, snapshot(4))


def test_a_damaged_generation_does_not_count_as_one_of_the_two(tmp_path: Path) -> None:
    store = Store(tmp_path, warn=lambda line: None)
    store.save("001", snapshot(1))
    store.save("005", snapshot(5))
    (tmp_path / "005.safetensors").write_bytes(b"junk")
    store.load()
    store.save("002", snapshot(2))
    assert sorted(p.stem for p in tmp_path.glob("*.json")) == ["001", "002"]


def test_every_flipped_bit_is_refused_and_the_older_generation_serves(tmp_path: Path) -> None:
    store = Store(tmp_path, warn=lambda line: None)
    store.save("000", snapshot(0))
    store.save("001", snapshot(1))
    chance = random.Random(0)
    files = [tmp_path / "001.safetensors", tmp_path / "001.json"]
    sound = {path: path.read_bytes() for path in files}
    for number in range(1000):
        path = files[number % 2]
        bad = bytearray(sound[path])
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        loaded = store.load()
        assert loaded is not None
        assert same(loaded, snapshot(0)), f"flip {number} in {path.name} went unnoticed"
        for file, content in sound.items():
            file.write_bytes(content)


def test_nothing_to_trust_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path, warn=lambda line: None)
    assert store.load() is None
    store.save("000", snapshot())
    (tmp_path / "000.safetensors").write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="delete the folder"):
        store.load()


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save("000", snapshot())
    (tmp_path / ".001.json.99.tmp").write_bytes(b"half")
    (tmp_path / "001.safetensors").write_bytes(b"no json yet")
    assert store.load() is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000.json", "000.safetensors"]


def test_non_finite_numbers_never_reach_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save("000", snapshot())
    with pytest.raises(CheckpointError, match="w holds NaN"):
        store.save("001", snapshot(float("nan")))
    loaded = store.load()
    assert loaded is not None
    assert same(loaded, snapshot())


class FailingOs:
    """An `os` whose n-th fsync or rename fails, once or for good."""

    def __init__(self, call: str, at: int, code: int, for_good: bool) -> None:
        self.call, self.at, self.code, self.for_good, self.seen = call, at, code, for_good, 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name != self.call:
            return real

        def run(*args: Any) -> Any:
            self.seen += 1
            if self.seen == self.at or (self.for_good and self.seen > self.at):
                raise OSError(self.code, os.strerror(self.code))
            return real(*args)

        return run


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("for_good", [False, True])
def test_a_failing_disk_costs_at_most_one_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str, at: int, for_good: bool
) -> None:
    store = Store(tmp_path)
    store.save("000", snapshot(0))
    monkeypatch.setattr(checkpoint.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(whole_file, "os", FailingOs(call, at, code, for_good))
    written = {"fsync": 4, "replace": 2}[call]  # a save syncs four times and renames twice
    if for_good and at <= written:
        with pytest.raises(CheckpointError, match=os.strerror(code)):
            store.save("001", snapshot(1))
    else:
        store.save("001", snapshot(1))  # tried again, and then it worked
    monkeypatch.undo()
    loaded = Store(tmp_path).load()
    assert loaded is not None
    # Only the very last sync comes after the new generation is in place.
    arrived = not for_good or at > written or (call == "fsync" and at == written)
    assert same(loaded, snapshot(1 if arrived else 0))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["pickle", "json-bomb", "huge-header", "empty", "code"])
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    contents = {
        "pickle": (b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.", b"{}"),
        "json-bomb": (b"", b"[" * 100_000),
        "huge-header": (b"\xff" * 8 + b"{}", b'{"body": {}, "sha256": ""}'),
        "empty": (b"", b""),
        "code": (b"", b'{"body": {"meta": {"class": "os.system"}}, "sha256": "0"}'),
    }
    (tmp_path / "x.safetensors").write_bytes(contents[name][0])
    (tmp_path / "x.json").write_bytes(contents[name][1])
    with pytest.raises(CheckpointError):
        read_snapshot(tmp_path / "x")
    assert not Path("owned").exists()

"""Files that several processes write at once, and files that belong together: one whole thing or another."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import stat
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pluralis.checkpoint import write_file
from pluralis.data.whole_file import alone, make_folder, set_aside, unchanged, whole_file, whole_files, whole_text
from pluralis.errors import DataError

fork = multiprocessing.get_context("fork")


def test_two_writers_at_once_give_the_file_of_one(tmp_path: Path) -> None:
    out, turns = tmp_path / "out.csv", threading.Barrier(2, timeout=5)

    def write(letter: str) -> None:
        with whole_text(out) as file:
            for _ in range(20):
                turns.wait()  # both are in the middle of it
                file.write(letter * 1000)
                file.flush()

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(out.read_text()) in ({"a": 20_000}, {"b": 20_000})
    assert os.listdir(tmp_path) == ["out.csv"]


def _by_checkpoint(path: Path) -> None:
    write_file(path, b"new")


def _by_text(path: Path) -> None:
    with whole_text(path) as file:
        file.write("new")


@pytest.mark.parametrize("write", [_by_text, _by_checkpoint])
def test_no_file_nor_link_of_others_is_touched(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "o.csv.part").symlink_to("precious")
    (tmp_path / f".o.csv.{os.getpid()}.tmp").symlink_to("precious")
    before = sorted(os.listdir(tmp_path))
    write(tmp_path / "o.csv")
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "o.csv"])
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "o.csv").read_text() == "new"
    assert (tmp_path / "o.csv").stat().st_mode == (tmp_path / "precious").stat().st_mode  # what the umask allows


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    name = "n" * 255  # as long as a name may be
    (tmp_path / name).write_text("old")
    with pytest.raises(TypeError), whole_text(tmp_path / name) as file:
        file.writelines(["new", None])  # type: ignore[list-item]
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "old"
    with pytest.raises(DataError, match="cannot be written: No such file or directory; check the folder"):
        _by_text(tmp_path / "none" / "x")
    with pytest.raises(DataError, match="cannot be written"):
        _by_text(tmp_path)  # a folder


def _write_three(folder: Path, text: str, die_at: int = -1) -> None:
    """Write a, b and key; the process ends at that step of those that the disk sees."""
    steps = 0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal steps
        if event in ("open", "os.rename", "os.remove"):
            if steps == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1

    if die_at >= 0:
        sys.addaudithook(count)
    with alone(folder / "key"), whole_files(folder / "a", folder / "b", folder / "key") as parts:
        for part in parts:
            part.write_text(text)
    if die_at >= 0:
        os._exit(17)


def _killed(task: Callable[..., None], *args: Any) -> bool:
    child = fork.Process(target=task, args=args)
    child.start()
    child.join()
    assert child.exitcode in (17, -signal.SIGKILL)
    return child.exitcode != 17


def test_a_kill_at_any_step_leaves_no_mixture(tmp_path: Path) -> None:
    seen = Counter[str]()
    for step in range(100):
        for name in ("a", "b", "key"):
            (tmp_path / name).write_text("old")
        killed = _killed(_write_three, tmp_path, "new", step)
        found = {(tmp_path / name).read_text() for name in ("a", "b")}
        if (tmp_path / "key").exists():
            key = (tmp_path / "key").read_text()
            assert found == {key}
            seen[key] += 1
        else:
            seen["no key"] += 1
        if not killed:
            break
        _write_three(tmp_path, "again")  # whatever was left behind does not stand in the way
        assert {(tmp_path / name).read_text() for name in ("a", "b", "key")} == {"again"}
    assert min(seen[state] for state in ("old", "new", "no key")) > 0
    assert not killed


def test_one_file_that_changes_is_one_step(tmp_path: Path) -> None:
    _write_three(tmp_path, "old")
    before = (tmp_path / "key").stat().st_ino
    with whole_files(tmp_path / "a", tmp_path / "b", tmp_path / "key") as (a, b, key):
        a.write_text("new")
        b.write_text("old")
        key.write_text("old")
    assert [(tmp_path / name).read_text() for name in ("a", "b", "key")] == ["new", "old", "old"]
    assert (tmp_path / "key").stat().st_ino == before  # never taken away


def test_two_writers_of_files_that_belong_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, halfway, done = os.replace, threading.Event(), threading.Event()

    def slowly(part: Path, path: Path) -> None:
        if threading.current_thread() is first and path.name == "key":
            halfway.set()
            done.wait(0.5)  # time for the other to come in between
        replace(part, path)

    def write_second() -> None:
        halfway.wait()
        _write_three(tmp_path, "second")
        done.set()

    monkeypatch.setattr(os, "replace", slowly)
    first = threading.Thread(target=_write_three, args=(tmp_path, "first"))
    second = threading.Thread(target=write_second)
    for thread in (first, second):
        thread.start()
    for thread in (first, second):
        thread.join()
    assert [(tmp_path / name).read_text() for name in ("a", "b", "key")] == ["second"] * 3
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "key"]


def test_what_stays_is_not_touched(tmp_path: Path) -> None:
    _write_three(tmp_path, "old")
    before = (tmp_path / "a").stat().st_ino
    with whole_files(tmp_path / "a", tmp_path / "b", tmp_path / "key") as parts:
        for part, text in zip(parts, ("old", "new", "new"), strict=True):
            part.write_text(text)
    assert [(tmp_path / name).read_text() for name in ("a", "b", "key")] == ["old", "new", "new"]
    assert (tmp_path / "a").stat().st_ino == before


def test_a_folder_in_the_way_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").mkdir()
    (tmp_path / "key").write_text("old")
    with pytest.raises(DataError, match="cannot be written: .*b is a folder"):
        _write_three(tmp_path, "new")
    with pytest.raises(DataError, match="cannot be written: .*b is a folder"), set_aside(tmp_path / "b"):
        pass
    assert [(tmp_path / name).read_text() for name in ("a", "key")] == ["old", "old"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "key"]


def test_what_is_set_aside_comes_back_if_the_block_fails(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with set_aside(path):  # nothing there
        pass
    path.write_text("old")
    with pytest.raises(FileNotFoundError), set_aside(path):
        path.read_text()
    assert path.read_text() == "old"
    with set_aside(path):
        assert not path.exists()
    assert not os.listdir(tmp_path)


def test_a_write_while_one_reads_is_noticed(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("old")
    with unchanged(a, b):
        a.read_text()
    for change in (lambda: _by_text(a), lambda: _by_text(b), b.unlink):
        with pytest.raises(DataError, match="was written while it was read; read it again"), unchanged(a, b):
            change()


def test_an_error_of_another_file_is_not_called_a_write_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="photo.jpg"), whole_text(tmp_path / "o.csv"):
        (tmp_path / "photo.jpg").read_bytes()
    with pytest.raises(DataError, match=r"o\.csv: cannot be written: File too large"), whole_text(tmp_path / "o.csv"):
        raise OSError(errno.EFBIG, "File too large")  # as `write` does, without a name
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def no_lock(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    _write_three(tmp_path, "new")
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "key"]


def test_a_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_sync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", no_sync)
    _write_three(tmp_path, "new")
    assert (tmp_path / "b").read_text() == "new"


def _as_nobody(place: Path) -> None:
    os.seteuid(65534)
    with alone(place):
        os._exit(17)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o644, 0o600])
@pytest.mark.parametrize("folder", [0o1777, 0o755])  # everybody may write; root alone
def test_a_lock_that_another_user_left(mode: int, folder: int) -> None:
    with tempfile.TemporaryDirectory() as above:  # below pytest's own folders nobody else may go
        place = Path(above, "x")
        os.chmod(above, folder)
        child = fork.Process(target=_die_in, args=(place,))
        child.start()
        child.join()
        [left] = Path(above).iterdir()
        left.chmod(mode)
        assert not _killed(_as_nobody, place)
        left.unlink()
        assert not _killed(_as_nobody, place)  # and where none can be made


def _die_in(place: Path) -> None:
    with alone(place):
        os.kill(os.getpid(), signal.SIGKILL)


def test_long_names_that_begin_alike_have_locks_of_their_own(tmp_path: Path) -> None:
    name = "n" * 250
    with alone(tmp_path / f"{name}1"), alone(tmp_path / f"{name}2"):
        assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("folder", [False, True])
def test_one_at_a_time(tmp_path: Path, folder: bool) -> None:
    place, inside, most = tmp_path / "x", list[int](), list[int]()

    def enter(number: int) -> None:
        for _ in range(20):
            with alone(f"{place}/" if number % 2 else place):  # two ways to write one place
                if folder:
                    place.mkdir(exist_ok=True)  # the lock is the same before and after
                inside.append(number)
                time.sleep(0.001)
                most.append(len(inside))
                inside.remove(number)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80
    assert os.listdir(tmp_path) == (["x"] if folder else [])


def test_folders_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataError, match="this folder cannot be made: .*; name another place") as caught:
            make_folder(place)
        assert "Errno" not in str(caught.value)
    make_folder(tmp_path / "a" / "b")
    with whole_file(tmp_path / "a" / "b" / "c") as part:
        part.write_text("new")
    assert (tmp_path / "a" / "b" / "c").read_text() == "new"

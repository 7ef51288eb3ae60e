"""Data that is written over: labels, hints and names of classes are those of one data set, also after a kill."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pluralis.data.check import check_images, is_list_of
from pluralis.data.conversion import Target
from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats import hints_file, openimages, read
from pluralis.data.images import ImageFiles
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from pluralis.predictions import write_predictions

NAMES = ["a.jpg", "b.jpg"]
NEEDED = {
    "csv": ["out", "out.hints.csv"],
    "npy": ["out", "out.hints.csv", "formatted_train_labels.npy"],
    "openimages": ["out", "out.names.csv"],
}  # nothing is read where one is missing


@pytest.fixture
def old_new(tmp_path: Path) -> tuple[Dataset, Dataset]:
    """Two data sets of the same images: other labels, classes and hints."""
    images = [tmp_path / "photos" / name for name in NAMES]
    (tmp_path / "photos").mkdir()
    for image in images:
        image.touch()
    old = Labels.from_dense([[1, -1], [1, 1]], ["cat", "dog"], NAMES)
    new = Labels.from_dense([[-1, 1, 1], [1, -1, 1]], ["cat", "dog", "emu"], NAMES)
    return Dataset(images, old, Hints.gather([0], [1], [0.5])), Dataset(images, new, Hints.gather([1], [0], [0.25]))


def target(tmp_path: Path, to: str) -> Target:
    options = {"csv": ["layout=wide"], "npy": ["convention=signed"]}.get(to, [])
    return Target.parse(to, tmp_path / "out", str(tmp_path / "photos"), options, force=True)


def read_back(tmp_path: Path, to: str) -> Dataset:
    hints = {"hints": str(tmp_path / "out.hints.csv")}
    more: dict[str, Any] = {
        "csv": hints,
        "npy": {"classes": "classes.txt", "convention": "signed", **hints},
        "openimages": {"names": str(tmp_path / "out.names.csv")},
    }[to]
    return read(to, tmp_path / "out", images=tmp_path / "photos", **more)


def _same(a: Dataset, b: Dataset) -> bool:
    known = a.labels.dense().tolist(), a.labels.classes, a.hints
    return known == (b.labels.dense().tolist(), b.labels.classes, b.hints)


def _write_or_die(place: Target, data: Dataset, die_at: int) -> None:
    left = iter(range(die_at))

    def count(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove") and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    place.write(data, lambda words: None)
    os._exit(17)


@pytest.mark.parametrize("to", ["csv", "npy", "openimages"])
def test_a_kill_at_any_step_leaves_no_mixture(tmp_path: Path, old_new: tuple[Dataset, Dataset], to: str) -> None:
    old, new = old_new
    place, outcomes = target(tmp_path, to), []
    for step in range(100):
        place.write(old, lambda words: None)
        child = multiprocessing.get_context("fork").Process(target=_write_or_die, args=(place, new, step))
        child.start()
        child.join()
        try:
            found = read_back(tmp_path, to)
            assert _same(found, old) or _same(found, new)
            outcomes.append("old" if _same(found, old) else "new")
        except DataError:
            names = set(os.listdir(tmp_path))
            if (tmp_path / "out").is_dir():
                names |= set(os.listdir(tmp_path / "out"))
            assert not set(NEEDED[to]) <= names
            outcomes.append("none")
        if child.exitcode == 17:
            break
    assert child.exitcode == 17
    assert outcomes == sorted(outcomes, key=["old", "none", "new"].index)
    assert set(outcomes) == {"old", "none", "new"}


@pytest.mark.parametrize(
    ("to", "module", "name"), [("csv", hints_file, "records"), ("openimages", openimages, "_lines")]
)
def test_a_write_while_one_reads_is_noticed(
    tmp_path: Path, old_new: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch, to: str, module: Any, name: str
) -> None:
    old, new = old_new
    place, real = target(tmp_path, to), getattr(module, name)
    place.write(old, lambda words: None)

    def interrupted(path: Path) -> Any:
        place.write(new, lambda words: None)  # between the first file and the second
        return real(path)

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(DataError, match="was written while it was read; read it again"):
        read_back(tmp_path, to)


def test_labels_that_cannot_be_written_leave_the_hints(tmp_path: Path, old_new: tuple[Dataset, Dataset]) -> None:
    old, new = old_new
    target(tmp_path, "npy").write(old, lambda words: None)
    unknown = Dataset(new.images, Labels.from_dense([[1, 0]] * 2, ["cat", "dog"], NAMES), new.hints)
    place = Target.parse("npy", tmp_path / "out", str(tmp_path / "photos"), ["convention=complete"], force=True)
    with pytest.raises(LabelError, match="unknown label"):
        place.write(unknown, lambda words: None)
    assert _same(read_back(tmp_path, "npy"), old)


@pytest.mark.parametrize(("to", "name"), [("csv", "out.hints.csv"), ("openimages", "out.names.csv")])
def test_a_folder_in_the_way(tmp_path: Path, old_new: tuple[Dataset, Dataset], to: str, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "out").write_text("old")
    with pytest.raises(DataError, match=f"cannot be written: .*{name} is a folder"):
        target(tmp_path, to).write(old_new[0], lambda words: None)
    assert (tmp_path / "out").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == sorted(["out", name, "photos"])


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_predictions_say_alike_what_cannot_be_written(tmp_path: Path, ending: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / f"folder.{ending}").mkdir()
    for place, words in (
        (tmp_path / f"folder.{ending}", "cannot be written: .* is a folder"),
        (tmp_path / "file" / f"p.{ending}", "this folder cannot be made"),
    ):
        with pytest.raises(DataError, match=words):
            write_predictions(place, ["a.jpg"], [[("cat", 0.5)]])


def test_notes_of_a_check_that_cannot_be_opened(
    tmp_path: Path, old_new: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, real = tmp_path / "bad.csv.checked", Path.open
    notes.touch()

    def refused(path: Path, *args: Any, **more: Any) -> Any:  # root may open everything
        if path == notes:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "open", refused)
    data = old_new[0]
    for look in (
        lambda: check_images(ImageFiles(data.images), data.labels, tmp_path / "bad.csv", of="x"),
        lambda: is_list_of(tmp_path / "bad.csv", "x"),
    ):
        with pytest.raises(DataError, match=r"bad\.csv\.checked: cannot be read or written: Permission denied"):
            look()

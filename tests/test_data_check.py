"""`pluralis data check` with files that are not there, and with lists of other data."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from PIL import Image

from pluralis.data import read
from pluralis.errors import DataError, PluralisError, RecipeError
from tests.test_data_commands import pluralis


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two images that open, and six rows that do not, each in its own way."""
    folder = tmp_path / "photos"
    (folder / "folder.jpg").mkdir(parents=True)
    for name in ("a.jpg", "z.jpg"):
        Image.new("RGB", (8, 8)).save(folder / name)
    (folder / "broken.jpg").write_bytes(b"no image")
    os.symlink("nowhere.jpg", folder / "dead.jpg")
    os.symlink("loop.jpg", folder / "loop.jpg")
    os.mkfifo(folder / "pipe.jpg")
    names = ("a", "broken", "dead", "folder", "gone", "loop", "pipe", "z")
    (tmp_path / "labels.csv").write_text("image,label\n" + "".join(f"{name}.jpg,cat\n" for name in names))
    return tmp_path


def given(folder: Path) -> list[object]:
    return ["--images", folder / "photos", "--labels", folder / "labels.csv"]


def listed(path: Path) -> dict[str, str]:
    with path.open(newline="") as file:
        return {line["image"]: line["reason"] for line in csv.DictReader(file)}


def test_every_bad_file_is_named_and_can_be_left_out(photos: Path) -> None:
    bad, good = photos / "bad.csv", photos / "good.csv"
    for command in ("inspect", "convert", "split"):
        more = [] if command == "inspect" else ["--out", photos / "x"]
        with pytest.raises(DataError, match=r"5 of the listed images are missing: .*pluralis data check.*--leave-out"):
            pluralis(command, *given(photos), *more)
    said = pluralis("check", *given(photos), "--out", bad, code=1)
    assert "8 images: 6 do not open" in said
    found = listed(bad)
    assert list(found) == [f"{name}.jpg" for name in ("broken", "dead", "folder", "gone", "loop", "pipe")]
    assert "does not decode" in found.pop("broken.jpg")
    assert all("is not there, or not a plain file" in reason for reason in found.values())
    pluralis("convert", *given(photos), "--leave-out", bad, "--out", good)
    assert read("csv", good, images=photos / "photos").labels.ids == ("a.jpg", "z.jpg")
    assert "0 do not open" in pluralis("check", "--images", photos / "photos", "--labels", good, "--out", photos / "b2")
    (photos / "some.csv").write_text("image\ngone.jpg\n")
    with pytest.raises(DataError, match="4 of the listed images are missing"):
        pluralis("convert", *given(photos), "--leave-out", photos / "some.csv", "--out", photos / "x.csv")
    assert not (photos / "x.csv").exists()


def test_to_leave_out_every_image_is_refused(photos: Path) -> None:
    names = sorted({line.partition(",")[0] for line in (photos / "labels.csv").read_text().splitlines()[1:]})
    (photos / "all.csv").write_text("\n".join(["image", *names]) + "\n")
    with pytest.raises(DataError, match=r"all\.csv: leaves out all of the 8 images"):
        pluralis("convert", *given(photos), "--leave-out", photos / "all.csv", "--out", photos / "none.csv")
    assert not (photos / "none.csv").exists()


def test_missing_images_of_fiftyone_can_be_left_out(photos: Path) -> None:
    (photos / "l.json").write_text('{"classes": ["cat"], "labels": {"a": [0], "gone": [0]}}')
    words = ["--format", "fiftyone", "--images", photos / "photos", "--labels", photos / "l.json"]
    words += ["--unlisted", "absent"]
    pluralis("check", *words, "--out", photos / "bad.csv", code=1)
    assert list(listed(photos / "bad.csv")) == ["gone"]
    pluralis("convert", *words, "--leave-out", photos / "bad.csv", "--out", photos / "good.csv")
    assert read("csv", photos / "good.csv", images=photos / "photos").labels.ids == ("a.jpg",)


def test_a_file_that_came_back_is_looked_at_again(photos: Path) -> None:
    words = ["check", *given(photos), "--out", photos / "bad.csv"]
    pluralis(*words, code=1)
    Image.new("RGB", (8, 8)).save(photos / "photos" / "gone.jpg")
    assert "7 were checked before: 5 do not open" in pluralis(*words, code=1)


def test_the_list_of_other_data_is_not_written_over(photos: Path) -> None:
    (photos / "other").mkdir()
    Image.new("RGB", (8, 8)).save(photos / "other" / "b.jpg")
    (photos / "other.csv").write_text("image,label\nb.jpg,cat\n")
    bad = photos / "bad.csv"
    pluralis("check", *given(photos), "--out", bad, code=1)
    before = bad.read_bytes()
    other = ["check", "--images", photos / "other", "--labels", photos / "other.csv", "--out", bad]
    with pytest.raises(RecipeError, match="bad.csv is there already"):
        pluralis(*other)
    assert bad.read_bytes() == before
    pluralis("check", *given(photos), "--out", bad, code=1)  # its own command goes on
    (photos / "labels.csv").write_text("image,label\na.jpg,cat\n")  # and where the labels were changed
    pluralis("check", *given(photos), "--out", bad)
    pluralis(*other, "--force")
    assert listed(bad) == {}
    pluralis(*other)  # now it is theirs
    with pytest.raises(RecipeError, match="bad.csv is there already"):
        pluralis("check", *given(photos), "--out", bad)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--images", "photos", "--labels", "labels.csv"], "--unlisted absent"),
        (["--format", "voc", "--images", "."], "--set data.options.difficult=absent"),
    ],
)
def test_what_makes_labels_complete_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "JPEGImages", "ImageSets/Main"):
        Path(folder).mkdir(parents=True)
    for name in ("photos/a.jpg", "JPEGImages/a.jpg", "JPEGImages/b.jpg", "photos/b.jpg"):
        Path(name).touch()
    Path("labels.csv").write_text("image,label\na.jpg,cat\nb.jpg,dog\n")
    Path("ImageSets/Main/cat_train.txt").write_text("a 1\nb 0\n")
    simulate = ["simulate", *words, "--protocol", "single-positive", "--out", "x.csv"]
    with pytest.raises(PluralisError, match="50.0% are unknown: if they are absent, say so with") as caught:
        pluralis(*simulate)
    assert advice in str(caught.value)
    said = pluralis(*simulate, *advice.split())
    assert said.index("drawn with the seed 1200") < said.index("x.csv")


def test_nothing_is_said_of_a_draw_that_was_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from pluralis.cli import app

    (tmp_path / "a.jpg").touch()
    (tmp_path / "b.jpg").touch()
    (tmp_path / "x.csv").write_text("image,label\na.jpg,cat\nb.jpg,dog\n")
    words = ["--images", tmp_path, "--labels", tmp_path / "x.csv", "--protocol", "single-positive", "--out", "y.csv"]
    done = CliRunner().invoke(app, ["data", "simulate", *map(str, words)])
    assert isinstance(done.exception, DataError)
    assert "drawn" not in done.output


def test_a_seed_that_is_none(photos: Path) -> None:
    (photos / "labels.csv").write_text("image,label\na.jpg,cat\nz.jpg,cat\n")
    with pytest.raises(DataError, match="the seed 99999999999 is not possible"):
        pluralis("split", *given(photos), "--fraction", 0.5, "--seed", 99999999999, "--out", photos / "parts")

"""Images that are listed and not there: readers refuse them, `read_listed` tells all of them, in every format."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pluralis.data import read
from pluralis.data.dataset import Dataset, look_for, require_files
from pluralis.data.formats import read_listed
from pluralis.data.image_paths import ImagePaths
from pluralis.data.rows import leave_out
from pluralis.data.shard_images import pictures
from pluralis.errors import DataError
from tests.data.test_shards import pack, picture

GOOD = ("a.jpg", "e.jpg")
BAD = ("b.jpg", "c.jpg", "d.jpg", "f.jpg")  # not there, a dead link, a link to itself, a folder
NAMES = sorted((*GOOD, *BAD))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "JPEGImages"
    (folder / "f.jpg").mkdir(parents=True)
    for name in GOOD:
        (folder / name).touch()
    os.symlink("nowhere.jpg", folder / "c.jpg")
    os.symlink("d.jpg", folder / "d.jpg")
    return folder


def table(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def csv(folder: Path) -> tuple[Path, dict[str, Any]]:
    return table(folder / "x.csv", "image,label\n" + "".join(f"{name},cat\n" for name in NAMES)), {}


def jsonl(folder: Path) -> tuple[Path, dict[str, Any]]:
    lines = (json.dumps({"image": name, "positives": ["cat"]}) for name in NAMES)
    return table(folder / "x.jsonl", "\n".join(lines)), {}


def coco(folder: Path) -> tuple[Path, dict[str, Any]]:
    made = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(NAMES)],
        "annotations": [{"id": i, "image_id": i, "category_id": 1} for i in range(len(NAMES))],
        "categories": [{"id": 1, "name": "cat"}],
    }
    return table(folder / "x.json", json.dumps(made)), {"unlisted": "absent", "ids": "file"}


def lvis(folder: Path) -> tuple[Path, dict[str, Any]]:
    path, _ = coco(folder)
    made = json.loads(path.read_text())
    for entry in made["images"]:
        entry |= {"neg_category_ids": [], "not_exhaustive_category_ids": []}
    return table(path, json.dumps(made)), {"ids": "file"}


def npy(folder: Path) -> tuple[Path, dict[str, Any]]:
    np.save(folder / "formatted_train_images.npy", np.array(NAMES))
    np.save(folder / "formatted_train_labels.npy", np.ones((len(NAMES), 1)))
    return folder, {}


def openimages(folder: Path) -> tuple[Path, dict[str, Any]]:
    lines = "".join(f"{name},verification,cat,1\n" for name in NAMES)
    return table(folder / "x.csv", f"ImageID,Source,LabelName,Confidence\n{lines}"), {"suffix": ""}


def nus(folder: Path) -> tuple[Path, dict[str, Any]]:
    table(folder / "Imagelist.txt", "\n".join(NAMES))
    table(folder / "AllLabels" / "Labels_cat.txt", "1\n" * len(NAMES))
    return folder, {"split": "all"}


def labelstudio(folder: Path) -> tuple[Path, dict[str, Any]]:
    tasks = [{"data": {"image": name}, "annotations": [{"result": []}]} for name in NAMES]
    return table(folder / "x.json", json.dumps(tasks)), {"unlisted": "absent", "classes": ["cat"]}


def fiftyone(folder: Path) -> tuple[Path, dict[str, Any]]:
    return table(folder / "x.json", json.dumps({"labels": dict.fromkeys(NAMES, "cat")})), {"unlisted": "absent"}


def voc(folder: Path) -> tuple[Path, dict[str, Any]]:
    table(folder / "ImageSets/Main/cat_train.txt", "".join(f"{name[0]} 1\n" for name in NAMES))
    return folder, {}


MAKE: dict[str, Callable[[Path], tuple[Path, dict[str, Any]]]] = {
    call.__name__: call for call in (csv, jsonl, coco, lvis, npy, openimages, nus, labelstudio, fiftyone, voc)
}


def made(format: str, folder: Path, photos: Path) -> tuple[Path, dict[str, Any]]:
    path, options = MAKE[format](folder)
    return path, options if format == "voc" else {**options, "images": photos}


@pytest.mark.parametrize("format", MAKE)
def test_all_are_told_and_can_be_left_out(format: str, tmp_path: Path, photos: Path) -> None:
    path, options = made(format, tmp_path, photos)
    with pytest.raises(
        DataError, match=r"4 of the listed images are missing: .*, …; .*`pluralis data check` lists all"
    ):
        read(format, path, **options)
    data = read_listed(format, path, **options)
    assert len(data) == 6
    missing = ImagePaths.of(data.images).missing
    assert missing is not None
    there = {str(photos.resolve() / name) for name in GOOD}
    assert set(missing.files) == set(map(str, data.images)) - there
    names = {name.removesuffix(".jpg") if format == "voc" else name for name in BAD}
    left = leave_out(data, names, Path("list.csv"))
    require_files(left.images)
    assert set(map(str, left.images)) == there
    with pytest.raises(DataError, match="2 of the listed images are missing"):
        require_files(leave_out(data, set(sorted(names)[:2]), Path("list.csv")).images)


def test_a_dead_link_in_a_class_folder(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").touch()
    os.symlink("nowhere.jpg", tmp_path / "cat" / "b.jpg")
    os.symlink("nowhere.jpg", tmp_path / "cat" / "c.jpg")
    data = read_listed("imagefolder", tmp_path)
    assert data.labels.ids == ("cat/a.jpg", "cat/b.jpg", "cat/c.jpg")
    with pytest.raises(DataError, match=r"2 of the listed images are missing: '.*/cat/b\.jpg', '.*/cat/c\.jpg';"):
        require_files(data.images)
    require_files(leave_out(data, {"cat/b.jpg", "cat/c.jpg"}, Path("list.csv")).images)


def test_a_member_that_is_in_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path / "cache"))
    pack(tmp_path / "shards" / "x.tar", {"a.jpg": picture(1), "e.jpg": picture(2)})
    path, options = csv(tmp_path)
    data = read_listed("csv", path, images=tmp_path / "shards", **options)
    images = pictures(tmp_path / "shards", data.images)
    assert images.decode(4, 4).shape == (3, 4, 4)
    assert images.name(0).endswith("x.tar/a.jpg")
    with pytest.raises(DataError, match=r"b\.jpg' is not in the shards"):
        images.decode(1, 4)
    with pytest.raises(DataError, match="4 of the listed images are missing"):
        read("csv", path, images=tmp_path / "shards")


def test_what_is_missing_goes_with_the_paths() -> None:
    paths = ImagePaths("p", ["a", "b", "c"]).lacking(["p/a", "p/c"], "list")
    assert paths[1:].missing == ("list", ("p/c",))
    assert paths.take([1]).missing is None
    assert paths.take([0, 1]).missing == ("list", ("p/a",))
    require_files([Path("anything")])
    assert look_for([Path("x" * 300)], "list").missing is not None  # which no file system can look for


LINKS = {
    "csv": "image,label,value\na.jpg,cat,1\nlink.jpg,cat,-1\n",
    "jsonl": '{"image": "a.jpg", "labels": {"cat": 1}}\n{"image": "link.jpg", "labels": {"cat": -1}}\n',
}


@pytest.mark.parametrize("format", [*LINKS, "parquet"])
def test_one_image_under_two_names_is_refused(tmp_path: Path, format: str) -> None:
    """Through a link to the file, or to its folder: its two rows could contradict each other."""
    (tmp_path / "sub").mkdir()
    for name in ("a.jpg", "b.jpg", "sub/a.jpg"):
        (tmp_path / name).touch()
    os.symlink("a.jpg", tmp_path / "link.jpg")
    os.symlink("sub", tmp_path / "way")
    os.link(tmp_path / "b.jpg", tmp_path / "copy.jpg")  # a hard link is a file of its own, as a copy is
    for second, words in (
        ("link.jpg", "'a.jpg' and 'link.jpg' have one and the same image, 'a.jpg'; keep one"),
        ("way/a.jpg", "have one and the same image"),
        ("b.jpg", None),
    ):
        first = {"way/a.jpg": "sub/a.jpg", "b.jpg": "copy.jpg"}.get(second, "a.jpg")
        path = tmp_path / f"x.{format}"
        if format == "parquet":
            parquet = pytest.importorskip("pyarrow.parquet")
            arrow = pytest.importorskip("pyarrow")
            rows = {"image": [first, second], "label": ["cat", "cat"], "value": [1, -1]}
            parquet.write_table(arrow.table(rows), path)
        else:
            path.write_text(LINKS[format].replace("a.jpg", first).replace("link.jpg", second))
        if words is None:
            assert len(read(format, path, images=tmp_path)) == 2
        else:
            with pytest.raises(DataError, match=words):
                read(format, path, images=tmp_path)
    (tmp_path / "x.csv").write_text("image,label\nlink.jpg,cat\n")  # a link alone is its file
    assert isinstance(read("csv", tmp_path / "x.csv", images=tmp_path), Dataset)


@pytest.mark.parametrize(
    ("listed", "there", "words"),
    [
        ("IMG_1.jpg", "IMG_1.JPG", "upper and lower case"),
        ("Gru\u0308n/u\u0308.jpg", "Gr\u00fcn/\u00fc.jpg", "how umlauts and accents are written"),
        ("gr\u00fcn/a.jpg", "Gru\u0308n/A.jpg", "upper and lower case"),
    ],
)
def test_a_name_that_is_spelt_otherwise_is_not_called_lost(tmp_path: Path, listed: str, there: str, words: str) -> None:
    for name in (there, "other.jpg"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).touch()
    labels = table(tmp_path / "x.csv", f"image,label\n{listed},cat\nother.jpg,dog\nlost.jpg,cat\n")
    with pytest.raises(DataError, match="2 of the listed images are missing") as caught:
        read("csv", labels, images=tmp_path / "photos")
    assert f"1 of them are there, such as '{tmp_path / 'photos' / there}': the names differ in {words}" in str(
        caught.value
    )
    assert "leave" not in str(caught.value)

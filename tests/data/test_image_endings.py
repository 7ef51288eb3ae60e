"""What is an image by its name is the same for folders, shards and predictions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from pluralis.data import read
from pluralis.data.image_endings import ENDINGS, is_image
from pluralis.data.images import decode
from pluralis.data.shards import is_shards
from pluralis.errors import DataError
from pluralis.predictions import find_images
from tests.data.test_shards import pack


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path / "cache"))


def test_every_ending_is_an_image_everywhere(tmp_path: Path) -> None:
    kinds = {".png": "PNG", ".apng": "PNG", ".webp": "WEBP", ".bmp": "BMP", ".gif": "GIF", ".tif": "TIFF"}
    names = [f"{number}{ending}" for number, ending in enumerate(ENDINGS)] + ["x.JFIF", "y.Jpe"]
    folder = tmp_path / "root" / "cat"
    folder.mkdir(parents=True)
    for name in names:
        kind = kinds.get(Path(name).suffix.removesuffix("f") if name.endswith(".tiff") else Path(name).suffix, "JPEG")
        Image.new("RGB", (8, 8), "red").save(folder / name, kind)
        assert decode(folder / name, 4)[0].min() > 200  # they are what they are called, and decode
    (folder / "notes.txt").touch()
    assert {".jfif", ".jpe"} < set(ENDINGS)
    assert read("imagefolder", tmp_path / "root").labels.ids == tuple(sorted(f"cat/{name}" for name in names))
    assert find_images([folder])[1] == sorted(names)
    files = {name: (folder / name).read_bytes() for name in names} | {"0.cls": "\ufeffcat".encode(), "x.txt": b""}
    found = read("shards", pack(tmp_path / "x.tar", files))
    assert found.labels.ids == tuple(sorted(names))
    assert found.labels.classes == ("cat",)


@pytest.mark.parametrize("ending", [".heic", ".HEIC", ".avif", ".jxl", ".svg", ".cr2"])
def test_pictures_that_are_not_decoded_are_told(tmp_path: Path, ending: str) -> None:
    words = rf"1\{ending}': pictures of the kind \{ending.lower()} are not decoded; convert it"
    with pytest.raises(DataError, match=words):
        is_image(f"a/1{ending}")
    (tmp_path / "root" / "cat").mkdir(parents=True)
    (tmp_path / "root" / "cat" / f"1{ending}").touch()
    with pytest.raises(DataError, match=words):
        read("imagefolder", tmp_path / "root")
    with pytest.raises(DataError, match=rf"1\{ending}': convert them"):
        find_images([tmp_path / "root"])
    assert find_images([tmp_path / "root"], every=True)[1] == [f"cat/1{ending}"]
    with pytest.raises(DataError, match=rf"x\.tar: .*{words}"):
        read("shards", pack(tmp_path / "x.tar", {"0.png": b"", "0.cls": b"cat", f"1{ending}": b""}))


def test_a_folder_that_is_called_like_a_picture_is_none(tmp_path: Path) -> None:
    (tmp_path / "old.heic").mkdir()
    (tmp_path / "old.heic" / "1.jpg").touch()
    assert find_images([tmp_path])[1] == ["old.heic/1.jpg"]


def test_a_folder_with_an_image_is_no_set_of_shards(tmp_path: Path) -> None:
    pack(tmp_path / "shards" / "x.tar", {"0.png": b""})
    os.symlink("loop", tmp_path / "shards" / "loop")
    assert is_shards(tmp_path / "shards")
    (tmp_path / "shards" / "1.jfif").touch()
    assert not is_shards(tmp_path / "shards")


def test_what_a_mac_writes_beside_a_picture_is_none(tmp_path: Path) -> None:
    for name in ("1.jpg", "._1.jpg", "._2.heic"):
        (tmp_path / name).touch()
    assert find_images([tmp_path])[1] == ["1.jpg"]


def test_a_list_of_pictures_is_left_out(tmp_path: Path) -> None:
    folder, left = tmp_path / "photos", tmp_path / "left.csv"
    (folder / "a").mkdir(parents=True)
    for name in ("1.jpg", "2.heic", "a/1.jpg"):
        (folder / name).touch()
    left.write_text("image\n2.heic\na/1.jpg\n")
    assert find_images([folder], left) == ([folder / "1.jpg"], ["1.jpg"])
    left.write_text("image\n2.heic\na/1.jpg\ngone.jpg\n")
    assert find_images([folder], left) == ([folder / "1.jpg"], ["1.jpg"])
    left.write_text("image\n3.jpg\n")
    with pytest.raises(DataError, match=r"left\.csv: none of its 1 images is there, such as '3\.jpg'"):
        find_images([folder], left)


def test_pictures_of_two_folders_are_told_apart(tmp_path: Path) -> None:
    for name in ("one/1.jpg", "two/2.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert find_images([tmp_path / "one"])[1] == ["1.jpg"]
    assert find_images([tmp_path / "one", tmp_path / "two"])[1] == [f"{tmp_path}/one/1.jpg", f"{tmp_path}/two/2.jpg"]

"""COCO files written and read again, and what the format cannot hold."""

import json

import pytest

from pluralis.data.dataset import Dataset
from pluralis.data.formats import read, write
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from tests.data.generated import (
    TRIPS,
    exact,
    labels,
    touch,
)


@pytest.mark.parametrize("kind", ["unknown", "absent"])
@pytest.mark.parametrize("examples", TRIPS)
def test_a_way_back(tmp_path, examples, kind):
    (tmp_path / "images").mkdir()

    def go(made: Labels) -> Labels:
        write("coco", tmp_path / "c.json", made, unlisted=kind)
        touch(tmp_path / "images", *made.ids)
        options = {"images": tmp_path / "images", "unlisted": kind, "empty": "keep", "ids": "file"}
        return read("coco", tmp_path / "c.json", **options).labels

    exact(examples, labels(kind, blank=kind == "unknown"), go)


def test_numbers_and_names(tmp_path):
    folder = touch(tmp_path / "images", "a/1.jpg", "b/1.jpg").resolve()
    made = Labels.from_dense([[1, 0], [0, 1]], ["cat", "dog"], ["12", "7"])
    data = Dataset([folder / "a" / "1.jpg", folder / "b" / "1.jpg"], made)
    write("coco", tmp_path / "c.json", data, unlisted="unknown", images=folder)
    written = json.loads((tmp_path / "c.json").read_text())
    assert written["images"] == [{"id": 12, "file_name": "a/1.jpg"}, {"id": 7, "file_name": "b/1.jpg"}]
    assert written["annotations"][1] == {"id": 2, "image_id": 7, "category_id": 2, "iscrowd": 0}
    assert read("coco", tmp_path / "c.json", images=folder, unlisted="unknown") == data
    with pytest.raises(DataError, match="two images are called '1.jpg'; name the folder"):
        write("coco", tmp_path / "c.json", data, unlisted="unknown")
    with pytest.raises(DataError, match="is not below"):
        write("coco", tmp_path / "c.json", data, unlisted="unknown", images=folder / "a")


def test_what_the_format_cannot_hold(tmp_path):
    mixed = Labels.from_dense([[1, 1], [1, -1], [0, 1]], ["a", "b"], ["x", "y", "z"])
    for unlisted, kind, words in (
        ("unknown", LabelError, "row 'y' holds an absent label, which this format cannot say .*; write csv"),
        ("absent", LabelError, "row 'z' holds an unknown label"),
        (None, DataError, "unlisted=None is not possible; say 'absent'"),
    ):
        with pytest.raises(kind, match=words):
            write("coco", tmp_path / "c.json", mixed, unlisted=unlisted)
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    made = Labels.from_dense([[1]], ["a"], ["x"])
    (tmp_path / "c.json").write_text("old")
    with pytest.raises(DataError, match="cannot be written"):
        write("coco", tmp_path / "c.json", Labels.from_dense([[1]], ["\ud800"], ["x"]), unlisted="unknown")
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]
    assert (tmp_path / "c.json").read_text() == "old"
    with pytest.raises(DataError, match="cannot be written"):
        write("coco", tmp_path / "no" / "c.json", made, unlisted="unknown")

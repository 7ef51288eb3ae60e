"""Lines without an end: every reader of text stops at the limit, says where, and reads what is usual as before."""

import codecs
import tracemalloc

import numpy as np
import pytest

from pluralis.data import read, read_hints
from pluralis.data.check import read_list
from pluralis.data.dataset import Dataset
from pluralis.data.formats.text_lines import MAX_LINE, lines, open_text
from pluralis.errors import DataError
from pluralis.labels import Labels
from tests.data.generated import touch

READERS = {
    "csv": ("x", "image,label\na.jpg,cat", lambda d: read("csv", d / "x", images=d)),
    "hints": (
        "x",
        "image,label,confidence\na.jpg,cat,1",
        lambda d: read_hints(d / "x", Dataset([d / "a.jpg"], Labels.from_lists([[0]], ["cat"], ids=["a.jpg"]))),
    ),
    "openimages": (
        "x",
        "ImageID,Source,LabelName,Confidence\na,verification,x,1",
        lambda d: read("openimages", d / "x", images=d),
    ),
    "descriptions": ("x", "/m/1,cat", lambda d: read("openimages", d / "a.jpg", images=d, names=d / "x")),
    "list of images": ("x", "image\na.jpg", lambda d: read_list(d / "x")),
    "voc": ("ImageSets/Main/cat_train.txt", "a 1", lambda d: read("voc", d)),
    "voc xml": (
        "ImageSets/Main/train.txt",
        "a",
        lambda d: read("voc", touch(d, "Annotations/a.xml"), source="xml", unlisted="absent"),
    ),
    "cub": ("images.txt", "1 a.jpg", lambda d: read("cub", d)),
    "nus": ("ImageList/TrainImagelist.txt", "a.jpg", lambda d: read("nus", d)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_line_without_an_end_is_refused(tmp_path, name):
    place, start, reader = READERS[name]
    touch(tmp_path, "a.jpg", place)
    with (tmp_path / place).open("wb") as file:
        file.write(start.encode())
        file.truncate(1 << 40)  # takes no room on the disk
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=rf"line {1 + start.count(chr(10))}: over the limit of 16,777,216 bytes"):
            reader(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 16 * MAX_LINE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("newline", [None, ""])
def test_lines_are_those_of_open(tmp_path, newline):
    path = tmp_path / "x"
    path.write_bytes(("a\r\n\rb\n\n" + "é" * 100_000 + "\n" + "日本\r" * 200_000 + "end").encode())
    with open(path, encoding="utf-8", newline=newline) as plain, open_text(path, newline=newline) as limited:
        assert list(limited) == list(plain)
    assert list(lines(path))[:2] == [(1, "a"), (3, "b")]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    """As editors of Windows write it: it would be part of a class, or make a label unknown."""
    path = tmp_path / "x"
    path.write_bytes(codecs.BOM_UTF8 + b"cat\ndog\n")
    assert list(lines(path)) == [(1, "cat"), (2, "dog")]
    with open_text(path, newline="") as file:
        assert file.read() == "cat\ndog\n"
    touch(tmp_path, "Flickr/a.jpg")
    for name, text in (("Imagelist.txt", "a.jpg"), ("AllLabels/Labels_sky.txt", "1")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    found = read("nus", tmp_path, split="all", damaged="unknown")
    assert (found.labels.ids, found.labels.dense().tolist()) == (("a.jpg",), [[1]])
    np.save(tmp_path / "formatted_train_images.npy", np.array(["Flickr/a.jpg"]))
    np.save(tmp_path / "formatted_train_labels.npy", np.array([[1, 0]]))
    assert read("npy", tmp_path, classes="x").labels.classes == ("cat", "dog")


def test_the_limit_is_of_a_line_and_not_of_the_file(tmp_path):
    path = tmp_path / "x"
    long = b"x" * (MAX_LINE // 2) + b"\n"
    path.write_bytes(long * 4)
    assert sum(1 for _ in lines(path)) == 4
    path.write_bytes(long * 2 + long[:-1] * 3)
    with pytest.raises(DataError, match="x, line 3: over the limit"):
        list(lines(path))

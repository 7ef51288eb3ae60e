"""VOC lists and annotations, small ones made here and, where PLURALIS_VOC says where they are, the real ones."""

import hashlib
import os
import shutil

import numpy as np
import pytest
from hypothesis import strategies as st

from pluralis.data.formats import read
from pluralis.data.protocols import single_positive, split
from pluralis.errors import DataError
from tests.data.generated import EXAMPLES, SAMPLES, damaged_text, only_documented_errors, touch

IDS = ["2008_000003", "2007_000001", "2009_000007"]
LISTS = {"dog": [1, -1, 0], "cat": [-1, 0, -1], "tv_set": [0, 1, -1]}


def make(devkit, year="VOC2012", lists=LISTS, ids=IDS, splits=("train",)):
    base = devkit / year
    main = base / "ImageSets" / "Main"
    main.mkdir(parents=True)
    (base / "JPEGImages").mkdir()
    for name in ids:
        (base / "JPEGImages" / f"{name}.jpg").touch()
    for part in splits:
        (main / f"{part}.txt").write_text("".join(f"{i}\n" for i in ids))
        for name, values in lists.items():
            lines = "".join(f"{i} {v:2d}\n" for i, v in zip(ids, values, strict=True))
            (main / f"{name}_{part}.txt").write_text(lines)
    return base


def test_read(tmp_path):
    base = make(tmp_path, splits=("train", "trainval"))
    data = read("voc", base)
    assert data.labels.classes == ("cat", "dog", "tv_set")
    assert data.labels.ids == ("2007_000001", "2008_000003", "2009_000007")
    assert data.labels.dense().tolist() == [[0, -1, 1], [-1, 1, 0], [-1, 0, -1]]
    assert [p.stem for p in data.images] == list(data.labels.ids)
    absent = read("voc", base, split="trainval", difficult="absent").labels
    assert absent.dense().tolist() == [[-1, -1, 1], [-1, 1, -1], [-1, -1, -1]]


def test_folders_above(tmp_path):
    make(tmp_path / "VOCdevkit")
    here = read("voc", tmp_path / "VOCdevkit" / "VOC2012").labels
    assert read("voc", tmp_path / "VOCdevkit").labels == here
    assert read("voc", tmp_path).labels == here
    make(tmp_path / "VOCdevkit", "VOC2007")
    with pytest.raises(DataError, match="holds VOC2007, VOC2012; give the folder of one"):
        read("voc", tmp_path / "VOCdevkit")


def test_the_order_of_lines_does_not_matter(tmp_path):
    base = make(tmp_path)
    before = read("voc", base).labels
    path = base / "ImageSets" / "Main" / "dog_train.txt"
    path.write_bytes(b"\r\n".join(reversed(path.read_bytes().split(b"\n"))) + b"\r\n")
    assert read("voc", base).labels == before


MISTAKES = {
    "another id": ("dog_train.txt", "2008_000003 1\n2007_000001 -1\nx -1\n", r"dog_train\.txt, line 3: image 'x'"),
    "an id too many": ("dog_train.txt", "2008_000003 1\n2007_000001 -1\n2009_000007 -1\nx 1\n", "line 4: image 'x'"),
    "an id lacking": ("tv_set_train.txt", "2008_000003 1\n2009_000007 1\n", r"tv_set_train\.txt, line 2: .*'2007_"),
    "an id twice": ("cat_train.txt", "2008_000003 1\n\n2008_000003 1\n", r"cat_train\.txt, line 3: .*line 1 already"),
    "a bad value": ("dog_train.txt", "2008_000003 2\n", r"dog_train\.txt, line 1: '2008_000003 2'"),
    "no value": ("dog_train.txt", "2008_000003\n", "line 1"),
    "three cells": ("dog_train.txt", "2008_000003 1 1\n", "line 1"),
    "empty": ("dog_train.txt", "\n", r"dog_train\.txt: the list is empty"),
    "not text": ("dog_train.txt", b"\xff\xfe\x00", r"dog_train\.txt, after line 0: not UTF-8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path, mistake):
    name, text, words = MISTAKES[mistake]
    base = make(tmp_path)
    (base / "ImageSets" / "Main" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=words) as caught:
        read("voc", base)
    assert "\n" not in str(caught.value)


def test_other_mistakes(tmp_path):
    base = make(tmp_path)
    for options, words in (
        ({"split": "val"}, "no list of the split 'val'; there are lists of: train"),
        ({"split": "../train"}, "split='../train' is not possible"),
        ({"split": "*"}, "is not possible"),
        ({"difficult": "no"}, "difficult='no'"),
    ):
        with pytest.raises(DataError, match=words):
            read("voc", base, **options)
    with pytest.raises(DataError, match="no ImageSets/Main"):
        read("voc", base / "JPEGImages")
    (base / "JPEGImages" / f"{IDS[0]}.jpg").unlink()
    with pytest.raises(DataError, match=rf"1 of the listed images are missing: .*{IDS[0]}\.jpg"):
        read("voc", base)


def test_an_id_that_leaves_the_folder(tmp_path):
    (tmp_path / "outside.jpg").touch()
    base = make(tmp_path, lists={"dog": [1]}, ids=["x"])
    (base / "ImageSets" / "Main" / "dog_train.txt").write_text("../../outside 1\n")
    with pytest.raises(DataError, match=r"dog_train\.txt: entry '\.\./\.\./outside\.jpg' is refused"):
        read("voc", base)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_lists_raise_only_documented_errors(tmp_path, examples):
    main = make(tmp_path) / "ImageSets" / "Main"
    pieces = [*IDS, "1", "-1", "0", " ", "\n", "\n", "x", "\0", "\ud800", "/"]
    whole = "".join(f"{name} 1\n" for name in IDS)
    lists = st.lists(st.sampled_from(pieces), max_size=20).map(lambda p: "".join(p).encode("utf-8", "surrogatepass"))

    def parse(drawn):
        for name, text in zip(LISTS, drawn, strict=True):
            (main / f"{name}_train.txt").write_bytes(text)
        return read("voc", tmp_path)

    texts = lists | damaged_text(whole, pieces) | st.just(whole.encode())
    only_documented_errors(examples, st.tuples(*[texts] * len(LISTS)), parse, "_train.txt")


SAMPLE = SAMPLES / "voc" / "VOC2012"
NAMES = ["2008_000008", "2008_000015", "2009_000001", "2010_000002"]


@pytest.fixture
def devkit(tmp_path):
    """The sample of all parts of the format, with its photos."""
    shutil.copytree(SAMPLE, tmp_path / "VOC2012")
    touch(tmp_path / "VOC2012" / "JPEGImages", *(f"{name}.jpg" for name in NAMES))
    return tmp_path / "VOC2012"


def test_annotations_and_lists_say_the_same(devkit):
    """Present: an object that is not difficult. Unknown: difficult ones alone. Absent: nothing is drawn."""
    lists = read("voc", devkit)
    assert lists.labels.dense().tolist() == [[-1, 1, 1], [1, -1, -1], [-1, -1, 0], [-1, -1, -1]]
    for options in ({}, {"split": "all"}, {"difficult": "absent"}):
        given = {key: value for key, value in options.items() if key == "difficult"}
        assert read("voc", devkit, source="xml", unlisted="absent", **options) == read("voc", devkit, **given)


def test_annotations_of_ones_own(devkit):
    known = read("voc", devkit, source="xml", unlisted="unknown")
    assert known.labels.dense().tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    named = ["person", "cow", "bottle", "horse"]
    fixed = read("voc", devkit, source="xml", unlisted="absent", classes=named).labels
    assert fixed.classes == tuple(named)
    assert fixed.dense().tolist() == [[1, -1, -1, 1], [-1, -1, 1, -1], [0, -1, -1, -1], [-1] * 4]
    shutil.rmtree(devkit / "ImageSets")  # as labelling tools write it: annotations and photos of any ending
    (devkit / "JPEGImages" / "2008_000015.jpg").rename(devkit / "JPEGImages" / "photo.png")
    file = devkit / "Annotations" / "2008_000015.xml"
    file.write_text(file.read_text().replace("2008_000015.jpg", "photo.png"))
    every = read("voc", devkit.parent, source="xml", split="all", unlisted="unknown")
    assert every.labels == known.labels
    assert every.images[1].name == "photo.png"


@pytest.mark.parametrize("ending", [".jpg", ".png"])
def test_the_old_name_inside_of_a_renamed_annotation(devkit, ending):
    """Both files were renamed, the field inside was not: it names another photo now."""
    photos, stale = devkit / "JPEGImages", devkit / "Annotations" / "2008_000015.xml"
    for name in ("2008_000008", "2008_000015"):
        (photos / f"{name}.jpg").rename(photos / f"{name}{ending}")
    other = devkit / "Annotations" / "2008_000008.xml"
    other.write_text(other.read_text().replace("2008_000008.jpg", f"2008_000008{ending}"))
    stale.write_text(stale.read_text().replace("2008_000015.jpg", f"2008_000008{ending}"))
    data = read("voc", devkit, source="xml", unlisted="unknown")
    assert [path.name for path in data.images[:2]] == [f"2008_000008{ending}", f"2008_000015{ending}"]
    (photos / f"2008_000015{ending}").unlink()
    with pytest.raises(DataError, match=r"'2008_000008\.xml' and '2008_000015\.xml' have one and the same image"):
        read("voc", devkit, source="xml", unlisted="unknown")


@pytest.mark.parametrize(("text", "value"), [("0", 1), ("", 1), (" 1 ", 0), ("True", None), ("2", None)])
def test_what_difficult_may_be(devkit, text, value):
    file = devkit / "Annotations" / "2008_000015.xml"
    file.write_text(f"<annotation><object><name>bottle</name><difficult>{text}</difficult></object></annotation>")
    if value is None:
        with pytest.raises(DataError, match=rf"2008_000015\.xml, object 1: difficult is '{text}'; write 1, or 0"):
            read("voc", devkit, source="xml", unlisted="absent")
    else:
        labels = read("voc", devkit, source="xml", unlisted="absent", classes=["bottle", "horse", "person"]).labels
        assert labels.dense()[1, 0] == value


def test_mistakes_in_annotations_are_named(devkit):
    def refused(words, **options):
        with pytest.raises(DataError, match=words) as caught:
            read("voc", devkit, **{"source": "xml", "unlisted": "absent", **options})
        assert "\n" not in str(caught.value)

    refused("unlisted=None is not possible; say 'absent' if every class", unlisted=None)
    refused("source='json' is not possible; choose 'lists' or 'xml'", source="json")
    refused("the lists of VOC say what is absent", source="lists")
    refused(r"val\.txt: is not there; name the images in it, one a line, or take them all with split=all", split="val")
    refused("split='../train' is not possible", split="../train")
    refused(r"2008_000015\.xml, object 1: there is no class 'bottle'", classes=["horse", "person"])
    file = devkit / "Annotations" / "2009_000001.xml"
    whole = file.read_text()
    file.write_text(whole.replace("2009_000001.jpg", "../../secret.jpg"))
    refused(r"2009_000001\.xml: filename: entry '\.\./\.\./secret\.jpg' is refused")
    file.write_text(whole.replace("<name>person</name>", ""))
    refused(r"2009_000001\.xml, object 1: it has no name")
    file.unlink()
    refused(r"2009_000001\.xml: is not there")
    (devkit / "ImageSets" / "Main" / "train.txt").write_text("2008_000008\n\n2008_000008\n")
    refused(r"train\.txt, line 3: image '2008_000008' is in line 1 too")
    (devkit / "ImageSets" / "Main" / "train.txt").write_text("2010_000002\n")
    refused("there is no object in the files; draw some, or give classes")
    (devkit / "JPEGImages" / "2010_000002.jpg").unlink()
    refused(r"1 of the listed images are missing: .*2010_000002\.jpg", classes=["cat"])


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_annotations_raise_only_documented_errors(devkit, examples):
    file = devkit / "Annotations" / "2008_000008.xml"
    tags = ("object", "name", "difficult", "filename", "part", "annotation", "x")
    pieces = [*(f"<{tag}>" for tag in tags), *(f"</{tag}>" for tag in tags), "1", "../x", "&a;", "\0", "é", "<", "/"]

    def parse(text):
        file.write_bytes(text)
        return read("voc", devkit, source="xml", unlisted="unknown")

    only_documented_errors(examples, damaged_text(file.read_text(), pieces), parse, file.name)


@pytest.mark.skipif("PLURALIS_VOC" not in os.environ, reason="PLURALIS_VOC does not name an unpacked VOC 2012")
@pytest.mark.parametrize(
    ("part", "rows", "present", "difficult", "digest"),
    [
        ("train", 5717, 8331, 532, "6c3763a26035abe63507068b85ecf1fda245cb681f66b02e7db6e7b6d44516d6"),
        ("val", 5823, 8351, 505, "d8036dc7413eda6406072b95e72d850233b90113ec9c780a816c40aa75a10154"),
    ],
)
def test_the_real_lists(part, rows, present, difficult, digest):
    data = read("voc", os.environ["PLURALIS_VOC"], split=part, difficult="absent")
    assert data.labels.shape == (rows, 20)
    assert data.labels.summary().positives.sum() == present
    assert data.labels.summary().unknown.sum() == 0
    lists = read("voc", os.environ["PLURALIS_VOC"], split=part)
    assert lists.labels.summary().unknown.sum() == difficult
    assert read("voc", os.environ["PLURALIS_VOC"], split=part, source="xml", unlisted="absent") == lists
    observed = single_positive(data.labels)
    assert (observed.summary().row_positives == 1).all()
    assert (data.labels.dense()[observed.dense() == 1] == 1).all()
    # The digest was taken from this code; the restatement in test_protocols.py is what vouches for it.
    assert hashlib.sha256(observed.dense().astype(np.int8).tobytes()).hexdigest() == digest
    train, val = split(rows)
    assert len(val) == round(0.2 * rows)
    assert len(train) + len(val) == rows

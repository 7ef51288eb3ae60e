"""NUS-WIDE: lists that agree line by line, and the one line of it that is damaged."""

import shutil

import pytest

from pluralis.data.formats import nus, read
from pluralis.errors import DataError
from tests.data.generated import EXAMPLES, SAMPLES, damaged_text, only_documented_errors, touch

NAMES = ("actor/0001_2124494179.jpg", "actor/0002_174174086.jpg", "actor/0004_2546735888.jpg")


@pytest.fixture
def root(tmp_path):
    shutil.copytree(SAMPLES / "nus", tmp_path / "nus")
    touch(tmp_path / "nus" / "Flickr", *NAMES)
    return tmp_path / "nus"


def test_the_published_damage(root):
    with pytest.raises(DataError, match=r"lake_Train\.txt, line 2: '-1130179' is neither 0 nor 1; .*damaged='unknown'"):
        read("nus", root)
    data = read("nus", root, damaged="unknown")
    assert data.labels.classes == ("airport", "sky", "lake")
    assert data.labels.ids == (NAMES[0], NAMES[2])
    assert data.labels.dense().tolist() == [[-1, 1, -1], [1, 1, 0]]
    assert data.notes == (f"{root}: 1 labels are neither 0 nor 1, and are taken as unknown",)
    assert data.images[1] == (root / "Flickr" / NAMES[2]).resolve()


def test_splits_and_places(root):
    assert read("nus", root, split="test").labels.dense().tolist() == [[-1, 1, 1]]
    data = read("nus", root, split="all")
    assert data.labels.ids == NAMES
    assert data.labels.dense().tolist() == [[-1, 1, -1], [-1, 1, 1], [1, 1, -1]]
    (root / "ConceptsList" / "Concepts81.txt").unlink()
    assert read("nus", root, split="all").labels.classes == ("airport", "lake", "sky")
    (root / "Flickr").rename(root.parent / "photos")
    assert len(read("nus", root, images=root.parent / "photos", split="all")) == 3
    for options, words in (
        ({}, "name their folder"),
        ({"split": "val"}, "split='val'"),
        ({"damaged": "no"}, "damaged='no'"),
        ({"missing": "no"}, "missing='no'"),
    ):
        with pytest.raises(DataError, match=words):
            read("nus", root, **{"split": "all", **options})


def test_images_that_vanished(root):
    (root / "Flickr" / NAMES[1]).unlink()
    with pytest.raises(DataError, match=r"Imagelist\.txt: 1 of the listed images are missing"):
        read("nus", root, split="all")
    data = read("nus", root, split="all", missing="drop")
    assert data.labels.ids == (NAMES[0], NAMES[2])
    assert data.labels.dense().tolist() == [[-1, 1, -1], [1, 1, -1]]
    [note] = data.notes
    assert note.startswith(f"{root / 'ImageList/Imagelist.txt'}: 1 of 3 images are not in {root / 'Flickr'}, such as ")
    assert note.endswith(f"'{NAMES[1]}', and are left out")


MISTAKES = {
    "too few": ("Groundtruth/AllLabels/Labels_sky.txt", "1\n1\n", r"Labels_sky\.txt: 2 lines for the 3 images"),
    "a word": ("Groundtruth/AllLabels/Labels_sky.txt", "1\nx\n1\n", "line 2: 'x' is neither 0 nor 1"),
    "an image twice": ("ImageList/Imagelist.txt", "a\\b.jpg\na\\b.jpg\n", "line 2: image 'a/b.jpg' is in line 1 too"),
    "no image": ("ImageList/Imagelist.txt", "\n", "the list is empty"),
    "outside": ("ImageList/Imagelist.txt", "a\n..\\..\\b.jpg\nc\n", "is refused"),
    "another concept": ("ConceptsList/Concepts81.txt", "airport\nsky\n", r"not those of the labels \('lake'\)"),
    "not text": ("ImageList/Imagelist.txt", b"\xff", "not UTF-8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(root, mistake):
    name, text, words = MISTAKES[mistake]
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=words) as caught:
        read("nus", root, split="all")
    assert str(root) in str(caught.value)


def test_nothing_unpacked(tmp_path, root):
    with pytest.raises(DataError, match=r"there is no ImageList/TrainImagelist\.txt"):
        read("nus", tmp_path)
    shutil.rmtree(root / "Groundtruth")
    with pytest.raises(DataError, match="unpack the ground truth"):
        read("nus", root)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", ["ImageList/Imagelist.txt", "Groundtruth/AllLabels/Labels_sky.txt"])
def test_generated_files_raise_only_documented_errors(root, examples, name):
    text = (root / name).read_text()

    def parse(made):
        (root / name).write_bytes(made)
        return nus.read(root, split="all", missing="drop")

    pieces = ["1", "0", "\n", "\\", "\0", "\ud800", "..", "/", " ", "\r"]
    only_documented_errors(examples, damaged_text(text, pieces), parse, "nus")

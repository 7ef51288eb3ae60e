"""FiftyOne image classification: one class or a list, predictions beside, and a way back."""

import json

import pytest

from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats import fiftyone, read, read_listed, write
from pluralis.data.image_paths import ImagePaths
from pluralis.errors import DataError
from pluralis.labels import Labels
from tests.data.generated import (
    EXAMPLES,
    SAMPLES,
    TRIPS,
    damaged_json,
    exact,
    labels,
    only_documented_errors,
    touch,
)

MANY, ONE = SAMPLES / "fiftyone" / "labels.json", SAMPLES / "fiftyone" / "single.json"
CONTENT = json.loads(MANY.read_text())


@pytest.fixture
def folder(tmp_path):
    return touch(tmp_path / "data", "sub/pets.jpg", "lake.png", "guess.jpg", "sky.jpeg", "new.jpg", ".hidden")


def test_lists_of_classes(folder):
    (folder.parent / "labels.json").write_text(MANY.read_text())
    data = read("fiftyone", folder.parent, unlisted="absent")
    assert data.labels.classes == ("cat", "dog", "eel")
    assert data.labels.ids == ("guess.jpg", "lake.png", "new.jpg", "sky.jpeg", "sub/pets.jpg")
    # Nobody looked at guess and new; sky was looked at and has nothing.
    assert data.labels.dense().tolist() == [[0, 0, 0], [-1, -1, 1], [0, 0, 0], [-1, -1, -1], [1, 1, -1]]
    assert data.hints == Hints.gather([0, 1], [0, 1], [0.5, 0.25])
    assert data.images[4] == folder.resolve() / "sub" / "pets.jpg"


def test_one_class_each(folder):
    data = read("fiftyone", ONE, images=folder, unlisted="absent")
    assert data.labels.classes == ("dog", "eel")
    assert data.labels.dense().tolist() == [[-1, 1], [0, 0], [1, -1]]
    assert read("fiftyone", ONE, images=folder, unlisted="unknown").labels.dense().tolist() == [[0, 1], [0, 0], [1, 0]]
    with pytest.raises(DataError, match="unlisted=None is not possible"):
        read("fiftyone", ONE, images=folder)


MISTAKES = {
    "no object": ([], "the file is not an object"),
    "no labels": ({"classes": ["a"]}, "labels is lacking"),
    "a number too large": ({"classes": ["a"], "labels": {"new": 1}}, r"\['new'\] is 1, but classes go from 0 to 0"),
    "below zero": ({"classes": ["a"], "labels": {"new": [0, -1]}}, r"labels\['new'\]\[1\] is -1"),
    "truth": ({"classes": ["a"], "labels": {"new": True}}, "is True; give a whole number"),
    "no class": ({"classes": ["cat"], "labels": {"new": "cot"}}, "no class 'cot'; did you mean 'cat'"),
    "a number without classes": ({"labels": {"new": 0}}, "is 0; give a text"),
    "a class twice": ({"classes": ["a", "a"], "labels": {}}, "classes: a name is there twice"),
    "no image": ({"classes": ["a"], "labels": {"gone": 0}}, r"1 of the listed images are missing: .*/data/gone'"),
    "no ending": ({"classes": ["a"], "labels": {"bare": 0}}, r"labels\['bare'\]: that file has no ending of images"),
    "two images": ({"classes": ["a"], "labels": {"twin": 0}}, "could be 'twin.jpg' or 'twin.png'"),
    "an image twice": ({"classes": ["a"], "labels": {"new": 0, "new.jpg": 0}}, "'new.jpg' has labels already"),
    "outside": ({"classes": ["a"], "labels": {"../new": 0}}, "'../new' is refused: it steps out"),
    "no confidence": ({"classes": ["a"], "labels": {"new": {"label": 0, "confidence": 2}}}, "confidence is 2; give"),
    "a key twice": ('{"labels": {"new": null, "new": null}}', "the key 'new' is given twice"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(folder, mistake):
    made, words = MISTAKES[mistake]
    touch(folder, "twin.jpg", "twin.png", "bare")
    file = folder.parent / "l.json"
    file.write_text(made if isinstance(made, str) else json.dumps(made))
    with pytest.raises(DataError, match=words) as caught:
        read("fiftyone", file, images=folder, unlisted="absent")
    assert "l.json" in str(caught.value)


def test_images_that_are_not_there_are_told_by_their_names_in_the_file(folder):
    touch(folder, "text.txt")
    file = folder.parent / "l.json"
    file.write_text(json.dumps({"classes": ["a"], "labels": {"new": 0, "sub/gone": [0], "gone.png": 0, "text": 0}}))
    found = read_listed("fiftyone", file, images=folder, unlisted="absent")
    assert found.labels.ids == ("gone.png", "new.jpg", "sub/gone", "text")
    missing = ImagePaths.of(found.images).missing
    assert missing == (str(file), tuple(str(folder.resolve() / name) for name in ("gone.png", "sub/gone", "text")))


@pytest.mark.parametrize("kind", ["unknown", "absent"])
@pytest.mark.parametrize("examples", TRIPS)
def test_a_way_back(tmp_path, examples, kind):
    (tmp_path / "data").mkdir()

    def go(made: Labels) -> Labels:
        write("fiftyone", tmp_path / "labels.json", made, unlisted=kind)
        touch(tmp_path / "data", *made.ids)
        return read("fiftyone", tmp_path, unlisted=kind).labels

    exact(examples, labels(kind), go)


def test_endings_make_no_difference(tmp_path):
    made = Labels.from_dense([[1], [1]], ["a"], ["x.jpg", "x.png"])
    with pytest.raises(DataError, match="two images differ in their ending alone"):
        write("fiftyone", tmp_path / "l.json", made, unlisted="absent")


def test_only_images_are_images(tmp_path):
    """Captions and annotations are often called like the image beside them; nor is a name hidden to who asks for it."""
    folder = touch(
        tmp_path / "data", "a.jpg", "a.txt", "a.xml", "a", "s/a.JFIF", "s/a.json", ".b/.c.png", "s.jpg/d.png"
    )
    names = [".b/.c.png", "a.jpg", "s.jpg/d.png", "s/a.JFIF"]
    made = Dataset([folder.resolve() / name for name in names], Labels.from_dense([[1]] * 4, ["x"], names))
    write("fiftyone", tmp_path / "l.json", made, unlisted="absent", images=folder)
    assert list(json.loads((tmp_path / "l.json").read_text())["labels"]) == [".b/.c", "a", "s.jpg/d", "s/a"]
    again = read("fiftyone", tmp_path / "l.json", images=folder, unlisted="absent")
    assert again.labels == made.labels
    assert again.images == made.images


@pytest.mark.parametrize(
    ("name", "words"), [("a.png", "'a.jpg' and 'a.png' differ in their ending alone"), ("b", "'b' has no ending of")]
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, name, words):
    folder = touch(tmp_path / "data", "a.jpg", "a.png", "b").resolve()
    made = Dataset([folder / name], Labels.from_dense([[1]], ["x"], [name]))
    with pytest.raises(DataError, match=words):
        write("fiftyone", tmp_path / "l.json", made, unlisted="absent", images=folder)
    assert not (tmp_path / "l.json").exists()


def test_no_class_is_refused(folder, tmp_path):
    for content in ({"labels": {"new": None}}, {"classes": [], "labels": {"new": None}}, {"labels": {}}):
        (tmp_path / "l.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"l\.json: there is no class in the file"):
            read("fiftyone", tmp_path / "l.json", images=folder, unlisted="absent")


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_files_raise_only_documented_errors(folder, examples):
    file = folder.parent / "l.json"

    def parse(text):
        file.write_text(text)
        return fiftyone.read(file, images=folder, unlisted="absent")

    one = json.loads(ONE.read_text())
    only_documented_errors(examples, damaged_json(CONTENT) | damaged_json(one), parse, "l.json")

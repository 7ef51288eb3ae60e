"""NumPy files of the single-positive literature, and files that only look like them."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pluralis.data.formats import read
from pluralis.data.protocols import single_positive
from pluralis.errors import DataError

NAMES = ["b/2.jpg", "a/1.jpg", "3.jpg"]  # not sorted: the order is the file's
LABELS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def make(root, names=NAMES, labels=LABELS, split="train", folder=""):
    for name in NAMES:
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    np.save(root / f"formatted_{split}_images.npy", np.array(names))
    np.save(root / f"formatted_{split}_labels.npy", labels)
    return root


@pytest.mark.parametrize("kind", [float, np.int64, np.uint8, bool])
def test_read(tmp_path, kind):
    data = read("npy", make(tmp_path, labels=LABELS.astype(kind)))
    assert data.labels.ids == tuple(NAMES)
    assert data.labels.classes == ("0", "1")
    assert data.labels.dense().tolist() == [[1, -1], [-1, 1], [1, 1]]
    assert [p.relative_to(tmp_path.resolve()).as_posix() for p in data.images] == NAMES
    assert single_positive(data.labels).dense().sum() == 3


def test_places_and_class_names(tmp_path):
    make(tmp_path, split="val", folder="Flickr")
    (tmp_path / "names.txt").write_text("cat\n\ndog \n")
    data = read("npy", tmp_path, images=tmp_path / "Flickr", split="val", classes="names.txt")
    assert data.labels.classes == ("cat", "dog")
    assert [p.relative_to(tmp_path.resolve() / "Flickr").as_posix() for p in data.images] == NAMES
    for options, words in (
        ({"images": "/no"}, "there is no image folder '/no'"),
        ({"split": "../val"}, "split='../val' is not possible"),
        ({"split": "train"}, "formatted_train_images.npy is not there; .*: formatted_val_images.npy"),
        ({"classes": "../x"}, "is refused"),
        ({"classes": "no.txt"}, "no.txt: cannot be read"),
        ({"classes": "three.txt"}, "three.txt: 3 different class names for 2 classes"),
    ):
        (tmp_path / "three.txt").write_text("a\nb\nc\n")
        with pytest.raises(DataError, match=words):
            read("npy", tmp_path, **{"split": "val", "images": tmp_path / "Flickr", **options})
    with pytest.raises(DataError, match="there is no folder"):
        read("npy", tmp_path / "no")


def saved(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def archived(array):
    file = io.BytesIO()
    np.savez(file, array)
    return file.getvalue()


LYING = saved(np.zeros((3, 2))).replace(b"(3, 2), }          ", b"(3, 200000000000), }")
MISTAKES = {
    "names as objects": ("images", saved(np.array(NAMES, object), allow_pickle=True), "no plain NumPy array"),
    "names as bytes": ("images", saved(np.array(NAMES, "S")), r"\|S7 of shape 3; give a list of file names as text"),
    "names as a matrix": ("images", saved(np.array([NAMES])), "shape 1 × 3"),
    "a name twice": ("images", saved(np.array(["3.jpg", "a/1.jpg", "3.jpg"])), "'3.jpg' is in place 0 and 2"),
    "an empty name": ("images", saved(np.array(["3.jpg", "", "a/1.jpg"])), "not empty"),
    "a name outside": ("images", saved(np.array(["3.jpg", "../1.jpg", "a"])), "'../1.jpg' is refused"),
    "a file lacking": ("images", saved(np.array(["3.jpg", "4.jpg", "a/1.jpg"])), "1 of the listed images are missing"),
    "no text": ("images", saved(np.arange(2**31, 2**31 + 3, dtype="<u4")).replace(b"'<u4'", b"'<U1'"), "do not exist"),
    "an archive": ("labels", archived(LABELS), "an archive of arrays"),
    "too few rows": ("labels", saved(LABELS[:2]), "shape 2 × 2 for the 3 images"),
    "a list": ("labels", saved(LABELS[:, 0]), "shape 3 for the 3 images"),
    "a value": ("labels", saved(LABELS * 2), "formatted_train_labels.npy: row 'b/2.jpg', class 0: the value 2.0"),
    "signed": ("labels", saved(LABELS * 2 - 1), "the value -1.0 means nothing"),
    "no number": ("labels", saved(LABELS.astype(str)), "labels must be numbers"),
    "a pickle": ("labels", b"\x80\x04]\x94.", "no plain NumPy array"),
    "cut": ("labels", saved(LABELS)[:-1], "no plain NumPy array"),
    "nothing": ("labels", b"", "no plain NumPy array"),
    "a header that lies": ("labels", LYING, "no plain NumPy array"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path, mistake):
    what, written, words = MISTAKES[mistake]
    make(tmp_path)
    (tmp_path / f"formatted_train_{what}.npy").write_bytes(written)
    with pytest.raises(DataError, match=words) as caught:
        read("npy", tmp_path)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["images", "labels"]), st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_damaged_files_raise_only_documented_errors(tmp_path_factory, what, place, noise):
    root = make(tmp_path_factory.getbasetemp() / "damaged npy")
    file = root / f"formatted_train_{what}.npy"
    written = bytearray(file.read_bytes())
    written[place : place + len(noise)] = noise
    file.write_bytes(bytes(written))
    message = ""
    try:
        assert len(read("npy", root)) == 3
    except DataError as error:
        message = str(error)
    assert "\n" not in message

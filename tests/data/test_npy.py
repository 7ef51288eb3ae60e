"""NumPy files of the single-positive literature, and files that only look like them."""

import io
import multiprocessing
import os
import signal
import sys
import threading

import numpy as np
import pytest
from hypothesis import strategies as st

from pluralis.data.formats import npy, read, write
from pluralis.data.protocols import single_positive
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from tests.data.tables import for_all, make_images, tables

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
        ({"classes": "no.txt"}, "no.txt: is not there"),
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
    "two spellings": (
        "images",
        saved(np.array(["3.jpg", "a/1.jpg", "./3.jpg"])),
        "have one and the same image, '3.jpg'",
    ),
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


@pytest.mark.parametrize("shape", [(0, 10**9), (3, 2_000_000)])
def test_a_matrix_that_claims_a_million_classes_is_refused(tmp_path, shape):
    make(tmp_path)
    if not shape[0]:
        np.save(tmp_path / "formatted_train_images.npy", np.array([], "U5"))
    with (tmp_path / "formatted_train_labels.npy").open("wb") as file:
        header = {"descr": "|i1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + shape[0] * shape[1])
    with pytest.raises(DataError, match=r"labels\.npy: [0-9,]+ classes are over the limit of 1,048,576"):
        read("npy", tmp_path)


@pytest.mark.parametrize("examples", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_raise_only_documented_errors(tmp_path, examples):
    make(tmp_path)
    files = {what: tmp_path / f"formatted_train_{what}.npy" for what in ("images", "labels")}
    whole = {what: file.read_bytes() for what, file in files.items()}

    def check(drawn):
        what, place, noise = drawn
        written = bytearray(whole[what])
        written[place : place + len(noise)] = noise
        files[what].write_bytes(bytes(written))
        message = ""
        try:
            assert len(read("npy", tmp_path)) == 3
        except DataError as error:
            message = str(error)
        files[what].write_bytes(whole[what])
        assert "\n" not in message

    damage = st.tuples(st.sampled_from(["images", "labels"]), st.integers(0, 200), st.binary(min_size=1, max_size=4))
    for_all(damage, check, examples)


def test_observed_labels(tmp_path):
    make(tmp_path)
    np.save(tmp_path / "formatted_train_labels_obs.npy", np.array([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]]))
    assert read("npy", tmp_path, file="labels_obs").labels.dense().tolist() == [[1, 0], [0, -1], [0, 0]]
    for options, words in (
        ({"file": "labels_all"}, "file='labels_all' is not possible; did you mean 'labels"),
        ({"convention": "sined"}, "there is no label convention 'sined'; did you mean 'signed'"),
        ({"file": "labels_obs", "split": "val"}, "formatted_val_images.npy is not there"),
    ):
        with pytest.raises(DataError, match=words):
            read("npy", tmp_path, **options)


# What each number means, written out a second time.
MEANINGS = {
    "signed": {1: 1, -1: -1, 0: 0},
    "complete": {1: 1, -1: 0},
    "zero-unknown": {1: 1, 0: 0},
    "minus-unknown": {1: 1, -1: 0, 0: -1},
    "soft-negative": {1: 1, 0: 0},
}


@pytest.mark.parametrize("convention", MEANINGS)
@pytest.mark.parametrize("examples", [25, pytest.param(2_000, marks=pytest.mark.slow)])
def test_round_trip(tmp_path, monkeypatch, convention, examples):
    folder, root = make_images(tmp_path / "images"), tmp_path / "new" / "npy"
    monkeypatch.setattr(npy, "_CELLS", 8)  # several blocks
    number = MEANINGS[convention]

    def check(data):
        write("npy", root, data, images=folder, convention=convention, split="val")
        matrix = np.load(root / "formatted_val_labels.npy")
        assert matrix.tolist() == [[number[label] for label in row] for row in data.labels.dense().tolist()]
        again = read("npy", root, images=folder, convention=convention, split="val")
        assert again.labels.dense().tolist() == data.labels.dense().tolist()
        assert again.labels.ids == data.labels.ids
        assert again.images == data.images

    for_all(tables(folder, values=list(number)), check, examples)


def test_soft_pseudo_labels_are_unknown(tmp_path):
    make(tmp_path, labels=np.array([[1, -0.3], [0, 0], [-1, 1]]))
    labels = read("npy", tmp_path, convention="soft-negative").labels
    assert labels.dense().tolist() == [[1, 0], [0, 0], [0, 1]]


def test_class_names_are_written(tmp_path):
    make(tmp_path)
    labels = Labels.from_dense(LABELS * 2 - 1, ["dog", "a cat"], NAMES)
    write("npy", tmp_path, labels, classes="names.txt")
    assert read("npy", tmp_path, classes="names.txt").labels == labels
    for name in ("a\nb", " a", "a\u2028b"):
        with pytest.raises(LabelError, match="does not fit in a line of names.txt"):
            write("npy", tmp_path, Labels.from_lists([[0]], [name], ids=["3.jpg"]), classes="names.txt")


@pytest.mark.parametrize(
    ("convention", "row", "word"),
    [("complete", [1, 0], "unknown"), ("zero-unknown", [-1, 1], "absent"), ("soft-negative", [-1, 0], "absent")],
)
def test_labels_that_a_convention_cannot_write(tmp_path, convention, row, word):
    complete = [1, 1] if word == "absent" else [-1, -1]
    labels = Labels.from_dense([complete, complete, row], ids=NAMES)
    with pytest.raises(LabelError, match=f"row '3.jpg' holds an {word} label, which the convention '{convention}'"):
        write("npy", tmp_path / "new", labels, convention=convention)
    assert not (tmp_path / "new").exists()


def two_sets(root):
    """Labels of two data sets: other images, other classes, other labels."""
    for name in NAMES:
        path = root / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    old = Labels.from_dense([[1, -1], [-1, 1]], ["cat", "dog"], NAMES[:2])
    return old, Labels.from_dense([[1, 1], [1, -1]], ["sea", "sky"], NAMES[1:])


def test_a_write_while_one_reads_is_no_mixture(tmp_path, monkeypatch):
    old, new = two_sets(tmp_path)
    options = {"images": tmp_path / "images", "classes": "classes.txt"}
    load, names = npy._load, npy._class_names
    for step in ("names", "labels", "classes"):
        folder = tmp_path / step
        write("npy", folder, old, classes="classes.txt")

        def loaded(path, folder=folder, step=step):
            array = load(path)
            if {"names": "images", "labels": "labels"}.get(step, "none") in path.name:
                write("npy", folder, new, classes="classes.txt")  # another process, just now
            return array

        def named(path, count, folder=folder, step=step):
            if step == "classes":
                write("npy", folder, new, classes="classes.txt")
            return names(path, count)

        with monkeypatch.context() as patch:
            patch.setattr(npy, "_load", loaded)
            patch.setattr(npy, "_class_names", named)
            with pytest.raises(DataError, match="was written while it was read; read it again"):
                read("npy", folder, **options)
        assert read("npy", folder, **options).labels == new


def test_a_kill_leaves_the_labels_of_other_files(tmp_path):
    """The names are those of both files of labels, and stay."""
    old, _ = two_sets(tmp_path)
    lost, options = 0, {"images": tmp_path / "images", "file": "labels_obs", "classes": "classes.txt"}
    for step in range(100):
        folder = tmp_path / str(step)
        for file in ("labels", "labels_obs"):
            write("npy", folder, old, file=file, classes="classes.txt")
        changed = Labels.from_dense([[1, 1], [1, 1]], old.classes, old.ids)
        child = multiprocessing.get_context("fork").Process(
            target=write_or_die, args=(folder, changed, step, "others.txt")
        )
        child.start()
        child.join()
        assert read("npy", folder, **options).labels == old
        lost += not (folder / "formatted_train_labels.npy").exists()
        if child.exitcode == 17:
            break
    assert child.exitcode == 17
    assert lost  # or nothing was killed where it matters


def write_or_die(folder, labels, die_at, classes="classes.txt"):
    """The process ends at that step of those that the disk sees; with 17 if it ends by itself."""
    left = iter(range(die_at))

    def count(event, args):
        if event in ("open", "os.rename", "os.remove") and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    write("npy", folder, labels, classes=classes)
    os._exit(17)


def test_a_kill_at_any_step_leaves_no_labels_on_other_images(tmp_path):
    old, new = two_sets(tmp_path)
    outcomes = []
    for step in range(100):
        folder = tmp_path / str(step)
        write("npy", folder, old, classes="classes.txt")
        child = multiprocessing.get_context("fork").Process(target=write_or_die, args=(folder, new, step))
        child.start()
        child.join()
        try:
            found = read("npy", folder, images=tmp_path / "images", classes="classes.txt").labels
            assert found in (old, new)
            outcomes.append("old" if found == old else "new")
        except DataError:
            assert not (folder / "formatted_train_labels.npy").exists()
            outcomes.append("none")
        write("npy", folder, new, classes="classes.txt")  # the same command again
        assert read("npy", folder, images=tmp_path / "images", classes="classes.txt").labels == new
        if child.exitcode == 17:
            break
    assert child.exitcode == 17
    assert set(outcomes) == {"old", "none", "new"}
    assert outcomes == sorted(outcomes, key=["old", "none", "new"].index)


def test_label_files_of_other_data_are_not_left_beside_new_names(tmp_path):
    old, new = two_sets(tmp_path)
    folder, images = tmp_path / "out", tmp_path / "images"
    write("npy", folder, old, classes="classes.txt")
    for options in (
        {"file": "labels_obs"},
        {"file": "labels_obs", "classes": "classes.txt"},
        {"split": "val", "classes": "classes.txt"},
    ):
        with pytest.raises(DataError, match=r"formatted_train_labels\.npy is of other data, .* remove it"):
            write("npy", folder, new, **options)
        assert read("npy", folder, images=images, classes="classes.txt").labels == old
    # The literature keeps all labels and those that are shown beside one list of names.
    write("npy", folder, single_positive(old), file="labels_obs", classes="classes.txt")
    shown = read("npy", folder, images=images, file="labels_obs", classes="classes.txt").labels
    assert shown == single_positive(old)
    assert read("npy", folder, images=images, classes="classes.txt").labels == old
    val = Labels(new.indptr, new.indices, new.values, old.classes, new.ids)
    write("npy", folder, val, split="val", classes="classes.txt")
    assert read("npy", folder, images=images, split="val", classes="classes.txt").labels == val
    assert read("npy", folder, images=images, classes="classes.txt").labels == old
    (folder / "formatted_train_labels_obs.npy").unlink()
    (folder / "formatted_val_labels.npy").unlink()
    write("npy", folder, new, classes="classes.txt")
    assert read("npy", folder, images=images, classes="classes.txt").labels == new


def test_two_writers_at_once_wait_for_each_other(tmp_path, monkeypatch):
    """Otherwise labels of two data sets would lie beside the names of one."""
    old, new = two_sets(tmp_path)
    replace, halfway, done = os.replace, threading.Event(), threading.Event()

    def slowly(part, path):
        if threading.current_thread() is first and not halfway.is_set():
            halfway.set()
            done.wait(0.5)  # time for the other to come in between
        replace(part, path)

    monkeypatch.setattr(os, "replace", slowly)
    first = threading.Thread(target=write, args=("npy", tmp_path / "out", old))
    first.start()
    halfway.wait(5)
    with pytest.raises(DataError, match="is of other data"):
        write("npy", tmp_path / "out", new, file="labels_obs")
    done.set()
    first.join()

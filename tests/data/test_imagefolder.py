"""A folder for each class: what it means, and what must not pass without a word."""

import os

import pytest
from hypothesis import strategies as st

from pluralis.data import read
from pluralis.errors import DataError
from tests.data.tables import for_all


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def test_one_positive_each(tmp_path):
    make(tmp_path, "dog/2.JPG", "dog/1.png", "cat/1.png", "cat/old/deep/1.webp", "notes.txt", "cat/list.csv")
    make(tmp_path, ".cache/x.jpg", "cat/.hidden.jpg", "cat/.thumbs/x.jpg", ".DS_Store")
    data = read("imagefolder", tmp_path)
    assert data.labels.ids == ("cat/1.png", "cat/old/deep/1.webp", "dog/1.png", "dog/2.JPG")
    assert data.labels.classes == ("cat", "dog")
    assert data.labels.dense().tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert data.images == [tmp_path.resolve() / name for name in data.labels.ids]
    assert read("imagefolder", tmp_path, unlisted="absent").labels.dense().tolist() == [[1, -1]] * 2 + [[-1, 1]] * 2
    fixed = read("imagefolder", tmp_path, classes=["eel", "dog", "cat"]).labels
    assert fixed.dense().tolist() == [[0, 0, 1], [0, 0, 1], [0, 1, 0], [0, 1, 0]]


MISTAKES = {
    "image in the root": (["dog/1.jpg", "2.jpg"], {}, "2.jpg: the image lies in no class folder; move it"),
    "no image": (["dog/1.jpg", "cat/readme.txt"], {}, "cat: there is no image in this class folder"),
    "only hidden ones": (["dog/1.jpg", "cat/.1.jpg"], {}, "cat: there is no image in this class folder"),
    "nothing": ([".x/1.jpg"], {}, "there is no class folder with images"),
    "another class": (["dog/1.jpg"], {"classes": ["dgo"]}, "there is no class 'dog'; did you mean 'dgo'"),
    "no decoder": (["dog/1.jpg", "dog/2.HEIC"], {}, "2.HEIC': pictures of the kind .heic are not decoded; convert"),
    "unlisted": (["dog/1.jpg"], {"unlisted": None}, "unlisted=None is not possible"),
    "classes": (["dog/1.jpg"], {"classes": "dog"}, "classes='dog' is not possible"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path, mistake):
    names, options, words = MISTAKES[mistake]
    with pytest.raises(DataError, match=words):
        read("imagefolder", make(tmp_path, *names), **options)


def test_no_folder(tmp_path):
    for path in (tmp_path / "no", make(tmp_path, "file") / "file"):
        with pytest.raises(DataError, match="there is no folder"):
            read("imagefolder", path)


@pytest.mark.parametrize(
    ("link", "target", "words"),
    [
        ("dog/2.jpg", "../cat/1.jpg", None),
        ("dog/2.jpg", "../../secret.jpg", "leads outside"),
        ("dog/2.jpg", "no.jpg", r"1 of the listed images are missing: .*dog/2\.jpg"),
        ("dog/2.jpg", "2.jpg", r"1 of the listed images are missing: .*dog/2\.jpg"),
        ("dog/more", "../cat", "a link to a folder"),
        ("dog/round", "..", "a link to a folder"),
        ("eel", "cat", "a link to a folder"),
        ("2.jpg", "cat/1.jpg", "lies in no class folder"),
    ],
)
def test_links(tmp_path, link, target, words):
    root = make(tmp_path / "root", "dog/1.jpg", "cat/1.jpg")
    (tmp_path / "secret.jpg").touch()
    os.symlink(target, root / link)
    if words is None:
        assert read("imagefolder", root).images == [root.resolve() / "cat/1.jpg", root.resolve() / "dog/1.jpg"]
    else:
        with pytest.raises(DataError, match=words):
            read("imagefolder", root)


def test_a_link_to_an_image_gives_it_another_label(tmp_path):
    """One image is one row, however many class folders hold it."""
    root = make(tmp_path / "root", "dog/1.jpg", "cat/1.jpg", ".store/9.jpg")
    (root / "eel").mkdir()
    for link, target in (
        ("cat/a.jpg", "../dog/1.jpg"),
        ("cat/again.jpg", "1.jpg"),
        ("eel/z.jpg", "../.store/9.jpg"),
        ("dog/z.jpg", "../.store/9.jpg"),
        ("eel/b.jpg", "../cat/a.jpg"),  # by way of another link
    ):
        os.symlink(target, root / link)
    data = read("imagefolder", root)
    assert data.labels.ids == ("cat/1.jpg", "dog/1.jpg", "dog/z.jpg")
    assert data.images == [root.resolve() / name for name in ("cat/1.jpg", "dog/1.jpg", ".store/9.jpg")]
    assert data.labels.classes == ("cat", "dog", "eel")
    assert data.labels.dense().tolist() == [[1, 0, 0], [1, 1, 1], [0, 1, 1]]
    absent = read("imagefolder", root, unlisted="absent").labels
    assert absent.dense().tolist() == [[1, -1, -1], [1, 1, 1], [-1, 1, 1]]


def test_names_that_are_not_text(tmp_path):
    make(tmp_path, "dog/1.jpg")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    with pytest.raises(DataError, match="not UTF-8; rename it"):
        read("imagefolder", tmp_path)


def test_a_pipe_is_no_image(tmp_path):
    os.mkfifo(make(tmp_path, "dog/1.jpg") / "dog" / "2.jpg")
    assert read("imagefolder", tmp_path).labels.ids == ("dog/1.jpg",)


@pytest.mark.parametrize("examples", [40, pytest.param(10_000, marks=pytest.mark.slow)])
def test_any_names(tmp_path, examples):
    """Whatever the folders and files are called, they come back, or an error names one of them."""
    part = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=6)
    count = iter(range(10**9))

    def check(names):
        root = tmp_path / str(next(count))
        wanted = {f"{a}/{b}.jpg" for a, b in names if a not in (".", "..")}
        make(root, "x/1.jpg", *wanted)
        seen = {"x/1.jpg", *(name for name in wanted if not name.startswith(".") and "/." not in name)}
        message = ""
        try:
            assert set(read("imagefolder", root).labels.ids) == seen
        except DataError as error:
            message = str(error)
        assert not message or "there is no image in this class folder" in message

    for_all(st.lists(st.tuples(part, part), max_size=4), check, examples)

"""CVAT for images 1.1: tags and shapes, bombs, and a way back."""

import time

import pytest
from hypothesis import strategies as st

from pluralis.data.formats import cvat, read, write
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from tests.data.generated import (
    EXAMPLES,
    SAMPLES,
    TRIPS,
    damaged_text,
    exact,
    labels,
    only_documented_errors,
    touch,
)

FILE = SAMPLES / "cvat" / "annotations.xml"
TEXT = FILE.read_text()


@pytest.fixture
def folder(tmp_path):
    return touch(tmp_path / "images", "a.jpg", "b/street.jpg", "c.png")


def test_tags_and_shapes(folder):
    data = read("cvat", FILE, images=folder, unlisted="absent")
    assert data.labels.classes == ("sunny", "rain & fog", "car", "body")
    assert data.labels.ids == ("a.jpg", "b/street.jpg", "c.png")
    assert data.labels.dense().tolist() == [[-1, 1, -1, -1], [1, -1, 1, -1], [-1, -1, -1, -1]]
    assert data.images[1] == folder.resolve() / "b" / "street.jpg"
    tags = read("cvat", FILE, images=folder, unlisted="unknown", shapes="ignore")
    assert tags.labels.dense().tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_joints_of_a_skeleton_are_no_labels_of_the_image(folder, tmp_path):
    skeleton = '<skeleton label="car"><points label="wheel" points="1,1"></points></skeleton></image>'
    (tmp_path / "x.xml").write_text(TEXT.replace("</image>", skeleton, 1))
    data = read("cvat", tmp_path / "x.xml", images=folder, unlisted="unknown")
    assert data.labels.dense()[:, data.labels.classes.index("car")].tolist() == [0, 1, 0]


def test_a_folder_as_it_is_exported(folder):
    (folder.parent / "annotations.xml").write_text(TEXT)
    assert len(read("cvat", folder.parent, unlisted="absent")) == 3
    for options, words in (({}, "unlisted=None"), ({"unlisted": "absent", "shapes": "no"}, "shapes='no'")):
        with pytest.raises(DataError, match=words):
            read("cvat", folder.parent, **options)


def test_labels_that_the_file_does_not_list(folder, tmp_path):
    start, stop = TEXT.index("<labels>"), TEXT.index("</labels>") + len("</labels>")
    (tmp_path / "x.xml").write_text(TEXT[:start] + TEXT[stop:])
    data = read("cvat", tmp_path / "x.xml", images=folder, unlisted="absent")
    assert data.labels.classes == ("car", "rain & fog", "sunny")


def test_no_class_is_refused(folder, tmp_path):
    (tmp_path / "x.xml").write_text('<annotations><image id="0" name="a.jpg"></image></annotations>')
    with pytest.raises(DataError, match=r"x\.xml: there is no class in the file"):
        read("cvat", tmp_path / "x.xml", images=folder, unlisted="absent")


def test_the_list_of_labels_may_come_last(folder, tmp_path):
    start, stop = TEXT.index("<meta>"), TEXT.index("</meta>") + len("</meta>")
    late = TEXT[:start] + TEXT[stop:].replace("</annotations>", TEXT[start:stop] + "</annotations>")
    (tmp_path / "x.xml").write_text(late)
    expected = read("cvat", FILE, images=folder, unlisted="absent").labels
    assert read("cvat", tmp_path / "x.xml", images=folder, unlisted="absent").labels == expected
    (tmp_path / "x.xml").write_text(late.replace('tag label="sunny"', 'tag label="suny"'))
    with pytest.raises(DataError, match="image 'b/street.jpg': the task has no label 'suny'; did you mean 'sunny'"):
        read("cvat", tmp_path / "x.xml", images=folder, unlisted="absent")


MISTAKES = {
    "not XML": (TEXT[:-20], "is not plain XML: unclosed token"),
    "another root": ("<x></x>", "begins with 'x'; export as CVAT for images 1.1"),
    "a video": (TEXT.replace("<image ", "<track ").replace("</image>", "</track>"), "tracks of a video"),
    "two spellings": (
        TEXT.replace('name="c.png"', 'name="./a.jpg"'),
        "'./a.jpg' and 'a.jpg' have one and the same image",
    ),
    "an image twice": (TEXT.replace('name="c.png"', 'name="a.jpg"'), r"image 2 \('a.jpg'\): .*listed twice"),
    "no name": (TEXT.replace('name="c.png"', ""), r"image 2 \(''\): it has no name"),
    "no label": (TEXT.replace('tag label="sunny"', "tag"), r"image 0 \('b/street.jpg'\): one of its tags has no label"),
    "a wrong label": (TEXT.replace('tag label="sunny"', 'tag label="suny"'), "no label 'suny'; did you mean 'sunny'"),
    "a label twice": (TEXT.replace("<name>car</name>", "<name>sunny</name>"), "'sunny' has no name or is listed twice"),
    "outside": (TEXT.replace('name="c.png"', 'name="../c.png"'), r"'\.\./c\.png' is refused"),
    "no file": (TEXT.replace('name="c.png"', 'name="d.png"'), "1 of the listed images are missing"),
    "deep": ("<annotations>" + "<a>" * 100, "nested deeper than 32 levels"),
    "two names": (TEXT.replace("<name>car</name>", "<name>car</name><name>bus</name>"), "has no name or is listed"),
    "a long name": (TEXT.replace("<name>car</name>", f"<name>{'car' * 2000}</name>"), "over 4,096 characters"),
    "an unknown encoding": (TEXT.replace("utf-8", "no-such"), "is not plain XML"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(folder, tmp_path, mistake):
    text, words = MISTAKES[mistake]
    (tmp_path / "x.xml").write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        read("cvat", tmp_path / "x.xml", images=folder, unlisted="absent")
    assert "x.xml" in str(caught.value)


LARGE, MANY = "x" * 100_000, "&a;" * 10_000
LAUGHS = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))
BOMBS = {
    "a billion laughs": f'<!DOCTYPE annotations [<!ENTITY a0 "ha">{LAUGHS}]><annotations>&a9;</annotations>',
    "one large entity": f'<!DOCTYPE annotations [<!ENTITY a "{LARGE}">]><annotations>{MANY}</annotations>',
    "a file": '<!DOCTYPE annotations [<!ENTITY a SYSTEM "file:///etc/passwd">]><annotations>&a;</annotations>',
    "a server": '<!DOCTYPE annotations [<!ENTITY a SYSTEM "http://127.0.0.1:1/">]><annotations>&a;</annotations>',
    "a parameter": '<!DOCTYPE annotations [<!ENTITY % a SYSTEM "file:///etc/passwd"> %a;]><annotations></annotations>',
    "a definition elsewhere": '<!DOCTYPE annotations SYSTEM "http://127.0.0.1:1/x.dtd"><annotations></annotations>',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused_at_once(folder, tmp_path, bomb):
    (tmp_path / "x.xml").write_text(BOMBS[bomb])
    read("cvat", FILE, images=folder, unlisted="absent")  # what is loaded on first use takes its time before
    start = time.process_time()
    with pytest.raises(DataError, match="is not plain XML"):
        read("cvat", tmp_path / "x.xml", images=folder, unlisted="absent")
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize("kind", ["unknown", "absent"])
@pytest.mark.parametrize("examples", TRIPS)
def test_a_way_back(tmp_path, examples, kind):
    (tmp_path / "images").mkdir()
    names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cn"]), min_size=1, max_size=8)

    def go(made: Labels) -> Labels:
        write("cvat", tmp_path / "x.xml", made, unlisted=kind)
        touch(tmp_path / "images", *made.ids)
        return read("cvat", tmp_path / "x.xml", images=tmp_path / "images", unlisted=kind).labels

    # Not `filter(fullmatch)`: hypothesis would take the expression apart, which takes half a minute.
    writable = names.filter(lambda name: bool(cvat._WRITABLE.fullmatch(name)))
    writable |= st.sampled_from(["a\rb", "a\n\tb", " ", "<&>\"'"])
    exact(examples, labels(kind, blank=kind == "unknown", classes=writable), go)


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(DataError, match=r"'a\\x00b' cannot be written to XML"):
        write("cvat", tmp_path / "x.xml", Labels.from_dense([[1]], ["a\0b"], ["x"]), unlisted="unknown")
    with pytest.raises(LabelError, match="row 'y' holds an unknown label"):
        write("cvat", tmp_path / "x.xml", Labels.from_dense([[1], [0]], ["a"], ["x", "y"]), unlisted="absent")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_files_raise_only_documented_errors(folder, tmp_path, examples):
    pieces = ["<", ">", "&", '"', "</image>", "<tag/>", "<image>", 'name="', "label", "\0", "\ud800", "..", "&a;"]

    def parse(text):
        (tmp_path / "x.xml").write_bytes(text)
        return cvat.read(tmp_path / "x.xml", images=folder, unlisted="absent")

    only_documented_errors(examples, damaged_text(TEXT, pieces), parse, "x.xml")

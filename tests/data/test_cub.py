"""CUB-200-2011: attributes, what nobody could see, and damaged lists."""

import shutil

import pytest

from pluralis.data.formats import cub, read
from pluralis.errors import DataError
from tests.data.generated import EXAMPLES, SAMPLES, damaged_text, only_documented_errors, touch


@pytest.fixture
def root(tmp_path):
    shutil.copytree(SAMPLES / "cub", tmp_path / "cub")
    base = tmp_path / "cub" / "CUB_200_2011"
    touch(base / "images", *(line.split()[1] for line in (base / "images.txt").read_text().splitlines()))
    return base


def test_what_nobody_saw_is_unknown(root):
    data = read("cub", root)
    assert data.labels.classes[1:] == ("has_bill_shape::dagger", "has_wing_color::blue")
    assert [name.rpartition("_")[2] for name in data.labels.ids] == ["34.jpg", "1027.jpg", "545.jpg"]  # images 2, 3, 10
    assert data.labels.dense().tolist() == [[1, -1, 0], [-1, 0, 1], [-1, -1, 0]]
    assert [path.name for path in data.images] == [name.rpartition("/")[2] for name in data.labels.ids]
    given = read("cub", root, not_visible="as-given").labels
    assert given.dense().tolist() == [[1, -1, -1], [-1, 1, 1], [-1, -1, 0]]


def test_splits(root):
    assert read("cub", root, split="test").labels.dense().tolist() == [[-1, 1, 0]]
    assert len(read("cub", root, split="all")) == 4
    for options, words in (({"split": "val"}, "split='val'"), ({"not_visible": "no"}, "not_visible='no'")):
        with pytest.raises(DataError, match=words):
            read("cub", root, **options)


ATTRIBUTES = "attributes/image_attribute_labels.txt"
MISTAKES = {
    "no image": (ATTRIBUTES, "9 1 0 3 1.0\n", "line 1: there is no image 9 in images.txt"),
    "no attribute": (ATTRIBUTES, "\n2 4 0 3 1.0\n", "line 2: '2 4 0 3 1.0' is not an image, an attribute"),
    "no value": (ATTRIBUTES, "2 1 2 3 1.0\n", "line 1: '2 1 2 3 1.0'"),
    "no certainty": (ATTRIBUTES, "2 1 1 5 1.0\n", "a certainty from 1 to 4"),
    "two certainties": (ATTRIBUTES, "2 1 1 12 1.0\n", "a certainty from 1 to 4"),
    "no part": ("train_test_split.txt", "1 1\n2 x\n3 1\n10 0\n", "the image 2 has 'x', neither 1 .* nor 0"),
    "too short": (ATTRIBUTES, "2 1 1\n", "line 1: '2 1 1'"),
    "twice": (ATTRIBUTES, "2 1 1 3 1.0\n2 1 0 3 1.0\n", "curved.*: given as 1 and as -1"),
    "not text": (ATTRIBUTES, b"2 1 1 3 1.0\n\xff", "not UTF-8"),
    "no split": ("train_test_split.txt", "1 1\n2 0\n", "the image 3 is lacking"),
    "no number": ("images.txt", "x a.jpg\n", "images.txt, line 1: 'x a.jpg' is not a number and a name"),
    "an image twice": ("images.txt", "1 a.jpg\n1 b.jpg\n", "line 2: '1 b.jpg' is there already"),
    "nothing": ("images.txt", "\n", "images.txt: the list is empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(root, mistake):
    name, text, words = MISTAKES[mistake]
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=words) as caught:
        read("cub", root)
    assert str(root) in str(caught.value)


def test_lacking_files(root):
    (root / "images" / "002.Laysan_Albatross" / "Laysan_Albatross_0001_545.jpg").unlink()
    with pytest.raises(DataError, match="1 of the listed images are missing"):
        read("cub", root)
    (root.parent / "attributes.txt").unlink()
    with pytest.raises(DataError, match=r"attributes\.txt: is not there"):
        read("cub", root)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", ["images.txt", ATTRIBUTES])
def test_generated_files_raise_only_documented_errors(root, examples, name):
    pieces = ["1", "2", " ", "\n", "\0", "\ud800", "x", "9999999999999", "..", "/", "-1", "²"]
    text = (root / name).read_text()

    def parse(made):
        (root / name).write_bytes(made)
        return cub.read(root)

    only_documented_errors(examples, damaged_text(text, pieces), parse, "CUB_200_2011")

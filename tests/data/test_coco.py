"""COCO annotation files: the order of the literature, what unlisted means, and files that strangers made."""

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pluralis.data.formats import coco, read
from pluralis.errors import DataError
from tests.data.generated import EXAMPLES, damaged_json, only_documented_errors


def content():
    """Three classes; image 9 comes after 100 as text, image 30 has no annotation."""
    return {
        "info": {"year": 2014},
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}, {"id": 17, "name": "cat"}],
        "images": [{"id": n, "file_name": f"COCO_{n:012d}.jpg", "width": 640} for n in (9, 100, 20, 30)],
        "annotations": [
            {"id": 1, "image_id": 9, "category_id": 18, "segmentation": [[1.5, 2.0]], "iscrowd": 0},
            {"id": 2, "image_id": 9, "category_id": 18},
            {"id": 3, "image_id": 9, "category_id": 17, "iscrowd": 1},
            {"id": 4, "image_id": 100, "category_id": 3},
            {"id": 5, "image_id": 20, "category_id": 17},
        ],
    }


def make(root, made=None, split="train2014"):
    made = content() if made is None else made
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / split).mkdir(exist_ok=True)
    for image in content()["images"]:
        (root / split / image["file_name"]).touch()
    file = root / "annotations" / f"instances_{split}.json"
    file.write_text(made if isinstance(made, str) else json.dumps(made))
    return root


def test_order_and_labels_are_those_of_the_literature(tmp_path):
    data = read("coco", make(tmp_path), unlisted="absent")
    assert data.labels.classes == ("dog", "car", "cat")
    assert data.labels.ids == ("100", "20", "9")
    assert data.labels.dense().tolist() == [[-1, 1, -1], [-1, -1, 1], [1, -1, 1]]
    assert [p.name for p in data.images] == [f"COCO_{n:012d}.jpg" for n in (100, 20, 9)]


def test_what_unlisted_and_empty_mean(tmp_path):
    make(tmp_path, split="val2014")
    assert read("coco", tmp_path, split="val2014", unlisted="unknown").labels.dense().tolist() == [
        [0, 1, 0],
        [0, 0, 1],
        [1, 0, 1],
    ]
    kept = read("coco", tmp_path, split="val2014", unlisted="absent", empty="keep").labels
    assert kept.ids == ("100", "20", "30", "9")
    assert kept.dense()[2].tolist() == [-1, -1, -1]
    with pytest.raises(DataError, match="unlisted=None is not possible; say 'absent' if every class was looked for"):
        read("coco", tmp_path, split="val2014")


def test_images_without_an_annotation_are_counted(tmp_path):
    dropped = read("coco", make(tmp_path), unlisted="absent")
    [note] = dropped.notes
    assert "instances_train2014.json: 1 of 4 images have no annotation and are left out" in note
    assert "data.options.empty=keep" in note
    assert read("coco", tmp_path, unlisted="absent", empty="keep").notes == ()


def test_the_order_of_the_file(tmp_path):
    """PU-MLC draws known labels row by row in this order."""
    data = read("coco", make(tmp_path), unlisted="absent", order="file", empty="keep")
    assert data.labels.ids == ("9", "100", "20", "30")
    assert data.labels.dense().tolist() == [[1, -1, 1], [-1, 1, -1], [-1, -1, 1], [-1, -1, -1]]
    assert [int(path.stem[5:]) for path in data.images] == [9, 100, 20, 30]
    short = read("coco", tmp_path, unlisted="absent", order="file", ids="file")
    assert short.labels.ids == tuple(f"COCO_{n:012d}.jpg" for n in (9, 100, 20))


def test_a_link_and_its_file_are_one_image(tmp_path):
    make(tmp_path)
    link = tmp_path / "train2014" / f"COCO_{20:012d}.jpg"
    link.unlink()
    link.symlink_to(f"COCO_{9:012d}.jpg")
    with pytest.raises(DataError, match="'COCO_000000000020.jpg' and 'COCO_000000000009.jpg' have one and the same"):
        read("coco", tmp_path, unlisted="absent")


def test_the_folder_of_images_may_be_a_link(tmp_path):
    make(tmp_path / "real")
    make(tmp_path / "linked")
    shutil.rmtree(tmp_path / "linked" / "train2014")
    (tmp_path / "linked" / "train2014").symlink_to(tmp_path / "real" / "train2014")
    assert len(read("coco", tmp_path / "linked", unlisted="absent")) == 3


def test_a_file_of_ones_own(tmp_path):
    make(tmp_path)
    file = tmp_path / "annotations" / "instances_train2014.json"
    data = read("coco", file, images=tmp_path / "train2014", unlisted="unknown")
    assert len(data) == 3
    with pytest.raises(DataError, match="name their folder"):
        read("coco", file, unlisted="unknown")
    with pytest.raises(DataError, match="no image folder"):
        read("coco", file, images=tmp_path / "no", unlisted="unknown")


def changed(path, value):
    """The content with one value replaced; `path` is a list of keys."""
    made = content()
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


MISTAKES = {
    "not JSON": ("{", "is not JSON"),
    "not an object": ("[1]", "does not hold an object"),
    "too deep": ("[" * 100_000, "is not JSON"),
    "a huge number": ('{"images": ' + "1" * 5000 + "}", "is not JSON"),
    "no images": ('{"categories": [{"id": 1, "name": "a"}]}', "images is lacking"),
    "a key twice": ('{"images": [], "images": []}', "the key 'images' is given twice"),
    "no list": (changed(["annotations"], {}), "annotations is not a list"),
    "no class": (changed(["categories"], []), "categories is empty"),
    "no object": (changed(["annotations", 1], 7), r"annotations\[1\] is not an object"),
    "an id as text": (changed(["images", 0, "id"], "9"), r"images\[0\]\.id is '9'; give a whole number"),
    "an id as truth": (changed(["images", 0, "id"], True), r"images\[0\]\.id is True"),
    "an id as a fraction": (changed(["annotations", 0, "image_id"], 9.0), r"annotations\[0\]\.image_id is 9\.0"),
    "no name": (changed(["categories", 1, "name"], ""), r"categories\[1\]\.name is ''"),
    "a name lacking": (changed(["images", 2, "file_name"], None), r"images\[2\]\.file_name is lacking"),
    "an unknown image": (changed(["annotations", 2, "image_id"], 8), r"annotations\[2\]\.image_id: .* image 8"),
    "an unknown class": (changed(["annotations", 2, "category_id"], 8), r"annotations\[2\]\.category_id: .* class 8"),
    "a class twice": (changed(["categories", 1, "name"], "dog"), r"categories\[1\]: .*'dog' is used twice"),
    "an image twice": (changed(["images", 1, "id"], 9), r"images\[1\]\.id: the image 9 is listed twice"),
    "one file": (changed(["images", 3, "file_name"], f"COCO_{9:012d}.jpg"), "images 9 and 30 have the same file_name"),
    "two spellings": (changed(["images", 1, "file_name"], f"./COCO_{9:012d}.jpg"), r"'\./COCO_0+9\.jpg' and 'COCO_0+9"),
    "a file outside": (changed(["images", 0, "file_name"], "../../x.jpg"), "is refused"),
    "a file lacking": (changed(["images", 0, "file_name"], "x.jpg"), "1 of the listed images are missing"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path, mistake):
    made, words = MISTAKES[mistake]
    make(tmp_path, made)
    with pytest.raises(DataError, match=words) as caught:
        read("coco", tmp_path, unlisted="absent")
    assert "\n" not in str(caught.value)


def test_other_mistakes(tmp_path, monkeypatch):
    make(tmp_path)
    for options, words in (
        ({"split": "val2014"}, "no annotations of the split 'val2014'; there are: train2014"),
        ({"split": "../../train2014"}, "is not possible; give a name such as"),
        ({"unlisted": "no"}, "unlisted='no'"),
        ({"empty": "no"}, "empty='no'"),
        ({"order": "no"}, "order='no'"),
    ):
        with pytest.raises(DataError, match=words):
            read("coco", tmp_path, **{"unlisted": "absent", **options})
    with pytest.raises(DataError, match="is not there"):
        read("coco", tmp_path / "no.json", images=tmp_path, unlisted="absent")
    monkeypatch.setattr(coco, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="over the limit of 100 bytes"):
        read("coco", tmp_path, unlisted="absent")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 20) | st.floats() | st.sampled_from(["", "a.jpg", "../a", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(coco._KEYS)), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(values, st.sampled_from(["images", "annotations", "categories"]))
def test_generated_files_raise_only_documented_errors(tmp_path_factory, value, key):
    root = make(tmp_path_factory.getbasetemp() / "generated coco", {**content(), key: value})
    message = ""
    try:
        assert read("coco", root, unlisted="absent").labels.classes
    except DataError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("examples", EXAMPLES)
def test_damaged_files_raise_only_documented_errors(tmp_path, examples):
    file = make(tmp_path) / "annotations" / "instances_train2014.json"

    def parse(text):
        file.write_text(text)
        found = read("coco", tmp_path, unlisted="absent")
        assert coco.areas(tmp_path, found.labels).shape == found.labels.shape
        return found

    drawn = {**content(), "annotations": [{**entry, "bbox": [1.5, 0, 10, 20]} for entry in content()["annotations"]]}
    only_documented_errors(examples, damaged_json(content()) | damaged_json(drawn), parse, file.name)


@pytest.mark.parametrize("side", range(4))
@pytest.mark.parametrize("number", [10**400, -(10**400), 1e300, 10**9])
def test_a_box_of_huge_numbers_is_named(tmp_path, side, number):
    box = [1.5, 0.5, 2.5, 3.5]
    box[side] = number
    root = make(tmp_path, {**content(), "annotations": [{**content()["annotations"][0], "bbox": box}]})
    labels = read("coco", root, unlisted="absent").labels
    with pytest.raises(DataError, match=r"annotations\[0\]\.bbox: the box .* is not possible") as caught:
        coco.areas(root, labels)
    assert len(str(caught.value)) < 500

"""LVIS: the federated rule in both versions, where images lie, and files that strangers made."""

import copy
import json

import pytest

from pluralis.data.formats import lvis, read, write
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

OLD, NEW = SAMPLES / "lvis" / "lvis_v0.5_train.json", SAMPLES / "lvis" / "lvis_v1_val.json"


def test_version_05(tmp_path):
    touch(tmp_path, "000000397133.jpg", "000000000009.jpg", "000000000025.jpg")
    data = read("lvis", OLD, images=tmp_path)
    assert data.labels.classes == ("acorn", "aerosol_can", "bowl")
    assert data.labels.ids == ("25", "397133", "9")
    # 397133: acorn is drawn, though not all of them; aerosol_can may be there; a bowl is not.
    assert data.labels.dense().tolist() == [[0, 0, 0], [1, 0, -1], [-1, -1, 1]]
    assert [path.name for path in data.images] == ["000000000025.jpg", "000000397133.jpg", "000000000009.jpg"]
    touch(tmp_path, "COCO_train2014_000000397133.jpg")
    assert read("lvis", OLD, images=tmp_path).images[1].name == "COCO_train2014_000000397133.jpg"


def test_version_1(tmp_path):
    touch(tmp_path, "val2017/000000446522.jpg", "train2017/000000108503.jpg")
    data = read("lvis", NEW, images=tmp_path)
    assert data.labels.ids == ("108503", "446522")
    assert data.labels.dense().tolist() == [[0, 0, 1], [0, -1, 0]]
    assert [path.parent.name for path in data.images] == ["train2017", "val2017"]
    named = read("lvis", NEW, images=tmp_path, ids="file")
    assert named.labels.ids == ("train2017/000000108503.jpg", "val2017/000000446522.jpg")
    flat = touch(tmp_path / "flat", "000000446522.jpg", "000000108503.jpg")
    assert read("lvis", NEW, images=flat).labels == data.labels


CONTENT = json.loads(OLD.read_text())


def changed(path, value):
    made = copy.deepcopy(CONTENT)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


MISTAKES = {
    "both": (changed(["images", 1, "neg_category_ids"], [3]), "image 9: the class 'bowl' is annotated and also in neg"),
    "no list": (changed(["images", 1, "neg_category_ids"], 3), r"images\[1\]\.neg_category_ids is not a list"),
    "lacking": (changed(["images", 0, "not_exhaustive_category_ids"], None), r"exhaustive_category_ids is lacking"),
    "no class": (changed(["images", 1, "neg_category_ids"], [7]), r"\[1\]\.neg_category_ids\[0\]: there is no class 7"),
    "no number": (changed(["images", 1, "neg_category_ids"], ["3"]), r"neg_category_ids\[0\] is '3'; give a whole"),
    "outside": (changed(["images", 1, "file_name"], "../x.jpg"), r"images\[1\]: entry '\.\./x\.jpg' is refused"),
    "no file": (changed(["images", 1, "file_name"], "x.jpg"), "1 of the listed images are missing"),
    "no name": ({**CONTENT, "images": [{"id": 9}]}, r"images\[0\] has neither file_name nor coco_url"),
    "infinite": ('{"images": [Infinity]}', "holds Infinity, which is no number"),
    "deep": ("[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path, mistake):
    made, words = MISTAKES[mistake]
    touch(tmp_path, "000000397133.jpg", "000000000009.jpg", "000000000025.jpg")
    file = tmp_path / "l.json"
    file.write_text(made if isinstance(made, str) else json.dumps(made))
    with pytest.raises(DataError, match=words) as caught:
        read("lvis", file, images=tmp_path)
    assert str(file) in str(caught.value)


def test_two_images_with_one_file_are_refused(tmp_path):
    touch(tmp_path, "000000397133.jpg", "000000000009.jpg")
    file = tmp_path / "l.json"
    file.write_text(json.dumps(changed(["images", 2, "file_name"], "./000000000009.jpg")))
    for ids in ("number", "file"):
        with pytest.raises(DataError, match=r"l\.json: 'image \d+' and 'image \d+' have one and the same image"):
            read("lvis", file, images=tmp_path, ids=ids)
    with pytest.raises(DataError, match="ids='no' is not possible"):
        read("lvis", file, images=tmp_path, ids="no")


@pytest.mark.parametrize("examples", TRIPS)
def test_a_way_back(tmp_path, examples):
    (tmp_path / "images").mkdir()

    def go(made: Labels) -> Labels:
        write("lvis", tmp_path / "l.json", made)
        touch(tmp_path / "images", *made.ids)
        return read("lvis", tmp_path / "l.json", images=tmp_path / "images", ids="file").labels

    exact(examples, labels(), go)


def test_numbers_stay_numbers(tmp_path):
    touch(tmp_path, "000000397133.jpg", "000000000009.jpg", "000000000025.jpg")
    data = read("lvis", OLD, images=tmp_path)
    write("lvis", tmp_path / "l.json", data)
    assert read("lvis", tmp_path / "l.json", images=tmp_path) == data


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_files_raise_only_documented_errors(tmp_path, examples):
    touch(tmp_path, "000000397133.jpg", "000000000009.jpg", "000000000025.jpg", "a.jpg")
    file = tmp_path / "l.json"

    def parse(text):
        file.write_text(text)
        return lvis.read(file, images=tmp_path)

    only_documented_errors(examples, damaged_json(CONTENT), parse, file.name)

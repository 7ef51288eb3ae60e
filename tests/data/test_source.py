"""What a recipe trains on and what it tests on are different pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from pluralis.config import DataPart, SelectPart
from pluralis.data.dataset import Hints
from pluralis.data.source import load_source, load_split, other_data
from pluralis.errors import DataError

LAST = SelectPart(rule="last", fraction=0.0)


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Four pictures in one file, as somebody exports them."""
    pictures = [{"id": i, "file_name": f"{i}.png"} for i in range(4)]
    for picture in pictures:
        Image.new("RGB", (8, 8)).save(tmp_path / str(picture["file_name"]))
    drawn = [{"id": i, "image_id": i, "category_id": i % 2} for i in range(4)]
    kinds = [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    (tmp_path / "all.json").write_text(json.dumps({"images": pictures, "annotations": drawn, "categories": kinds}))
    return tmp_path


def part(folder: Path, **test: object) -> DataPart:
    options = {"unlisted": "absent"}
    return DataPart("coco", str(folder), str(folder / "all.json"), options=options, test=test)


def test_a_test_set_of_training_pictures_is_refused(coco: Path) -> None:
    with pytest.raises(DataError, match=r"4 of the 4 test images are among the training images, such as .*0\.png"):
        load_split(part(coco, options={"unlisted": "absent", "split": "val2014"}), LAST)


def test_what_the_reader_leaves_out_is_said(coco: Path) -> None:
    """To whoever listens, else as a warning; of the test set too."""
    made = json.loads((coco / "all.json").read_text())
    made["annotations"] = [entry for entry in made["annotations"] if entry["image_id"] != 3]
    (coco / "all.json").write_text(json.dumps(made))
    (coco / "more").mkdir()
    (coco / "all.json").rename(coco / "more" / "some.json")
    for i in range(4):
        Image.new("RGB", (8, 8)).save(coco / "more" / f"{i}.png")
    given = replace(part(coco), labels=str(coco / "more" / "some.json"))
    said: list[str] = []
    load_split(replace(given, test={"images": str(coco / "more")}), LAST, said.append)
    assert [line.endswith("empty=keep keeps them") and "1 of 4 images have no annotation" in line for line in said] == [
        True,
        True,
    ]
    with pytest.warns(UserWarning, match="1 of 4 images have no annotation"):
        load_source(given)


def test_another_file_is_another_test_set(coco: Path) -> None:
    content = json.loads((coco / "all.json").read_text())
    for picture in content["images"]:
        Image.new("RGB", (8, 8)).save(coco / f"t{picture['file_name']}")
        picture["file_name"] = f"t{picture['file_name']}"
    (coco / "test.json").write_text(json.dumps(content))
    found = load_split(part(coco, labels=str(coco / "test.json")), LAST)
    assert found.test is not None
    assert len(found.test.labels) == 4


def test_hints_are_those_of_the_training_pictures(coco: Path) -> None:
    """A test set that takes its options from the training set has no hints: their file names other pictures."""
    content = json.loads((coco / "all.json").read_text())
    for picture in content["images"]:
        Image.new("RGB", (8, 8)).save(coco / f"t{picture['file_name']}")
        picture["file_name"] = f"t{picture['file_name']}"
    (coco / "test.json").write_text(json.dumps(content))
    (coco / "hints.csv").write_text("image,label,confidence\n2.png,dog,0.75\n")
    options = {"unlisted": "absent", "ids": "file", "hints": str(coco / "hints.csv")}
    both = DataPart(
        "coco", str(coco), str(coco / "all.json"), options=options, test={"labels": str(coco / "test.json")}
    )
    found = load_split(both, LAST)
    assert found.train.hints == Hints.gather([2], [1], [0.75])
    assert found.test is not None
    assert found.test.hints is None


def test_a_label_file_that_would_not_be_read_is_refused(coco: Path) -> None:
    """Some formats have none; whether it is there makes no difference."""
    (coco / "cat").mkdir()
    for name in ("all.json", "no.csv"):
        for format in ("imagefolder", "voc", "cub", "shards"):
            with pytest.raises(DataError, match=rf"format '{format}' has no label file, so .*{name} would not be read"):
                load_source(DataPart(format, str(coco), str(coco / name)))


def test_a_test_set_in_another_format_has_its_own_labels(coco: Path) -> None:
    for name in ("cat", "dog"):
        (coco / "test" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(coco / "test" / name / "1.png")
    options = {"unlisted": "absent"}
    found = load_split(part(coco, format="imagefolder", images=str(coco / "test"), options=options), LAST)
    assert found.test is not None
    assert found.test.labels.ids == ("cat/1.png", "dog/1.png")
    given = part(coco)
    assert other_data(given, {"format": "coco", "images": "x"}).labels == given.labels
    assert other_data(given, {"format": "csv", "labels": "x.csv"}).labels == "x.csv"


def test_if_all_images_are_left_out_the_error_says_why(coco: Path) -> None:
    content = json.loads((coco / "all.json").read_text())
    (coco / "all.json").write_text(json.dumps({**content, "annotations": []}))
    with pytest.raises(DataError, match=r"4 of 4 images have no annotation .*data\.options\.empty=keep keeps them"):
        load_source(part(coco))
    lines = "ImageID,Source,LabelName,Confidence\n0,verification,cat,1\n1,verification,cat,0\n"
    (coco / "oi.csv").write_text(lines)
    options = {"missing": "drop"}
    with pytest.raises(DataError, match=r"oi\.csv: 2 of 2 images are not in .*, such as '0\.jpg', and are left out"):
        load_source(DataPart("openimages", str(coco), str(coco / "oi.csv"), options=options))
    said: list[str] = []
    load_source(DataPart("openimages", str(coco), str(coco / "oi.csv"), options={"suffix": ".png"}), said.append)
    assert said == []

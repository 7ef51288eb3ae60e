"""Names and values of any length: what is said about them stays short, and takes no time to say."""

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pluralis.data import read
from pluralis.errors import PluralisError, nearest, shown
from pluralis.labels import Labels
from tests.data.generated import touch

LONG = "z" * 130_000
CSV = {
    "value": f"image,label,value\na.jpg,cat,{LONG}\n",
    "value without a label": f"image,label,value\na.jpg,,{LONG}\n",
    "class": f"image,label\na.jpg,{LONG}\n",
    "white space": f"image,label\na.jpg, {LONG}\n",
    "two ways": f"image,label,value\na.jpg,{LONG},1\na.jpg,{LONG},-1\n",
    "image": f"image,label\n{LONG},cat\n",
    "wide value": f"image,cat\na.jpg,{LONG}\n",
    "wide class": f"image,{LONG},other\na.jpg,1,x\n",
}


def message(call):
    with pytest.raises(PluralisError) as caught:
        call()
    text = str(caught.value)
    assert text.isprintable()
    return text


@pytest.mark.parametrize("kind", CSV)
def test_csv(tmp_path, kind):
    (touch(tmp_path, "a.jpg") / "x.csv").write_text(CSV[kind])
    classes = ["cat", "z" * 100_000] if kind == "class" else None  # else they are whatever the file names
    assert len(message(lambda: read("csv", tmp_path / "x.csv", images=tmp_path, classes=classes))) < 2000


def test_a_note_of_a_long_name_is_short(tmp_path):
    (touch(tmp_path, "a.jpg") / "x.csv").write_text(f"image,label\na.jpg,{LONG}\na.jpg,{LONG}\n")
    (note,) = read("csv", tmp_path / "x.csv", images=tmp_path).notes
    assert len(note) < 2000


def test_other_formats(tmp_path):
    touch(tmp_path, "a.jpg")
    (tmp_path / "x.jsonl").write_text(json.dumps({"image": "a.jpg", "labels": {"z" * 3_000_000: 1}}) + "\n")
    start = time.process_time()
    found = message(lambda: read("jsonl", tmp_path / "x.jsonl", images=tmp_path, classes=["cat", "z" * 2_900_000]))
    assert time.process_time() - start < 1
    assert len(found) < 2000
    (tmp_path / "x.jsonl").write_text(json.dumps({"classes": [LONG] * 2}) + "\n")
    assert len(message(lambda: read("jsonl", tmp_path / "x.jsonl", images=tmp_path))) < 2000
    pq.write_table(pa.table({LONG: [1], "images": ["a.jpg"]}), tmp_path / "x.parquet")
    assert len(message(lambda: read("parquet", tmp_path / "x.parquet", images=tmp_path))) < 2000
    for names, labels in (([LONG[:9000]] * 2, [[1], [1]]), (["a.jpg"], [[7]])):
        np.save(tmp_path / "formatted_train_images.npy", np.array(names))
        np.save(tmp_path / "formatted_train_labels.npy", np.array(labels))
        assert len(message(lambda: read("npy", tmp_path))) < 2000


def test_labels():
    for classes, ids, values in (([LONG, LONG], ["a"], [[1, 1]]), ([LONG], [LONG], [[7]])):
        assert len(message(lambda given=(values, classes, ids): Labels.from_dense(*given))) < 2000
    with pytest.raises(PluralisError) as caught:
        Labels.from_entries([0, 0], [0, 0], [1, -1], (1, 1), [LONG], [LONG])
    assert len(str(caught.value)) < 2000


def test_the_end_of_an_error_about_a_name():
    assert len(nearest(LONG, [LONG] * 50)) < 1400
    assert nearest("cta", ["dog", "cat"]) == "did you mean 'cat'? choose from 'dog', 'cat'"
    many = [f"{number:06}" for number in range(20_000)]
    assert nearest("cta", ["cat", *many]).startswith("did you mean 'cat'? ")
    assert nearest("cta", [*many, "cat"]).startswith("choose from ")  # comparing any number would take minutes
    assert nearest("CTA", ["cat"]).startswith("did you mean 'cat'? ")
    assert len(shown(LONG)) < 200
    assert shown("a\n") == r"'a\n'"
    assert len(shown(["a"] * 1000)) < 200

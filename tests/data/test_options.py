"""Options that look like numbers: a name stays a name, a number a number, and any other kind is told."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Optional, get_type_hints

import numpy as np
import pytest

from pluralis.config import DataPart, Recipe, parse_option
from pluralis.data import read, write
from pluralis.data.conversion import Target
from pluralis.data.formats import FORMATS
from pluralis.data.formats.options import fit_option
from pluralis.data.source import load_areas, load_source
from pluralis.errors import DataError, PluralisError
from pluralis.labels import Labels
from tests.data.generated import touch

CALLS = [(name, entry.read, 1) for name, entry in FORMATS.items()]
CALLS += [(name, entry.write, 2) for name, entry in FORMATS.items() if entry.write is not None]
OPTIONS = [
    pytest.param(format, call, option, id=f"{format} {call.__name__} {option}")
    for format, call, given in CALLS
    for option in list(inspect.signature(call).parameters)[given:]
]


@pytest.mark.parametrize(("format", "call", "option"), OPTIONS)
def test_every_option_refuses_what_is_of_another_kind(
    format: str, call: Callable[..., Any], option: str, tmp_path: Path
) -> None:
    """Through the public functions, for whatever the annotation says."""
    use = partial(read, format, tmp_path, **_needed(call))
    if call.__name__ == "write":
        use = partial(write, format, tmp_path / "x", Labels.from_lists([[0]], ["cat"]))
    for wrong in (object(), {"a": 1}, b"x", 1j):
        with pytest.raises(DataError, match=rf"format '{format}': {option}=.* is not possible; give \w"):
            use(**{option: wrong})


@pytest.mark.parametrize(("format", "call", "option"), OPTIONS)
def test_every_option_that_is_a_text_gets_numbers_as_they_were_typed(
    format: str, call: Callable[..., Any], option: str
) -> None:
    kind = get_type_hints(call)[option]
    if "str" not in str(kind) or "Sequence" in str(kind):
        return
    for text in ("2007", "007", "1_000", "0x10", "1e3", "1.10", "true", "2017-01-01", "inf", "-3", "12:30:00"):
        assert fit_option(format, option, parse_option(text), kind) == text


def _needed(call: Callable[..., Any]) -> dict[str, Any]:
    return {"images": "x"} if "images" in inspect.signature(call).parameters else {}


def test_numbers_and_lists() -> None:
    assert fit_option("x", "least", parse_option("1e-3"), float | None) == 1e-3
    assert fit_option("x", "least", 1, float) == 1.0
    assert fit_option("x", "least", np.float32(0.5), float) == 0.5
    assert fit_option("x", "count", "1_000", int) == 1000
    for text, names in (('["1", "2"]', ["1", "2"]), ("[1, 2007]", ["1", "2007"]), ("[true, 'x']", ["true", "x"])):
        assert fit_option("x", "classes", parse_option(text), Sequence[str] | None) == names
    for text, number in (
        ("1e3", 1000),
        ("1000.0", 1000),
        ("-2.50e1", -25),
        ("12345678901234567891", 12345678901234567891),
    ):
        assert fit_option("x", "count", parse_option(text), int) == number
    assert fit_option("x", "count", np.int64(3), int) == 3
    assert fit_option("x", "names", None, str | None) is None
    for value, kind in (
        (True, float),
        ("half", float),
        (0.5, int),
        ("1.5", int),
        (None, str),
        (True, int),
        ("inf", int),
        (10**400, float),
    ):
        with pytest.raises(DataError, match="is not possible; give"):
            fit_option("x", "least", value, kind)


def test_the_kinds_that_may_be_declared() -> None:
    for kind in (Optional[str], Literal["a", "b"], Literal["a", "b"] | None, str | Path | None):  # noqa: UP045
        assert fit_option("x", "mode", "a", kind) == "a"
    for kind in (bool, bool | None):
        assert [fit_option("x", "on", parse_option(text), kind) for text in ("true", "false")] == [True, False]
        for wrong in ("yes", 1, 0.0, [True]):
            with pytest.raises(DataError, match="is not possible; give true or false"):
                fit_option("x", "on", wrong, kind)
    with pytest.raises(DataError, match="give a list of names"):
        fit_option("x", "classes", ["a", ["b"]], Sequence[str])


@pytest.mark.parametrize(
    ("format", "option", "words"),
    [
        ("voc", "split=2007", "no list of the split '2007'"),
        ("voc", "split=1_000", "split='1_000' is not possible"),
        ("coco", "split=2017", "no annotations of the split '2017'"),
        ("csv", "hints=5", "5: cannot be read"),
        ("csv", "images=3", "no image folder '3'"),
        ("csv", "classes=3", "give a list of names"),
        ("csv", "classes=[1, 2]", "there is no class 'cat'; choose from '1', '2'"),
        ("scenes", "count=many", "count='many' is not possible; give a whole number"),
        ("scenes", "colour=red", "its options are split, count, seed, size"),
    ],
)
def test_settings(tmp_path: Path, format: str, option: str, words: str) -> None:
    touch(tmp_path, "a.jpg", "annotations/x", "ImageSets/Main/cat_train.txt")
    (tmp_path / "x.csv").write_text("image,label\na.jpg,cat\n")
    values = {"data.format": format, "data.images": str(tmp_path), "data.options.unlisted": "absent"}
    if format == "csv":
        values["data.labels"] = str(tmp_path / "x.csv")
    if format in ("voc", "scenes"):
        del values["data.options.unlisted"]
    with pytest.raises(DataError, match=words):
        load_source(Recipe.load(None, [f"data.options.{option}"], values).data)


def test_numbers_of_scenes_may_be_texts() -> None:
    for count in ("3", "0.3e1", 3.0):
        assert len(load_source(DataPart("scenes", options={"count": count})).labels) == 3


def test_the_boxes_of_a_split_that_is_called_like_a_number(tmp_path: Path) -> None:
    touch(tmp_path, "2014/a.jpg")
    drawn = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 3]}
    made = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [drawn], "categories": [{"id": 1, "name": "x"}]}
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_2014.json").write_text(json.dumps(made))
    part = DataPart("coco", str(tmp_path), options={"split": 2014, "unlisted": "absent"})
    assert load_areas(part, load_source(part).labels).tolist() == [[6.0]]


@pytest.mark.parametrize(
    ("to", "options", "words"),
    [
        ("npy", ["split=3"], ""),
        ("npy", ["classes=3"], ""),
        ("npy", ["images=3"], "is not below '3'"),
        ("npy", ["file=3"], "file='3' is not possible"),
        ("labelstudio", ["prefix=4", "unlisted=unknown"], ""),
        ("openimages", ["names=3"], ""),
        ("labelstudio", ["threshold=high", "unlisted=unknown"], "threshold='high' is not possible; give a number"),
    ],
)
def test_options_of_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (touch(tmp_path, "a.jpg") / "x.csv").write_text("image,label\na.jpg,cat\n")
    data = read("csv", tmp_path / "x.csv", images=tmp_path, unlisted="absent")
    said: list[str] = []
    if words:
        with pytest.raises(PluralisError, match=words):
            Target.parse(to, tmp_path / "out", str(tmp_path), options).write(data, said.append)
    else:
        Target.parse(to, tmp_path / "out", str(tmp_path), options).write(data, said.append)
        assert (tmp_path / "out").exists()
        if to == "labelstudio":
            assert '"4a.jpg"' in (tmp_path / "out").read_text()

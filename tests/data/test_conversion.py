"""What `pluralis data` writes is found again by the words that it prints, and two at once do not mix."""

from __future__ import annotations

import json
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pluralis.config import parse_option
from pluralis.data import protocols
from pluralis.data.conversion import Target, _text
from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats import read_options
from pluralis.data.image_paths import ImagePaths
from pluralis.data.source import load_dataset
from pluralis.data_cli import _part
from pluralis.errors import DataError, PluralisError, RecipeError
from pluralis.labels import Labels
from tests.data.test_shards import pack, picture
from tests.data_command import pluralis

NAMES = ["a/1.jpg", "a/10.jpg", "a/9.jpg", "b c.jpg"]
CLASSES = ["zebra", "ant", "a 'bee'", "never"]
MIXED = [[1, 0, -1, 0], [-1, 1, 1, 0], [0, 0, 1, 0], [0, -1, 0, 0]]
PRESENT = [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
COMPLETE = [[1, -1, -1, -1], [-1, 1, 1, -1], [-1, -1, 1, -1], [-1, -1, -1, -1]]


def read_again(said: str) -> Dataset:
    """The data set that exactly the printed words give."""
    [line] = re.findall(r"^to read it again: (.*)$", said, re.MULTILINE)
    words, given, settings = iter(shlex.split(line)), {}, []
    for word in words:
        if word == "--set":
            settings.append(next(words))
        else:
            given[word.removeprefix("--")] = next(words)
    named = [given.pop(key, "") for key in ("images", "labels", "format", "unlisted")]
    assert not given
    return load_dataset(_part(*named, None, settings))


def dataset(folder: Path, dense: list[list[int]], names: list[str] = NAMES, ids: list[str] | None = None) -> Dataset:
    for name in names:
        path = folder / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(len(name)))
    labels = Labels.from_dense(dense, CLASSES, names if ids is None else ids)
    return Dataset(ImagePaths((folder / "photos").resolve(), names), labels)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, so that all paths are relative ones."""
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRITTEN = [
    ("csv", "", MIXED),
    ("csv", "layout=wide", MIXED),
    ("csv", "", PRESENT),
    ("jsonl", "", MIXED),
    ("parquet", "", MIXED),
    ("parquet", "layout=wide", MIXED),
    ("lvis", "", MIXED),
    ("openimages", "", MIXED),
    ("openimages", "names=my names.csv", MIXED),
    ("npy", "convention=signed", MIXED),
    ("npy", "convention=minus-unknown", MIXED),
    ("npy", "convention=zero-unknown", MIXED),
    ("npy", "", COMPLETE),
    ("npy", "file=labels_obs split=val", MIXED),
    ("npy", "file=labels_obs classes=names.txt", MIXED),
    ("npy", "file=labels_obs convention=complete", COMPLETE),
    *((to, "unlisted=unknown", PRESENT) for to in ("coco", "cvat", "fiftyone", "labelstudio")),
    *((to, "unlisted=absent", COMPLETE) for to in ("coco", "cvat", "fiftyone", "labelstudio")),
    ("labelstudio", "unlisted=absent control=3 key=photo prefix=", COMPLETE),
    ("labelstudio", "unlisted=unknown to=img threshold=0.9", PRESENT),
]


@pytest.mark.parametrize(("to", "options", "dense"), WRITTEN)
def test_the_printed_words_read_the_same(here: Path, to: str, options: str, dense: list[list[int]]) -> None:
    if to == "parquet":
        pytest.importorskip("pyarrow")
    if "zero-unknown" in options:
        dense = PRESENT
    data = dataset(here, dense)
    data = Dataset(data.images, data.labels, Hints.gather([0, 1, 2], [1, 0, 1], [0.25, 0.95, 0.5]))
    options = options.replace("my names", "my\0names")
    said: list[str] = []
    target = Target.parse(to, Path("out put"), "photos", [o.replace("\0", " ") for o in options.split()])
    target.write(data, said.append)
    found = read_again("\n".join(said))
    assert found.images == data.images
    assert found.labels.classes == data.labels.classes
    np.testing.assert_array_equal(found.labels.dense(), data.labels.dense())
    if to != "openimages":  # whose ids have no ending
        assert found.labels.ids == data.labels.ids
    assert found.hints == data.hints


def test_every_writing_option_that_a_reader_has_is_tried() -> None:
    import inspect

    from pluralis.data.formats import FORMATS

    tried = {(to, word.partition("=")[0]) for to, options, _ in WRITTEN for word in options.split()}
    for to, (_, write) in FORMATS.items():
        for option in list(inspect.signature(write).parameters)[2:] if write is not None else []:
            assert option == "images" or (to, option) in tried, f"{to} {option} needs a line in WRITTEN"


def test_simulated_labels_stay_unknown_when_they_are_read_again(here: Path) -> None:
    data = dataset(here, [[1, 1, -1, 1]] * 4)
    said: list[str] = []
    Target.parse("csv", Path("full.csv"), "photos", ["layout=wide"]).write(data, said.append)
    words = ["simulate", "--images", "photos", "--labels", "full.csv", "--protocol", "single-positive", "--to", "npy"]
    printed = pluralis(*words, "--option", "convention=signed", "--out", "n")
    assert read_again(printed).labels == protocols.single_positive(data.labels)
    with pytest.raises(PluralisError, match="unknown label, which the convention 'complete' cannot write"):
        pluralis(*words, "--out", "n2")


def test_a_class_that_nobody_chose_is_named(here: Path) -> None:
    """Label Studio lists what was chosen: a class that is absent everywhere is not in its file."""
    data, said = dataset(here, COMPLETE), list[str]()
    labels = Labels.from_dense([[1, -1, 1]] * 4, ["ant", "bee", "cat"], NAMES)
    target = Target.parse("labelstudio", Path("o.json"), "photos", ["unlisted=absent"])
    target.write(Dataset(data.images, labels), said.append)
    assert "does not name 1 classes that have no label in it (bee): write --to jsonl, or give all" in said[1]
    assert read_again("\n".join(said)).labels == labels
    Target.parse("csv", Path("o.csv"), "photos", []).write(
        Dataset(data.images, Labels.from_dense([[1, 0, 1]] * 4, ["ant", "bee", "cat"], NAMES)), said.append
    )
    assert "write it with --option layout=wide or --to jsonl" in "\n".join(said)


@pytest.mark.parametrize("value", ["a\x7fb", " a", "b\t", "2007", "true", "[1]", '"x"', "a\nb", "\u00a0a", "", "é # c"])
def test_any_text_is_printed_so_that_it_is_read_again(here: Path, value: str) -> None:
    """As a text, and in a list of classes, through the settings of a command."""
    assert parse_option(_text(value).strip()) == value
    assert parse_option(_text(["z", value]).strip()) == ["z", value]
    options = _part("photos", "l.csv", "", "", None, [f"data.options.hints={_text(value)}"]).options
    assert read_options("csv", {"images": "x", **options})["hints"] == value


def test_many_classes_are_not_printed(here: Path) -> None:
    data, said = dataset(here, MIXED), list[str]()
    classes = [f"class {number:04d}" for number in range(999, -1, -1)]
    many = Labels.from_dense(np.ones((4, 1000), int), classes, data.labels.ids)
    Target.parse("csv", Path("o.csv"), "photos", []).write(Dataset(data.images, many), said.append)
    assert "does not keep the order of the classes" in said[1]
    assert said[2] == "to read it again: --images photos --labels o.csv"


# -- order: a draw is a function of it


NUMBERS = ["1", "10", "9"]  # as COCO's ids sort; their files are 1, 9, 10


@pytest.mark.parametrize("to", ["csv", "jsonl", "npy", "coco", "lvis"])
def test_an_order_that_is_lost_is_said(here: Path, to: str) -> None:
    names = [f"COCO_{int(number):012d}.jpg" for number in NUMBERS]
    data = dataset(here, COMPLETE[:3], names, NUMBERS)
    options = ["unlisted=absent"] if to == "coco" else []
    said: list[str] = []
    Target.parse(to, Path("out"), "photos", options).write(data, said.append)
    found = read_again("\n".join(said))
    kept = found.images == data.images
    assert kept == (to in ("npy", "coco", "lvis"))
    assert any("--to npy keeps the order" in line for line in said) != kept
    assert (found.labels.ids == data.labels.ids) == (to in ("coco", "lvis"))  # which need no ids=file for numbers


def test_coco_is_read_in_the_order_of_the_rows(here: Path) -> None:
    rows = [2, 0, 1]
    data = dataset(here, [COMPLETE[row] for row in rows], [NAMES[row] for row in rows])
    said: list[str] = []
    Target.parse("coco", Path("o.json"), "photos", ["unlisted=absent"]).write(data, said.append)
    found = read_again("\n".join(said))
    assert found.images == data.images
    assert found.labels.ids == data.labels.ids
    np.testing.assert_array_equal(found.labels.dense(), data.labels.dense())


def test_a_draw_changes_with_the_order_and_simulate_says_so(here: Path) -> None:
    """Why the note is there: the split of a simulated COCO file is not that of the CSV file that was written."""
    ids = [str(number) for number in range(1, 13)]
    for number in ids:
        (here / "photos").mkdir(exist_ok=True)
        (here / "photos" / f"{int(number):04d}.jpg").touch()
    content = {
        "images": [{"id": int(n), "file_name": f"{int(n):04d}.jpg"} for n in ids],
        "annotations": [{"id": int(n), "image_id": int(n), "category_id": 1} for n in ids],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (here / "c.json").write_text(json.dumps(content))
    coco = ["--format", "coco", "--images", "photos", "--labels", "c.json", "--unlisted", "absent"]
    said = pluralis("simulate", *coco, "--protocol", "single-positive", "--out", "x.csv")
    assert "note: the rows of x.csv are read in the order of the file names" in said
    pluralis("split", *coco, "--out", "published")
    pluralis("split", "--images", "photos", "--labels", "x.csv", "--out", "other")
    assert (here / "published" / "val.csv").read_text() != (here / "other" / "val.csv").read_text()
    said = pluralis("simulate", *coco, "--protocol", "single-positive", "--to", "npy", "--out", "n")
    assert "note:" not in said
    words = next(line for line in said.splitlines() if line.startswith("to read")).partition(": ")[2]
    pluralis("split", *shlex.split(words), "--out", "kept")
    assert (here / "published" / "val.csv").read_text() == (here / "kept" / "val.csv").read_text()


# -- tar shards


@pytest.fixture
def shards(here: Path) -> Path:
    for number in range(2):
        files = {f"part/{number}{i}.png": picture(60 * number + 20 * i) for i in range(3)}
        notes = [json.dumps({"labels": {f"c{i % 2}": 1, "x": -1}}).encode() for i in range(3)]
        files |= {f"part/{number}{i}.json": notes[i] for i in range(3)}
        pack(here / "shards" / f"s-{number:03d}.tar", files)
    lines = [f"part/{number}{i}.png,c{i % 2}" for number in range(2) for i in range(3)]
    (here / "l.csv").write_text("image,label\n" + "\n".join(lines) + "\n")
    return here


@pytest.mark.parametrize("spelling", ["shards", "./shards/", "{folder}/shards", "shards/s-{{000..001}}.tar"])
def test_members_of_shards_are_written_by_their_names(shards: Path, spelling: str) -> None:
    images = spelling.format(folder=shards)
    words = ["--images", images, "--labels", "l.csv"]
    before = load_dataset(_part(images, "l.csv", "", "", None, []))
    for to in ("csv", "jsonl", "parquet"):
        if to == "parquet":
            pytest.importorskip("pyarrow")
        found = read_again(pluralis("convert", *words, "--to", to, "--out", f"o.{to}"))
        assert (found.labels, found.images) == (before.labels, before.images)
    of_shards = load_dataset(_part(images, "", "shards", "", None, []))
    found = read_again(pluralis("convert", "--format", "shards", "--images", images, "--out", "s.csv"))
    assert (found.labels, found.images) == (of_shards.labels, of_shards.images)
    pluralis("split", *words, "--fraction", 0.5, "--out", "parts")
    said = pluralis("simulate", *words, "--unlisted", "absent", "--protocol", "single-positive", "--out", "one.csv")
    complete = load_dataset(_part(images, "l.csv", "", "absent", None, [])).labels
    assert read_again(said).labels == protocols.single_positive(complete)
    with pytest.raises(RecipeError, match="--to coco wants a folder of image files, not tar shards"):
        pluralis("convert", *words, "--to", "coco", "--option", "unlisted=unknown", "--out", "c.json")


def test_bad_members_of_shards_are_found_and_left_out(shards: Path) -> None:
    files = {"bad.png": b"no image", "copy.png": picture(0), "part/20.png": picture(0)}
    pack(shards / "shards" / "s-002.tar", files)
    with (shards / "l.csv").open("a") as file:
        file.writelines(f"{name},c1\n" for name in files)
    words = ["--images", "shards", "--labels", "l.csv"]
    said = pluralis("inspect", *words)
    assert "files with the same bytes 3 in 1 groups, 1 of them with different labels" in said
    assert "headers that cannot be read 1" in said
    assert "shorter side 7 to 7 pixels" in said
    pluralis("check", *words, "--out", "bad.csv", code=1)
    found = read_again(pluralis("convert", *words, "--leave-out", "bad.csv", "--out", "good.csv"))
    assert len(found) == 8
    assert "bad.png" not in found.labels.ids


# -- several at once, and places that cannot be written


def outcome(target: Target, data: Dataset) -> str:
    try:
        target.write(data, lambda line: None)
    except PluralisError as error:
        return str(error)
    return "written"


@pytest.mark.parametrize("to", ["csv", "npy", "openimages"])
@pytest.mark.parametrize("force", [False, True])
def test_of_several_at_once_one_is_whole(here: Path, to: str, force: bool) -> None:
    sets = [dataset(here, [[number, 1, 1, 1]] * 4) for number in (-1, 1)] * 3
    options = ["convention=signed"] if to == "npy" else []
    targets = [Target.parse(to, Path("out"), "photos", options, force) for _ in sets]
    for target in targets:
        target.refuse_existing()  # as the commands do before they read: nothing is there
    with ThreadPoolExecutor(len(sets)) as pool:
        found = list(pool.map(outcome, targets, sets))
    assert found.count("written") == (len(sets) if force else 1)
    assert all("out is there already" in words for words in found if words != "written")
    said: list[str] = []
    Target.parse(to, Path("other"), "photos", options).write(sets[0], said.append)
    there = read_again("\n".join(said).replace("other", "out"))
    assert there.labels.dense().tolist() in [data.labels.dense().tolist() for data in sets]
    assert not [name for name in os.listdir(here) if name.startswith(".")]


def test_places_that_cannot_be_made(here: Path) -> None:
    said: list[str] = []
    data = dataset(here, MIXED)
    Target.parse("csv", Path("l.csv"), "photos", []).write(data, said.append)
    words = ["--images", "photos", "--labels", "l.csv"]
    for command in (
        ["convert", *words, "--out", "l.csv/x/o.csv"],
        ["convert", *words, "--to", "npy", "--option", "convention=signed", "--out", "l.csv/n"],
        ["split", *words, "--out", "l.csv"],
        ["inspect", *words, "--html", "l.csv/x/page.html"],
        ["check", *words, "--out", "l.csv/x/bad.csv"],
    ):
        with pytest.raises(DataError, match="cannot be made: .*; name another") as caught:
            pluralis(*command)
        assert "Errno" not in str(caught.value)

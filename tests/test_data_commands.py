"""`pluralis data`: what the commands count, write, refuse and remember."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pluralis.cli import app, main
from pluralis.config import DataPart, SelectPart
from pluralis.data import check as checking
from pluralis.data import images as decoding
from pluralis.data import protocols, read
from pluralis.data.check import check_images
from pluralis.data.dataset import Dataset, Hints
from pluralis.data.images import ImageFiles
from pluralis.data.inspection import inspect_data, row_kinds
from pluralis.data.rows import select_rows
from pluralis.data.source import load_source, load_split
from pluralis.errors import DataError, Interrupted, LabelError, PluralisError, RecipeError
from pluralis.labels import Labels
from tests.data_command import pluralis

HOSTILE = "<img src=x onerror=alert(1)> & $\\frac{$ [red]"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """12 images, each different, with labels of all three kinds."""
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    draw = np.random.default_rng(0)
    lines = ["image,label,value"]
    for row in range(12):
        name = f"sub/{row:02d}.png" if row % 2 else f"{row:02d}.png"
        pixels = draw.integers(0, 256, (20 + row, 30, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
        lines.append(f"{name},sea,1")
        lines += [f"{name},boat,1"] if row < 4 else [f"{name},boat,-1"] if row < 6 else []
        lines += [f"{name},cat,1"] if row == 11 else []
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def given(folder: Path) -> list[object]:
    return ["--images", folder / "photos", "--labels", folder / "labels.csv"]


def to_read_again(said: str) -> list[str]:
    """What a command says of how to read the file that it has written."""
    [words] = re.findall(r"^to read it again: (.*)$", said, re.MULTILINE)
    return shlex.split(words)


def cells(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


# -- inspect


def test_counts_pairs_and_kinds_against_dense_arrays() -> None:
    draw = np.random.default_rng(2)
    dense = draw.choice([-1, 0, 1], (200, 6), p=[0.2, 0.5, 0.3]).astype(np.int8)
    dense[50:60] = dense[0]
    found = inspect_data(ImageFiles([]), Labels.from_dense(dense), pairs=4, look=False)
    present = dense == 1
    every = [(int((present[:, a] & present[:, b]).sum()), a, b) for a in range(6) for b in range(a + 1, 6)]
    every.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
    assert [(p.together, p.a, p.b) for p in found.pairs] == every[:4]
    for pair in found.pairs:
        chance = present[:, pair.a].mean() * present[:, pair.b].mean()
        assert pair.lift == pytest.approx(pair.together / 200 / chance, rel=1e-12)
    rows = [tuple(row) for row in dense]
    assert found.patterns == len(set(rows))
    assert found.repeated == sum(rows.count(row) > 1 for row in rows)


def test_rows_are_of_one_kind_if_and_only_if_their_labels_are_the_same() -> None:
    dense = np.array([[a, b, c] for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)] * 2)
    kinds = row_kinds(Labels.from_dense(dense))
    assert len(set(kinds.tolist())) == 27
    np.testing.assert_array_equal(kinds[:27], kinds[27:])


def test_inspect_prints_the_counts(photos: Path) -> None:
    said = pluralis("inspect", *given(photos))
    assert "12 images × 3 classes, 52.78% known" in said  # 19 of 36
    assert "present 17, absent 2, unknown 17" in said
    assert "images by their number: 1: 7, 2: 5" in said
    assert re.search(r"boat\W+4\W+2\W+6\W+33\.3%", said)
    assert re.search(r"boat\W+sea\W+4\W+1\.00", said)
    assert "shorter side 20 to 30 pixels" in said
    assert "headers that cannot be read 0" in said


def test_inspect_counts_pictures_that_are_not_listed(photos: Path) -> None:
    assert "not listed" not in pluralis("inspect", *given(photos))
    for name in ("new.JPG", "sub/new.png", "._00.png", "notes.txt"):
        (photos / "photos" / name).touch()
    assert "\n2 image files in the folder are not listed" in pluralis("inspect", *given(photos), "--no-files")


def test_a_recipe_is_named_by_its_part(photos: Path) -> None:
    assert "whose part `data` names" in " ".join(pluralis("inspect", "--help").split())


def test_check_opens_a_folder_without_labels(photos: Path) -> None:
    folder, out = photos / "photos", photos / "bad.csv"
    words = ["check", "--images", folder, "--out", out]
    assert "12 images: 0 do not open" in pluralis(*words)
    (folder / "sub" / "cut.png").write_bytes((folder / "00.png").read_bytes()[:100])
    (folder / "phone.heic").touch()
    said = pluralis(*words, code=1)
    assert "14 images, 12 were checked before: 2 do not open" in said
    assert "`pluralis predict … --leave-out" in said
    assert [line["image"] for line in csv.DictReader(out.open())] == ["phone.heic", "sub/cut.png"]


def test_inspect_finds_copies_and_files_that_are_no_images(photos: Path) -> None:
    copy = photos / "photos"
    (copy / "sub/11.png").write_bytes((copy / "00.png").read_bytes())  # sea and boat; sea and cat
    (copy / "08.png").write_bytes((copy / "10.png").read_bytes())  # both sea alone
    (copy / "02.png").write_bytes(b"no image")
    (copy / "04.png").write_bytes(b"nothing!")  # of the same size, and another file
    said = pluralis("inspect", *given(photos))
    assert "files with the same bytes 4 in 2 groups, 1 of them with different labels" in said
    assert re.search(r"00\.png, \S*sub/11\.png", said)
    assert "headers that cannot be read 2" in said
    said = pluralis("inspect", *given(photos), "--no-files")
    assert "bytes" not in said


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_holds_all_and_names_stay_text(photos: Path) -> None:
    (photos / "photos" / "02.png").write_bytes(b"no image")
    text = (photos / "labels.csv").read_text().replace(",boat,", f',"{HOSTILE}",')
    (photos / "labels.csv").write_text(text)
    said = pluralis("inspect", *given(photos), "--html", photos / "new" / "page.html")
    assert HOSTILE in said  # in the terminal too
    page = (photos / "new" / "page.html").read_text()
    tags = Tags(page)
    assert HOSTILE in tags.words
    assert "02.png" in tags.words
    assert not {"script", "link", "iframe"} & {tag for tag, _ in tags.found}
    pictures = [attributes["src"] or "" for tag, attributes in tags.found if tag == "img"]
    assert len(pictures) == 4
    assert all(source.startswith("data:image/png;base64,") for source in pictures)
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["']?https?:""", page)


# -- check


def break_some(folder: Path) -> None:
    whole = (folder / "photos" / "02.png").read_bytes()
    (folder / "photos" / "02.png").write_bytes(whole[: len(whole) // 2])  # its header can be read
    (folder / "photos" / "sub" / "03.png").write_bytes(b"")


def opened_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded from now on."""
    opened: list[str] = []
    decode = decoding.decode

    def watched(path: str | Path, size: int) -> Any:
        opened.append(Path(path).name)
        return decode(path, size)

    monkeypatch.setattr(decoding, "decode", watched)
    return opened


def test_check_lists_what_does_not_open(photos: Path) -> None:
    out = photos / "lists" / "bad.csv"
    assert "12 images: 0 do not open" in pluralis("check", *given(photos), "--out", out)
    assert cells(out) == [["image", "file", "reason"]]
    break_some(photos)
    said = pluralis("check", *given(photos), "--out", out, code=1)
    assert "12 images, 10 were checked before: 2 do not open" in said
    header, first, second = cells(out)
    assert header == ["image", "file", "reason"]
    assert (first[0], second[0]) == ("02.png", "sub/03.png")
    assert first[1] == str((photos / "photos" / "02.png").resolve())
    assert "truncated" in first[2]
    assert "does not decode" in second[2]


@pytest.mark.parametrize("workers", [1, 3])
def test_what_was_checked_is_not_opened_again(photos: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    break_some(photos)
    words = ["check", *given(photos), "--out", photos / "bad.csv", "--workers", workers]
    opened = opened_by(monkeypatch)
    pluralis(*words, code=1)
    assert sorted(opened) == sorted(path.name for path in (photos / "photos").rglob("*.png"))
    before = cells(photos / "bad.csv")
    opened.clear()
    pluralis(*words, code=1)  # bad ones are still bad
    assert opened == []
    assert cells(photos / "bad.csv") == before
    Image.new("RGB", (8, 8)).save(photos / "photos" / "02.png")  # repaired
    pluralis(*words, code=1)
    assert opened == ["02.png"]
    assert [line[0] for line in cells(photos / "bad.csv")[1:]] == ["sub/03.png"]
    opened.clear()
    os.utime(photos / "photos" / "04.png", ns=(1, 1))  # perhaps other bytes of the same number
    pluralis(*words, code=1)
    assert opened == ["04.png"]


def test_a_name_that_is_a_formula_stays_a_name(photos: Path) -> None:
    (photos / "photos" / "=1+1.png").write_bytes(b"no image")
    with (photos / "labels.csv").open("a") as file:
        file.write("'=1+1.png,sea,1\n")
    pluralis("check", *given(photos), "--out", photos / "bad.csv", code=1)
    assert cells(photos / "bad.csv")[1][0] == "'=1+1.png"
    pluralis("convert", *given(photos), "--leave-out", photos / "bad.csv", "--out", photos / "good.csv")
    assert len(read("csv", photos / "good.csv", images=photos / "photos").labels) == 12


def test_check_goes_on_after_a_stop_or_a_crash(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_some(photos)
    monkeypatch.setattr(checking, "_BLOCK", 5)
    data, out = read("csv", photos / "labels.csv", images=photos / "photos"), photos / "bad.csv"
    images, stops = ImageFiles(data.images), iter([False, True])
    opened = opened_by(monkeypatch)
    with pytest.raises(Interrupted, match="5 of 12"):
        check_images(images, data.labels, out, stop=lambda: next(stops))
    assert not out.exists()  # the whole list or none
    assert len(opened) == 5
    notes = Path(f"{out}.checked")
    notes.write_bytes(notes.read_bytes()[:-10])  # a line cut off by a crash is looked at again
    found = check_images(images, data.labels, out)
    assert (found.opened, found.noted) == (8, 4)
    assert len(opened) == 13
    assert [line[0] for line in found.bad] == ["02.png", "sub/03.png"]
    assert check_images(images, data.labels, out).opened == 0
    notes.write_bytes(b"\x00\xffgarbage\n" + notes.read_bytes())
    assert check_images(images, data.labels, out).opened == 0


class Blank:
    """Many images that cost nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def decode(self, row: int, size: int) -> torch.Tensor:
        return torch.empty(0)

    def name(self, row: int) -> str:
        return str(row)

    def signature(self) -> bytes:
        return b"blank"


def test_the_memory_of_check_does_not_grow_with_the_images(tmp_path: Path) -> None:
    peaks = []
    for count in (1_000, 10_000):
        labels, out = Labels.from_lists([[]] * count, 1), tmp_path / f"{count}.csv"
        for _ in range(2):  # with and without notes
            tracemalloc.start()
            check_images(Blank(count), labels, out, workers=1)  # type: ignore[arg-type]
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[2] - peaks[0] < 9_000 * 10
    assert peaks[3] - peaks[1] < 9_000 * 100  # the keys of the notes


def test_the_exit_codes_of_the_command(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def code(*words: object) -> object:
        monkeypatch.setattr(sys, "argv", ["pluralis", "data", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    assert code("check", *given(photos), "--out", photos / "bad.csv") == 0
    break_some(photos)
    assert code("check", *given(photos), "--out", photos / "bad.csv") == 1
    assert code("check", "--images", photos / "nowhere", "--labels", photos / "labels.csv") == 2
    assert "error: there is no image folder" in capsys.readouterr().err


# -- convert, simulate, split


def test_convert_there_and_back(photos: Path) -> None:
    said = pluralis("convert", *given(photos), "--option", "layout=wide", "--out", photos / "a" / "wide.csv")
    assert "12 images, 17 present and 2 absent labels" in said
    before = read("csv", photos / "labels.csv", images=photos / "photos")
    assert read("csv", photos / "a" / "wide.csv", images=photos / "photos").labels == before.labels


def test_convert_through_another_format(photos: Path) -> None:
    pluralis("convert", *given(photos), "--to", "jsonl", "--out", photos / "labels.jsonl")
    words = ["--images", photos / "photos", "--labels", photos / "labels.jsonl", "--format", "jsonl"]
    pluralis("convert", *words, "--out", photos / "back.csv")
    before, after = (read("csv", photos / name, images=photos / "photos") for name in ("labels.csv", "back.csv"))
    assert after == before


def test_what_is_not_listed_must_be_stated(photos: Path) -> None:
    words = ["convert", *given(photos), "--unlisted", "absent", "--to", "coco", "--out", photos / "labels.json"]
    with pytest.raises(RecipeError, match="--option unlisted=unknown"):
        pluralis(*words)
    with pytest.raises(PluralisError, match="absent"):
        pluralis(*words, "--option", "unlisted=unknown")
    assert not (photos / "labels.json").exists()
    pluralis(*words, "--option", "unlisted=absent")
    words = ["--format", "coco", "--images", photos / "photos", "--labels", photos / "labels.json"]
    with pytest.raises(DataError, match="unlisted"):
        pluralis("inspect", *words)
    assert "100.00% known" in pluralis("inspect", *words, "--unlisted", "absent")


def test_convert_leaves_out_what_a_list_names(photos: Path) -> None:
    break_some(photos)
    pluralis("check", *given(photos), "--out", photos / "bad.csv", code=1)
    pluralis("convert", *given(photos), "--leave-out", photos / "bad.csv", "--out", photos / "good.csv")
    before = read("csv", photos / "labels.csv", images=photos / "photos")
    after = read("csv", photos / "good.csv", images=photos / "photos")
    kept = [row for row, name in enumerate(before.labels.ids) if name not in ("02.png", "sub/03.png")]
    assert after.labels == before.labels.select(kept)
    (photos / "other.csv").write_text("image\nelsewhere.png\n")
    with pytest.raises(DataError, match="elsewhere.png"):
        pluralis("convert", *given(photos), "--leave-out", photos / "other.csv", "--out", photos / "x.csv")
    (photos / "other.csv").write_text("picture\n00.png\n")
    with pytest.raises(DataError, match="no column 'image'"):
        pluralis("convert", *given(photos), "--leave-out", photos / "other.csv", "--out", photos / "x.csv")


@pytest.fixture
def some_coco(tmp_path: Path) -> list[object]:
    """Numbers as ids; image 3 without an annotation, class never without an image."""
    (tmp_path / "train").mkdir()
    for number in range(1, 5):
        Image.new("RGB", (4, 4)).save(tmp_path / "train" / f"p{number}.jpg")
    drawn = [{"id": n, "image_id": n, "category_id": 1 + n % 2} for n in (1, 2, 4)]
    kinds = [{"id": n, "name": name} for n, name in ((1, "zebra"), (2, "ant"), (3, "never"))]
    pictures = [{"id": n, "file_name": f"p{n}.jpg"} for n in range(1, 5)]
    content = {"images": pictures, "annotations": drawn, "categories": kinds}
    (tmp_path / "c.json").write_text(json.dumps(content))
    return ["--format", "coco", "--images", tmp_path / "train", "--labels", tmp_path / "c.json"]


@pytest.mark.parametrize("unlisted", ["absent", "unknown"])
@pytest.mark.parametrize("to", ["openimages", "npy"])
def test_classes_and_images_survive_formats_that_do_not_hold_their_names(
    tmp_path: Path, some_coco: list[object], to: str, unlisted: str
) -> None:
    """The file of class names is written without being asked for, and the command says how to give it."""
    out = tmp_path / "out"
    file = ["--option", "file=labels_obs"] if to == "npy" else []
    said = pluralis("convert", *some_coco, "--unlisted", unlisted, "--to", to, *file, "--out", out)
    pluralis("convert", *to_read_again(said), "--to", "jsonl", "--out", tmp_path / "back.jsonl")
    before = read("coco", tmp_path / "c.json", images=tmp_path / "train", unlisted=unlisted)
    after = read("jsonl", tmp_path / "back.jsonl", images=tmp_path / "train")
    assert after.labels.classes == before.labels.classes == ("zebra", "ant", "never")
    assert after.images == before.images
    np.testing.assert_array_equal(after.labels.dense(), before.labels.dense())


def test_endings_that_open_images_does_not_expect(photos: Path) -> None:
    said = pluralis("convert", *given(photos), "--to", "openimages", "--out", photos / "oi.csv")
    assert "12 images × 3 classes" in pluralis("inspect", *to_read_again(said))


def test_what_a_reader_leaves_out_is_said(some_coco: list[object], tmp_path: Path) -> None:
    words = [*some_coco, "--unlisted", "absent"]
    note = (
        f"{tmp_path / 'c.json'}: 1 of 4 images have no annotation and are left out; data.options.empty=keep keeps them"
    )
    single = ["--protocol", "single-positive"]
    for command in (["inspect"], ["check", "--out", tmp_path / "bad.csv"], ["convert", "--out", tmp_path / "a.csv"],
                    ["simulate", *single, "--out", tmp_path / "b.csv"],
                    ["split", "--fraction", 0.5, "--out", tmp_path / "parts"]):  # fmt: skip
        assert note in pluralis(command[0], *words, *command[1:])
    assert "left out" not in pluralis("inspect", *words, "--set", "data.options.empty=keep")


def test_images_without_a_present_label_come_back_from_coco(some_coco: list[object], tmp_path: Path) -> None:
    words = [*some_coco, "--unlisted", "absent", "--set", "data.options.empty=keep"]
    said = pluralis("convert", *words, "--to", "coco", "--option", "unlisted=absent", "--out", tmp_path / "again.json")
    assert "4 images × 3 classes" in pluralis("inspect", *to_read_again(said))


@pytest.mark.parametrize(("to", "option"), [("csv", "layout=long"), ("csv", "layout=wide"), ("parquet", "layout=wide")])
def test_a_class_that_could_not_be_read_again_is_not_written(photos: Path, to: str, option: str) -> None:
    pytest.importorskip("pyarrow")
    lines = ['{"classes": [" cat", "dog"]}', '{"image": "00.png", "labels": {" cat": 1, "dog": -1}}']
    (photos / "labels.jsonl").write_text("\n".join(lines))
    words = ["--images", photos / "photos", "--labels", photos / "labels.jsonl", "--format", "jsonl"]
    with pytest.raises(LabelError, match="the class ' cat' begins or ends with white space"):
        pluralis("convert", *words, "--to", to, "--option", option, "--out", photos / "out")
    assert not (photos / "out").exists()
    pluralis("convert", *words, "--to", "jsonl", "--out", photos / "out")


def test_images_with_ids_of_their_own_are_named_by_their_files(tmp_path: Path) -> None:
    root = tmp_path / "VOC2007"
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    for name in ("000001", "000007"):
        Image.new("RGB", (4, 4)).save(root / "JPEGImages" / f"{name}.jpg")
    (root / "ImageSets" / "Main" / "cat_train.txt").write_text("000001  1\n000007 -1\n")
    (root / "ImageSets" / "Main" / "dog_train.txt").write_text("000001  0\n000007  1\n")
    pluralis("convert", "--format", "voc", "--images", root, "--out", tmp_path / "labels.csv")
    found = read("csv", tmp_path / "labels.csv", images=root)
    assert found.labels.ids == ("JPEGImages/000001.jpg", "JPEGImages/000007.jpg")
    assert found.labels.dense().tolist() == [[1, 0], [-1, 1]]


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["single-positive"], lambda labels: protocols.single_positive(labels)),
        (["single-positive", "--seed", 3], lambda labels: protocols.single_positive(labels, 3)),
        (["one-positive-all-negatives"], lambda labels: protocols.one_positive_all_negatives(labels)),
        (["known-ratio", "--share", 0.5], lambda labels: protocols.known_ratio(labels, 0.5)),
        (["drop-positives", "--share", 0.25], lambda labels: protocols.drop_positives(labels, 0.75)),
        (["flip-positives", "--share", 0.5], lambda labels: protocols.flip_positives(labels, 0.5)),
        (["fixed-per-class", "--count", 2], lambda labels: protocols.fixed_per_class(labels, 2)),
        (["pick-rarest"], lambda labels: protocols.pick_rarest(labels)),
    ],
)
def test_simulate_is_the_protocol_with_its_published_seed(photos: Path, words: list[object], call: Any) -> None:
    complete = read("csv", photos / "labels.csv", images=photos / "photos", unlisted="absent").labels
    out = photos / "hidden.csv"
    pluralis("simulate", *given(photos), "--unlisted", "absent", "--protocol", *words, "--out", out)
    found = read("csv", out, images=photos / "photos", classes=list(complete.classes)).labels
    assert found == call(complete)


def test_simulate_takes_the_seed_of_the_recipe_and_says_it(photos: Path) -> None:
    complete = read("csv", photos / "labels.csv", images=photos / "photos", unlisted="absent").labels
    stated = (
        '[data]\nprotocol = "known-ratio"\nprotocol_share = 0.5\nprotocol_seed = 7\noptions = {unlisted = "absent"}\n'
    )
    (photos / "r.toml").write_text(stated)
    words = [*given(photos), "--recipe", photos / "r.toml", "--protocol", "known-ratio", "--force"]
    for more, seed in (([], 7), (["--seed", 3], 3), (["--set", "data.protocol_seed=4"], 4)):
        said = pluralis("simulate", *words, *more, "--out", photos / "hidden.csv")
        assert f"drawn with the seed {seed}" in said
        found = read("csv", photos / "hidden.csv", images=photos / "photos", classes=list(complete.classes)).labels
        assert found == protocols.known_ratio(complete, 0.5, seed)
    (photos / "r.toml").write_text(stated.replace("protocol_seed = 7\n", ""))
    assert "drawn with the seed 0" in pluralis("simulate", *words, "--out", photos / "hidden.csv")
    complete_too = [*given(photos), "--unlisted", "absent", "--protocol", "pick-rarest"]
    assert "drawn with" not in pluralis("simulate", *complete_too, "--out", photos / "rarest.csv")


def test_simulate_says_that_hints_are_left_out(photos: Path) -> None:
    (photos / "hints.csv").write_text("image,label,confidence\n00.png,cat,0.9\n")
    hints = ["--set", f"data.options.hints={photos / 'hints.csv'}", "--unlisted", "absent"]
    words = ["simulate", *given(photos), *hints, "--protocol", "single-positive", "--out", photos / "one.csv"]
    assert "1 hints are left out: a machine may have named what the protocol hides" in pluralis(*words)
    assert not (photos / "one.csv.hints.csv").exists()


def test_split_is_the_published_draw(photos: Path) -> None:
    said = pluralis("split", *given(photos), "--out", photos / "parts", "--fraction", 0.25)
    before = read("csv", photos / "labels.csv", images=photos / "photos").labels
    order = np.random.RandomState(1200).permutation(12)
    for name, rows in (("train", order[:9]), ("val", order[9:])):
        path = photos / "parts" / f"{name}.csv"
        found = read("csv", path, images=photos / "photos", classes=list(before.classes)).labels
        assert found == before.select(np.sort(rows))
    assert "val.csv does not name" in said  # one image has a cat, and it is in one part
    with pytest.raises(DataError, match="--fraction"):
        pluralis("split", *given(photos), "--out", photos / "none", "--fraction", 0)


def test_hints_go_with_their_rows() -> None:
    hints = Hints.gather([0, 1, 1, 3], [0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4])
    data = Dataset([Path(str(row)) for row in range(4)], Labels.from_lists([[0], [1], [], [0]], 2), hints)
    found = select_rows(data, [3, 1])
    assert found.images == [Path("3"), Path("1")]
    assert found.labels == data.labels.select([3, 1])
    assert found.hints == Hints.gather([0, 1, 1], [1, 0, 1], [0.4, 0.2, 0.3])


SAMPLES = Path(__file__).parent / "data" / "samples" / "openimages"


@pytest.fixture
def open_images(tmp_path: Path) -> tuple[Path, list[object]]:
    """Three images with labels that people verified, and hints of a machine in another file."""
    for name in ("000060e3121c7305", "0000b9fcba019d36", "0000cb13febe0138"):
        (tmp_path / "train").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "train" / f"{name}.jpg")
    human = SAMPLES / "oidv7-train-annotations-human-imagelabels.csv"
    machine = f"data.options.machine={SAMPLES / 'train-annotations-machine-imagelabels.csv'}"
    words: list[object] = ["--format", "openimages", "--images", tmp_path / "train", "--labels", human]
    return tmp_path, [*words, "--set", machine]


def test_hints_are_counted_beside_the_labels(open_images: tuple[Path, list[object]]) -> None:
    """House is guessed where people wrote absent and nothing, dog where they wrote nothing."""
    folder, words = open_images
    expected = "3 for 2 images, confidence 0.60 to 1.00, median 0.80; people wrote present 0, absent 1, nothing 2"
    said = pluralis("inspect", *words, "--html", folder / "page.html")
    assert f"hints of a machine, not labels: {expected}" in said
    assert "present 2, absent 3, unknown 4" in said  # none of them became a label
    assert expected in (folder / "page.html").read_text()
    assert "hints of a machine" not in pluralis("inspect", *words[:6])


@pytest.mark.parametrize("to", ["csv", "jsonl", "lvis", "parquet", "openimages", "labelstudio"])
def test_hints_survive_a_conversion(open_images: tuple[Path, list[object]], to: str) -> None:
    """In a file beside the labels where the format cannot hold them; images may get other ids."""
    folder, words = open_images
    out, beside = folder / "labels", folder / "labels.hints.csv"
    stated: dict[str, str] = {}
    if to == "labelstudio":  # which cannot say absent beside unknown
        lines = Path(str(words[5])).read_text().splitlines()
        words[5] = folder / "present.csv"
        words[5].write_text("\n".join([lines[0], *(line for line in lines[1:] if line.endswith(",1"))]) + "\n")
        stated = {"unlisted": "unknown"}
    to_write = [word for key, value in stated.items() for word in ("--option", f"{key}={value}")]
    said = pluralis("convert", *words, "--to", to, *to_write, "--out", out)
    assert (f"3 hints beside them: {beside}" in said) == beside.exists() == (to != "openimages")
    files: dict[str, Path] = {"images": folder / "train"}
    before = read("openimages", words[5], **files, machine=SAMPLES / "train-annotations-machine-imagelabels.csv")
    after = read(to, out, **files, **stated, **({"hints": beside} if beside.exists() else {}))
    assert after.hints == before.hints
    assert after.images == before.images
    np.testing.assert_array_equal(after.labels.dense(), before.labels.dense())
    out.unlink()
    if beside.exists():
        with pytest.raises(RecipeError, match="labels.hints.csv is there already"):
            pluralis("convert", *words, "--to", to, *to_write, "--out", out)
        pluralis("convert", *words[:6], "--to", to, *to_write, "--out", out, "--force")
        assert not beside.exists()  # those of other labels are not left behind


def test_hints_go_with_the_parts_of_a_split(open_images: tuple[Path, list[object]]) -> None:
    folder, words = open_images
    said = pluralis("split", *words, "--out", folder / "parts", "--fraction", 0.34)
    found = sorted(line[:2] for name in ("train", "val") for line in _lines(folder / "parts" / f"{name}.csv.hints.csv"))
    assert found == [
        ["000060e3121c7305.jpg", "/m/03jm5"],
        ["0000b9fcba019d36.jpg", "/m/03jm5"],
        ["0000b9fcba019d36.jpg", "/m/0bt9lr"],
    ]
    assert "hints beside them" in said


def _lines(path: Path) -> list[list[str]]:
    return cells(path)[1:] if path.exists() else []


def test_a_recipe_carries_hints_to_its_rows(open_images: tuple[Path, list[object]]) -> None:
    folder, words = open_images
    machine = str(SAMPLES / "train-annotations-machine-imagelabels.csv")
    part = DataPart("openimages", str(folder / "train"), str(words[5]), options={"machine": machine})
    train = load_split(part, SelectPart(fraction=0.34)).train
    source = load_source(part)
    assert source.hints is not None
    rows = [source.labels.ids.index(name) for name in train.labels.ids]
    assert train.hints == source.hints.select(rows, 3)
    assert train.hints != source.hints


def test_train_and_evaluate_take_what_is_not_listed_too(photos: Path) -> None:
    words = ["convert", *given(photos), "--unlisted", "absent", "--to", "coco", "--out", photos / "labels.json"]
    pluralis(*words, "--option", "unlisted=absent")
    named = ["--format", "coco", "--images", str(photos / "photos"), "--labels", str(photos / "labels.json")]
    settings = ["model.backbone=tiny", "model.weights=", "data.size=16", "train.epochs=1", "run.device=cpu"]
    toy = [word for setting in (*settings, "run.workers=0") for word in ("--set", setting)]

    def run(*more: str) -> Any:
        return CliRunner().invoke(app, [*more])

    refused = run("train", *named, *toy, "--out", str(photos / "run"))
    assert "(--unlisted)" in str(refused.exception)
    done = run("train", *named, *toy, "--out", str(photos / "run"), "--unlisted", "absent")
    assert done.exit_code == 0, done.output
    assert '"unlisted" = "absent"' in (photos / "run" / "recipe.toml").read_text()
    done = run("evaluate", str(photos / "run"), *named, "--unlisted", "absent", "--device", "cpu")
    assert done.exit_code == 0, done.output


# -- what is refused


def test_nothing_is_written_over_without_force(photos: Path) -> None:
    precious = photos / "precious.csv"
    precious.write_text("mine")
    complete = [*given(photos), "--unlisted", "absent", "--protocol", "single-positive"]
    commands: list[list[object]] = [
        ["inspect", *given(photos), "--html", precious],
        ["check", *given(photos), "--out", precious],
        ["convert", *given(photos), "--out", precious],
        ["simulate", *complete, "--out", precious],
    ]
    for words in commands:
        with pytest.raises(RecipeError, match="--force"):
            pluralis(*words)
        assert precious.read_text() == "mine"
    names = photos / "names.csv"
    names.write_text("mine")
    to_open_images = ["convert", *given(photos), "--to", "openimages", "--out", photos / "oi.csv"]
    with pytest.raises(RecipeError, match=r"names\.csv is there already"):
        pluralis(*to_open_images, "--option", f"names={names}")
    assert (names.read_text(), (photos / "oi.csv").exists()) == ("mine", False)
    (photos / "oi.csv.names.csv").write_text("mine")
    with pytest.raises(RecipeError, match=r"oi\.csv\.names\.csv is there already"):
        pluralis(*to_open_images)
    pluralis(*to_open_images, "--option", f"names={names}", "--force")
    assert names.read_text().startswith("LabelName,DisplayName")
    (photos / "parts").mkdir()
    (photos / "parts" / "val.csv").write_text("mine")
    with pytest.raises(RecipeError, match="--force"):
        pluralis("split", *given(photos), "--out", photos / "parts")
    assert sorted(os.listdir(photos / "parts")) == ["val.csv"]
    for words in commands:
        precious.write_text("mine")
        Path(f"{precious}.checked").unlink(missing_ok=True)
        pluralis(*words, "--force")
        assert precious.read_text() != "mine"


def test_what_is_wrong_is_said(photos: Path) -> None:
    out = ["--out", photos / "x.csv"]
    for words, message in (
        (["inspect"], "--images DIR"),
        (["inspect", "--images", photos / "photos"], "--labels FILE"),
        (["inspect", "--images", photos / "photos"], "--format imagefolder"),
        (["inspect", *given(photos), "--set", "train.lr=1"], "train.lr"),
        (["inspect", *given(photos), "--set", "data.formt=voc"], "data.format"),
        (["inspect", *given(photos), "--unlisted", "maybe"], "'unknown' or 'absent'"),
        (["convert", *given(photos), *out, "--to", "cvs"], "did you mean 'csv'"),
        (["convert", *given(photos), *out, "--to", "voc"], "not written"),
        (["convert", *given(photos), *out, "--option", "layout"], "key=value"),
        (["convert", *given(photos), *out, "--option", "colour=red"], "colour"),
        (["convert", "--format", "scenes", *out], "not files"),
        (["simulate", *given(photos), *out, "--protocol", "single-positive"], "needs every label to be known"),
        (["simulate", *given(photos), *out, "--protocol", "known-ratio"], "data.protocol_share"),
        (["simulate", *given(photos), *out, "--protocol", "fixed-per-class"], "data.protocol_count"),
        (["simulate", *given(photos), *out, "--protocol", "at-random"], "single-positive"),
    ):
        with pytest.raises(PluralisError) as caught:
            pluralis(*words)
        assert message in str(caught.value), words
    assert not (photos / "x.csv").exists()


def test_formats_lists_all() -> None:
    from pluralis.data.formats import FORMATS

    said = pluralis("formats")
    assert all(name in said for name in FORMATS)
    assert "unlisted" in said


def test_help_needs_nothing_heavy() -> None:
    code = "import sys, pluralis.cli; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"torch", "numpy", "rich.table", "matplotlib"} & set(done.stdout.split())

"""Annotators with a preference: how often each label is picked, and what the boxes of VOC say about areas."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import sparse

from pluralis.config import DataPart, Recipe, SelectPart
from pluralis.data.formats import coco, voc
from pluralis.data.formats.boxes import covered
from pluralis.data.protocols import pick, pick_largest, pick_rarest, single_positive
from pluralis.data.source import load_split
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from tests.data.generated import SAMPLES


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    expected = counts.sum() * chances
    return float((np.square(counts - expected) / expected).sum())


def counts(found: Labels) -> np.ndarray:
    return np.asarray(found.summary().positives)


def random_labels(rows: int = 300, classes: int = 6) -> tuple[Labels, np.ndarray]:
    """Complete labels, some rows without a positive, and weights of very different sizes."""
    draw = np.random.default_rng(3)
    full = np.where(draw.random((rows, classes)) < 0.4, 1, -1)
    full[7] = -1
    ids = [f"image {row}" for row in range(rows)]
    return Labels.from_dense(full, ids=ids), np.exp(draw.normal(0, 4, (rows, classes)))


@pytest.mark.parametrize("seed", [1200, 0, 5])
@pytest.mark.parametrize("scale", [1.0, 1e-310, 1e300])
def test_picks_are_in_proportion_to_the_weights(seed: int, scale: float) -> None:
    """Four degrees of freedom: above 18.5 comes once in a thousand."""
    weights = np.array([1.0, 2.0, 3.0, 4.0, 0.5, 7.0])
    labels = Labels.from_dense([[1, 1, 1, 1, 1, -1]] * 20_000)
    found = counts(pick(labels, weights * scale, seed))
    assert found[5] == 0
    assert chi_square(found[:5], weights[:5] / weights[:5].sum()) < 18.5


def test_equal_weights_are_single_positive_in_distribution() -> None:
    labels = Labels.from_dense([[1, -1, 1, 1], [1, 1, -1, -1]] * 5_000)
    for found in (pick(labels, np.ones(labels.shape)), single_positive(labels)):
        dense = found.dense()
        assert chi_square(dense[::2].sum(0)[[0, 2, 3]], np.full(3, 1 / 3)) < 13.8  # once in a thousand
        assert chi_square(dense[1::2].sum(0)[:2], np.full(2, 1 / 2)) < 10.8


def test_weights_differ_from_row_to_row() -> None:
    labels = Labels.from_dense([[1, 1]] * 10_000)
    weights = np.tile([[9.0, 1.0], [1.0, 9.0]], (5_000, 1))
    found = pick(labels, weights).dense()
    for rows, chances in ((found[::2], [0.9, 0.1]), (found[1::2], [0.1, 0.9])):
        assert chi_square(rows.sum(0), np.array(chances)) < 10.8


@pytest.mark.parametrize("seed", range(5))
def test_what_weighs_nothing_is_never_picked_unless_all_do(seed: int) -> None:
    labels = Labels.from_dense([[1, 1, 1, -1]] * 4_000)
    assert counts(pick(labels, [0.0, 1e-300, 0.0, 5.0], seed)).tolist() == [0, 4000, 0, 0]
    assert chi_square(counts(pick(labels, [0.0, 0.0, 0.0, 5.0], seed))[:3], np.full(3, 1 / 3)) < 13.8


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array, np.asarray, np.ndarray.tolist])
def test_sparse_and_dense_weights_are_the_same(kind) -> None:
    labels, weights = random_labels()
    weights[weights < 1] = 0
    before = weights.copy()
    assert pick(labels, kind(weights), 4) == pick(labels, weights, 4)
    assert pick_largest(labels, kind(weights)) == pick_largest(labels, weights)
    np.testing.assert_array_equal(weights, before)


def test_every_pick_is_one_present_label_or_none() -> None:
    labels, weights = random_labels()
    full = labels.dense()
    assert not (full[7] == 1).any()
    for found in (pick(labels, weights), pick_largest(labels, weights), pick_rarest(labels)):
        dense = found.dense()
        np.testing.assert_array_equal((dense == 1).sum(1), (full == 1).any(1))
        assert (full[dense == 1] == 1).all()
        assert (dense >= 0).all()
        assert (found.classes, found.ids) == (labels.classes, labels.ids)
    assert pick(labels, weights, 1) == pick(labels, weights, 1)
    assert pick(labels, weights, 1) != pick(labels, weights, 2)


def test_the_largest_and_the_rarest_row_by_row() -> None:
    labels, weights = random_labels()
    weights = np.round(weights)  # so that there are ties
    full = labels.dense()
    largest, rarest = pick_largest(labels, weights).dense(), pick_rarest(labels).dense()
    ties = 0
    for row in range(len(full)):
        present = [c for c in range(6) if full[row, c] == 1]
        if present:
            best = max(weights[row, c] for c in present)
            ties += sum(weights[row, c] == best for c in present) > 1
            assert largest[row].argmax() == next(c for c in present if weights[row, c] == best)
            fewest = min((full[:, c] == 1).sum() for c in present)
            assert rarest[row].argmax() == next(c for c in present if (full[:, c] == 1).sum() == fewest)
    assert ties > 10
    assert pick_rarest(Labels.from_dense([[-1, 1, 1], [1, -1, -1]])).dense().tolist() == [[0, 1, 0], [1, 0, 0]]


def test_rows_in_another_order() -> None:
    labels, weights = random_labels()
    order = np.random.default_rng(0).permutation(len(labels))
    moved = labels.select(order)
    assert pick_largest(moved, weights[order]) == pick_largest(labels, weights).select(order)
    assert pick_rarest(moved) == pick_rarest(labels).select(order)
    # The draw goes by place, so of a random pick only the chances move with the rows.
    labels, chances = Labels.from_dense([[1, 1]] * 8_000), np.linspace(0.1, 0.9, 8_000)
    weights = np.stack([chances, 1 - chances], 1)
    order = np.random.default_rng(0).permutation(8_000)
    for found, where in ((pick(labels, weights), np.arange(8_000)), (pick(labels, weights[order]), order)):
        first = found.dense()[np.argsort(where), 0].reshape(8, -1).mean(1)
        np.testing.assert_allclose(first, chances.reshape(8, -1).mean(1), atol=0.06)


def test_weights_that_cannot_be() -> None:
    labels = Labels.from_dense([[1, -1], [1, 1]], classes=["cat", "dog"], ids=["a", "b"])
    for protocol in (pick, pick_largest):
        for wrong in (-1.0, np.nan, np.inf):
            with pytest.raises(DataError, match=f"row 'b', class 'dog': the weight {wrong}"):
                protocol(labels, [[1.0, 1.0], [1.0, wrong]])
        assert protocol(labels, [[1.0, np.nan], [1.0, 0.0]]).dense().tolist() == [[1, 0], [1, 0]]  # of absent labels
        with pytest.raises(DataError, match=r"weights of shape \(3,\) for labels of shape \(2, 2\)"):
            protocol(labels, [1.0, 1.0, 1.0])
        with pytest.raises(LabelError, match="row '0', class '1' is unknown"):
            protocol(Labels.from_dense([[1, 0]]), [1.0, 1.0])
        assert len(protocol(Labels.from_lists([], 3), np.ones(3))) == 0


OBJECT = "<object><name>{}</name><difficult>{}</difficult><bndbox>{}</bndbox>{}</object>"


def box(name: str, *sides: object, difficult: int = 0, more: str = "") -> str:
    names = ("xmin", "ymin", "xmax", "ymax")
    return OBJECT.format(name, difficult, "".join(f"<{n}>{s}</{n}>" for n, s in zip(names, sides, strict=True)), more)


PART = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>90</xmax><ymax>90</ymax></bndbox></part>"
PICTURES = {
    "a": [box("dog", 1, 1, 10, 10), box("dog", 6, 6, 15, 15), box("dog", 2, 2, 3, 3), box("cat", 1, 1, 50, 1)],
    "b": [box("cat", 1, 1, 2, 2, more=PART), box("dog", 1, 1, 90, 90, difficult=1), box("dog", 1, 1, 3, 1)],
    "c": [box("dog", "4.5", 1, 6, "2.0"), box("cow", 1, 1, 99, 99)],
    "d": [],
    "e": [box("cat", 5, 5, 9, 9), box("cat", 20, 5, 24, 9), box("dog", 1, 1, 7, 7)],
}
PRESENT = {"cat": "abe", "dog": "abce"}


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    for folder in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (tmp_path / folder).mkdir(parents=True)
    for name, objects in PICTURES.items():
        Image.new("RGB", (16, 16)).save(tmp_path / "JPEGImages" / f"{name}.jpg")
        (tmp_path / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(objects)}</annotation>")
    for kind, where in PRESENT.items():
        lines = (f"{name} {1 if name in where else -1}\n" for name in PICTURES)
        (tmp_path / "ImageSets" / "Main" / f"{kind}_train.txt").write_text("".join(lines))
    return tmp_path


def test_areas_are_what_the_boxes_cover(devkit: Path) -> None:
    """Overlaps count once, the last pixel counts, difficult objects, parts and other classes do not."""
    labels = voc.read(devkit).labels
    assert voc.areas(devkit, labels).tolist() == [[50, 100 + 100 - 25], [4, 3], [0, 2.5 * 2], [0, 0], [50, 49]]
    assert voc.areas(devkit, labels.select([4, 1])).tolist() == [[50, 49], [4, 3]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 12)] * 4), min_size=1, max_size=8))
def test_the_union_of_boxes_by_painting_pixels(corners: list[tuple[int, int, int, int]]) -> None:
    painted = np.zeros((14, 14), bool)
    boxes = []
    for x, y, width, height in corners:
        right, bottom = min(x + width, 13), min(y + height, 13)
        painted[y : bottom + 1, x : right + 1] = True
        boxes.append((float(x), float(y), right + 1.0, bottom + 1.0))
    assert covered(boxes) == painted.sum()


MISTAKES = {
    "not XML": ("<annotation>", "is not plain XML"),
    "an entity": ('<!DOCTYPE a [<!ENTITY x "y">]><annotation>&x;</annotation>', "is not plain XML"),
    "no name": ("<annotation><object/></annotation>", "object 1: it has no name"),
    "no box": ("<annotation><object><name>dog</name></object></annotation>", "does not hold the numbers xmin, ymin"),
    "no number": (f"<annotation>{box('dog', 1, 'x', 2, 2)}</annotation>", "does not hold the numbers"),
    "a box turned over": (f"<annotation>{box('dog', 5, 1, 2, 2)}</annotation>", "the box 5, 1, 2, 2 is not possible"),
    "not a number": (f"<annotation>{box('dog', 1, 1, 'nan', 2)}</annotation>", "is not possible"),
    "far away": (f"<annotation>{box('dog', 1, 1, '1e300', 2)}</annotation>", "is not possible"),
    "too long": ("<annotation/>" + " " * (16 << 20), "over the limit"),
    "an encoding": ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "is not plain XML"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_annotations_with_mistakes(devkit: Path, mistake: str) -> None:
    text, words = MISTAKES[mistake]
    labels = voc.read(devkit).labels
    (devkit / "Annotations" / "b.xml").write_text(text)
    with pytest.raises(DataError, match=rf"b\.xml.*{words}") as caught:
        voc.areas(devkit, labels)
    assert "\n" not in str(caught.value)


def test_annotations_that_are_lacking(devkit: Path) -> None:
    labels = voc.read(devkit).labels
    (devkit / "Annotations" / "c.xml").unlink()
    with pytest.raises(DataError, match=r"c\.xml: is not there, or not a plain file"):
        voc.areas(devkit, labels)
    (devkit / "Annotations").rename(devkit / "elsewhere")
    with pytest.raises(DataError, match="there is no Annotations in it; give the folder VOC20xx"):
        voc.areas(devkit, labels)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([box("dog", 1, 1, 2, 2), "<object>", "</object>", "<a>", "\0", "é", "&", PART])))
def test_generated_annotations_raise_only_documented_errors(tmp_path_factory, pieces: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "generated.xml"
    path.write_text(f"<annotation>{''.join(pieces)}</annotation>")
    message = ""
    try:
        voc._boxes(path)
    except DataError as error:
        message = str(error)
    assert "\n" not in message


def voc_part(devkit: Path, protocol: str, **more: object) -> DataPart:
    return DataPart("voc", str(devkit), protocol=protocol, unlabelled="keep", **more)  # type: ignore[arg-type]


def test_protocols_of_a_recipe(devkit: Path) -> None:
    last = SelectPart("last", 0.0)
    largest = load_split(voc_part(devkit, "pick-largest"), last)
    assert largest.train.labels.dense().tolist() == [[0, 1], [1, 0], [0, 1], [0, 0], [1, 0]]
    assert largest.truth == voc.read(devkit).labels
    rarest = load_split(voc_part(devkit, "pick-rarest"), last).train.labels
    assert rarest.dense().tolist() == [[1, 0], [1, 0], [0, 1], [0, 0], [1, 0]]
    labels = voc.read(devkit).labels
    drawn = [load_split(voc_part(devkit, "pick-area", protocol_seed=s), last).train.labels for s in range(20)]
    assert drawn[3] == pick(labels, voc.areas(devkit, labels), 3)
    assert any(a != b for a, b in pairwise(drawn))


def test_the_hold_out_is_the_same_for_every_protocol(devkit: Path) -> None:
    rows = []
    for protocol in ("single-positive", "pick-area", "pick-largest", "pick-rarest"):
        found = load_split(voc_part(devkit, protocol), SelectPart("clean", 0.4))
        assert found.held is not None
        rows.append((found.train.labels.ids, found.held.labels.ids))
        assert found.held.labels.summary().known_ratio == 1  # the rule `clean` sees every label
    assert len(set(rows)) == 1


def test_formats_without_boxes_say_so() -> None:
    scenes = DataPart("scenes", options={"count": 4}, protocol="pick-area")
    with pytest.raises(DataError, match='"pick-area" goes by the areas .* voc and coco alone, not from scenes'):
        load_split(scenes, SelectPart("last", 0.0))
    rarest = DataPart("scenes", options={"count": 4}, protocol="pick-rarest")
    assert (load_split(rarest, SelectPart("last", 0.0)).train.labels.summary().row_positives == 1).all()


@pytest.fixture
def coco_folder(tmp_path: Path) -> Path:
    """The sample of COCO, with its photos."""
    shutil.copytree(SAMPLES / "coco", tmp_path / "coco")
    (tmp_path / "coco" / "val2014").mkdir()
    for number in (391895, 522418, 184613, 42):
        Image.new("RGB", (16, 16)).save(tmp_path / "coco" / "val2014" / f"COCO_val2014_{number:012d}.jpg")
    return tmp_path / "coco"


def test_areas_of_coco(coco_folder: Path) -> None:
    """Two people that overlap by 22.12 × 48.1 pixels, a crowd, and an image without annotations."""
    options = {"split": "val2014", "unlisted": "absent", "empty": "keep"}
    labels = coco.read(coco_folder, **options).labels  # type: ignore[arg-type]
    assert labels.ids == ("184613", "391895", "42", "522418")
    people = 153.88 * 300.73 + 35.92 * 48.1 - (339.88 + 153.88 - 471.64) * 48.1
    expected = [[200 * 100, 0, 0], [people, 112.45 * 213.57, 0], [0, 0, 0], [0, 0, 20 * 10]]
    np.testing.assert_allclose(coco.areas(coco_folder, labels, split="val2014"), expected, rtol=1e-9)
    by_file = coco.read(coco_folder, ids="file", **options).labels  # type: ignore[arg-type]
    found = coco.areas(coco_folder, by_file, split="val2014", ids="file")
    order = [by_file.ids.index(f"COCO_val2014_{int(name):012d}.jpg") for name in labels.ids]
    np.testing.assert_allclose(found[order], expected, rtol=1e-9)


def test_coco_in_a_recipe(coco_folder: Path) -> None:
    """By area a person, by rarity the motorcycle; from the folder, and from a file of one's own."""
    options = {"split": "val2014", "unlisted": "absent"}
    folder = DataPart("coco", str(coco_folder), options=options, protocol="pick-largest")
    file = DataPart(
        "coco",
        str(coco_folder / "val2014"),
        str(coco_folder / "annotations" / "instances_val2014.json"),
        options={"unlisted": "absent", "ids": "file"},
        protocol="pick-largest",
    )
    for part in (folder, file):
        labels = load_split(part, SelectPart("last", 0.0)).train.labels
        row = next(row for row, name in enumerate(labels.ids) if "391895" in name)
        assert labels.dense()[row].tolist() == [1, 0, 0]
    rarest = load_split(replace(folder, protocol="pick-rarest"), SelectPart("last", 0.0)).train.labels
    assert rarest.dense()[rarest.ids.index("391895")].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("box", "words"),
    [
        (7, "is not a list"),
        ([1, 2, 3], "give four numbers"),
        ([1, 2, True, 4], "give four numbers"),
        ([1, 2, -3, 4], "is not possible"),
        ([1, 2, 1e300, 4], "is not possible"),
        ([10**400, 2, 3, 4], "is not possible"),
    ],
)
def test_boxes_of_coco_with_mistakes(coco_folder: Path, box: object, words: str) -> None:
    file = coco_folder / "annotations" / "instances_val2014.json"
    content = json.loads(file.read_text())
    content["annotations"][2]["bbox"] = box
    file.write_text(json.dumps(content))
    labels = coco.read(coco_folder, split="val2014", unlisted="absent").labels
    with pytest.raises(DataError, match=rf"instances_val2014\.json: annotations\[2\]\.bbox.*{words}"):
        coco.areas(coco_folder, labels, split="val2014")
    content["annotations"][2]["bbox"] = None  # no box at all: nothing is covered
    file.write_text(json.dumps(content))
    assert coco.areas(coco_folder, labels, split="val2014")[1, 0] == pytest.approx(153.88 * 300.73)


def test_a_recipe_knows_the_names() -> None:
    for protocol in ("pick-area", "pick-largest", "pick-rarest"):
        assert Recipe.load(None, [f"data.protocol={protocol}"]).data.protocol == protocol


@pytest.mark.skipif("PLURALIS_VOC" not in os.environ, reason="PLURALIS_VOC does not name an unpacked VOC 2012")
def test_the_real_boxes_agree_with_the_real_lists() -> None:
    root = os.environ["PLURALIS_VOC"]
    labels = voc.read(root, difficult="absent").labels
    found = voc.areas(root, labels)
    np.testing.assert_array_equal(found > 0, labels.dense() > 0)
    row = dict(zip(labels.classes, found[labels.ids.index("2008_000008")], strict=True))
    assert (row["horse"], row["person"]) == (419 * 334, 132 * 124)  # by hand: one box each
    assert counts(pick_largest(labels, found))[labels.classes.index("bottle")] == 89

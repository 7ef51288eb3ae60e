"""Protocols for whole data sets, against literal restatements on dense arrays; and their place in recipes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluralis.config import DataPart, Recipe, SelectPart
from pluralis.data import protocols, read
from pluralis.data.source import apply_protocol, load_split
from pluralis.errors import DataError, LabelError, RecipeError
from pluralis.labels import Labels


def full_matrix(rows: int = 120, classes: int = 9) -> np.ndarray:
    draw = np.random.default_rng(5)
    return np.where(draw.random((rows, classes)) < draw.uniform(0.02, 0.6, classes), 1, -1)


@pytest.fixture
def coco(tmp_path: Path) -> tuple[Path, dict[int, set[int]]]:
    """Annotations with numbers of different lengths, in no order, two images without any; and what is in each image."""
    draw = np.random.default_rng(1)
    every = [3, 9, 10, 25, 77, 99, 100, 574, 1000, 4795, 57870, 581929, *range(200, 230)]
    numbers = [int(n) for n in draw.permutation(every)]
    classes = [(18, "dog"), (1, "person"), (90, "toothbrush"), (2, "bicycle"), (44, "bottle")]
    there = {n: {int(c) for c in draw.choice([c for c, _ in classes], draw.integers(1, 4))} for n in numbers[2:]}
    (tmp_path / "annotations").mkdir()
    (tmp_path / "train2014").mkdir()
    for n in numbers:
        Image.new("RGB", (2, 2)).save(tmp_path / "train2014" / f"{n:012d}.png")
    pairs = [(n, c) for n in there for c in there[n]]
    content = {
        "images": [{"id": n, "file_name": f"{n:012d}.png"} for n in numbers],
        "annotations": [{"image_id": pairs[i][0], "category_id": pairs[i][1]} for i in draw.permutation(len(pairs))],
        "categories": [{"id": c, "name": name} for c, name in classes],
    }
    (tmp_path / "annotations" / "instances_train2014.json").write_text(json.dumps(content))
    return tmp_path, there


Steps = tuple[list[str], np.ndarray, np.ndarray, list[int], list[int]]


def published(there: dict[int, set[int]], columns: list[int]) -> Steps:
    """The steps of the single-positive literature on COCO: ids, full and observed labels 0/1, train and val rows."""
    ids = sorted(str(n) for n in there)
    full = np.zeros((len(ids), len(columns)))
    for i, name in enumerate(ids):
        for c in there[int(name)]:
            full[i, columns.index(c)] = 1
    rng = np.random.RandomState(1200)
    observed = np.zeros_like(full)
    for i in range(len(full)):
        present = np.nonzero(full[i] > 0)[0]
        absent = np.nonzero(full[i] == 0)[0]
        rng.shuffle(present)
        rng.shuffle(absent)
        observed[i, present[:1]] = 1
        observed[i, absent[:0]] = -1
    held = int(np.round(0.2 * len(full)))
    order = np.random.RandomState(1200).permutation(len(full))
    return ids, full, observed, sorted(order[: len(full) - held].tolist()), sorted(order[-held:].tolist())


def test_coco_single_positive_is_the_published_draw(coco: tuple[Path, dict[int, set[int]]]) -> None:
    folder, there = coco
    ids, full, observed, train, val = published(there, [18, 1, 90, 2, 44])
    found = read("coco", folder, unlisted="absent")
    assert list(found.labels.ids) == ids
    assert ids != sorted(ids, key=int)  # as text: "10" stands before "9"
    assert found.labels.classes == ("dog", "person", "toothbrush", "bicycle", "bottle")
    np.testing.assert_array_equal(found.labels.dense(), np.where(full > 0, 1, -1))
    assert [path.name for path in found.images] == [f"{int(name):012d}.png" for name in ids]
    np.testing.assert_array_equal(protocols.single_positive(found.labels).dense(), observed)

    part = DataPart("coco", str(folder), options={"unlisted": "absent"}, protocol="single-positive")
    split = load_split(part, SelectPart(rule="clean"))
    np.testing.assert_array_equal(split.train.labels.dense(), observed[train])
    assert split.held is not None
    np.testing.assert_array_equal(split.held.labels.dense(), np.where(full[val] > 0, 1, -1))
    assert list(split.held.labels.ids) == [ids[row] for row in val]


def test_known_labels_of_coco_in_the_order_of_its_file(coco: tuple[Path, dict[int, set[int]]]) -> None:
    """One uniform number for each entry of the matrix, whose rows are the images as the file lists them."""
    folder, there = coco
    listed = json.loads((folder / "annotations" / "instances_train2014.json").read_text())["images"]
    columns = [18, 1, 90, 2, 44]
    signed = np.array([[1 if c in there.get(image["id"], ()) else -1 for c in columns] for image in listed])
    known = np.random.RandomState(0).random_sample(signed.shape) < 0.5
    options = {"unlisted": "absent", "empty": "keep"}
    for order, same in (("file", True), ("id", False)):
        labels = read("coco", folder, order=order, **options).labels
        drawn = protocols.known_ratio(labels, 0.5)
        rows = [labels.ids.index(str(image["id"])) for image in listed]
        assert np.array_equal(drawn.dense(rows), np.where(known, signed, 0)) == same


@pytest.mark.parametrize("count", [1, 7, 30, 1000])
@pytest.mark.parametrize("seed", [0, 3])
def test_fixed_per_class_step_by_step(count: int, seed: int) -> None:
    full = full_matrix()
    full[:, 4] = -1  # a class that is nowhere
    full[:, 5] = 1  # and one that is everywhere
    rng = np.random.RandomState(seed)
    expected = np.zeros_like(full)
    for c in range(full.shape[1]):
        for sign in (1, -1):
            rows = [i for i in range(len(full)) if full[i, c] == sign]
            order = rng.permutation(len(rows)) if rows else []
            for place in order[:count]:
                expected[rows[place], c] = sign
    labels = Labels.from_dense(full, ids=[f"image {i}" for i in range(len(full))])
    found = protocols.fixed_per_class(labels, count, seed)
    np.testing.assert_array_equal(found.dense(), expected)
    assert found.ids == labels.ids
    summary = found.summary()
    np.testing.assert_array_equal(summary.positives, np.minimum(count, (full == 1).sum(0)))
    np.testing.assert_array_equal(summary.negatives, np.minimum(count, (full == -1).sum(0)))
    alone = protocols.fixed_per_class(labels, count, seed, negatives=False).dense()
    np.testing.assert_array_equal(alone, np.maximum(expected, 0))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_flip_positives_step_by_step(rate: float) -> None:
    full = full_matrix()
    rng = np.random.RandomState(2)
    expected = full.copy()
    for row, column in zip(*np.nonzero(full == 1), strict=True):
        if rng.random_sample() < rate:
            expected[row, column] = -1
    found = protocols.flip_positives(Labels.from_dense(full), rate, seed=2)
    np.testing.assert_array_equal(found.dense(), expected)
    assert found.summary().known_ratio == 1  # none is hidden
    flipped = ((full == 1) & (expected == -1)).sum() / (full == 1).sum()
    assert flipped == pytest.approx(rate, abs=0.07)


def test_more_noise_and_more_labels_hold_what_less_holds() -> None:
    labels = Labels.from_dense(full_matrix())
    little, much = (protocols.flip_positives(labels, rate).dense() for rate in (0.1, 0.5))
    assert (much[little != labels.dense()] == -1).all()


@pytest.mark.parametrize(("protocol", "value"), [(protocols.fixed_per_class, 5), (protocols.flip_positives, 0.5)])
def test_they_want_complete_labels(protocol: Callable[..., Labels], value: float) -> None:
    with pytest.raises(LabelError, match="row 'b', class 'dog' is unknown"):
        protocol(Labels.from_dense([[1, -1], [1, 0]], classes=["cat", "dog"], ids=["a", "b"]), value)
    assert len(protocol(Labels.from_lists([], 3), value)) == 0


def test_impossible_numbers_are_named() -> None:
    labels = Labels.from_dense([[1, -1]])
    for count in (-1, 2.5, True):
        with pytest.raises(DataError, match="such as 1000"):
            protocols.fixed_per_class(labels, count)  # type: ignore[arg-type]
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(DataError, match="from 0 to 1"):
            protocols.flip_positives(labels, rate)


def test_one_positive_and_all_negatives() -> None:
    """The single positive of the literature, and every absent label beside it."""
    full = full_matrix()
    full[3] = -1  # a row without a positive
    rng = np.random.RandomState(1200)
    expected = np.where(full < 0, -1, 0)
    for row, kept in zip(full, expected, strict=True):
        present, absent = np.nonzero(row > 0)[0], np.nonzero(row < 0)[0]
        rng.shuffle(present)
        rng.shuffle(absent)
        kept[present[:1]] = 1
    labels = Labels.from_dense(full, [f"c{n}" for n in range(9)], [f"r{n}" for n in range(120)])
    found = protocols.one_positive_all_negatives(labels)
    np.testing.assert_array_equal(found.dense(), expected)
    assert (found.classes, found.row_ids) == (labels.classes, labels.row_ids)
    positives = protocols.single_positive(labels, 7).dense()
    np.testing.assert_array_equal(np.maximum(protocols.one_positive_all_negatives(labels, 7).dense(), 0), positives)
    with pytest.raises(LabelError, match="is unknown"):
        protocols.one_positive_all_negatives(Labels.from_dense([[1, 0]]))


def test_in_recipes() -> None:
    labels = Labels.from_dense(full_matrix())
    settings = ["data.protocol=fixed-per-class", "data.protocol_count=7", "data.protocol_seed=3"]
    part = Recipe.load(None, settings).data
    assert apply_protocol(labels, part) == protocols.fixed_per_class(labels, 7, 3)
    part = Recipe.load(None, ["data.protocol=flip-positives", "data.protocol_share=0.9", "data.protocol_seed=0"]).data
    assert apply_protocol(labels, part) == protocols.flip_positives(labels, 1 - 0.9)  # nine of ten stay as they are


@pytest.mark.parametrize(
    ("protocol", "call"),
    [
        (["single-positive"], lambda labels: protocols.single_positive(labels)),
        (["one-positive-all-negatives"], lambda labels: protocols.one_positive_all_negatives(labels)),
        (["known-ratio", "share=0.5"], lambda labels: protocols.known_ratio(labels, 0.5)),
        (["drop-positives", "share=0.75"], lambda labels: protocols.drop_positives(labels, 0.25)),
        (["flip-positives", "share=0.75"], lambda labels: protocols.flip_positives(labels, 0.25)),
        (["fixed-per-class", "count=7"], lambda labels: protocols.fixed_per_class(labels, 7)),
    ],
)
def test_a_recipe_without_a_seed_draws_as_the_function_does(
    protocol: list[str], call: Callable[[Labels], Labels]
) -> None:
    labels = Labels.from_dense(full_matrix())
    settings = [f"data.protocol={protocol[0]}", *(f"data.protocol_{setting}" for setting in protocol[1:])]
    assert apply_protocol(labels, Recipe.load(None, settings).data) == call(labels)
    other = apply_protocol(labels, Recipe.load(None, [*settings, "data.protocol_seed=5"]).data)
    assert other != call(labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.protocol=fixed-per-class"], "needs data.protocol_count"),
        (["data.protocol=fixed-per-class", "data.protocol_count=-3"], "at least 1, not -3"),
        (["data.protocol=fixed-per-class", "data.protocol_count=3", "data.protocol_share=0.5"], "no use for it"),
        (["data.protocol_count=3"], 'data.protocol = "as-given" has no use for it'),
        (["data.protocol=single-positive", "data.protocol_count=3"], "fixed-per-class"),
        (["data.protocol=flip-positives"], "needs data.protocol_share"),
        (["data.protocol=flip-positives", "data.protocol_share=1.5"], "up to 1, not 1.5"),
        (["data.protocol=flip-positive"], "flip-positives"),
    ],
)
def test_mistakes_in_recipes_are_named(settings: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(None, settings)
    assert message in str(caught.value)

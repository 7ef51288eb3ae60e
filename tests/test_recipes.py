"""Every recipe in the repository: its keys, its data set's layout in small, and one real step of training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pluralis.config import Recipe
from pluralis.data.source import load_source, load_split
from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.methods import every_method
from pluralis.run import _build, load_run, train

RECIPES = sorted(Path("recipes").rglob("*.toml"))
CLASSES = ["bird", "boat", "bus"]
SPLITS = {"voc": ("train", "val", "trainval", "test"), "coco": ("train2014", "val2014"), "npy": ("train", "val")}


def truth(count: int) -> np.ndarray:
    """Complete labels [count, 3] of 1 and 0, at least one present in each row and a row for each class."""
    labels = (np.random.default_rng(1).random((count, 3)) < 0.4).astype(int)
    labels[np.arange(count), np.arange(count) % 3] = 1
    return labels


def write_images(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (len(names), 24, 24, 3), np.uint8)
    for name, pixels in zip(names, noise, strict=True):
        Image.fromarray(pixels).save(folder / name)


def write_voc(root: Path, count: int) -> list[str]:
    main = root / "ImageSets" / "Main"
    main.mkdir(parents=True)
    ids = [f"{number:06d}" for number in range(count)]
    write_images(root / "JPEGImages", [f"{name}.jpg" for name in ids])
    for split in SPLITS["voc"]:
        for name, column in zip(CLASSES, truth(count).T, strict=True):
            lines = [f"{i} {v * 2 - 1:2d}" for i, v in zip(ids, column, strict=True)]
            (main / f"{name}_{split}.txt").write_text("\n".join(lines))
    return [f"data.images={root}"]


def write_coco(root: Path, count: int) -> list[str]:
    (root / "annotations").mkdir(parents=True)
    for split in SPLITS["coco"]:
        names = [f"COCO_{split}_{number:012d}.jpg" for number in range(count)]
        write_images(root / split, names)
        content = {
            "categories": [{"id": 10 + place, "name": name} for place, name in enumerate(CLASSES)],
            "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
            "annotations": [
                {"image_id": int(row), "category_id": 10 + int(column)}
                for row, column in zip(*np.nonzero(truth(count)), strict=True)
            ],
        }
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return [f"data.images={root}"]


def write_npy(root: Path, count: int) -> list[str]:
    names = [f"{number}.jpg" for number in range(count)]
    write_images(root / "images", names)
    for split in SPLITS["npy"]:
        np.save(root / f"formatted_{split}_images.npy", np.array(names))
        np.save(root / f"formatted_{split}_labels.npy", truth(count).astype(float))
    return [f"data.images={root / 'images'}", f"data.labels={root}"]


WRITERS = {"voc": write_voc, "coco": write_coco, "npy": write_npy}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Format -> the settings that name a data set of 6 images in that format."""
    root = tmp_path_factory.mktemp("sets")
    return {name: writer(root / name, 6) for name, writer in WRITERS.items()}


def in_small(recipe: Recipe) -> list[str]:
    """Settings under which the recipe takes no time: everything of the method, head and schedule stays."""
    settings = [
        "model.backbone=tiny",
        'model.weights=""',
        "data.size=32",
        f"data.store_size={40 if recipe.data.store_size else 0}",
        "train.epochs=1",
        "train.batch_size=8",
        "run.device=cpu",
        "run.workers=0",
        "run.cache=ram",
    ]
    if recipe.select.fraction:
        settings.append("select.fraction=0.34")  # so that two of six rows are held out
    if recipe.train.freeze > 3:
        settings.append("train.freeze=3")  # of the four stages: the last one trains, as in the recipe
    if "warmup" in recipe.method.params:
        settings.append("method.params.warmup=0")  # what follows the warm-up is what differs
    if recipe.model.head == "label-decoder":
        settings.append("model.head_params.dim=16")
    if recipe.model.head == "semantic-graph":
        settings.append("model.head_params.width=16")
    return settings


@pytest.mark.parametrize("path", RECIPES, ids=str)
def test_one_step(path: Path, places: dict[str, list[str]], tmp_path: Path) -> None:
    full = Recipe.load(path)
    recipe = full.with_settings([*in_small(full), *places[full.data.format]])
    run = train(recipe, tmp_path / "run")
    terms = {key: value for key, value in run.history[-1].items() if key not in ("stage", "epoch")}
    assert terms
    assert all(math.isfinite(value) for value in terms.values())
    assert 0 <= run.test["mAP"] <= 100
    images = load_split(recipe.data, recipe.select).train.images
    again = load_run(tmp_path / "run", "cpu")
    assert len(again.classes) == len(CLASSES)
    found = again.probabilities(images)
    assert bool(((found >= 0) & (found <= 1)).all())


@pytest.mark.parametrize("path", RECIPES, ids=str)
def test_names_and_command(path: Path) -> None:
    recipe = Recipe.load(path)
    assert recipe.method.name in every_method()
    text = path.read_text(encoding="utf-8")
    assert f"pluralis train --recipe {path.as_posix()} --images" in text
    if recipe.data.format == "npy":
        assert "--labels" in text
    options = [recipe.data.options["split"], recipe.data.test["options"]["split"]]
    assert len(set(options)) == 2, "trained and tested on the same images"
    assert set(options) <= set(SPLITS[recipe.data.format])


def test_the_table_lists_every_recipe() -> None:
    text = Path("recipes/README.md").read_text(encoding="utf-8")
    assert [str(p) for p in RECIPES if p.relative_to("recipes").as_posix() not in text] == []


# (paper, data set) -> what the papers print, typed anew from their tables rather than from the recipes.
PUBLISHED = {
    "em-apl/voc12": {"params": (0.2, 0.02, 0.9, 5), "train": (10, 8, 1e-5)},
    "em-apl/coco": {"params": (0.1, 0.9, 0.9, 5), "train": (10, 16, 1e-5)},
    "em-apl/nus": {"params": (0.1, 0.2, 0.9, 4), "train": (10, 16, 1e-5)},
    "em-apl/cub": {"params": (0.01, 0.4, 0.9, 3), "train": (10, 8, 1e-4)},
    "gr/voc12": {"params": (2, -2, 0.8, 0.5, 0.01, 1), "train": (8, 8, 1e-5)},
    "gr/coco": {"params": (10, -8, 0.8, 0.5, 0.01, 1), "train": (8, 16, 1e-5)},
    "gr/nus": {"params": (10, -8, 0.8, 0.5, 0.01, 1), "train": (10, 16, 1e-5)},
    "gr/cub": {"params": (10, -8, 0.8, 0.5, 0.01, 1.5), "train": (10, 8, 5e-5)},
    "cls/voc07": {"params": (0.005, 0.02, 10), "train": (100, 120, 4e-5)},
    "cls/coco": {"params": (0.012, 0.06, 10), "train": (100, 120, 4e-5)},
    "cls/nus": {"params": (0.020, 0.06, 10), "train": (100, 120, 4e-5)},
    "pu-mlc/voc07": {"params": ("auto", 2), "train": (56, 90, 4e-5)},
    "pu-mlc/coco": {"params": (0.55, 1), "train": (41, 70, 1e-4)},
    **{f"lac/{name}": {"params": (1, 1), "train": (40, 32, 1e-4)} for name in ("voc12", "coco", "nus", "cub")},
}
SYMBOLS = {
    "em-apl": ("alpha", "beta", "theta", "warmup"),
    "gr": ("wT", "bT", "muT", "sigmaT", "q2", "q3"),
    "cls": ("tau_h", "tau_l", "ramp"),
    "pu-mlc": ("gamma", "alpha"),
    "lac": ("lambda_plc", "lambda_lac"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers(name: str) -> None:
    recipe = Recipe.load(Path("recipes") / f"{name}.toml")
    params = tuple(recipe.method.params[symbol] for symbol in SYMBOLS[recipe.method.name])
    assert params == PUBLISHED[name]["params"]
    assert (recipe.train.epochs, recipe.train.batch_size, recipe.train.lr) == PUBLISHED[name]["train"]
    assert recipe.data.size == (224 if recipe.method.name == "cls" else 448)


def test_every_paper_and_data_set_has_its_recipe() -> None:
    assert {p.relative_to("recipes").with_suffix("").as_posix() for p in RECIPES} == {*PUBLISHED, "voc2012/fair"}


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        (["data.protocol=known-ratio", "data.protocol_share=0.5"], "some of both"),
        (["data.protocol=drop-positives", "data.protocol_share=0.5"], "some positives"),
        (["data.protocol=single-positive"], "one positive"),
        (["data.protocol=complete"], "all"),
    ],
)
def test_protocols_through_a_recipe(settings: list[str], known: str, places: dict[str, list[str]]) -> None:
    base = ["data.format=npy", "data.unlabelled=keep", "select.rule=last", "select.fraction=0"]
    recipe = Recipe.load(None, [*base, *settings, *places["npy"]])
    shown = load_split(recipe.data, recipe.select).train.labels.summary()
    present, absent = int(shown.positives.sum()), int(shown.negatives.sum())
    every = int(truth(6).sum())
    if known == "some of both":
        assert 0 < present < every
        assert 0 < absent < 18 - every
    elif known == "some positives":
        assert (0 < present < every, absent) == (True, 0)
    elif known == "one positive":
        assert (present, absent) == (6, 0)
    else:
        assert (present, absent) == (every, 18 - every)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.protocol=known-ratio"], "needs data.protocol_share"),
        (["data.protocol=drop-positives", "data.protocol_share=1.5"], "above 0 and up to 1, not 1.5"),
        (["data.protocol_share=0.5"], "has no use for it"),
        (["data.protocol=single-positive", "data.protocol_share=0.5"], "has no use for it"),
        (["data.protocol=known"], "one of as-given, single-positive, complete, known-ratio, drop-positives"),
    ],
)
def test_shares_that_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        Recipe.load(None, settings)


def test_labels_may_lie_elsewhere_than_images(tmp_path: Path) -> None:
    write_coco(tmp_path, 3)
    file = (tmp_path / "annotations" / "instances_train2014.json").rename(tmp_path / "mine.json")
    named = [f"data.images={tmp_path / 'train2014'}", f"data.labels={file}", "data.format=coco"]
    recipe = Recipe.load(None, [*named, "data.options.unlisted=absent"])
    assert load_source(recipe.data).labels.dense().tolist() == (2 * truth(3) - 1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=str)
def test_the_network_in_full(path: Path) -> None:
    recipe = Recipe.load(path, ['model.weights=""'])
    labels = Labels.from_dense(2 * truth(6) - 1, CLASSES)
    method = _build(recipe, labels).eval()
    assert method.param_groups(recipe.train)
    assert method.predict(torch.zeros(1, 3, 64, 64)).shape == (1, 3)

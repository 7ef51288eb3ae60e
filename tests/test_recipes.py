"""Every recipe in the repository: its keys, its data set's layout in small, and one real step of training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pluralis.build import make_method
from pluralis.config import AUTO, Recipe
from pluralis.data.loader import TensorImages
from pluralis.data.source import apply_protocol, load_source, load_split
from pluralis.defaults import settle
from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.method import Setup
from pluralis.methods import create_method, every_method
from pluralis.models import create_model
from pluralis.run import train
from pluralis.trained_run import load_run

SPECS = ("papers", "default")  # folders of benches, not of recipes
RECIPES = [path for path in sorted(Path("recipes").rglob("*.toml")) if path.parent.name not in SPECS]
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
    every = {split: [f"{part}{number:05d}" for number in range(count)] for part, split in enumerate(SPLITS["voc"])}
    write_images(root / "JPEGImages", [f"{name}.jpg" for ids in every.values() for name in ids])
    for split, ids in every.items():
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
    every = {split: [f"{split}{number}.jpg" for number in range(count)] for split in SPLITS["npy"]}
    write_images(root / "images", [name for names in every.values() for name in names])
    for split, names in every.items():
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
    assert recipe.method.name in {AUTO, *every_method()}
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


# What each recipe must hold, typed anew from the papers. Every key of a recipe is here, except where files lie and how
# they are cached. PRINTED is what a paper says; RELEASED what it leaves to its code, or to the code of the protocol
# that it follows; OURS what neither says, or what was decided otherwise here.
SETS: dict[str, dict[str, Any]] = {
    "voc12": {
        "data.format": "voc",
        "data.options.split": "train",
        "data.options.difficult": "absent",
        "data.test.options.split": "val",
        "data.test.options.difficult": "absent",
    },
    "voc07": {
        "data.format": "voc",
        "data.options.split": "trainval",
        "data.options.difficult": "absent",
        "data.test.options.split": "test",
        "data.test.options.difficult": "absent",
    },
    "coco": {
        "data.format": "coco",
        "data.options.split": "train2014",
        "data.options.unlisted": "absent",
        "data.test.options.split": "val2014",
        "data.test.options.unlisted": "absent",
    },
    "nus": {"data.format": "npy", "data.options.split": "train", "data.test.options.split": "val"},
    "cub": {"data.format": "npy", "data.options.split": "train", "data.test.options.split": "val"},
}
OFF: dict[str, Any] = {  # what no paper speaks of
    "data.protocol_share": 0,
    "data.protocol_count": 0,
    "data.unlabelled": "error",
    "data.store_size": 0,
    "model.sha256": "",
    "model.dropout": None,
    "model.drop_path": 0,
    "train.momentum": 0.9,  # of an optimizer that none uses
    "train.clip": 0,
    "train.schedule_epochs": 0,
    "train.weight_decay": 0,
    "train.ema": 0,
    "train.freeze": 0,
    "select.images": None,
    "train.freeze_bn": False,
    "run.seed": 0,
}
RESNET50: dict[str, Any] = {"model.backbone": "resnet50", "model.weights": "imagenet"}
PRINTED: dict[str, dict[str, Any]] = {
    "em-apl": {
        **RESNET50,
        "model.head": "linear",
        "data.protocol": "single-positive",
        "data.size": 448,
        "method.name": "em-apl",
        "method.params.theta": 0.9,
        "train.optimizer": "adam",
        "train.epochs": 10,
        "train.augment": "flip",
        "select.rule": "clean",
        "select.fraction": 0.2,
    },
    "em-apl/voc12": {"method.params.alpha": 0.2, "method.params.beta": 0.02, "method.params.warmup": 5},
    "em-apl/coco": {"method.params.alpha": 0.1, "method.params.beta": 0.9, "method.params.warmup": 5},
    "em-apl/nus": {"method.params.alpha": 0.1, "method.params.beta": 0.2, "method.params.warmup": 4},
    "em-apl/cub": {"method.params.alpha": 0.01, "method.params.beta": 0.4, "method.params.warmup": 3},
    "gr": {
        **RESNET50,
        "model.head": "linear",
        "data.protocol": "single-positive",
        "data.size": 448,
        "method.name": "gr",
        "method.params.muT": 0.8,
        "method.params.sigmaT": 0.5,
        "method.params.q1": 0.01,
        "method.params.q2": 0.01,
        "train.augment": "flip",
        "select.rule": "clean",
        "select.fraction": 0.2,
    },
    "gr/voc12": {
        "method.params.wT": 2,
        "method.params.bT": -2,
        "method.params.q3": 1,
        "train.epochs": 8,
        "train.batch_size": 8,
        "train.lr": 1e-5,
    },
    "gr/coco": {
        "method.params.wT": 10,
        "method.params.bT": -8,
        "method.params.q3": 1,
        "train.epochs": 8,
        "train.batch_size": 16,
        "train.lr": 1e-5,
    },
    "gr/nus": {
        "method.params.wT": 10,
        "method.params.bT": -8,
        "method.params.q3": 1,
        "train.epochs": 10,
        "train.batch_size": 16,
        "train.lr": 1e-5,
    },
    "gr/cub": {
        "method.params.wT": 10,
        "method.params.bT": -8,
        "method.params.q3": 1.5,
        "train.epochs": 10,
        "train.batch_size": 8,
        "train.lr": 5e-5,
    },
    "cls": {
        **RESNET50,
        "data.protocol": "single-positive",
        "data.size": 224,
        "method.name": "cls",
        "method.params.ramp": 10,
        "train.optimizer": "adam",
        "train.epochs": 100,
        "train.batch_size": 120,
        "train.lr": 4e-5,
        "train.weight_decay": 1e-4,
        "train.schedule": "cosine",
        "train.augment": "window",
    },
    "cls/voc07": {"method.params.tau_h": 0.005, "method.params.tau_l": 0.02},
    "cls/coco": {"method.params.tau_h": 0.012, "method.params.tau_l": 0.06},
    "cls/nus": {"method.params.tau_h": 0.020, "method.params.tau_l": 0.06},
    "lac": {
        **RESNET50,
        "model.head": "label-decoder",
        "data.protocol": "single-positive",
        "data.size": 448,
        "method.name": "lac",
        "method.params.lambda_plc": 1,
        "method.params.lambda_lac": 1,
        "train.optimizer": "adamw",
        "train.epochs": 40,
        "train.lr": 1e-4,
        "train.weight_decay": 0.01,
        "train.schedule": "one-cycle",
        "train.ema": 0.9997,
        "train.augment": "flip",
        "select.rule": "clean",
        "select.fraction": 0.2,
        "run.seed": 1,
    },
    "pu-mlc": {
        "model.backbone": "resnet101",
        "model.weights": "imagenet",
        "model.head": "semantic-graph",
        "data.protocol": "known-ratio",
        "data.protocol_share": 0.1,
        "data.size": 448,
        "data.store_size": 512,
        "method.name": "pu-mlc",
        "method.params.lam": 1,
        "method.params.lgconv": True,
        "train.optimizer": "adam",
        "train.schedule": "one-cycle",
        "train.freeze": 4,  # "the previous 91 layers"
        "train.freeze_bn": True,
        "train.augment": "multi-scale",
    },
    "pu-mlc/voc07": {
        "method.params.gamma": "published",  # 0.85 at 10 %: see below
        "method.params.alpha": 2,
        "train.epochs": 55,
        "train.batch_size": 90,
        "train.lr": 4e-5,
    },
    "pu-mlc/coco": {
        "method.params.gamma": "published-coco",  # 0.55 at 10 %: see below
        "method.params.k": 2.9,
        "method.params.alpha": 1,
        "train.epochs": 40,
        "train.batch_size": 70,
        "train.lr": 1e-4,
    },
}
COLE: dict[str, Any] = {"data.protocol_seed": 1200, "select.seed": 1200}
RELEASED: dict[str, dict[str, Any]] = {
    "em-apl": {**COLE, "train.head_lr": 1, "train.schedule": "constant", "train.warmup": 0},
    "em-apl/voc12": {"train.batch_size": 8, "train.lr": 1e-5},
    "em-apl/coco": {"train.batch_size": 16, "train.lr": 1e-5},
    "em-apl/nus": {"train.batch_size": 16, "train.lr": 1e-5},
    "em-apl/cub": {"train.batch_size": 8, "train.lr": 1e-4},
    "gr": {
        **COLE,
        "method.params.w0": 0,
        "method.params.b0": -2,
        "method.params.mu0": 0.5,
        "method.params.sigma0": 2,
        "train.optimizer": "adam",
        "train.head_lr": 10,
        "train.schedule": "constant",
        "train.warmup": 0,
    },
    "cls": {},  # no code was published
    "lac": {
        **COLE,
        "method.params.delta": 0.6,
        "method.params.delta_main": 0.9,
        "method.params.temperature": 0.5,
        "method.params.queue": 512,
        "train.batch_size": 32,
        "train.head_lr": 1,
        "train.warmup": 8,  # a fifth of the cycle
        "train.freeze": 2,
        "train.freeze_bn": True,
    },
    "pu-mlc": {"data.protocol_seed": 0, "model.head_params.pool": 2, "train.head_lr": 1},
    "pu-mlc/voc07": {"train.ema": 0.991, "train.warmup": 11},  # a fifth of the cycle
    "pu-mlc/coco": {
        "data.options.empty": "keep",
        "data.test.options.empty": "keep",
        "train.ema": 0.9997,
        "train.warmup": 8,
    },
}
EMPTY: dict[str, Any] = {"data.unlabelled": "keep"}  # the rows are then the published ones
OURS: dict[str, dict[str, Any]] = {
    "em-apl": {"method.start_bias": "zero"},
    "em-apl/nus": EMPTY,
    "em-apl/cub": EMPTY,
    "gr": {"method.start_bias": "zero"},
    "gr/nus": EMPTY,
    "gr/cub": EMPTY,
    "cls": {
        **EMPTY,
        "data.protocol_seed": 1200,
        "data.store_size": 256,
        "model.head": "linear",
        "method.start_bias": "zero",
        "train.head_lr": 1,
        "train.warmup": 0,
        "select.rule": "last",
        "select.fraction": 0,
        "select.seed": 1200,  # without a part in it
    },
    "lac": {"method.start_bias": "zero"},
    "lac/nus": EMPTY,
    "lac/cub": EMPTY,
    "pu-mlc": {
        **EMPTY,
        "method.start_bias": "zero",
        "select.rule": "last",
        "select.fraction": 0,
        "select.seed": 1200,  # without a part in it
    },
    "pu-mlc/voc07": {"train.weight_decay": 1e-4 / 20},  # 1e-4 for a sum over the classes
    "pu-mlc/coco": {"train.weight_decay": 1e-4 / 80},
}
FAIR: dict[str, Any] = {  # ours altogether
    **SETS["voc12"],
    **OFF,
    **COLE,
    "data.protocol": "single-positive",
    "data.size": 256,
    "model.backbone": "efficientnet_lite0",
    "model.weights": "imagenet",
    "model.head": "linear",
    "model.dropout": 0.2,
    "train.epochs": 10,
    "train.batch_size": 32,
    "train.optimizer": "adam",
    "train.lr": 1e-4,
    "train.head_lr": 10,
    "train.schedule": "cosine",
    "train.warmup": 0.5,
    "train.augment": "crop",
    "select.rule": "last",
    "select.fraction": 0.2,
    "method.start_bias": "method",
}
PAPERS = {
    "em-apl": ("voc12", "coco", "nus", "cub"),
    "gr": ("voc12", "coco", "nus", "cub"),
    "lac": ("voc12", "coco", "nus", "cub"),
    "cls": ("voc07", "coco", "nus"),
    "pu-mlc": ("voc07", "coco"),
}
NAMES = [f"{paper}/{data}" for paper, sets in PAPERS.items() for data in sets]
OURS_ALONE = ("voc2012/fair", "voc2012/small")
FREE = ("data.images", "data.labels", "run.")


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keys with dots; an empty table has none."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def settings_of(path: Path) -> dict[str, Any]:
    found = flat(Recipe.load(path).to_dict())
    return {key: value for key, value in found.items() if not key.startswith(FREE) or key == "run.seed"}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_the_one_that_was_typed(name: str) -> None:
    paper, data = name.split("/")
    layers = [table.get(part, {}) for table in (PRINTED, RELEASED, OURS) for part in (paper, name)]
    expected: dict[str, Any] = {}
    for layer in layers:
        assert not expected.keys() & layer.keys(), "printed, released and ours are to be told apart"
        expected |= layer
    found = settings_of(Path("recipes") / f"{name}.toml")
    expected = {**OFF, **SETS[data], **expected}
    assert found.keys() == expected.keys()
    assert {key: value for key, value in found.items() if value != expected[key]} == {}


@pytest.mark.parametrize(("name", "size"), [("fair", 256), ("small", 160)])
def test_the_recipes_of_ours(name: str, size: int) -> None:
    found = settings_of(Path(f"recipes/voc2012/{name}.toml"))
    del found["method.name"]  # named on the command line
    assert found == {**FAIR, "data.size": size}


def test_every_paper_and_data_set_has_its_recipe() -> None:
    assert {p.relative_to("recipes").with_suffix("").as_posix() for p in RECIPES} == {*NAMES, *OURS_ALONE}


EXPONENTS = {
    "voc07": (5011, 20, 1.46, [0.85, 0.65, 0.55, 0.50, 0.45, 0.35, 0.15, 0.05, 0.01]),
    "coco": (8278, 80, 2.91, [0.55, 0.50, 0.35, 0.30, 0.25, 0.20, 0.15, 0.10, 0.05, 0.03]),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_the_published_exponents_follow_from_the_labels(name: str) -> None:
    """PU-MLC's appendix: γ for 10, 20, … % known labels; an image shows 1.46 classes of VOC 2007 and 2.91 of COCO."""
    rows, classes, mean, published = EXPONENTS[name]
    labels = -np.ones((rows, classes), int)
    for turn in range(math.ceil(mean)):
        some = np.arange(round(min(mean - turn, 1) * rows))
        labels[some, (some + 7 * turn) % classes] = 1
    recipe = Recipe.load(Path(f"recipes/pu-mlc/{name}.toml"), ['model.weights=""'])
    gammas = []
    for tenth in range(1, len(published) + 1):
        part = recipe.with_settings([f"data.protocol_share={tenth / 10}"]).data
        shown = apply_protocol(Labels.from_dense(labels), part)
        setup = Setup(lambda: create_model("features:4", classes, normalize=False), classes, shown)
        params = {**recipe.method.params, "lgconv": False}  # needs the convolutions of a ResNet
        gammas.append(create_method("pu-mlc", setup, params).gamma)
    assert gammas == published


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
        (["data.protocol=known"], "one of as-given, complete, .*known-ratio, drop-positives"),
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
    recipe, _ = settle(Recipe.load(path, ['model.weights=""']), TensorImages(torch.zeros(1, 3, 64, 64)))
    labels = Labels.from_dense(2 * truth(6) - 1, CLASSES)
    method = make_method(recipe, labels).eval()
    assert method.param_groups(recipe.train)
    assert method.predict(torch.zeros(1, 3, 64, 64)).shape == (1, 3)

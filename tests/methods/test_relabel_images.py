"""Rows of which there is only the image: students of `relabel` learn what the first network expects of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pluralis import Recipe, load_run, train
from pluralis.checkpoint import Store, state_hash
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.scenes import make_scenes
from pluralis.data.source import Source, load_split
from pluralis.defaults import settle
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.evaluate import predict
from pluralis.guesses import read_soft_labels
from pluralis.labels import Labels
from pluralis.losses import selection_posterior
from pluralis.method import Batch, Clock, Setup
from pluralis.methods import create_method
from pluralis.methods.relabel import Relabel
from pluralis.missing_labels import learned, own_rows
from pluralis.models import create_model
from tests.methods.one_and_two import check_one_and_two
from tests.toys import SIZE, plan, scenes, stopped_at

LABELS = Labels.from_lists([[0], [1, 3], [2]], 4, negatives=[[3], [], []])
FURTHER = 2


def relabel(labels: Labels = LABELS, images: int = FURTHER, **params: Any) -> Relabel:
    torch.manual_seed(0)
    classes = len(labels.classes)
    setup = Setup(lambda: create_model("tiny", classes), classes, labels, images)
    method = create_method("relabel", setup, {"views": "fast", **params})
    assert isinstance(method, Relabel)
    return method


def with_images(count: int, further: int) -> Loader:
    """Scenes, the last of which have no label."""
    whole = scenes(count + further)
    labels = whole.labels.select(range(count)).with_blank_rows([f"image {row}" for row in range(further)])
    return Loader(whole.images, labels, size=SIZE)


@pytest.mark.parametrize(
    "how",
    [{}, {"unlabelled": "absent"}, {"mechanism": "rate", "rate": 0.4}, {"mechanism": "rate", "unlabelled": "absent"}],
    ids=str,
)
def test_what_is_expected_of_an_image_is_p_however_labels_are_written(how: dict[str, Any]) -> None:
    method = relabel(loss_params=how)
    logits = torch.randn(5, 4)
    method.start_stage(Clock(stage=1), lambda views: logits)
    given = torch.from_numpy(LABELS.dense())
    by_rows = selection_posterior(logits[:3], given, **method.loss.how_written())  # type: ignore[operator]
    value, guessed = method.soft(torch.arange(5))
    assert torch.equal(guessed, torch.cat([given == 0, torch.ones(FURTHER, 4, dtype=torch.bool)]))
    torch.testing.assert_close(value[:3][given == 0], by_rows[given == 0].float(), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(value[3:], logits[3:].sigmoid(), rtol=1e-3, atol=1e-6)


def test_another_loss_is_calibrated_by_the_rows_with_labels() -> None:
    labels = Labels.from_lists([[row % 4] for row in range(200)], 4)
    logits = 3 * torch.nn.functional.one_hot(torch.arange(300) % 4, 4).float() + 4
    soft = []
    for images in (0, 100):
        method = relabel(labels, images, loss="an")
        method.start_stage(Clock(stage=1), lambda views, images=images: logits[: 200 + images])
        soft.append(method.soft.value.float())
    assert torch.equal(soft[0], soft[1][:200])
    assert 0 < float(soft[1][200:].sum(1).mean()) < 3  # not the 4 that the network said


def test_students_start_from_what_is_expected_of_all_rows() -> None:
    method = relabel(student_start="soft")
    logits = torch.randn(5, 4)
    method.start_stage(Clock(stage=1), lambda views: logits)
    given = LABELS.dense()
    soft = method.soft.value.double().numpy()
    counts = (given > 0).sum(0) + soft.sum(0)
    found = method.net.head.get_parameter("fc.bias").detach().double().numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(found, np.log((counts + 0.5) / (5 - counts + 0.5)), atol=1e-5)


@pytest.mark.parametrize("folds", [0, 2])
def test_the_first_network_is_not_taught_by_images_and_the_second_is(folds: int) -> None:
    data, seen = with_images(12, 5), {}
    method = relabel(data.labels.select(range(12)), 5, folds=folds)
    forward = method.forward

    def watched(batch: Batch, clock: Clock) -> dict[str, torch.Tensor]:
        seen.setdefault((clock.stage, clock.epoch), []).extend(batch.index.tolist())
        return forward(batch, clock)

    method.forward = watched  # type: ignore[method-assign]
    fit(method, data, plan(epochs=2, batch_size=4))
    teachers = max(folds, 1)
    assert len(seen) == 2 * (teachers + 1)
    for (stage, _), rows in seen.items():
        assert sorted(rows) == list(range(12 if stage < teachers else 17))
    assert method.soft.value[12:].gt(0).all()  # of folds too, somebody labels each of them


def test_the_first_network_is_the_same_with_images_and_without() -> None:
    data = with_images(16, 6)
    few = Loader(data.images.select(np.arange(16)), data.labels.select(range(16)), size=SIZE)
    asked = []
    for images, loader in ((0, few), (6, data)):
        method = relabel(few.labels, images)
        start = method.start_stage

        def start_stage(clock: Clock, predict_train: Any, method: Any = method, start: Any = start) -> None:
            if clock.stage == 1:
                asked.append(predict(method, few))
            start(clock, predict_train)

        method.start_stage = start_stage  # type: ignore[method-assign]
        fit(method, loader, plan(), seed=3)
    torch.testing.assert_close(*asked)


@pytest.mark.parametrize("name", ["an", "selection", "em-apl", "cls"])
def test_methods_that_images_cannot_teach_refuse_them(name: str) -> None:
    refused = pytest.raises(RecipeError, match=rf"{name} learns nothing from images.*select\.images = false")
    with refused:
        create_method(name, Setup(lambda: create_model("tiny", 4), 4, LABELS, 2))
    images = TensorImages(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with refused:
        settle(Recipe().with_settings([f"method.name={name}", "select.images=true"]), images)


@pytest.mark.parametrize("images", [-1, 1.5])
def test_a_setup_has_a_number_of_images(images: Any) -> None:
    with pytest.raises(RecipeError, match="further_images"):
        Setup(lambda: create_model("tiny", 4), 4, LABELS, images)


def test_folds_of_rows_with_labels_are_as_large_as_without_images() -> None:
    method = relabel(Labels.from_lists([[row % 4] for row in range(5)], 4), 5, folds=5)
    torch.manual_seed(1)
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    assert sorted(method.fold[:5].tolist()) == sorted(method.fold[5:].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stop", [1, 3, 4, 9, 10, 15])
def test_a_stopped_run_with_images_ends_with_the_same_bits(stop: int, tmp_path: Path) -> None:
    data, stage = with_images(8, 4), plan(batch_size=4, ema=0.8)
    params: dict[str, Any] = {"students": 2, "pair": True, "refresh": 0.3, "student_start": "soft"}

    def made() -> Relabel:
        return relabel(data.labels.select(range(8)), 4, **params)

    whole, store = made(), Store(tmp_path)
    expected = fit(whole, data, stage, seed=3)
    with pytest.raises(Interrupted):
        fit(made(), data, stage, seed=3, store=store, should_stop=stopped_at(stop))
    again = made()
    assert fit(again, data, stage, seed=3, store=store).history == expected.history
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())


RUN = {
    "data.format": "scenes", "data.options": {"count": 40}, "data.protocol": "single-positive", "data.size": 24,
    "model.backbone": "tiny", "model.weights": "", "model.head": "linear", "train.epochs": 2, "run.device": "cpu",
    "method.name": "relabel", "method.params": {"views": "fast"}, "select.images": True,
}  # fmt: skip


def test_a_run_learns_held_out_images_and_never_their_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe().with_settings(["select.rule=last"], RUN)
    first = train(recipe, tmp_path / "first")
    assert load_run(tmp_path / "first").recipe.select.images
    rows, soft = learned(first, tmp_path / "first")  # of the training rows, as ever
    assert len(rows.labels) == len(soft) == 32
    assert torch.equal(read_soft_labels(tmp_path / "first", rows.labels), soft)
    without = train(recipe.with_settings(["select.images=false"]), tmp_path / "without")
    assert state_hash(without.method.weights()) != state_hash(first.method.weights())

    def with_other_labels(*asked: Any) -> Any:
        split = load_split(*asked)
        assert split.held is not None
        given = np.roll(split.held.labels.dense(), 1, axis=1)
        labels = Labels.from_dense(given, split.held.labels.classes, split.held.labels.ids)
        return replace(split, held=Source(split.held.images, labels))

    monkeypatch.setattr("pluralis.run.load_split", with_other_labels)
    other = train(recipe, tmp_path / "other")
    assert state_hash(other.method.weights()) == state_hash(first.method.weights())


def test_the_rule_scores_held_out_rows_by_their_own_labels(tmp_path: Path) -> None:
    done = train(Recipe().with_settings([], RUN), tmp_path / "run")
    assert done.rule.startswith("observed: best likelihood of the written labels of 8 held-out rows")
    train_rows, held_rows = own_rows(done, tmp_path / "run")
    assert held_rows is not None
    assert (len(train_rows.labels), len(held_rows.labels)) == (32, 8)
    assert held_rows.labels.summary().row_positives.tolist() == [1] * 8


def test_images_are_the_held_out_ones_also_where_unlabelled_rows_are_dropped() -> None:
    settings = ["data.protocol=drop-positives", "data.protocol_share=0.3", "data.unlabelled=drop"]
    recipe = Recipe().with_settings(settings, {**RUN, "data.protocol": "drop-positives", "data.protocol_share": 0.3})
    split = load_split(recipe.data, recipe.select)
    assert split.dropped > 0
    assert split.held is not None
    both = split.with_held_images()
    assert both.labels.ids == (*split.train.labels.ids, *split.held.labels.ids)
    assert isinstance(both.images, TensorImages)
    every = make_scenes("train", 40).images
    assert torch.equal(both.images.pixels, every[[int(name) for name in both.labels.ids]])
    given = both.labels.dense()
    assert np.array_equal(given[: len(split.train.labels)], split.train.labels.dense())
    assert not given[len(split.train.labels) :].any()


def test_features_of_held_out_images_teach_as_well(tmp_path: Path) -> None:
    values = {**RUN, "train.freeze": -1, "train.augment": "none", "run.cache": "features"}
    recipe = Recipe().with_settings([], {**values, "run.features": str(tmp_path / "cache")})
    seen = [train(recipe.with_settings([f"select.images={on}"]), tmp_path / on) for on in ("true", "false")]
    assert state_hash(seen[0].method.weights()) != state_hash(seen[1].method.weights())


def test_the_training_rows_that_are_watched_have_labels(tmp_path: Path) -> None:
    done = train(Recipe().with_settings(["run.watch_train=40"], RUN), tmp_path / "run")
    assert all(math.isfinite(epoch["train p of unannotated positives"]) for epoch in done.history)


def test_a_folder_from_before_there_were_images_goes_on_without_them(tmp_path: Path) -> None:
    recipe = Recipe().with_settings(["select.images=false"], RUN | {"select.images": False})
    train(recipe, tmp_path / "run")
    stored = tmp_path / "run" / "recipe.toml"
    old = [line for line in stored.read_text().splitlines() if not line.startswith("images = false")]
    stored.write_text("\n".join(old))
    assert train(recipe, tmp_path / "run").resumed
    with pytest.raises(RecipeError, match=r"select\.images: false -> true"):
        train(recipe.with_settings(["select.images=true"]), tmp_path / "run")


@pytest.mark.parametrize("images", [False, True])
def test_no_image_is_decoded_twice(images: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, decoded, decode = ["image,label"], [], ImageFiles.decode

    def counted(self: ImageFiles, row: int, size: int) -> torch.Tensor:
        decoded.append(self.name(row))
        return decode(self, row, size)

    monkeypatch.setattr(ImageFiles, "decode", counted)
    for row in range(20):
        Image.new("RGB", (24, 24), (10 * row, 0, 0)).save(tmp_path / f"{row}.png")
        lines.append(f"{row}.png,{'ab'[row % 2]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    given = {"data.images": str(tmp_path), "data.labels": str(tmp_path / "labels.csv"), "data.size": 24}
    given |= {"model.backbone": "tiny", "model.weights": "", "train.epochs": 1, "run.device": "cpu", "run.workers": 0}
    given |= {"method.name": "relabel", "method.params": {"views": "fast"}, "run.cache": "ram", "select.images": images}
    train(Recipe().with_settings([], given), tmp_path / "run")
    assert len(decoded) == len(set(decoded)) == 20


@pytest.mark.parametrize("images", [0, 60])
def test_rows_with_labels_decide_how_long_a_plan_is_that_does_not_say(images: int) -> None:
    data, seen = with_images(12, images), list[int]()
    method = relabel(data.labels.select(range(12)), images)
    with pytest.raises(Interrupted):
        fit(
            method,
            data,
            plan(epochs=0, batch_size=1),
            report=lambda clock, steps, figures: seen.append(clock.epochs),
            should_stop=stopped_at(0),
        )
    assert seen == [50]  # 600 steps of 12 rows


@pytest.mark.parametrize("how", [{"pair": True}, {"refresh": 1.0}, {"pair": True, "refresh": 1.0}], ids=str)
def test_at_an_image_nobody_looked_whatever_rows_without_a_label_mean(how: dict[str, Any]) -> None:
    """What students say of it is p, to each other and to its soft labels, and not that nothing is there."""
    method = relabel(loss_params={"unlabelled": "absent"}, **how).eval()
    method.start_stage(Clock(stage=1, epochs=2), lambda views: torch.randn(5, 4))
    given = torch.cat([torch.from_numpy(LABELS.dense()), torch.zeros(FURTHER, 4, dtype=torch.int8)])
    index, x, clock = torch.arange(5), torch.randint(0, 255, (5, 3, 8, 8)).float(), Clock(stage=1, epoch=1, epochs=2)
    logits = [net(x).detach() for net in (method.net, method.peer) if net is not None]
    says = [z.sigmoid() for z in logits]
    for z, said in zip(logits, says, strict=True):
        said[:3] = selection_posterior(z[:3], given[:3])
    soft = method.soft(index)[0]
    terms = method(Batch((x,), given, index), clock)
    if method.peer is not None:
        taught = torch.where(given > 0, 1.0, soft)
        for name, z, other in zip("fg", logits, reversed(says), strict=True):
            expected = torch.nn.functional.binary_cross_entropy_with_logits(z, (taught + other) / 2)
            torch.testing.assert_close(terms[name].detach(), expected)
    method.after_step(clock)
    expected = torch.stack(says).mean(0) if "refresh" in how else soft
    found = method.soft(index)[0]
    torch.testing.assert_close(found[given == 0], expected[given == 0], rtol=1e-3, atol=1e-6)


def test_what_is_said_of_training_rows_leaves_images_out() -> None:
    """Images without a label are not rows that somebody forgot to label."""
    said: list[str] = []
    data = with_images(9, 5)
    fit(relabel(data.labels.select(range(9)), 5), data, replace(plan(), freeze_bn=True), warn=said.append)
    assert not any("have no label at all" in line for line in said)
    assert any("in the 9 training rows" in line for line in said)


def made() -> tuple[Relabel, Loader]:
    data = with_images(18, 7)
    params: dict[str, Any] = {"students": 2, "pair": True, "refresh": 0.3, "student_start": "soft", "folds": 2}
    return relabel(data.labels.select(range(18)), 7, **params), data


@pytest.mark.slow
def test_two_processes_are_one_with_images_too(tmp_path: Path) -> None:
    check_one_and_two(tmp_path, made, ema=0.8)


def test_without_held_out_rows_there_are_no_images() -> None:
    with pytest.raises(RecipeError, match=r"select\.images .*select\.fraction"):
        Recipe().with_settings(["select.rule=last", "select.fraction=0", "select.images=true"])

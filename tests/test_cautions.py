"""What a run is told before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from pluralis import (
    Labels,
    Loader,
    LossMethod,
    Setup,
    Stage,
    TensorImages,
    create_loss,
    create_method,
    create_model,
    fit,
)
from pluralis.cautions import cautions
from pluralis.config import Recipe
from pluralis.method import Method
from pluralis.methods import every_method
from pluralis.models.lgconv import add_global_branches
from pluralis.run import Hooks, train

LABELS = Labels.from_lists([[0], [1], [2], [0]], ["cat", "dog", "car"])
LATE: dict[str, tuple[dict[str, Any], int]] = {
    "cls": ({}, 1),
    "co-teaching": ({}, 1),
    "co-teaching+": ({"warmup": 2}, 2),
    "decoupling": ({"warmup": 3}, 3),
    "em-apl": ({}, 5),
    "en": ({}, 1),
    "jocor": ({}, 1),
    "ll-cp": ({}, 1),
    "ll-ct": ({}, 1),
    "ll-r": ({}, 1),
    "relabel": ({"refresh": 0.1}, 1),
    "splc": ({"start_epoch": 2}, 2),
}


def made(name: str, params: dict[str, Any], labels: Labels = LABELS) -> Method:
    head = "label-decoder" if name == "lac" else "linear"
    classes = len(labels.classes)
    return create_method(name, Setup(lambda: create_model("tiny", classes, head), classes, labels), params)


@pytest.mark.parametrize("name", sorted(LATE))
def test_what_begins_too_late_is_told_of(name: str) -> None:
    """The plan's last epoch without it, and the first with it."""
    params, after = LATE[name]
    (line, *_) = cautions(made(name, params), LABELS, Stage(epochs=after))
    assert f" {name}: " in line
    assert f"begins after {after} epoch" in line
    assert f"give {after + 1} or more" in line
    assert not list(cautions(made(name, params), LABELS, Stage(epochs=after + 1)))


@pytest.mark.parametrize("name", sorted(set(every_method()) - set(LATE)))
def test_all_other_methods_are_whole_after_one_epoch(name: str) -> None:
    assert not list(cautions(made(name, {}), LABELS, Stage(epochs=1)))


@pytest.mark.parametrize(
    ("students", "settings", "told"),
    [(2, {}, True), (2, {"freeze_bn": True}, False), (2, {"freeze": -1}, False), (1, {}, False)],
)
def test_a_mean_of_students_whose_norms_learn_is_told_of(students: int, settings: dict[str, Any], told: bool) -> None:
    lines = list(cautions(made("relabel", {"students": students}), LABELS, Stage(epochs=2, **settings)))
    assert len(lines) == told
    assert not told or "train.freeze_bn = true" in lines[0]


def test_any_method_whose_stages_join_is_told_of() -> None:
    class Twice(LossMethod):
        def stages(self, plan: Stage) -> list[Stage]:
            return [plan, plan]

        def joins(self, stage: int) -> bool:
            return stage == 1

    method = Twice(create_model("tiny", 3), create_loss("an"))
    (line,) = cautions(method, LABELS, Stage(epochs=1))
    assert "the mean of the weights of several stages" in line
    assert not list(cautions(method, LABELS, Stage(epochs=1, freeze_bn=True)))
    for norm, told in ((torch.nn.BatchNorm1d(8), 1), (torch.nn.LayerNorm(8), 0)):  # in a network of one's own
        method = Twice(torch.nn.Sequential(norm, torch.nn.Linear(8, 3)), create_loss("an"))
        assert len(list(cautions(method, LABELS, Stage(epochs=1, head_lr=1.0)))) == told


@pytest.mark.parametrize(
    ("backbone", "head", "settings", "told"),
    [
        ("tiny", "semantic-graph", {"freeze": -1}, True),  # whose norms learn above a frozen backbone
        ("tiny", "semantic-graph", {"freeze": -1, "freeze_bn": True}, False),
        ("resnet18", "linear", {"freeze": -1}, False),
        ("resnet18 with LgConv", "linear", {"freeze": -1}, True),  # its new parts learn all the same
        ("resnet18 with LgConv", "linear", {"freeze": -1, "freeze_bn": True}, False),
        ("resnet18", "linear", {"freeze": 1}, True),  # those of later stages
    ],
)
def test_norms_that_learn_beside_frozen_parts(backbone: str, head: str, settings: dict[str, Any], told: bool) -> None:
    """It is told of if, and only if, training moves the statistics of any."""

    def make_net() -> torch.nn.Module:
        net = create_model(backbone.split()[0], 3, head)
        if "LgConv" in backbone:
            add_global_branches(net.backbone)
        return net

    setup = Setup(make_net, 3, LABELS)
    method = create_method("relabel", setup, {"students": 2, "views": "fast"})
    plan = Stage(epochs=1, batch_size=4, augment="none", **settings)
    assert len(list(cautions(method, LABELS, plan))) == told
    images = TensorImages(torch.randint(0, 255, (4, 3, 32, 32), dtype=torch.uint8))
    (net,) = (net for _, net in method.networks())
    before = {name: value.clone() for name, value in net.named_buffers() if "running_" in name}
    fit(method, Loader(images, LABELS, size=32), plan, warn=lambda line: None)
    assert any(not torch.equal(value, before[name]) for name, value in net.named_buffers() if name in before) == told


def test_what_the_teacher_of_relabel_begins_late_and_the_parameter_to_change() -> None:
    (line,) = cautions(made("relabel", {"loss": "splc"}), LABELS, Stage(epochs=1))
    assert line == (
        "loss splc: no label will be corrected: that begins after 1 epoch and there is 1; give 2 or more,"
        " or a smaller start_epoch"
    )
    (line,) = cautions(made("em-apl", {"warmup": 4}), LABELS, Stage(epochs=3))
    assert line.endswith("after 4 epochs and there are 3; give 5 or more, or a smaller warmup")


def test_a_part_that_begins_late_does_begin_then() -> None:
    """The number that em-apl states is the one that its training goes by."""
    images = TensorImages(torch.randint(0, 255, (12, 3, 16, 16), dtype=torch.uint8))
    labels = Labels.from_lists([[row % 3] for row in range(12)], 3)
    for epochs, some in ((2, False), (3, True)):
        method = made("em-apl", {"warmup": 2}, labels)
        told: list[str] = []
        result = fit(method, Loader(images, labels, size=16), Stage(epochs=epochs, augment="none"), warn=told.append)
        assert (result.history[-1]["pseudo-labels"] > 0) == some
        assert bool(told) != some


def test_classes_without_a_present_label() -> None:
    labels = Labels.from_lists([[4], [4]], ["a", "b", "c", "d", "e"])
    (line,) = cautions(made("an", {}, labels), labels, Stage(epochs=1))
    assert line == "4 of 5 classes have no present label in the 2 training rows and cannot be learned: a, b, c, …"


@pytest.mark.parametrize("value", [0, -1])
def test_no_present_label_at_all_is_a_warning_of_python(value: int) -> None:
    labels = Labels.from_dense(torch.full((4, 3), value))
    data = Loader(TensorImages(torch.zeros(4, 3, 16, 16, dtype=torch.uint8)), labels, size=16)
    with pytest.warns(UserWarning, match=r"none of the 4 training rows has a present label \(1\): no class can be"):
        fit(made("selection", {}, labels), data, Stage(epochs=1, augment="none"))


def test_a_run_says_both(tmp_path: Path) -> None:
    """Where every label is verified to be absent, so that no row is without one."""
    rows = ["image,cat,dog"]
    for number in range(10):
        Image.new("RGB", (24, 24), (number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,-1,-1")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    recipe = Recipe().with_settings(
        [], {"data.images": str(tmp_path), "data.labels": str(tmp_path / "labels.csv"), "data.size": 24,
             "model.backbone": "tiny", "model.weights": "", "train.epochs": 1, "run.device": "cpu", "run.workers": 0,
             "method.name": "em-apl"},
    )  # fmt: skip
    lines: list[str] = []
    train(recipe, tmp_path / "run", Hooks(say=lines.append))
    assert any(line.startswith("method em-apl: no pseudo-label will be assigned") for line in lines)
    assert any(line.startswith("none of the 8 training rows has a present label") for line in lines)


def test_rows_that_selection_passes_over() -> None:
    labels = Labels.from_lists([[0], [1], [], []], 2)
    for name, params in (("selection", {}), ("relabel", {})):
        (line,) = cautions(made(name, params, labels), labels, Stage(epochs=1))
        assert line.startswith("2 of 4 training rows have no label at all, and nothing is learned from them")
        assert ("later stages learn what the first one expects" in line) == (name == "relabel")
    looked = {"unlabelled": "absent"}
    for name, params in (("selection", looked), ("relabel", {"loss_params": looked}), ("an", {})):
        assert not list(cautions(made(name, params, labels), labels, Stage(epochs=1)))

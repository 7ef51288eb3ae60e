"""Networks, tensors and plans of people's own in `fit`: what they get, and what they are told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pluralis import Labels, Loader, LossMethod, Method, Setup, Stage, TensorImages, create_loss, create_method, fit
from pluralis.errors import PluralisError, RecipeError
from pluralis.method import Clock
from pluralis.methods import every_method, start_bias, start_heads
from pluralis.models import Backbone, LinearHead, Network, create_model
from pluralis.optim import create_optimizer
from pluralis.state import LabelState
from tests.methods.check_method import ACTIVE
from tests.toys import loss_method, plan, scenes

DENSE = torch.eye(3, dtype=torch.int8).repeat(8, 1)
LABELS = Labels.from_dense(DENSE)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.conv(x.float() / 255).relu().mean((2, 3)))
        return logits


def pictures() -> Tensor:
    """One bright colour each, that of the label."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 128, (24, 3, 8, 8), generator=draw).byte() + 100 * DENSE.bool().byte()[:, :, None, None]


def data() -> Loader:
    return Loader(TensorImages(pictures()), LABELS, size=8)


def groups(method: Method, **changes: object) -> dict[str, tuple[int, float, float]]:
    """Name -> (parameters, learning rate, weight decay), as the optimizer has them."""
    stage = plan(weight_decay=0.1, **changes)
    return {
        group["name"]: (len(group["params"]), stage.lr * group["lr_factor"], group["weight_decay"])
        for group in create_optimizer(method, stage).param_groups
    }


def test_pictures_may_have_other_channels() -> None:
    for channels in (1, 4):
        images = TensorImages(torch.zeros(24, channels, 8, 8, dtype=torch.uint8))
        (batch, *_) = Loader(images, LABELS, size=8).batches(8, ["flip"], 0, Clock())
        assert batch.views[0].shape == (8, channels, 8, 8)


@pytest.mark.parametrize("name", ["an", "gr", "selection"])
def test_a_module_of_ones_own_trains_by_the_plan(name: str) -> None:
    assert groups(LossMethod(Own(), create_loss(name))) == {"net": (4, 1e-3, 0.1)}


def test_only_what_the_loss_learns_has_a_rate_of_its_own() -> None:
    loss = create_loss("selection", mechanism="rate")
    own = (1, 1e-3 * float(getattr(loss, "lr_factor", 1.0)), 0.0)
    assert groups(LossMethod(Own(), loss)) == {"net": (4, 1e-3, 0.1), "loss": own}
    network = {"net.backbone", "net.head", "loss"}
    assert groups(LossMethod(create_model("tiny", 3), loss), head_lr=5.0).keys() == network
    assert groups(LossMethod(create_model("tiny", 3), loss), head_lr=5.0)["loss"] == own
    relabel = create_method("relabel", Setup(Own, 3, LABELS), {"loss_params": {"mechanism": "rate"}})
    assert groups(relabel) == {"net": (4, 1e-3, 0.1), "loss": own}


def test_two_modules_are_clipped_apart_and_a_table_of_parameters_keeps_its_rate() -> None:
    assert groups(create_method("cls", Setup(Own, 3, LABELS))) == {"f": (4, 1e-3, 0.1), "g": (4, 1e-3, 0.1)}
    role = create_method("role", Setup(Own, 3, LABELS), {"estimator_lr": 7.0})
    assert groups(role) == {"net": (4, 1e-3, 0.1), "method": (1, pytest.approx(7e-3), 0.0)}


@pytest.mark.parametrize("name", [name for name in every_method() if name != "lac"])
def test_every_other_method_trains_a_module_of_ones_own(name: str) -> None:
    torch.manual_seed(0)
    params = {key: value for key, value in ACTIVE.get(name, {}).items() if key != "linear_epochs"}
    method = create_method(name, Setup(Own, 3, LABELS), params)
    start_heads(method, LABELS)
    before = {key: value.clone() for key, value in method.named_parameters()}
    fit(method, data(), plan(epochs=2, augment="none"))
    for key, value in method.named_parameters():
        assert not torch.equal(before[key], value), key
    assert method.predict(pictures()).shape == (24, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_lr": 10.0}, "train.head_lr is 10.0, .*: set head_lr=1.0"),
        ({"freeze": -1}, "train.freeze is -1, .*: set freeze=0"),
        ({"freeze_bn": True}, "train.freeze_bn is True, .*: set freeze_bn=False"),
    ],
)
def test_what_needs_a_head_is_refused_and_works_with_one(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said + r".* or make it a pluralis.models.Network\(backbone, head\)"):
        fit(LossMethod(Own(), create_loss("an")), data(), plan(**changes))

    class Body(Backbone):
        name, out_channels, stage_names = "own", 8, (("conv",),)

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).relu()

    net = Network(Body(), LinearHead(8, 3))
    conv, head = net.backbone.get_parameter("conv.weight").clone(), net.head.get_parameter("fc.weight").clone()
    fit(LossMethod(net, create_loss("an")), data(), plan(**changes))
    assert torch.equal(conv, net.backbone.get_parameter("conv.weight")) == ("freeze" in changes)
    assert not torch.equal(head, net.head.get_parameter("fc.weight"))


def test_a_stage_that_freezes_is_refused_too() -> None:
    with pytest.raises(RecipeError, match=r"train.freeze is -1, but no network of Role"):
        fit(create_method("role", Setup(Own, 3, LABELS), {"linear_epochs": 1}), data(), plan())


def test_the_bias_of_ones_own_last_layer() -> None:
    """8 of 24 rows have each label."""
    odds = [pytest.approx(math.log(8.5 / 16.5))] * 3
    assert start_bias(create_loss("gr"), LABELS).tolist() == odds
    assert start_bias(create_loss("selection"), DENSE).tolist() == odds
    assert start_bias(create_method("relabel", Setup(Own, 3, LABELS)), DENSE.numpy()).tolist() == odds
    assert start_bias(create_loss("em"), DENSE).tolist() == [0, 0, 0]
    assert start_bias(nn.BCEWithLogitsLoss(), DENSE).tolist() == [0, 0, 0]
    learned = {name: start_bias(create_loss(name), LABELS, backbone_learns=True) for name in ("gr", "selection")}
    assert learned["gr"].tolist() == [0, 0, 0]
    assert learned["selection"].tolist() == odds
    with pytest.raises(RecipeError, match="takes a loss or a method first, not an object of Tensor"):
        start_bias(DENSE, create_loss("gr"))  # type: ignore[arg-type]


def test_a_start_that_is_stated_and_cannot_be_is_refused() -> None:
    method = LossMethod(Own(), create_loss("gr"))
    start_heads(method, LABELS)  # what suits the method is advice
    start_heads(method, LABELS, "zero")
    with pytest.raises(RecipeError, match=r"pluralis.start_bias\(loss, labels\)"):
        start_heads(method, LABELS, "log-odds")


NET = Own()


class Remembering(LossMethod):
    def __init__(self, net: torch.nn.Module, loss: torch.nn.Module) -> None:
        super().__init__(net, loss)
        self.soft = LabelState(9, 3)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "lac": (
        lambda: create_method("lac", Setup(Own, 3, LABELS)),
        r"method lac works on .*: make it a .*Network\(",
    ),
    "lgconv": (lambda: create_method("pu-mlc", Setup(Own, 3), {"lgconv": True}), r"pu-mlc with lgconv works on"),
    "one for two": (lambda: create_method("cls", Setup(lambda: NET, 3, LABELS)), "the same one twice: make a new one"),
    "one for a pair": (
        lambda: create_method("relabel", Setup(lambda: NET, 3, LABELS), {"pair": True}),
        "the same one twice: make a new one",
    ),
    "a network": (lambda: Setup(Own(), 3, LABELS), "make_net is an object of Own; give a function .* lambda: MyNet"),
    "nothing": (lambda: Setup(None, 3, LABELS), "make_net is an object of NoneType"),  # type: ignore[arg-type]
    "tensor labels": (lambda: Setup(Own, 3, DENSE), r"labels is an object of Tensor; give pluralis.Labels.from_dense"),  # type: ignore[arg-type]
    "classes": (lambda: Setup(Own, 4, LABELS), "classes is 4, but the labels have 3"),
    "setup": (lambda: create_method("an", Own), r"setup is type; give Setup\("),  # type: ignore[arg-type]
    "class": (lambda: LossMethod(Own, create_loss("an")), "net is the class Own"),  # type: ignore[arg-type]
    "turned round": (
        lambda: LossMethod(create_loss("an"), Own()),
        r"object of AN; give LossMethod\(net, loss",
    ),
    "no method": (lambda: fit(Own(), data(), plan()), r"method is an object of Own.*LossMethod\(net"),  # type: ignore[arg-type]
    "DataLoader": (
        lambda: fit(loss_method(), DataLoader(TensorDataset(pictures(), DENSE)), plan()),  # type: ignore[arg-type]
        r"data is an object of DataLoader, not a pluralis.Loader; .*Loader\(TensorImages\(images\)",
    ),
    **{
        f"rows of {name}": (
            lambda name=name: fit(
                create_method(name, Setup(lambda: create_model("tiny", 3), 3, LABELS.select(range(20)))), data(), plan()
            ),
            r"fit: the data has 24 rows, but the method keeps labels of 20: make it .*further_images",
        )
        for name in ("relabel", "em-apl", "en", "ll-cp", "role")
    },
    "rows of a method of one's own": (
        lambda: fit(Remembering(Own(), create_loss("an")), data(), plan()),
        r"fit: the data has 24 rows, but the method keeps labels of 9",
    ),
    "plan": (lambda: fit(loss_method(), data(), {"epochs": 1}), r"plan is an object of dict.*Stage\(epochs=10"),  # type: ignore[arg-type]
    "Dataset": (
        lambda: Loader(TensorDataset(pictures()), LABELS, size=8),  # type: ignore[arg-type]
        r"images is an object of TensorDataset, which decodes no pictures: give TensorImages\(images\)",
    ),
    "tensor": (lambda: Loader(pictures(), LABELS, size=8), "images is an object of Tensor"),  # type: ignore[arg-type]
    "no Labels": (
        lambda: Loader(TensorImages(pictures()), DENSE, size=8),  # type: ignore[arg-type]
        r"labels is an object of Tensor; give Labels.from_dense\(labels\)",
    ),
    "NHWC": (lambda: TensorImages(pictures().permute(0, 2, 3, 1)), r"\(24, 8, 8, 3\): .* permute\(0, 3, 1, 2\)"),
    "one picture": (lambda: TensorImages(pictures()[0]), r"\[N, 3, H, W\] or features \[N, D\], not \(3, 8, 8\)"),
    "numpy": (lambda: TensorImages(pictures().numpy()), r"takes a tensor, not ndarray: use torch.as_tensor"),  # type: ignore[arg-type]
    "long": (lambda: TensorImages(pictures().long()), r"uint8, not torch.int64: use images.to\(torch.uint8\)"),
}


@pytest.mark.parametrize("call", WRONG)
def test_wrong_objects_are_named_with_what_to_do(call: str) -> None:
    what, said = WRONG[call]
    with pytest.raises(PluralisError, match=said):
        what()


def test_fit_leaves_the_generators_as_they_were() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(loss_method_kept(), scenes(8), plan(epochs=1))
    assert torch.equal(torch.rand(3), expected)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    torch.manual_seed(5)
    with pytest.raises(KeyboardInterrupt):
        fit(loss_method_kept(), scenes(8), plan(epochs=1), report=stop)
    assert torch.equal(torch.rand(3), expected)


def loss_method_kept() -> LossMethod:
    """One whose making draws nothing from the generator that is looked at."""
    state = torch.get_rng_state()
    method = loss_method(dropout=0.5)
    torch.set_rng_state(state)
    return method


def test_a_plan_without_a_word_about_heads_says_what_to_write() -> None:
    with pytest.raises(RecipeError, match=r"set head_lr=1.0, under which all of it trains alike"):
        fit(LossMethod(Own(), create_loss("an")), data(), Stage(epochs=1))

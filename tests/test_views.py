"""Many views at test time: each by hand, its cost, its calibration, and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from pluralis.calibration import Calibration
from pluralis.checkpoint import read_snapshot, write_snapshot
from pluralis.cli import app
from pluralis.config import Recipe
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.scenes import make_scenes
from pluralis.data.source import Source
from pluralis.errors import RecipeError
from pluralis.evaluate import evaluate, predict
from pluralis.labels import Labels
from pluralis.method import LossMethod
from pluralis.metrics import mean_average_precision
from pluralis.run import train
from pluralis.trained_run import TrainedRun, load_run
from pluralis.views import VIEWS, Views, get_views, half_crops, view_logits, views_name
from tests.toys import SIZE, loss_method, scenes


class Net(nn.Module):
    """Neither linear nor symmetric, for pictures of every size; remembers the sizes that it saw."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, 2)
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(tuple(x.shape))
        return torch.relu(self.conv(x.float() / 64)).amax((2, 3))


def pictures(rows: int, side: int) -> Tensor:
    return torch.randint(0, 256, (rows, 3, side, side), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def squeeze(images: Tensor, side: int) -> Tensor:
    mode = {"mode": "bilinear", "antialias": True, "align_corners": False}
    return nn.functional.interpolate(images.float(), (side, side), **mode)  # type: ignore[arg-type]


@torch.no_grad()
def by_hand(net: Net, pixels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The mean over two sizes and their mirror images, and the maximum over nine crops, one picture at a time."""
    large, side = size * 5 // 4, pixels.shape[-1]
    mean, best = [], []
    for picture in pixels.split(1):
        views = [squeeze(picture, size), squeeze(picture, large)]
        views += [torch.from_numpy(view.numpy()[..., ::-1].copy()) for view in views]
        mean.append(sum(net(view) for view in views) / 4)
        starts = (0, side // 4, side // 2)
        crops = [picture[..., y : y + side // 2, x : x + side // 2] for y in starts for x in starts]
        best.append(torch.stack([net(squeeze(crop, size)) for crop in crops]).amax(0))
    return torch.cat(mean), torch.cat(best)  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", [16, 24, 32, 48])
@torch.no_grad()
def test_each_kind_of_views_is_what_its_name_says(stored: int) -> None:
    net, pixels = Net(), pictures(3, stored)
    mean, best = by_hand(net, pixels, 16)
    torch.testing.assert_close(view_logits(net, pixels, 16), net(squeeze(pixels, 16)))
    torch.testing.assert_close(view_logits(net, pixels, 16, "standard"), mean)
    torch.testing.assert_close(view_logits(net, pixels, 16, "thorough"), 0.75 * mean + 0.25 * best)
    half = replace(VIEWS["thorough"], crop_weight=0.5)
    torch.testing.assert_close(view_logits(net, pixels, 16, half), 0.5 * mean + 0.5 * best)
    assert not torch.allclose(mean, best)


@torch.no_grad()
def test_stored_pixels_are_used_as_they_are() -> None:
    """At twice the size, a crop is a part of the picture and nothing is interpolated."""
    net, pixels = Net(), pictures(2, 32)
    view_logits(net, pixels, 16, "thorough")
    assert net.seen == [(4, 3, 16, 16), (4, 3, 20, 20), (18, 3, 16, 16)]
    seen: list[Tensor] = []
    view_logits(lambda x: (seen.append(x), net(x))[1], pixels, 16, Views(crop_weight=1.0))  # type: ignore[func-returns-value]
    parts = seen[1].unflatten(0, (9, 2))
    assert torch.equal(parts[0], pixels[..., :16, :16])
    assert torch.equal(parts[5], pixels[..., 8:24, 16:])
    assert torch.equal(parts[8], pixels[..., 16:, 16:])


def test_crops_cover_the_picture_whatever_its_sides() -> None:
    for height, width in ((8, 8), (7, 10), (5, 3)):
        place = torch.arange(height * width).view(1, 1, height, width)
        crops = list(half_crops(place))
        assert len(crops) == 9
        assert {tuple(crop.shape[2:]) for crop in crops} == {((height + 1) // 2, (width + 1) // 2)}
        assert torch.cat([crop.flatten() for crop in crops]).unique().numel() == height * width


@torch.no_grad()
def test_the_mirror_image_says_nothing_new_to_a_symmetric_network() -> None:
    net, pixels = Net(), pictures(3, 16)
    assert not torch.allclose(view_logits(net, pixels, 16, Views(mirror=True)), view_logits(net, pixels, 16))
    net.conv.weight.copy_((net.conv.weight + net.conv.weight.flip(-1)) / 2)
    net.conv.stride = (1, 1)  # a step of two would begin at the left edge
    torch.testing.assert_close(view_logits(net, pixels, 16, Views(mirror=True)), view_logits(net, pixels, 16))


def test_what_views_cost() -> None:
    assert [views.passes for views in VIEWS.values()] == [1, 4, 13]
    assert [views.work for views in VIEWS.values()] == [1, 5.125, 14.125]
    assert get_views("fast").cost() == "1 pass an image"
    assert get_views("standard").cost().startswith("4 passes an image")
    assert views_name(Views((1.0, 1.25), mirror=True)) == "standard"
    assert views_name(Views(mirror=True)) == ""


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: get_views("thorugh"), "did you mean 'thorough'"),
        (lambda: Views(()), "at least one"),
        (lambda: Views((0.0,)), "scales"),
        (lambda: Views(crop_weight=1.5), "crop_weight is 1.5"),
    ],
)
def test_wrong_views_are_refused(build: object, part: str) -> None:
    with pytest.raises(RecipeError, match=part):
        build()  # type: ignore[operator]


def test_features_have_one_view() -> None:
    net = nn.Linear(5, 2)
    features = torch.randn(3, 5)
    torch.testing.assert_close(view_logits(net, features, 16), net(features))
    with pytest.raises(RecipeError, match='feature vectors.*views = "fast"'):
        view_logits(net, features, 16, "standard")


def test_a_network_for_one_size_says_so() -> None:
    net = Net()

    def fixed(x: Tensor) -> Tensor:
        if x.shape[-1] != 16:
            raise AssertionError("Input height (20) doesn't match model (16)")
        return net(x)  # type: ignore[no-any-return]

    assert view_logits(fixed, pictures(2, 24), 16).shape == (2, 4)
    with pytest.raises(RecipeError, match=r"20 px.*match model.*fast"):
        view_logits(fixed, pictures(2, 24), 16, "standard")
    with pytest.raises(AssertionError):  # not a matter of views
        view_logits(fixed, pictures(2, 24), 20, "standard")


@pytest.mark.parametrize("views", list(VIEWS))
def test_batches_and_progress_change_no_number(views: str) -> None:
    method, data = loss_method(), scenes(20)
    method.train()
    steps: list[tuple[int, int]] = []
    whole = predict(method, data, views=views, progress=lambda done, total: steps.append((done, total)))
    assert method.training
    assert steps[-1] == (20, 20)
    assert torch.equal(whole, predict(method, data, views=views))
    torch.testing.assert_close(whole, predict(method, data, batch_size=3, views=views), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole, predict(method, data, views=views, member=method.predict), rtol=0, atol=0)
    method.eval()
    with torch.no_grad():
        stored = torch.stack([data.images.decode(row, 0) for row in range(20)])
        torch.testing.assert_close(whole, view_logits(method.predict, stored, SIZE, views), rtol=1e-4, atol=1e-5)


def test_no_pass_is_larger_than_a_batch_of_one_view() -> None:
    net = Net()
    data = Loader(TensorImages(pictures(40, 32)), Labels.from_lists([[]] * 40, 4), size=16)
    for views in VIEWS:
        predict(LossMethod(net, nn.Identity()), data, batch_size=32, views=views)
    assert max(rows * height * width for rows, _, height, width in net.seen) == 32 * 16 * 16


def test_evaluate_measures_what_the_views_say() -> None:
    method, data = loss_method(), scenes(30, "val", complete=True)
    expected = mean_average_precision(predict(method, data, views="thorough"), torch.from_numpy(data.labels.dense()))
    assert evaluate(method, data, views="thorough")["mAP"] == pytest.approx(100 * expected.value)
    assert evaluate(method, data)["mAP"] != evaluate(method, data, views="thorough")["mAP"]


RECIPE = [
    "data.format=scenes", "data.options.count=40", "data.protocol=single-positive", f"data.size={SIZE}",
    "data.store_size=48", 'data.test={options={split="test", count=20}}', "model.backbone=tiny", "model.weights=",
    "model.head=lse", "train.epochs=1", "train.batch_size=8", "run.device=cpu", "run.workers=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(Recipe.load(None, RECIPE), folder, views=["fast", "standard", "thorough"])
    return folder


def test_every_kind_of_views_has_its_calibration(run: Path, tmp_path: Path) -> None:
    trained = load_run(run)
    assert trained.calibrations.keys() == {"standard", "thorough"}
    three = [trained.calibration_of(views) for views in VIEWS]
    assert len({(found.a, found.b) for found in three}) == 3
    assert trained.calibration_of(Views(mirror=True)) == trained.calibration_of("fast") == trained.calibration
    made = make_scenes("test", 6)
    source = Source(TensorImages(made.images), Labels.from_dense(made.truth, trained.classes))
    logits = predict(trained.method, trained.loader(source), views="standard")
    expected = trained.calibrations["standard"].probabilities(logits)
    torch.testing.assert_close(trained.probabilities(source.images, views="standard"), expected)
    figures = evaluate(trained.method, trained.loader(source), trained.calibrations["standard"], views="standard")
    assert trained.evaluate(source, views="standard") == pytest.approx(figures)


def test_a_run_without_such_calibrations_uses_the_one_it_has(run: Path, tmp_path: Path) -> None:
    snapshot = read_snapshot(run / "model")
    del snapshot.meta["calibrations"]
    (tmp_path / "old").mkdir()
    write_snapshot(tmp_path / "old" / "model", snapshot)
    trained = load_run(tmp_path / "old")
    assert trained.calibrations == {}
    assert trained.calibration_of("thorough") == trained.calibration
    plain: TrainedRun = train(Recipe.load(None, [*RECIPE, "select.rule=last"]), tmp_path / "last", views=list(VIEWS))
    assert plain.calibrations == {}
    assert plain.calibration_of("thorough") == Calibration()
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "old"), "--views", "standard"])
    assert "calibrated with one view only" in done.output
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "last"), "--views", "standard"])
    assert "one view only" not in done.output


def test_the_command_line_prints_the_cost(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["evaluate", str(run), "--views", "thorough"])
    assert done.exit_code == 0, done.output
    assert "views thorough: 13 passes an image, 14.1 times the work of one\n" in done.output
    assert "views thorough;" in done.output
    done = CliRunner().invoke(app, ["evaluate", str(run), "--views", "standard", "--json"])
    figures = json.loads(done.stdout)
    assert (figures["views"], figures["passes"]) == ("standard", 4)
    assert json.loads(CliRunner().invoke(app, ["evaluate", str(run), "--json"]).stdout)["views"] == "fast"
    Image.fromarray(make_scenes("test", 1).images[0].permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    words = ["predict", str(run), str(tmp_path / "a.png"), "--out", str(tmp_path / "p.csv"), "--views", "standard"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "views standard: 4 passes an image" in done.output
    for command in (["evaluate", str(run)], ["predict", str(run), str(tmp_path / "a.png")]):
        done = CliRunner().invoke(app, [*command, "--views", "thorogh"])
        assert isinstance(done.exception, RecipeError)
        assert "'thorough'" in str(done.exception)


def test_train_says_which_views_its_figures_are_of(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = [word for setting in RECIPE for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), *words])
    assert done.exit_code == 0, done.output
    assert "test set, views fast" in done.output
    assert "calibrating for the views thorough on 8 held-out rows: 13 passes" in done.output
    again, first = load_run(tmp_path / "run"), load_run(run)
    assert again.calibrations == first.calibrations


@pytest.mark.slow
def test_two_processes_calibrate_as_one(tmp_path: Path) -> None:
    from tests.children import pluralis
    from tests.test_distributed import arguments, torchrun

    assert pluralis(*arguments(tmp_path / "one", "an")).returncode == 0
    torchrun(*arguments(tmp_path / "two", "an"))
    one, two = (load_run(tmp_path / name).calibrations for name in ("one", "two"))
    for name in ("standard", "thorough"):
        assert two[name].a == pytest.approx(one[name].a, rel=1e-2)
        assert two[name].b == pytest.approx(one[name].b, abs=1e-2)

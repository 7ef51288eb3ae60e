"""A finished run that was trained on stored features: it finds them again, and says what it says of the pictures."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from pluralis import Recipe, load_run, train
from pluralis.cli import app
from pluralis.data.scenes import make_scenes
from pluralis.data.source import Source
from pluralis.evaluate import predict
from pluralis.missing_labels import look, named_rows, own_rows
from pluralis.models import Network, create_backbone
from pluralis.trained_run import TrainedRun
from pluralis.views import Views

ROWS = 20


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with one label each; the file `known.csv` has all of these classes, for `evaluate`."""
    folder, scenes = tmp_path_factory.mktemp("photos"), make_scenes("train", ROWS)
    one, known = ["image,label,value"], ["image,label,value"]
    written = (scenes.truth > 0).argmax(1)
    for row, pixels in enumerate(scenes.images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{row:02d}.png")
        one.append(f"{row:02d}.png,digit {written[row]},1")
        known += [f"{row:02d}.png,digit {digit},{scenes.truth[row, digit]}" for digit in np.unique(written)]
    (folder / "labels.csv").write_text("\n".join(one) + "\n")
    (folder / "known.csv").write_text("\n".join(known) + "\n")
    torch.manual_seed(0)
    save_file(create_backbone("tiny").state_dict(), folder / "tiny.safetensors")
    return folder


def make_run(photos: Path, out: Path, cache: str, *settings: str) -> TrainedRun:
    """In `out`, with features kept beside it."""
    values = {
        "data.images": str(photos), "data.labels": str(photos / "labels.csv"), "data.size": 24, "data.store_size": 32,
        "model.backbone": "tiny", "model.weights": str(photos / "tiny.safetensors"), "method.name": "cls",
        "train.epochs": 4, "train.batch_size": 8, "train.lr": 1e-2, "train.freeze": -1, "train.augment": "none",
        "run.device": "cpu", "run.workers": 0, "run.cache": cache, "run.features": str(out / "../features"),
    }  # fmt: skip
    train(Recipe.load(None, settings, values), out)
    return load_run(out, "cpu")


@pytest.fixture(scope="module")
def folder(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with two networks, which share their features."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    make_run(photos, folder, "features")
    return folder


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures went through a backbone, one entry for each batch."""
    batches: list[int] = []
    features = Network.features

    def counted(net: Network, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 4:
            batches.append(len(x))
        return features(net, x)

    monkeypatch.setattr(Network, "features", counted)
    return batches


def from_pictures(trained: TrainedRun, source: Source) -> torch.Tensor:
    return predict(trained.method, trained.loader(source))


def pluralis(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})
    if done.exception is not None:
        raise done.exception
    return done.output


def test_what_training_stored_is_found_and_says_the_same(folder: Path, seen: list[int]) -> None:
    trained = load_run(folder, "cpu")
    for source in own_rows(trained, folder):
        assert source is not None
        found = look(trained, source)
        assert not seen
        assert found.labels is source.labels
        assert found.logits.std(0).min() > 1e-3
        torch.testing.assert_close(found.logits, from_pictures(trained, source), rtol=1e-5, atol=1e-5)
        assert sum(seen) == 2 * len(source.images)  # both networks look at each picture
        seen.clear()


def test_commands_on_the_runs_own_data_look_at_no_picture(
    photos: Path, folder: Path, seen: list[int], tmp_path: Path
) -> None:
    for command in ("relabel", "count"):
        pluralis(command, folder, "--out", tmp_path / f"{command}.csv")
    known = ["--images", photos, "--labels", photos / "known.csv"]
    pluralis("evaluate", folder, *known)
    assert not seen
    rows = list(csv.reader((tmp_path / "count.csv").open()))
    assert rows[-1][:2] == ["all", str(ROWS)]
    trained = load_run(folder, "cpu")
    source = named_rows(trained, {"data.images": str(photos), "data.labels": str(photos / "known.csv")})
    figures, z = trained.evaluate(source), from_pictures(trained, source)
    truth, p = source.labels.dense() > 0, trained.calibration.probabilities(z).numpy()
    hit = ((p >= 0.5) & truth).sum()
    assert figures["OF1"] == pytest.approx(200 * hit / ((p >= 0.5).sum() + truth.sum()))
    pluralis("predict", folder, photos, "--out", tmp_path / "found.csv")  # of any pictures, which are not kept
    assert sum(seen) == 4 * ROWS


def test_a_changed_picture_is_looked_at_again(photos: Path, folder: Path, seen: list[int], tmp_path: Path) -> None:
    for file in photos.glob("*.png"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    pixels = np.array(Image.open(tmp_path / "03.png"))
    Image.fromarray(255 - pixels).save(tmp_path / "03.png")
    trained = load_run(folder, "cpu")
    where = {"data.images": str(tmp_path), "data.labels": str(photos / "labels.csv")}
    before = look(trained, named_rows(trained, {**where, "data.images": str(photos)})).logits
    assert not seen
    source, reports = named_rows(trained, where), []
    after = look(trained, source, progress=lambda done, total: reports.append((done, total))).logits
    assert seen == [1]
    assert reports[0] == (1, 1)  # of what is missing
    assert reports[-1] == (ROWS, ROWS)
    torch.testing.assert_close(after, from_pictures(trained, source), rtol=1e-5, atol=1e-5)
    different = (after - before).abs().amax(1) > 1e-3
    assert different.nonzero().flatten().tolist() == [3]
    seen.clear()
    assert torch.equal(look(trained, source).logits, after)  # and is kept
    assert not seen


def test_other_weights_do_not_get_these_features(photos: Path, folder: Path, seen: list[int], tmp_path: Path) -> None:
    trained = load_run(folder, "cpu")
    source = named_rows(trained, {"data.images": str(photos)})
    with torch.no_grad():
        for _, net in trained.method.networks():
            net.backbone.get_parameter("conv1.weight").mul_(1.5)
    found = trained.logits(source)
    assert sum(seen) == ROWS
    torch.testing.assert_close(found, from_pictures(trained, source), rtol=1e-5, atol=1e-5)
    before = load_run(folder, "cpu").logits(source)
    assert (found - before).abs().max() > 1e-2


@pytest.mark.parametrize("views", ["standard", Views((1.25,)), Views(mirror=True)])
def test_other_views_are_of_pictures(photos: Path, folder: Path, seen: list[int], views: str | Views) -> None:
    trained = load_run(folder, "cpu")
    source = named_rows(trained, {"data.images": str(photos)})
    found = trained.logits(source, views=views)
    assert sum(seen) >= 2 * ROWS
    assert torch.equal(found, predict(trained.method, trained.loader(source), views=views))
    assert (found - trained.logits(source)).abs().max() > 1e-3


def test_runs_on_pictures_are_as_before(photos: Path, seen: list[int], tmp_path: Path) -> None:
    trained = make_run(photos, tmp_path / "run", "none")
    source = named_rows(trained, {"data.images": str(photos)})
    seen.clear()
    found = trained.logits(source)
    assert sum(seen) == 2 * ROWS
    assert torch.equal(found, from_pictures(trained, source))
    assert not (tmp_path / "features").exists()


def test_where_nothing_can_be_kept_pictures_will_do(photos: Path, seen: list[int], tmp_path: Path) -> None:
    trained = make_run(photos, tmp_path / "run", "features")
    source = named_rows(trained, {"data.images": str(photos)})
    found = trained.logits(source)
    (tmp_path / "features").rename(tmp_path / "moved")
    (tmp_path / "features").write_text("a file, in which there can be no folder")
    seen.clear()
    torch.testing.assert_close(trained.logits(source), found, rtol=1e-5, atol=1e-5)
    assert sum(seen) == 2 * ROWS
    (tmp_path / "features").unlink()
    torch.testing.assert_close(trained.logits(source), found, rtol=1e-5, atol=1e-5)  # a lost cache is made again
    assert list((tmp_path / "features").rglob("*.safetensors"))

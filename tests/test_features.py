"""Features of a frozen backbone: computed once, found again, never half-written, and the same as the network's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from pluralis import checkpoint, features
from pluralis.cli import app
from pluralis.config import DataPart, MethodPart, ModelPart, Recipe, RunPart, SelectPart
from pluralis.data.augment import resize
from pluralis.data.images import ImageFiles, decode
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.scenes import make_scenes
from pluralis.engine import fit
from pluralis.errors import CheckpointError, DataError, RecipeError
from pluralis.evaluate import predict
from pluralis.features import (
    BLOCK,
    FeatureCache,
    FeatureRows,
    feature_network,
    frozen_network,
    picture_keys,
    read_features,
    write_features,
)
from pluralis.labels import Labels
from pluralis.losses import create_loss
from pluralis.method import LossMethod, Setup
from pluralis.methods import create_method
from pluralis.methods.start import start_heads
from pluralis.models import HEADS, Network, create_backbone, create_model
from pluralis.models.heads import LinearHead
from pluralis.run import train
from pluralis.stage import Stage
from pluralis.trained_run import load_run

SIZE = 24


@pytest.fixture(scope="module")
def net() -> Network:
    torch.manual_seed(0)
    return create_model("tiny", 10)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for row, pixels in enumerate(make_scenes("train", 12).images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{row:02d}.png")
    return folder


def files(folder: Path) -> ImageFiles:
    return ImageFiles(sorted(folder.glob("*.png")))


def own_features(net: Network, images: ImageFiles) -> torch.Tensor:
    """One picture after the other, straight through the backbone, averaged over places."""
    net.eval()
    with torch.no_grad():
        maps = [net.features(images.decode(row, SIZE)[None]) for row in range(len(images))]
    return torch.cat(maps).mean((2, 3))


def test_they_are_the_networks_own(net: Network, photos: Path, tmp_path: Path) -> None:
    images = files(photos)
    net.train()
    first = FeatureCache(tmp_path, net, SIZE).extract(images)
    assert net.training
    assert first.found == 0
    assert torch.allclose(first.features, own_features(net, images), rtol=1e-4, atol=1e-5)
    second = FeatureCache(tmp_path, net, SIZE).extract(images)
    assert second.found == 12
    assert torch.equal(first.features, second.features)


def test_what_is_there_is_found_in_any_order_and_place(net: Network, photos: Path, tmp_path: Path) -> None:
    """Parts, repeated pictures and moved files need no new work; one new picture costs one."""
    images = files(photos)
    whole = FeatureCache(tmp_path, net, SIZE).extract(images).features
    rows = np.array([7, 3, 3, 11])
    part = FeatureCache(tmp_path, net, SIZE).extract(images.select(rows))
    assert part.found == 4
    assert torch.equal(part.features, whole[torch.from_numpy(rows)])
    moved = tmp_path / "elsewhere.png"
    moved.write_bytes(images.paths[5].read_bytes())
    new = tmp_path / "new.png"
    Image.new("RGB", (30, 30), "red").save(new)
    mixed = FeatureCache(tmp_path, net, SIZE).extract(ImageFiles([moved, new]))
    assert mixed.found == 1
    assert torch.equal(mixed.features[0], whole[5])
    assert FeatureCache(tmp_path, net, SIZE).extract(ImageFiles([new])).found == 1
    fresh = FeatureCache(tmp_path / "fresh", net, SIZE).extract(images.select(rows))
    assert fresh.found == 0
    assert torch.allclose(fresh.features, part.features, atol=1e-5)


def test_other_weights_sizes_and_pictures_are_not_mixed_up(net: Network, photos: Path, tmp_path: Path) -> None:
    images = files(photos).select([0, 1])
    FeatureCache(tmp_path, net, SIZE).extract(images)
    torch.manual_seed(1)
    other = create_model("tiny", 10)
    for cache in (FeatureCache(tmp_path, other, SIZE), FeatureCache(tmp_path, net, 32)):
        assert cache.extract(images).found == 0
    assert FeatureCache(tmp_path, net, SIZE, store_size=32).folder != FeatureCache(tmp_path, net, SIZE).folder
    plain = Network(net.backbone, net.head, normalize=False)
    assert FeatureCache(tmp_path, plain, SIZE).extract(images).found == 0
    changed = tmp_path / "changed.png"
    pixels = np.array(Image.open(images.paths[0]))
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(changed)
    assert FeatureCache(tmp_path, net, SIZE).extract(ImageFiles([changed])).found == 0


def test_damage_is_noticed_and_mended(net: Network, photos: Path, tmp_path: Path) -> None:
    images, cache = files(photos), FeatureCache(tmp_path, net, SIZE)
    whole = cache.extract(images).features
    (path,) = cache.folder.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    again = cache.extract(images)
    assert again.found == 0
    assert torch.equal(again.features, whole)
    (path,) = cache.folder.glob("*.json")
    path.unlink()  # as a process leaves it that is killed between its two writes
    assert cache.extract(images).found == 0
    assert cache.extract(images).found == 12


@pytest.mark.parametrize("ending", [".json", ".safetensors"])
def test_a_disk_that_does_not_answer_costs_no_block(
    net: Network, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    images, cache = files(photos), FeatureCache(tmp_path, net, SIZE)
    whole = cache.extract(images).features
    read, failed = Path.read_bytes, []

    def fails_once(path: Path) -> bytes:
        if path.suffix == ending and not failed:
            failed.append(path)
            raise OSError(5, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fails_once)
    monkeypatch.setattr(cache, "_write", lambda keys, features: None)
    again = cache.extract(images)
    assert failed
    assert again.found == 0
    assert torch.equal(again.features, whole)
    assert cache.extract(images).found == 12


def test_only_as_many_blocks_are_read_as_are_needed(
    net: Network, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, cache = files(photos), FeatureCache(tmp_path, net, SIZE)
    for row in range(4):
        cache.extract(images.select([row]))
    read: list[Path] = []

    def count(path: Path) -> checkpoint.Snapshot:
        read.append(path)
        return checkpoint.read_snapshot(path)

    monkeypatch.setattr(features, "read_snapshot", count)
    first = min(cache.folder.glob("*.json")).stem
    row = next(row for row in range(4) if cache.extract(images.select([row])).found and read[-1].name == first)
    read.clear()
    assert cache.extract(images.select([row])).found == 1
    assert len(read) == 1


def test_another_way_of_decoding_finds_nothing(
    net: Network, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = files(photos).select([0])
    FeatureCache(tmp_path, net, SIZE).extract(images)
    for owner, name, value in ((features, "DECODING", 0), (features.PIL, "__version__", "0.0")):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            assert FeatureCache(tmp_path, net, SIZE).extract(images).found == 0
    assert FeatureCache(tmp_path, net, SIZE).extract(images).found == 1


def test_what_the_first_way_of_decoding_gives(tmp_path: Path) -> None:
    """Where this fails because decoding or resizing became another one, `features.DECODING` must go up."""
    assert features.DECODING == 1
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[..., 3] = np.arange(8) * 30, 200, 255
    pixels[:4, :4, 3] = 0  # transparent, and so white
    Image.fromarray(pixels).save(tmp_path / "x.png")
    red = decode(tmp_path / "x.png", 4)[0].float()  # of triangles twice as wide as a pixel: 1, 3, 3 and 1 eighth
    expected = torch.tensor([[255, 238, 156, 189], [226, 218, 153, 189], [51, 95, 138, 189], [21, 75, 135, 189]])
    assert (red - expected).abs().max() <= 1
    half = resize(expected.float().expand(1, 1, 4, 4), 2)[0, 0]
    assert torch.allclose(half, torch.tensor([[202.7755, 176.0612], [91.4694, 155.3673]]), atol=1e-3)


def test_an_interrupted_extraction_goes_on(net: Network, tmp_path: Path) -> None:
    images = TensorImages(torch.randint(0, 256, (BLOCK + 40, 3, 8, 8), dtype=torch.uint8))

    def stop(done: int, total: int) -> None:
        assert total == BLOCK + 40
        if done > BLOCK:
            raise KeyboardInterrupt

    cache = FeatureCache(tmp_path, net, 8)
    net.train()
    with pytest.raises(KeyboardInterrupt):
        cache.extract(images, progress=stop)
    assert net.training
    rest: list[int] = []
    done = cache.extract(images, progress=lambda done, total: rest.append(total))
    assert done.found == BLOCK
    assert set(rest) == {40}
    assert torch.equal(done.features, FeatureCache(tmp_path / "fresh", net, 8).extract(images).features)


def test_bad_pictures_are_named(net: Network, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(DataError, match="text.png"):
        FeatureCache(tmp_path / "cache", net, SIZE).extract(ImageFiles([tmp_path / "text.png"]))
    with pytest.raises(DataError, match="nowhere.png"):
        FeatureCache(tmp_path / "cache", net, SIZE).extract(ImageFiles([tmp_path / "nowhere.png"]))
    broken = create_model("tiny", 2)
    broken.backbone.get_parameter("conv1.weight").data.fill_(torch.nan)
    with pytest.raises(DataError, match="row 0"):
        FeatureCache(tmp_path / "cache", broken, 8).extract(TensorImages(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)))
    assert not list((tmp_path / "cache").glob("*/*"))


def test_keys_tell_pictures_apart() -> None:
    pixels = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    pixels[2, 0, 0, 0] = 1
    first, second, third = picture_keys(TensorImages(pixels), 4)
    assert first == second != third


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_features(tmp_path / "a" / "table", ["x.jpg", "y.jpg"], torch.arange(6.0).view(2, 3), "tiny")
    names, features = read_features(tmp_path / "a" / "table")
    assert names == ["x.jpg", "y.jpg"]
    assert features.tolist() == [[0, 1, 2], [3, 4, 5]]
    path = tmp_path / "a" / "table.safetensors"
    assert write_features(path, ["x.jpg"], torch.ones(1, 3), "tiny") == path
    assert write_features(path.with_suffix(".json"), ["x.jpg"], torch.ones(1, 3), "tiny") == path
    assert write_features(tmp_path / "v1.2", ["x.jpg"], torch.ones(1, 3), "tiny") == tmp_path / "v1.2.safetensors"
    assert sorted(p.name for p in path.parent.iterdir()) == ["table.json", "table.safetensors"]
    for name in ("table", "table.safetensors", "table.json"):
        assert read_features(tmp_path / "a" / name)[0] == ["x.jpg"]
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(CheckpointError, match="hash"):
        read_features(tmp_path / "a" / "table")


def test_features_of_random_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="model.weights"):
        feature_network(ModelPart(backbone="tiny", weights=""))
    file, weights = tmp_path / "tiny.safetensors", create_backbone("tiny").state_dict()
    save_file(weights, file)
    found = feature_network(ModelPart(backbone="tiny", weights=str(file))).backbone.state_dict()
    assert torch.equal(found["conv1.weight"], weights["conv1.weight"])


def test_a_head_trained_on_features_serves_the_whole_network(net: Network, photos: Path, tmp_path: Path) -> None:
    """Features through a head, and pictures through the frozen backbone and the same head, agree."""
    images = files(photos)
    found = FeatureCache(tmp_path, net, SIZE).extract(images).features
    labels = Labels.from_dense(make_scenes("train", 12).truth, ids=[f"{row:02d}" for row in range(12)])
    head = LinearHead(96, 10)
    method = LossMethod(Network(create_backbone("features:96"), head, normalize=False), create_loss("an"))
    data = Loader(FeatureRows(found, images), labels, size=SIZE)
    assert data.images.name(3).endswith("03.png")
    fit(method, data, Stage(epochs=20, batch_size=6, lr=1e-2, head_lr=1, augment="none"))
    whole = LossMethod(Network(net.backbone, head), create_loss("an"))
    on_pictures = predict(whole, Loader(images, labels, size=SIZE))
    assert torch.allclose(predict(method, data), on_pictures, atol=1e-3)
    assert on_pictures.std() > 0.1


FROZEN = Stage(freeze=-1, augment="none")


@pytest.mark.parametrize(
    ("name", "head", "plan", "part"),
    [
        ("an", "linear", Stage(augment="none"), "train.freeze = -1"),
        ("an", "linear", Stage(freeze=-1), "train.augment"),
        ("lac", "label-decoder", FROZEN, "one view"),
        ("cls", "linear", FROZEN, "model.weights"),
    ],
)
def test_what_cannot_be_trained_on_features_is_refused(name: str, head: str, plan: Stage, part: str) -> None:
    method = create_method(name, Setup(lambda: create_model("tiny", 3, head), 3, Labels.from_lists([[0], [1]], 3)))
    with pytest.raises(RecipeError, match=part):
        frozen_network(method, plan)


@pytest.mark.parametrize("bias", ["zero", "log-odds"])
@pytest.mark.parametrize("head", HEADS)
def test_heads_that_look_at_places_are_refused(head: str, bias: str) -> None:
    """Whatever they start from: beside a large bias the places of a map make little difference at first."""
    labels = Labels.from_lists([[0], [1], *([[2]] * 30)], 3)
    method = create_method("an", Setup(lambda: create_model("tiny", 3, head), 3, labels))
    start_heads(method, labels, bias)
    if head in ("linear", "mlp"):
        assert frozen_network(method, FROZEN)
    else:
        with pytest.raises(RecipeError, match='model.head = "linear" or "mlp"'):
            frozen_network(method, FROZEN)


@pytest.mark.parametrize(("name", "head"), [("an", "linear"), ("an", "mlp"), ("cls", "linear")])
def test_networks_with_one_backbone_share_their_features(name: str, head: str) -> None:
    backbone = create_backbone("tiny").state_dict()

    def make_net() -> Network:
        net = create_model("tiny", 3, head)
        net.backbone.load_state_dict(backbone)
        return net

    method = create_method(name, Setup(make_net, 3, Labels.from_lists([[0], [1]], 3)))
    assert frozen_network(method, FROZEN) is next(iter(method.networks()))[1]


@pytest.mark.parametrize("name", ["features:", "features:0", "features:x", "features:-3"])
def test_bad_lengths_of_vectors(name: str) -> None:
    with pytest.raises(RecipeError, match="features:1280"):
        create_backbone(name)


def test_vectors_of_another_length_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"\[B, 4\]"):
        create_backbone("features:4")(torch.zeros(2, 5))


def run(*words: object) -> str:
    """The command in this process: its output, or its error."""
    done = CliRunner().invoke(app, list(map(str, words)))
    if done.exception is not None:
        raise done.exception
    return done.output


def test_the_command(photos: Path, tmp_path: Path) -> None:
    """A whole folder, then some of the same pictures through a label file."""
    save_file(create_backbone("tiny").state_dict(), tmp_path / "tiny.safetensors")
    settings = [f"model.weights={tmp_path / 'tiny.safetensors'}", "run.workers=0"]
    model = ["--backbone", "tiny", "--size", SIZE, *(word for value in settings for word in ("--set", value))]
    words = ["features", "--images", photos, "--cache", tmp_path / "cache", *model]
    assert "12 images, 0 of them found" in run(*words, "--out", tmp_path / "table")
    names, features = read_features(tmp_path / "table")
    assert names[3] == "03.png"
    assert features.shape == (12, 96)
    (tmp_path / "labels.csv").write_text("image,label\n04.png,dog\n02.png,cat\n")
    done = run(*words, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "two")
    assert "2 images, 2 of them found" in done
    assert torch.equal(read_features(tmp_path / "two")[1], features[[2, 4]])
    with pytest.raises(DataError, match="--images"):
        run("features", *model)
    with pytest.raises(DataError, match="scenes"):
        run("features", "--format", "scenes", *model)


def frozen_recipe(photos: Path, cache: str, method: str = "an", **stage: object) -> Recipe:
    plan = {"epochs": 6, "batch_size": 4, "lr": 1e-2, "head_lr": 1.0, "freeze": -1, "augment": "none", **stage}
    return Recipe(
        data=DataPart(
            images=str(photos),
            labels=str(photos / "labels.csv"),
            size=SIZE,
            test={"images": str(photos.with_name("test")), "options": {"unlisted": "absent"}},
        ),
        model=ModelPart(backbone="tiny", weights=str(photos / "tiny.safetensors")),
        method=MethodPart(name=method),
        train=Stage(**plan),  # type: ignore[arg-type]
        select=SelectPart(fraction=0.3),
        run=RunPart(device="cpu", workers=0, cache=cache, features=str(photos / "cache")),
    )


@pytest.fixture(scope="module")
def labelled(photos: Path) -> Path:
    truth = make_scenes("train", 12).truth
    lines = [f"{row:02d}.png,digit {(truth[row] > 0).argmax()}" for row in range(12)]
    (photos / "labels.csv").write_text("\n".join(["image,label", *lines]))
    shutil.copytree(photos, photos.with_name("test"))
    torch.manual_seed(0)
    save_file(create_backbone("tiny").state_dict(), photos / "tiny.safetensors")
    return photos


@pytest.mark.parametrize("method", ["an", "gr", "cls"])
def test_a_run_on_features_is_the_run_on_pictures(labelled: Path, tmp_path: Path, method: str) -> None:
    """The same numbers up to rounding; the stored run predicts from pictures."""
    for cache in ("features", "ram"):
        train(frozen_recipe(labelled, cache, method), tmp_path / cache)
    on_features, on_pictures = (load_run(tmp_path / cache, "cpu") for cache in ("features", "ram"))
    for name, weight in on_pictures.method.state_dict().items():
        assert torch.allclose(on_features.method.state_dict()[name].float(), weight.float(), atol=2e-3), name
    assert on_features.test["mAP"] == pytest.approx(on_pictures.test["mAP"], abs=0.5)
    found = on_features.probabilities(files(labelled))
    assert torch.allclose(found, on_pictures.probabilities(files(labelled)), atol=5e-3)
    assert found.std() > 0.01
    weights = load_file(labelled / "tiny.safetensors")
    for _, net in on_features.method.networks():
        assert all(torch.equal(value, weights[name]) for name, value in net.backbone.state_dict().items())


def test_frozen_on_the_command_line(labelled: Path, tmp_path: Path) -> None:
    settings = [f"model.weights={labelled / 'tiny.safetensors'}", "model.backbone=tiny", f"data.size={SIZE}"]
    settings += ["run.workers=0", "train.epochs=2", f"run.features={tmp_path / 'cache'}"]
    words = ["train", "--images", labelled, "--labels", labelled / "labels.csv", "--frozen"]
    words += [word for setting in settings for word in ("--set", setting)]
    output = run(*words, "--out", tmp_path / "run")
    assert "training the head on features of the frozen backbone" in output
    assert "epoch 2/2" in output
    before = sorted((tmp_path / "cache").rglob("*.json"))
    assert before
    run(*words, "--out", tmp_path / "again", "--seed", 1)
    assert sorted((tmp_path / "cache").rglob("*.json")) == before
    run("predict", tmp_path / "run", labelled, "--out", tmp_path / "found.csv", "--top-k", 1)
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 13
    with pytest.raises(RecipeError, match="train.freeze = -1"):
        run(*words, "--out", tmp_path / "other", "--set", "train.freeze=1")

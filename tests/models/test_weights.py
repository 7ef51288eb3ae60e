"""Loading weights: what is trusted, what is refused, and which checkpoints fit."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from pluralis.errors import WeightsError
from pluralis.models import create_backbone, create_model, load_weights
from pluralis.models.base import Backbone
from pluralis.models.weights import _LITE0_SHA256, _imagenet_file


def source_state(seed: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    state = create_backbone("tiny").state_dict()
    return {key: torch.rand_like(v) if v.is_floating_point() else v + 3 for key, v in state.items()}


def save(path: Path, content: object) -> str:
    """Saves as the suffix says and returns the sha256."""
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(content, path)  # type: ignore[arg-type]
    else:
        torch.save(content, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def assert_loaded(backbone: Backbone, state: dict[str, Tensor]) -> None:
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, state[key]), key


def test_none_keeps_the_random_start() -> None:
    backbone = create_backbone("tiny")
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    load_weights(backbone, None)
    assert_loaded(backbone, before)
    with pytest.raises(WeightsError, match="no weights"):
        load_weights(backbone, None, sha256="0" * 64)


def test_safetensors_need_no_hash_but_check_a_stated_one(tmp_path: Path) -> None:
    state = source_state()
    path = tmp_path / "net.safetensors"
    digest = save(path, state)
    for stated in (None, digest, digest[:8].upper()):
        backbone = create_backbone("tiny")
        load_weights(backbone, str(path), stated)
        assert_loaded(backbone, state)
    with pytest.raises(WeightsError, match="sha256"):
        load_weights(create_backbone("tiny"), str(path), "0" * 8)


@pytest.mark.parametrize("suffix", [".pth", ".pt"])
def test_pickle_with_a_hash_loads(tmp_path: Path, suffix: str) -> None:
    state = source_state()
    path = tmp_path / f"net{suffix}"
    digest = save(path, {"state_dict": state, "epoch": 3})
    named = tmp_path / f"net-{digest[:8]}{suffix}"
    shutil.copy(path, named)
    for file, stated in ((path, digest), (path, digest[:12]), (named, None)):
        backbone = create_backbone("tiny")
        load_weights(backbone, str(file), stated)
        assert_loaded(backbone, state)


def test_pickle_without_or_with_a_wrong_hash_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    digest = save(path, source_state())
    wrong_name = tmp_path / "net-00000000.pth"
    shutil.copy(path, wrong_name)
    for file, stated, message in (
        (path, None, "as sha256, or put them into its name"),
        (path, digest[:-1] + ("0" if digest[-1] != "0" else "1"), "stated"),
        (wrong_name, None, "in its name"),
    ):
        with pytest.raises(WeightsError, match=message):
            load_weights(create_backbone("tiny"), str(file), stated)


@pytest.mark.parametrize("stated", ["abc1234", "not a hash", "0" * 65, ""])
def test_a_hash_must_look_like_one(tmp_path: Path, stated: str) -> None:
    save(tmp_path / "net.pth", source_state())
    with pytest.raises(WeightsError, match="is not a hash"):
        load_weights(create_backbone("tiny"), str(tmp_path / "net.pth"), stated)


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("form", ["zip", "plain"])
def test_malicious_pickle_never_runs(tmp_path: Path, form: str) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / "evil.pth"
    if form == "zip":
        torch.save({"conv1.weight": Bomb(mark)}, path)
    else:
        path.write_bytes(pickle.dumps(Bomb(mark), protocol=2))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for stated in (None, "0" * 8, digest):
        with pytest.raises(WeightsError):
            load_weights(create_backbone("tiny"), str(path), stated)
        assert not mark.exists()
    # The bomb is live: what the loader refuses would have run.
    if form == "zip":
        torch.load(path, weights_only=False)
    else:
        pickle.loads(path.read_bytes())
    assert mark.exists()


@pytest.mark.parametrize("prefix", ["module.", "backbone.", "module.backbone."])
@pytest.mark.parametrize("classifier", ["fc.weight", "_fc.bias", "classifier.1.weight", "head.fc.weight"])
def test_prefixes_and_classifiers(tmp_path: Path, prefix: str, classifier: str) -> None:
    state = source_state()
    path = tmp_path / "net.safetensors"
    outer = prefix.removesuffix("backbone.")
    content = {prefix + key: value for key, value in state.items()} | {outer + classifier: torch.zeros(4, 4)}
    save(path, content)
    backbone = create_backbone("tiny")
    load_weights(backbone, str(path))
    assert_loaded(backbone, state)


def test_a_whole_network_gives_its_backbone(tmp_path: Path) -> None:
    net = create_model("tiny", 9)
    path = tmp_path / "net.safetensors"
    save(path, net.state_dict())
    other = create_model("tiny", 4, weights=str(path))
    assert_loaded(other.backbone, net.backbone.state_dict())


def test_batch_counters_may_be_missing(tmp_path: Path) -> None:
    state = {key: value for key, value in source_state().items() if "num_batches" not in key}
    path = tmp_path / "net.safetensors"
    save(path, state)
    backbone = create_backbone("tiny")
    load_weights(backbone, str(path))
    assert torch.equal(backbone.state_dict()["bn1.running_var"], state["bn1.running_var"])


def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path: Path) -> None:
    state = source_state()
    for key in ("bn1.bias", "bn1.weight", "bn1.running_var", "conv1.weight"):
        del state[key]
    state["extra.weight"] = torch.zeros(1)
    state["stage1.bn1.weight"] = torch.zeros(7)
    path = tmp_path / "net.safetensors"
    save(path, state)
    backbone = create_backbone("tiny")
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    with pytest.raises(WeightsError) as caught:
        load_weights(backbone, str(path))
    message = str(caught.value)
    assert "4 missing (conv1.weight, bn1.weight, bn1.bias, ...)" in message
    assert "1 unexpected (extra.weight)" in message
    assert "1 of another shape (stage1.bn1.weight (7,) for (48,))" in message
    assert "\n" not in message
    assert_loaded(backbone, before)


@pytest.mark.parametrize("content", [[torch.zeros(2)], {"conv1.weight": 3}, torch.zeros(3)])
def test_pickle_of_something_else(tmp_path: Path, content: object) -> None:
    path = tmp_path / "net.pth"
    digest = save(path, content)
    with pytest.raises(WeightsError, match="does not hold a state dict"):
        load_weights(create_backbone("tiny"), str(path), digest)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("size", [0, 5, 3000])
def test_cut_file(tmp_path: Path, suffix: str, size: int) -> None:
    path = tmp_path / f"net{suffix}"
    save(path, source_state())
    path.write_bytes(path.read_bytes()[:size])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(WeightsError, match=r"net\."):
        load_weights(create_backbone("tiny"), str(path), digest)


@pytest.mark.parametrize("spec", ["ImageNet", "nowhere/net.pth", "nowhere/net.onnx"])
def test_no_such_file(spec: str) -> None:
    with pytest.raises(WeightsError, match="check the"):
        load_weights(create_backbone("tiny"), spec)


def test_imagenet_needs_a_network_that_has_them() -> None:
    with pytest.raises(WeightsError, match=r"no ImageNet weights for backbone 'tiny'.*efficientnet_lite0"):
        create_model("tiny", 3, weights="imagenet")


def test_imagenet_of_a_resnet_comes_through_the_verified_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def download(url: str, sha256_prefix: str, folder: Path) -> Path:
        asked.append((url, sha256_prefix, folder))
        return tmp_path / "net.pth"

    monkeypatch.setattr("pluralis.models.weights.download", download)
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path))
    save(tmp_path / "net.pth", create_backbone("resnet18").state_dict())
    with pytest.raises(WeightsError, match="not the f37072fd"):  # a stand-in cannot have the hash
        load_weights(create_backbone("resnet18"), "imagenet")
    for name in ("resnet34", "resnet50", "resnet101"):
        _imagenet_file(name)
    base = "https://download.pytorch.org/models/"
    assert asked == [
        (base + "resnet18-f37072fd.pth", "f37072fd", tmp_path),
        (base + "resnet34-b627a593.pth", "b627a593", tmp_path),
        (base + "resnet50-0676ba61.pth", "0676ba61", tmp_path),
        (base + "resnet101-63fe2227.pth", "63fe2227", tmp_path),
    ]


def test_altered_package_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, expected = _imagenet_file("efficientnet_lite0")
    assert expected == _LITE0_SHA256
    assert len(expected) == 64
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    altered = tmp_path / path.name
    altered.write_bytes(content)
    monkeypatch.setattr("pluralis.models.weights._imagenet_file", lambda name: (altered, expected))
    with pytest.raises(WeightsError, match="has sha256"):
        load_weights(create_backbone("efficientnet_lite0"), "imagenet")


def test_stated_hash_cannot_replace_the_published_one() -> None:
    backbone = create_backbone("efficientnet_lite0")
    with pytest.raises(WeightsError, match="starts with 57934424"):
        load_weights(backbone, "imagenet", "0" * 8)
    load_weights(backbone, "imagenet", _LITE0_SHA256[:8])

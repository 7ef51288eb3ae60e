"""A network: normalisation, a backbone and a head, with freezing that survives `.train()`."""

from __future__ import annotations

from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pluralis.errors import RecipeError
from pluralis.models.base import Backbone
from pluralis.models.heads import Head
from pluralis.models.recorded import Recorded


class Network(nn.Module):
    """Images [B, 3, H, W], uint8 or float on the 0-255 scale, to logits [B, C].

    With `normalize=False` the images are taken as normalised already.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, head: Head, normalize: bool = True) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.normalize = normalize
        # Facts of the backbone, not learned: outside of the state dict, but they follow .to(device).
        self.register_buffer("mean", torch.tensor(backbone.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(backbone.std).view(1, 3, 1, 1), persistent=False)
        self._frozen_modules: tuple[str, ...] = ()
        self._frozen_batch_norm = False
        self._recorded: Recorded | None = None

    def record(self, on: bool) -> None:
        """Whether training passes of the backbone on a GPU are recorded once and replayed."""
        if on != (self._recorded is not None):
            self._recorded = Recorded(self.backbone) if on else None

    def forward(self, x: Tensor) -> Tensor:
        """Images [B, 3, H, W] -> logits [B, C]."""
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Images [B, 3, H, W] -> feature map [B, D, h, w]; features [B, D] from a cache pass unchanged."""
        if x.dim() == 2:
            return x
        x = x.to(self.mean.dtype)
        if self.normalize:
            x = (x - self.mean) / self.std
        return (self._recorded or self.backbone)(x)

    def freeze(self, stages: int | Literal["all"], batch_norm: bool = False) -> None:
        """Freezes the first `stages` stages of the backbone, or "all" of it, from now on and nothing else.

        A frozen stage keeps its parameters (no gradient) and runs in evaluation mode, so that its batch-norm
        statistics stay too. `batch_norm=True` keeps the statistics of ALL batch norms, whose scale and shift
        are still trained outside of frozen stages. `freeze(0, False)` undoes all freezing. Modules that were added to
        a trained backbone and say `always_trained = True` learn in frozen stages too.
        """
        self._frozen_modules = self._modules_of(stages)
        self._frozen_batch_norm = batch_norm
        self.backbone.requires_grad_(True)
        kept = {id(parameter) for module in self._always_trained() for parameter in module.parameters()}
        for name in self._frozen_modules:
            for parameter in self.backbone.get_submodule(name).parameters():
                if id(parameter) not in kept:
                    parameter.requires_grad_(False)
                    parameter.grad = None  # an optimizer would still apply a gradient left from before
        self.train(self.training)

    def learning_norms(self, stages: int | Literal["all"], batch_norm: bool = False) -> list[nn.Module]:
        """The batch norms whose statistics training moves after `freeze(stages, batch_norm)`, the head's among them."""
        if batch_norm:
            return []
        frozen = {part for name in self._modules_of(stages) for part in self.backbone.get_submodule(name).modules()}
        frozen -= {part for module in self._always_trained() for part in module.modules()}
        return [module for module in self.modules() if isinstance(module, _BatchNorm) and module not in frozen]

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that frozen parts stay in evaluation mode."""
        super().train(mode)
        if mode:
            for name in self._frozen_modules:
                self.backbone.get_submodule(name).eval()
            for module in self._always_trained():
                module.train()
            if self._frozen_batch_norm:
                for module in self.modules():
                    if isinstance(module, _BatchNorm):
                        module.eval()
        return self

    def head_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(name, parameter) of the head, names as in `named_parameters()` of the network."""
        return list(self.head.named_parameters(prefix="head"))

    def backbone_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(name, parameter) of the backbone, frozen ones included, names as in `named_parameters()`."""
        return list(self.backbone.named_parameters(prefix="backbone"))

    def _always_trained(self) -> list[nn.Module]:
        return [module for module in self.backbone.modules() if getattr(module, "always_trained", False)]

    def _modules_of(self, stages: int | Literal["all"]) -> tuple[str, ...]:
        """Names of the backbone's submodules to freeze; "" is the backbone itself."""
        if stages == "all":
            return ("",)
        limit = len(self.backbone.stage_names)
        if isinstance(stages, bool) or not isinstance(stages, int) or not 0 <= stages <= limit:
            raise RecipeError(
                f"cannot freeze {stages!r} stages of backbone '{self.backbone.name}', which has {limit}: "
                f'give a number from 0 to {limit}, or "all"'
            )
        return tuple(name for group in self.backbone.stage_names[:stages] for name in group)

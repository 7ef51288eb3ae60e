"""Heads that look for each class at every place and pool its map, and pictures of where a class was seen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.errors import RecipeError
from pluralis.models.heads import Classifier, Head, copy_bias
from pluralis.params import choice, number

if TYPE_CHECKING:
    from pluralis.models.network import Network

_LARGEST = 1e4  # sharper than this is the maximum, to all digits
_SMALLEST = 1e-6  # and this the mean
_LEARNED = (math.log(0.01), math.log(100.0))  # where the log of a learned sharpness stays
_DROPS = {"channel": nn.Dropout2d, "place": nn.Dropout}


class MapHead(Head):
    """A map for each class, M_c(x, y) = w_c·f(x, y) + b_c; what is pooled out of it is the subclass's business.

    The parameters are those of the linear head, so that weights trained with either can be used with the other. A
    channel is dropped at all places at once: dropped at each on its own, the pooling would average the dropout away.
    That is an option nevertheless, `drop="place"`, a weaker dropout. Features [B, D] are a map with one place.

    Above a backbone that learns too, `equal` biases stand in for log-odds unless these are stated: it is measured, not
    derived (docs/results). `train` states log-odds where there are few images (`defaults.settle`).
    """

    start_bias = "equal"

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.0, drop: str = "channel") -> None:
        super().__init__()
        self.dropout = _DROPS[choice("heads lse and csra", "drop", drop, _DROPS)](dropout)
        self.fc = Classifier(in_channels, num_classes)
        nn.init.zeros_(self.fc.bias)

    def maps(self, features: Tensor) -> Tensor:
        """Features [B, D, h, w] or [B, D] -> M [B, C, h, w], in float32 at least."""
        if features.dim() == 2:
            features = features[:, :, None, None]
        maps: Tensor = self.fc(self.dropout(features))
        return maps.to(torch.promote_types(maps.dtype, torch.float32))


class LogMeanExpHead(MapHead):
    """Log-mean-exp of each class's map: between its mean (r = 0, the linear head) and its maximum (r → ∞).

        z_c = (1/r) · log mean_{x,y} exp(r · M_c(x, y))

    The LSE pooling of Pinheiro & Collobert, CVPR 2015, "From Image-level to Pixel-level Labeling with Convolutional
    Networks".
    Its gradient at each place is softmax(r · M_c): places that speak for the class learn most, the others still do.

    `r="learn"` is an option: one r for all classes, learned with the rest and stored with it (`log_r`, which starts at
    log 0.5 and counts as no less than log 0.01 and no more than log 100; weight decay draws r to 1). Such weights do
    not fit the linear head.

    >>> head = LogMeanExpHead(1, 1, r=1.0)
    >>> _ = head.fc.weight.data.fill_(1.0)
    >>> head(torch.tensor([[[[0.0, 2.0]]]]))  # log((1 + e²) / 2)
    tensor([[1.4338]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self, in_channels: int, num_classes: int, dropout: float = 0.0, r: float | str = 0.5, drop: str = "channel"
    ) -> None:
        super().__init__(in_channels, num_classes, dropout, drop)
        if isinstance(r, str) and r != "learn":
            raise RecipeError(f'head lse: r is {r!r}; give a number of at least 0, or "learn"')
        self.log_r = nn.Parameter(torch.tensor(math.log(0.5))) if isinstance(r, str) else None
        self._r = 0.5 if isinstance(r, str) else number("head lse", "r", r, low=0.0, high=_LARGEST)

    @property
    def r(self) -> float | Tensor:
        """The sharpness: a number, or what was learned, with its graph."""
        return self._r if self.log_r is None else self.log_r.clamp(*_LEARNED).exp()

    def forward(self, features: Tensor) -> Tensor:
        maps, r = self.maps(features).flatten(2), self.r
        if isinstance(r, float) and r < _SMALLEST:
            return maps.mean(2)
        # A shift of the map shifts z by the same, so the maximum needs no gradient; and with expm1 and log1p a small r
        # loses no digits, as log(n) − log(n) would.
        top = maps.detach().amax(2, keepdim=True)
        return top.squeeze(2) + torch.log1p(torch.expm1(r * (maps - top)).mean(2)) / r

    def set_bias(self, values: Tensor) -> None:
        """`values` are what the logits are where the features are zero: a constant map is its own pooling."""
        copy_bias(self.fc.bias, values)


class CSRAHead(MapHead):
    """Class-specific residual attention: the mean of each class's map, and λ times its mean where it is high.

        z_c = mean_{x,y} M_c + λ · Σ_{x,y} s_c M_c,   s_c = softmax_{x,y}(T · M_c)

    Zhu & Wu, ICCV 2021, "Residual Attention: A Simple but Effective Method for Multi-Label Recognition" (Eq. 8), with
    one head. The paper's classifiers have no bias; here it is a part of the map and so counts 1 + λ times. λ = 0 is
    the linear head; `temperature` is T: 0 weighs all places the same, a large one takes the maximum.

    >>> head = CSRAHead(1, 1, lam=0.5)
    >>> _ = head.fc.weight.data.fill_(1.0)
    >>> head(torch.tensor([[[[0.0, 2.0]]]]))  # 1 + 0.5 · 2e² / (1 + e²)
    tensor([[1.8808]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        dropout: float = 0.0,
        lam: float = 0.3,
        temperature: float = 1.0,
        drop: str = "channel",
    ) -> None:
        super().__init__(in_channels, num_classes, dropout, drop)
        self.lam = number("head csra", "lam", lam, low=0.0)
        self.temperature = number("head csra", "temperature", temperature, low=0.0, high=_LARGEST)

    def forward(self, features: Tensor) -> Tensor:
        maps = self.maps(features).flatten(2)
        attention = (self.temperature * maps).softmax(2)
        return maps.mean(2) + self.lam * (attention * maps).sum(2)

    def set_bias(self, values: Tensor) -> None:
        """`values` are what the logits are where the features are zero, where the bias counts 1 + λ times."""
        copy_bias(self.fc.bias, values / (1 + self.lam))


@torch.no_grad()
def heat_maps(net: Network, images: Tensor) -> Tensor:
    """Where does a network see each class? Images [B, 3, H, W] -> probabilities [B, C, H, W].

    Each place of the feature map is shown to the head alone, as if the whole picture looked like it, and the result is
    spread bilinearly over the picture. So it works with every head; for `lse` it is σ(M).

    >>> from pluralis.models import create_model
    >>> heat_maps(create_model("tiny", 3, "lse"), torch.zeros(2, 3, 48, 32)).shape
    torch.Size([2, 3, 48, 32])
    """
    training = net.training
    net.eval()
    try:
        features = net.features(images)
        batch, _, height, width = features.shape
        logits = net.head(features.flatten(2).transpose(1, 2).flatten(0, 1)).float()
    finally:
        net.train(training)
    heat = logits.sigmoid().unflatten(0, (batch, height * width)).transpose(1, 2).unflatten(2, (height, width))
    return F.interpolate(heat, images.shape[-2:], mode="bilinear", align_corners=False)


def overlay(image: Tensor, heat: Tensor, strength: float = 0.7) -> Tensor:
    """A picture [3, H, W] on the 0-255 scale under one heat map [H, W] of probabilities -> uint8 [3, H, W].

    >>> overlay(torch.full((3, 4, 6), 100.0), torch.zeros(4, 6)).unique().tolist()  # nothing seen: as it was
    [100]
    """
    from matplotlib import colormaps

    number("overlay", "strength", strength, low=0.0, high=1.0)
    heat = heat.float().cpu()
    colours = torch.from_numpy(colormaps["inferno"](heat.numpy())[..., :3]).permute(2, 0, 1).float() * 255
    return torch.lerp(image.float().cpu(), colours, strength * heat).round().to(torch.uint8)

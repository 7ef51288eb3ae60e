"""LgConv: a global branch beside every 3×3 convolution of a backbone that is trained already.

Yuan et al., "Positive Label Is All You Need for Multi-Label Classification", 2023, "Local-Global Convolution".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.errors import RecipeError
from pluralis.models.base import Backbone
from pluralis.params import choice

HEADS = 8
SMALL = 1e-4  # the scale of the last batch norm at the start, so that the trained network is hardly disturbed


class GlobalBranch(nn.Module):
    """G(x): each head gathers from the whole map and gives to the places that ask for it.

    r = ReLU(W_r x) with C/4 channels, h = [r ; mean of r over the map],
    A = softmax over the map of W_a h, B = σ(W_b h), one map a head; g_head = Σ_hw A_head · (W_v x)_head,
    G(x) = BN(W_p (B ⊙ g)), where g_head is broadcast over the map and W_p takes the stride of the convolution.
    With `residual` (the released implementation) it is BN(W_p (x + B ⊙ g)), and the scale of BN starts from
    N(0, 1e-4²) instead of the constant 1e-4.

    The sums are taken in an order that never makes g a map: W_v acts on the weighted means of x and W_p on g, both of
    which are vectors. What a softmax or a batch norm takes away again (the mean of r in A, biases) is left out.
    [B, C, h, w] -> [B, D, h/stride, w/stride].

    >>> GlobalBranch(16, 32, stride=2)(torch.zeros(2, 16, 7, 7)).shape
    torch.Size([2, 32, 4, 4])
    """

    always_trained = True  # it is new: it learns in frozen stages too

    def __init__(
        self, in_channels: int, out_channels: int, stride: int = 1, heads: int = HEADS, residual: bool = False
    ) -> None:
        super().__init__()
        hidden = in_channels // 4
        self.heads, self.stride, self.residual = heads, stride, residual
        self.reduce = nn.Conv2d(in_channels, hidden, 1)
        self.attend = nn.Conv2d(hidden, heads, 1, bias=False)
        self.gate = nn.Conv2d(hidden, heads, 1)
        self.gate_mean = nn.Linear(hidden, heads, bias=False)
        self.value = nn.Linear(in_channels, in_channels)
        self.project = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        if residual:
            nn.init.normal_(self.norm.weight, 0.0, SMALL)
        else:
            nn.init.constant_(self.norm.weight, SMALL)

    def forward(self, x: Tensor) -> Tensor:
        r = F.relu(self.reduce(x))
        attention = self.attend(r).flatten(2).softmax(-1)  # [B, heads, hw]
        gate = self.gate(r) + self.gate_mean(r.mean((2, 3)))[..., None, None]
        gate = gate[:, :, :: self.stride, :: self.stride].sigmoid()  # [B, heads, h', w']

        means = attention @ x.flatten(2).transpose(1, 2)  # [B, heads, C]
        value = self.value.weight.unflatten(0, (self.heads, -1))  # [heads, C/heads, C]
        g = torch.einsum("bhc,hdc->bhd", means, value) + self.value.bias.unflatten(0, (self.heads, -1))
        project = self.project.weight.flatten(1).unflatten(1, (self.heads, -1))  # [D, heads, C/heads]
        y = torch.einsum("bhd,ohd->boh", g, project) @ gate.flatten(2)
        y = y.unflatten(2, gate.shape[2:])
        return self.norm(y + self.project(x) if self.residual else y)


class LgConv(nn.Conv2d):
    """conv(x) + G(x), with the weights of `conv` under the names that they had.

    >>> conv = nn.Conv2d(8, 8, 3, padding=1)
    >>> sorted(LgConv(conv).state_dict())[0], LgConv(conv).weight is conv.weight
    ('bias', True)
    """

    def __init__(self, conv: nn.Conv2d, heads: int = HEADS, variant: str = "paper") -> None:
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            conv.dilation,  # type: ignore[arg-type]
            bias=conv.bias is not None,
            device="meta",
        )
        self.weight, self.bias = conv.weight, conv.bias
        branch = GlobalBranch(conv.in_channels, conv.out_channels, conv.stride[0], heads, variant == "released")
        self.global_branch = branch.to(conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.global_branch(x)


def add_global_branches(backbone: Backbone, heads: int = HEADS, variant: str = "paper") -> int:
    """Put an LgConv in the place of every dense 3×3 convolution of `backbone`; returns how many.

    Depthwise and grouped convolutions and those of fewer channels than there are heads, such as a stem, stay as they
    are. Load pre-trained weights first or last: the convolutions keep their names.

    >>> from pluralis.models import create_backbone
    >>> add_global_branches(create_backbone("resnet18"))
    16
    """
    choice("lgconv", "variant", variant, ("paper", "released"))
    found = [
        (module, name, child)
        for module in backbone.modules()
        for name, child in module.named_children()
        if type(child) is nn.Conv2d and _is_local(child, heads)
    ]
    if not found:
        raise RecipeError(
            f"lgconv: backbone '{backbone.name}' has no dense 3x3 convolution to put a global branch beside: "
            "use a ResNet, or set lgconv = false"
        )
    for module, name, child in found:
        setattr(module, name, LgConv(child, heads, variant))
    return len(found)


def _is_local(conv: nn.Conv2d, heads: int) -> bool:
    same_size = conv.padding == conv.dilation and conv.stride[0] == conv.stride[1]
    return conv.kernel_size == (3, 3) and conv.groups == 1 and same_size and conv.in_channels % heads == 0

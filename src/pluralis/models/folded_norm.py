"""A convolution and its batch norm as one convolution, where the norm goes by statistics that stay.

For the ResNets and EfficientNet; `tiny` has small maps, and timm's backbones are as they come.
"""

from __future__ import annotations

from typing import TypeGuard

from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.models.fused_norm import Norm


def normed(conv: nn.Module, norm: nn.Module, x: Tensor) -> Tensor:
    """norm(conv(x)), with the ReLU6 that the norm may bring along.

    With γ, β, μ, σ of the norm it is conv(x; w·γ/σ) + β − μγ/σ. On a CPU that is how it is computed if μ and σ stay:
    what lies between the two is neither made nor kept for the gradient, which goes to w, γ and β all the same. The
    weights are scaled at each pass, which pays where there are more numbers in the map than in them.
    """
    if not (x.is_cpu and _plain(conv) and _stays(norm) and x.numel() >= conv.weight.numel()):
        out: Tensor = norm(conv(x))
        return out
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    shift = norm.bias - norm.running_mean * scale
    out = conv._conv_forward(x, conv.weight * scale[:, None, None, None], shift)
    return F.relu6(out, inplace=True) if isinstance(norm, Norm) and norm.relu6 else out


def _plain(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """A convolution without bias and no more than that."""
    return type(module).forward is nn.Conv2d.forward and module.bias is None and _alone(module)


def _stays(module: nn.Module) -> TypeGuard[nn.BatchNorm2d]:
    """A norm that goes by its running statistics and no more than that."""
    known = type(module) in (nn.BatchNorm2d, Norm) and not module.training
    return known and module.running_mean is not None and module.weight is not None and _alone(module)


def _alone(module: nn.Module) -> bool:
    """Nobody listens to it, and nobody has put something else in the place of its pass."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" not in vars(module) and not any(getattr(module, name) for name in hooks)

"""Heads: from a feature map to one logit per class. The plain ones; larger ones have a file each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.params import number, whole


class Head(nn.Module):
    """Maps features [B, D, h, w] or pooled features [B, D] to logits [B, C]."""

    only_pools = False
    """Whether a map and its average have the same logits, so that stored averages can stand for the maps."""
    start_bias = "log-odds"
    """What its bias starts from where the method asks for log-odds and the backbone learns with it."""

    def set_bias(self, values: Tensor) -> None:
        """Sets the starting bias of each class from `values` [C], the logits that it stands for."""
        raise NotImplementedError

    def start(self, labels: Labels) -> None:
        """What a head takes from the training labels before the first step, such as which labels occur together."""


class Classifier(nn.Linear):
    """One linear score for each class, of features [B, D] or of every place of a map [B, D, h, w].

    Autocast does not round its result: of the scores that 5,000 images have for a class, rounding to bfloat16 makes
    nine in ten equal to another's, and an order among them is what is asked for.
    """

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            features = input.to(self.weight.dtype)
            if features.dim() == 2:
                return F.linear(features, self.weight, self.bias)
            return F.conv2d(features, self.weight[:, :, None, None], self.bias)


class LinearHead(Head):
    """Global average pooling, dropout and a linear layer, whose bias starts at zero.

    >>> LinearHead(8, 3)(torch.zeros(2, 8, 4, 4)).shape
    torch.Size([2, 3])
    """

    only_pools = True

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.fc = Classifier(in_channels, num_classes)
        nn.init.zeros_(self.fc.bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.fc(self.dropout(pool(features)))

    def set_bias(self, values: Tensor) -> None:
        copy_bias(self.fc.bias, values)


class CamBoostHead(Head):
    """BoostLU: the positive values of a class activation map count `alpha` times in its average.

    M_c = w_c·F + b_c at every position of the features F, boosted to max(M_c, α·M_c), and g_c its mean over the
    positions, in training and in prediction. Kim et al., CVPR 2023, "Bridging the Gap between Model Explanations in
    Partially Annotated Multi-label Classification"; that the bias is a part of the map is as in the released code.
    Features [B, D] are a map with one position. The parameters are those of the linear head, which is alpha = 1, so
    that weights trained with either can be used with the other.

    >>> head = CamBoostHead(2, 1, alpha=5.0)
    >>> _ = head.fc.weight.data.fill_(1.0)
    >>> head(torch.tensor([[[[1.0, -1.0]], [[0.0, 0.0]]]]))  # a map of 1 and −1
    tensor([[2.]], grad_fn=<MeanBackward1>)
    """

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.0, alpha: float = 5.0) -> None:
        super().__init__()
        self.alpha = number("head cam-boost", "alpha", alpha, low=1.0)
        self.dropout = nn.Dropout(dropout)
        self.fc = Classifier(in_channels, num_classes)
        nn.init.zeros_(self.fc.bias)

    def forward(self, features: Tensor) -> Tensor:
        if features.dim() == 2:
            features = features[:, :, None, None]
        cam = self.fc(self.dropout(features))
        return torch.where(cam > 0, self.alpha * cam, cam).mean((2, 3))

    def set_bias(self, values: Tensor) -> None:
        """`values` are what the logits are where the features are zero, after the boost."""
        copy_bias(self.fc.bias, torch.minimum(values, values / self.alpha))


class MLPHead(Head):
    """Global average pooling and two linear layers with a ReLU between them and dropout before each.

    For features that come from elsewhere and are not fine-tuned. The last bias starts at zero.

    >>> MLPHead(8, 3, hidden=16)(torch.zeros(2, 8)).shape
    torch.Size([2, 3])
    """

    only_pools = True

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.0, hidden: int = 256) -> None:
        super().__init__()
        whole("head mlp", "hidden", hidden, low=1)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(in_channels, hidden)
        self.fc = Classifier(hidden, num_classes)
        nn.init.zeros_(self.fc.bias)

    def forward(self, features: Tensor) -> Tensor:
        hidden = F.relu(self.hidden(self.dropout(pool(features))))
        return self.fc(self.dropout(hidden))

    def set_bias(self, values: Tensor) -> None:
        copy_bias(self.fc.bias, values)


def pool(features: Tensor) -> Tensor:
    """Global average: [B, D, h, w] -> [B, D]; features that are [B, D] already pass unchanged."""
    if features.dim() == 2:
        return features
    return F.adaptive_avg_pool2d(features, 1).flatten(1)


def copy_bias(bias: Tensor, values: Tensor) -> None:
    """Writes `values` [C] into the parameter `bias` [C]; refuses other shapes and what is not finite."""
    if values.shape != bias.shape:
        raise RecipeError(
            f"the starting bias has shape {tuple(values.shape)} but the head has {bias.shape[0]} classes: "
            "give one value per class"
        )
    if not bool(torch.isfinite(values).all()):
        classes = torch.nonzero(~torch.isfinite(values)).flatten().tolist()
        raise RecipeError(
            f"the starting bias is not finite for class {classes[0]} ({len(classes)} in all): a class that "
            "is never or always seen has infinite log-odds, so bound the frequency first"
        )
    with torch.no_grad():
        bias.copy_(values)

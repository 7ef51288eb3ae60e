"""A head that looks at the feature map once for each label: one embedding, one logit and one attention map a class."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.errors import RecipeError
from pluralis.models.heads import Head, copy_bias
from pluralis.params import choice, number, whole

_NAME = "head label-decoder"


class LabelDecoder(Head):
    """Label-wise embeddings by attention (Xie et al., NeurIPS 2022, section 4.1; Liu et al., Query2Label, 2021).

    The map F [B, D, h, w] becomes h·w vectors of length `dim` (1×1 projection), which attend to each other; C learned
    label queries Q then attend to them, each with `heads` heads and a sine position encoding P on queries and keys:

        F ← block(F + P, F + P, F),   E ← block(Q, F + P, F),   z_c = w_c · E_c + b_c
        block(q, k, v) = LN(y + FFN(y)),   y = LN(q + softmax(q kᵀ/√d) v)          (post-norm)

    The residual carries the vectors without P. `ffn` is the width of the FFN, 4·dim if it is not given;
    `attention_dropout` acts on attention weights and on what each half of a block adds, `dropout` on the embeddings
    that are classified. The paper gives no sizes: `dim` is 256 unless it is said. `variant="released"` is the decoder
    that was published with the paper: no projection (dim = D) and two cross-attention blocks, which on the 2048
    channels of a ResNet-50 is 151 M parameters. Features [B, D] without a map are taken as a map of one position.

    >>> head = LabelDecoder(8, 3, dim=16)
    >>> features = torch.zeros(2, 8, 4, 4)
    >>> head.embed(features).shape, head(features).shape, head.attention(features).shape
    (torch.Size([2, 3, 16]), torch.Size([2, 3]), torch.Size([2, 3, 4, 4]))
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        dropout: float = 0.0,
        dim: int | None = None,
        heads: int = 4,
        ffn: int | None = None,
        attention_dropout: float = 0.1,
        variant: str = "paper",
    ) -> None:
        super().__init__()
        released = choice(_NAME, "variant", variant, ("paper", "released")) == "released"
        dim = (in_channels if released else 256) if dim is None else whole(_NAME, "dim", dim, low=4)
        if released and dim != in_channels:
            raise RecipeError(
                f"{_NAME}: dim is {dim}, but the released variant has no projection: it keeps the {in_channels}"
                ' channels of the backbone: leave dim out, or set variant = "paper"'
            )
        if dim % whole(_NAME, "heads", heads, low=1) or dim % 4:
            raise RecipeError(f"{_NAME}: dim is {dim} with {heads} heads; give a multiple of 4 and of the heads")
        ffn = 4 * dim if ffn is None else whole(_NAME, "ffn", ffn, low=1)
        drop = number(_NAME, "attention_dropout", attention_dropout, low=0.0, below=1.0)
        self.dim = dim
        self.project = nn.Identity() if released else nn.Linear(in_channels, dim)
        self.encoder = Block(dim, heads, ffn, drop)
        self.decoder = nn.ModuleList([Block(dim, heads, ffn, drop) for _ in range(2 if released else 1)])
        self.queries = nn.Parameter(torch.randn(num_classes, dim))
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Parameter(torch.empty(num_classes, dim).uniform_(-1, 1) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, features: Tensor) -> Tensor:
        return self.classify(self.embed(features))

    def embed(self, features: Tensor) -> Tensor:
        """Features [B, D, h, w] or [B, D] -> one embedding for each label [B, C, dim]."""
        vectors, keys = self._encode(features)
        labels = self.queries.expand(len(vectors), -1, -1)
        for block in self.decoder:
            labels = block(labels, keys, vectors)
        return labels

    def classify(self, embeddings: Tensor) -> Tensor:
        """Each label's own linear classifier: [B, C, dim] -> logits [B, C]."""
        return (self.dropout(embeddings) * self.weight).sum(-1) + self.bias

    @torch.no_grad()
    def attention(self, features: Tensor) -> Tensor:
        """Where each label looks: the last cross-attention [B, C, h, w], averaged over heads; each map sums to 1.

        Without dropout, also in training.
        """
        training = self.training
        self.eval()
        try:
            vectors, keys = self._encode(features)
            labels = self.queries.expand(len(vectors), -1, -1)
            *before, last = self.decoder
            for block in before:
                labels = block(labels, keys, vectors)
            assert isinstance(last, Block)
            maps = last.weights(labels, keys)
        finally:
            self.train(training)
        return maps.reshape(len(maps), -1, *(features.shape[2:] or (1, 1)))

    def set_bias(self, values: Tensor) -> None:
        copy_bias(self.bias, values)

    def _encode(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of the positions [B, h·w, dim] after self-attention, and the same with their place added."""
        if features.dim() == 2:
            features = features[..., None, None]
        vectors = self.project(features.flatten(2).transpose(1, 2))
        place = sine_positions(features.shape[2], features.shape[3], self.dim, features.device).to(vectors.dtype)
        placed = vectors + place
        vectors = self.encoder(vectors, placed, vectors, queries=placed)
        return vectors, vectors + place


class Block(nn.Module):
    """Attention and a two-layer network, each added to its input and normalised after it (Vaswani et al., 2017)."""

    def __init__(self, dim: int, heads: int, ffn: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.drop = dropout
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ffn, dim))
        self.dropout = nn.Dropout(dropout)
        for linear in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, queries: Tensor | None = None) -> Tensor:
        """x [B, n, d] attends to values [B, m, d] through keys [B, m, d]; `queries` is x with its place, if it has one.

        >>> Block(8, 2, 16, 0.0)(torch.zeros(1, 3, 8), torch.zeros(1, 5, 8), torch.zeros(1, 5, 8)).shape
        torch.Size([1, 3, 8])
        """
        q = self._split(self.query(x if queries is None else queries))
        k, v = self._split(self.key(keys)), self._split(self.value(values))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop if self.training else 0.0)
        x = self.norm1(x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2))))
        return self.norm2(x + self.dropout(self.ffn(x)))

    def weights(self, x: Tensor, keys: Tensor) -> Tensor:
        """The attention weights [B, n, m], averaged over heads."""
        q, k = self._split(self.query(x)), self._split(self.key(keys))
        with torch.autocast(x.device.type, enabled=False):
            return (q.float() @ k.float().transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1).mean(1)

    def _split(self, x: Tensor) -> Tensor:
        """[B, n, d] -> [B, heads, n, d / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def sine_positions(height: int, width: int, dim: int, device: torch.device | None = None) -> Tensor:
    """Sine position encoding [h·w, dim] in float32: the first half tells the row, the second the column.

    For a coordinate u, counted from 1 and scaled to (0, 2π], the pairs are sin and cos of u / 10000^(2i/(dim/2)),
    i = 0 … dim/4−1 (Vaswani et al., 2017; in two dimensions Carion et al., DETR, 2020).

    >>> sine_positions(2, 3, 8).shape
    torch.Size([6, 8])
    """
    scale = 10_000.0 ** (torch.arange(dim // 4, device=device) * (-4 / dim))

    def along(length: int) -> Tensor:
        place = torch.arange(1, length + 1, device=device) * (2 * math.pi / length)
        angle = place[:, None] * scale
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    rows, columns = along(height), along(width)
    shape = (height, width, dim // 2)
    return torch.cat([rows[:, None].expand(shape), columns[None].expand(shape)], -1).flatten(0, 1)

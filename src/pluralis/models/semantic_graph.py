"""The head of semantic decoupling and graph propagation: where to look is guided by the name of each class."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.models.heads import Head, copy_bias
from pluralis.models.word_vectors import read_word_vectors
from pluralis.params import number, whole


class SemanticGraphHead(Head):
    """Attention over the map for each class, and messages between classes that occur together.

    Chen et al., "Learning Semantic-Specific Graph Representation for Multi-Label Image Recognition" (SSGRL), ICCV 2019;
    Yuan et al. (PU-MLC, 2023) train it too. With the features x_k [D] at position k and the word vector w_c of class c:

    x'_k = BN(W x_k)                                              `width` numbers; 0 = D, at most 1024
    a_kc = softmax over k of v·tanh((W₁ x'_k) ⊙ (W₂ w_c))         `intermediate` numbers; 0 = half the width
    f_c  = Σ_k a_kc x'_k                                          the features of class c
    h_c  = `steps` rounds of a gated graph network from f_c over the label graph (see `GatedGraph`); 0 = none
    s_c  = u_c · tanh(V [h_c ; f_c]) + b_c

    The published network has two layers in the place of v; they are affine, so one vector does the same, and its
    constant cancels in the softmax. The tanh runs over batch × positions × classes × `intermediate` numbers, which is
    the memory that this head takes; a `pool` of 2 averages the map over squares of 2 × 2 before, as the network that
    was published with PU-MLC does, and makes it a quarter.

    The label graph is A_ij = #(i and j known present) / #(i known present), from the training labels: `start` must see
    them. A class that is never present keeps a loop to itself. Labels with one positive a row tell nothing of what
    occurs together: then A is the identity and the rounds pass no message.
    `word_vectors` is a text file in the format of GloVe (see `read_word_vectors`), read at the start and kept with the
    weights, so that a finished run does not need the file; without it vectors of `word_dim` numbers are learned.
    Features [B, D] are one position.

    >>> SemanticGraphHead(8, 3, word_dim=4)(torch.zeros(2, 8, 5, 5)).shape
    torch.Size([2, 3])
    """

    graph: Tensor
    words: Tensor

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        dropout: float = 0.0,
        word_vectors: str | None = None,
        word_dim: int = 300,
        width: int = 0,
        intermediate: int = 0,
        steps: int = 3,
        pool: int = 1,
    ) -> None:
        super().__init__()
        owner = "head semantic-graph"
        if word_vectors is not None and not (isinstance(word_vectors, str) and word_vectors):
            raise RecipeError(f"{owner}: word_vectors is {word_vectors!r}; give the path of a file, or leave it out")
        width = whole(owner, "width", width) or min(in_channels, 1024)
        intermediate = whole(owner, "intermediate", intermediate) or max(width // 2, 1)
        word_dim = whole(owner, "word_dim", word_dim, low=1)
        self.pool = whole(owner, "pool", pool, low=1)
        self.word_vectors = word_vectors
        self.reduce = nn.Linear(in_channels, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.look = nn.Linear(width, intermediate, bias=False)
        self.name = nn.Linear(word_dim, intermediate, bias=False)
        self.score = nn.Linear(intermediate, 1, bias=False)
        self.propagate = GatedGraph(width, whole(owner, "steps", steps, high=100))
        self.output = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(number(owner, "dropout", dropout, low=0.0, below=1.0))
        self.weight = nn.Parameter(torch.empty(num_classes, width).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        if word_vectors is None:
            self.words = nn.Parameter(torch.randn(num_classes, word_dim))
        else:
            self.register_buffer("words", torch.zeros(num_classes, word_dim))
        self._unread = word_vectors is not None  # in step with `words`; to ask the buffer would wait for the device
        self.register_buffer("graph", torch.eye(num_classes))

    def forward(self, features: Tensor) -> Tensor:
        if self._unread:
            raise RecipeError(
                f"head semantic-graph: the word vectors of {self.word_vectors} were not read yet; call start(labels) "
                "with the training labels, or load the weights of a run that did"
            )
        if features.dim() > 2 and self.pool > 1:
            features = F.avg_pool2d(features, self.pool, ceil_mode=True)
        x = features.flatten(2).transpose(1, 2) if features.dim() > 2 else features[:, None]  # [B, K, D]
        x = self._normalise(self.reduce(x))
        scores = self.score(torch.tanh(self.look(x)[:, :, None] * self.name(self.words)))  # [B, K, C, 1]
        own = scores.squeeze(-1).softmax(1).transpose(1, 2) @ x  # [B, C, width]
        told = self.propagate(own, self.graph)
        meaning = self.dropout(torch.tanh(self.output(torch.cat([told, own.to(told.dtype)], -1))))
        return (meaning * self.weight).sum(-1) + self.bias

    def set_bias(self, values: Tensor) -> None:
        copy_bias(self.bias, values)

    def start(self, labels: Labels) -> None:
        if len(labels.classes) != len(self.bias):
            raise RecipeError(f"head semantic-graph has {len(self.bias)} classes but the labels {len(labels.classes)}")
        self.graph.copy_(co_occurrence(labels))
        if self.word_vectors is not None:
            self.words.copy_(read_word_vectors(self.word_vectors, labels.classes, self.words.shape[1]))
            self._unread = False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if prefix + "words" in state_dict:
            self._unread = self.word_vectors is not None and not bool(self.words.any())

    def _normalise(self, x: Tensor) -> Tensor:
        """Batch norm over [B, K, width]; one vector alone has no spread and takes the running statistics."""
        flat = x.flatten(0, 1)
        if len(flat) > 1 or not self.norm.training:
            return self.norm(flat).view_as(x)
        norm = self.norm
        return F.batch_norm(flat, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps).view_as(x)


class GatedGraph(nn.Module):
    """Rounds of messages between the classes (Li et al., ICLR 2016): states h [B, C, width] and graph A [C, C] -> h.

    m = [A h ; Aᵀ h], z = σ(W_z m + U_z h), r = σ(W_r m + U_r h), h ← (1−z) ⊙ h + z ⊙ tanh(W m + U (r ⊙ h)).
    """

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.message = nn.Linear(2 * width, 3 * width)
        self.gates = nn.Linear(width, 2 * width, bias=False)
        self.candidate = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor, graph: Tensor) -> Tensor:
        for _ in range(self.steps):
            message = self.message(torch.cat([graph @ h, graph.T @ h], -1))
            to_gates, to_candidate = message.split([2 * h.shape[-1], h.shape[-1]], -1)
            z, r = torch.sigmoid(to_gates + self.gates(h)).chunk(2, -1)
            h = (1 - z) * h + z * torch.tanh(to_candidate + self.candidate(r * h))
        return h


def co_occurrence(labels: Labels) -> Tensor:
    """A_ij = #(i and j known present) / #(i known present), [C, C]; 1 on the diagonal, also of a class without any.

    >>> co_occurrence(Labels.from_lists([[0, 1], [0], []], 3))
    tensor([[1.0000, 0.5000, 0.0000],
            [1.0000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    rows, columns, values = labels.entries()
    present = values > 0
    ones = np.ones(int(present.sum()))
    matrix = scipy.sparse.csr_array((ones, (rows[present], columns[present])), shape=labels.shape)
    together = (matrix.T @ matrix).toarray()
    share = together / np.maximum(together.diagonal(), 1)[:, None]
    np.fill_diagonal(share, 1.0)
    return torch.from_numpy(share).float()

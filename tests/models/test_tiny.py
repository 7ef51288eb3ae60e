"""The demo network: shape, size, and that it can learn."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from pluralis.models import create_backbone, create_model


def test_map_and_size() -> None:
    backbone = create_backbone("tiny")
    assert backbone(torch.randn(2, 3, 48, 48)).shape == (2, backbone.out_channels, 6, 6)
    assert sum(p.numel() for p in backbone.parameters()) < 500_000


def test_activations_neither_vanish_nor_explode_at_the_start() -> None:
    torch.manual_seed(0)
    features = create_backbone("tiny").eval()(torch.randn(8, 3, 48, 48))
    assert 0.1 < features.std() < 10


def test_learns_which_colours_are_present() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    labels = (torch.rand(64, 3, generator=generator) < 0.5).float()
    images = torch.randint(0, 80, (64, 3, 48, 48), generator=generator)
    for row, column in torch.nonzero(labels).tolist():
        top, left = torch.randint(0, 36, (2,), generator=generator).tolist()
        images[row, column, top : top + 12, left : left + 12] += 170
    net = create_model("tiny", 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    first = last = 0.0
    for step in range(12):
        loss = F.binary_cross_entropy_with_logits(net(images.to(torch.uint8)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        first = first if step else last
    assert last < 0.5 * first

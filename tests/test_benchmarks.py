"""Formulas that only a benchmark has."""

from itertools import product

import pytest
import torch

from benchmarks.pick_model import likelihood
from pluralis.losses.selection import selection


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
def test_pick_by_area_is_the_sum_over_all_label_sets(exponent: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    area = torch.rand(6, 5, generator=generator, dtype=torch.float64).clamp(min=0.05)
    picked = torch.tensor([0, 1, 2, 3, 4, 0])
    chances = []
    for z, size, given in zip(logits, area**exponent, picked.tolist(), strict=True):
        p, total = z.sigmoid(), 0.0
        for members in product((0.0, 1.0), repeat=5):
            inside = torch.tensor(members, dtype=torch.float64)
            if inside[given]:
                chance = (inside * p + (1 - inside) * (1 - p)).prod()
                total += float(chance * size[given] / (size * inside).sum())
        chances.append(total)
    found = likelihood(logits, area, picked, exponent).neg().exp()
    assert found.tolist() == pytest.approx(chances, rel=1e-4)


def test_pick_by_area_to_the_power_of_zero_is_selection() -> None:
    logits = torch.randn(8, 20, generator=torch.Generator().manual_seed(1))
    picked = torch.arange(8)
    rows = likelihood(logits, torch.rand(8, 20), picked, 0.0)
    labels = torch.nn.functional.one_hot(picked, 20)
    assert rows.sum().item() == pytest.approx(selection(logits, labels, reduction="sum").item(), rel=1e-5)

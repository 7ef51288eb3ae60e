"""The chances of unknown labels are chances, and never above what the network alone says."""

from __future__ import annotations

import pytest
import torch

from pluralis.losses import selection_posterior


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("a", [0.2, 1.0, 30.0])
def test_no_chance_is_above_one_or_above_p(dtype: torch.dtype, spread: float, a: float) -> None:
    torch.manual_seed(0)
    z = spread * torch.randn(64, 80, dtype=dtype)
    y = torch.zeros(64, 80, dtype=torch.int8)
    y[torch.arange(60), torch.randint(80, (60,))] = 1  # the last rows have no label
    y[:, 0] = torch.where(y[:, 0] == 0, -1, y[:, 0])
    r = selection_posterior(z, y, a=a)
    unknown = y == 0
    assert bool((r[unknown] <= z.sigmoid()[unknown]).all())
    assert bool(((r >= 0) & (r <= 1)).all())
    torch.bernoulli(r)  # which takes nothing else

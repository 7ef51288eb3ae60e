"""The moving average of weights, against its formula."""

from __future__ import annotations

import torch
from torch import nn

from pluralis.state import EMA


def test_average_follows_its_formula_and_survives_a_round_trip() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = EMA(net, 0.5)
    expected = {k: v.clone().double() for k, v in net.state_dict().items()}
    for step in range(20):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn_like(p))
        net(torch.randn(4, 2))
        ema.update()
        decay = min(0.5, (1 + step) / (10 + step))
        for k, v in net.state_dict().items():
            expected[k] = decay * expected[k] + (1 - decay) * v if v.is_floating_point() else v.double()
    for k, v in expected.items():
        torch.testing.assert_close(ema.state_dict()[k].double(), v, rtol=1e-5, atol=1e-6)
    other = EMA(net, 0.5)
    other.load_state_dict(ema.state_dict())
    assert other.updates == 20
    with ema.applied():
        inside = {k: v.clone() for k, v in net.state_dict().items()}
    with other.applied():
        assert all(torch.equal(v, inside[k]) for k, v in net.state_dict().items())


def test_weights_come_back_after_the_block_even_after_an_error() -> None:
    net = nn.Linear(2, 2)
    ema = EMA(net, 0.9)
    with torch.no_grad():
        net.weight.add_(1)
    ema.update()
    live = net.weight.detach().clone()
    try:
        with ema.applied():
            assert not torch.equal(net.weight, live)
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(net.weight, live)


def test_label_memory_can_be_left_out() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net.register_buffer("soft", torch.zeros(3))
    assert "soft" not in EMA(net, 0.9, skip=("soft",)).state_dict()

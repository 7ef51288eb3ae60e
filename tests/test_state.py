"""Averages of weights, against their formulas."""

from __future__ import annotations

import torch
from torch import nn

from pluralis.state import EMA, Mean


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


def changed(net: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of its weights, after others were put in their place."""
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p))
    net(torch.randn(4, 2))
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def test_the_mean_is_of_all_that_were_added_and_of_what_the_module_has() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    mean, states = Mean(), []
    for _ in range(3):
        states.append(changed(net))
        mean.add(states[-1])
    states.append(changed(net))
    again = Mean()
    again.load_state_dict(mean.state_dict(), torch.device("cpu"))
    assert again.count == mean.count == 3
    for each in (mean, again):
        with each.applied(net):
            found = {k: v.clone() for k, v in net.state_dict().items()}
        for k, v in found.items():
            expected = torch.stack([state[k].double() for state in states])
            expected = expected.mean(0) if v.is_floating_point() else expected[-1]
            torch.testing.assert_close(v.double(), expected, rtol=1e-6, atol=1e-6)
        assert all(torch.equal(v, states[-1][k]) for k, v in net.state_dict().items())


def test_only_what_was_added_is_averaged() -> None:
    net, mean = nn.Linear(2, 2), Mean()
    mean.add({"weight": torch.zeros(2, 2)})
    weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
    with mean.applied(net):
        assert torch.equal(net.weight, weight / 2)
        assert torch.equal(net.bias, bias)

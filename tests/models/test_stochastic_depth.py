"""Stochastic depth: images lose whole residual branches while training, in the mean nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pluralis.checkpoint import Store, state_hash
from pluralis.config import Recipe
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.method import LossMethod
from pluralis.models import create_model
from pluralis.models.stochastic_depth import Skip
from tests.toys import loss_method, plan, scenes, stopped_at


def skip_of(rate: float) -> Skip:
    skip = Skip()
    skip.rate = rate
    return skip


def test_an_image_keeps_the_whole_branch_scaled_up_or_nothing_of_it() -> None:
    x, y = torch.randn(400, 3, 2, 5), torch.randn(400, 3, 2, 5, requires_grad=True)
    out = skip_of(0.3)(x, y)
    kept = (out != x).any(dim=(1, 2, 3))
    torch.testing.assert_close(out[kept], (x + y / 0.7)[kept])
    assert torch.equal(out[~kept], x[~kept])
    assert 0.6 < kept.float().mean() < 0.8
    out.sum().backward()
    assert y.grad is not None
    torch.testing.assert_close(y.grad, (kept.float() / 0.7)[:, None, None, None].expand_as(y))


def test_in_the_mean_it_is_the_sum() -> None:
    torch.manual_seed(0)
    x, y = torch.ones(100_000, 1, 1, 1), torch.full((100_000, 1, 1, 1), 2.0)
    mean = skip_of(0.4)(x, y).double().mean()
    assert float(mean) == pytest.approx(3.0, abs=5 * 2 * (0.4 / 0.6) ** 0.5 / 100_000**0.5)


def test_half_precision_stays_half() -> None:
    x = torch.randn(4, 2, 3, 3, dtype=torch.bfloat16)
    assert skip_of(0.5)(x, x).dtype == torch.bfloat16


@pytest.mark.parametrize("backbone", ["tiny", "resnet18", "resnet50", "efficientnet_lite0"])
def test_later_blocks_are_left_out_more_often(backbone: str) -> None:
    net = create_model(backbone, 3, drop_path=0.2)
    rates = [module.rate for module in net.modules() if isinstance(module, Skip)]
    blocks = {"tiny": 3, "resnet18": 8, "resnet50": 16, "efficientnet_lite0": 16}[backbone]
    assert rates == pytest.approx([0.2 * i / blocks for i in range(blocks)])


@pytest.mark.parametrize("backbone", ["tiny", "resnet18", "efficientnet_lite0"])
def test_it_acts_in_training_alone_and_adds_no_weights(backbone: str) -> None:
    torch.manual_seed(0)
    plain, dropped = create_model(backbone, 3), create_model(backbone, 3, drop_path=0.9)
    dropped.load_state_dict(plain.state_dict())
    x = torch.randint(0, 256, (6, 3, 64, 64)).float()
    assert torch.equal(plain.eval()(x), dropped.eval()(x))
    for net in (plain, dropped):
        net.train()
        net.freeze(0, batch_norm=True)  # else the images of a batch are not independent
    assert torch.equal(plain(x), plain(x))
    assert not torch.equal(dropped(x), dropped(x))


def test_a_frozen_stage_is_not_left_out() -> None:
    net = create_model("tiny", 3, drop_path=0.9).train()
    net.freeze("all")
    x = torch.randint(0, 256, (6, 3, 64, 64)).float()
    assert torch.equal(net(x), net(x))


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path: Path) -> None:
    def method(seed: int = 0) -> LossMethod:
        torch.manual_seed(seed)
        made = loss_method("an", seed)
        made.net = create_model("tiny", 10, drop_path=0.5)
        return made

    data = scenes(24)
    whole = method()
    expected = fit(whole, data, plan())
    with pytest.raises(Interrupted):
        fit(method(), data, plan(), store=Store(tmp_path), should_stop=stopped_at(3))
    again = method(seed=5)
    found = fit(again, data, plan(), store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert found.history == expected.history


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(RecipeError, match="drop_path is 1"):
        create_model("tiny", 3, drop_path=1.0)
    with pytest.raises(RecipeError, match=r"features:4.*model.drop_path = 0"):
        create_model("features:4", 3, drop_path=0.1)
    with pytest.raises(RecipeError, match=r"model.drop_path is 2"):
        Recipe().with_settings(["model.drop_path=2"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_recorded_pass_draws_what_the_plain_one_draws() -> None:
    found = []
    for record in (False, True, True):
        torch.manual_seed(0)
        net = create_model("tiny", 5, drop_path=0.5).cuda().train()
        net.record(record)
        x = torch.randint(0, 256, (8, 3, 32, 32), generator=torch.Generator().manual_seed(1)).float().cuda()
        steps = []
        for step in range(3):
            torch.manual_seed(step)
            steps.append(torch.cat([net(x).flatten().detach(), torch.rand(4, device="cuda")]))
        found.append(torch.stack(steps))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(found[1][:, -4:], found[2][:, -4:])
    assert not torch.equal(found[1][0], found[1][1])

"""Recorded passes of a backbone give what the plain ones give. All but the first test need a GPU."""

from __future__ import annotations

import pytest
import torch

from pluralis.data.loader import Loader, TensorImages
from pluralis.data.protocols import single_positive
from pluralis.data.scenes import make_scenes
from pluralis.engine import fit
from pluralis.labels import Labels
from pluralis.models import Network, create_model
from pluralis.models.recorded import _MOST, Recorded
from pluralis.runtime import Runtime
from tests.toys import loss_method, plan

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # kernels that add in another order


def pair(backbone: str = "tiny") -> tuple[Network, Network]:
    """Two equal networks on the GPU, the second recorded."""
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(create_model(backbone, 5).cuda().train())
    nets[1].record(True)
    return nets[0], nets[1]


def images(seed: int, count: int = 4) -> torch.Tensor:
    made = torch.randint(0, 256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(seed))
    return made.float().cuda()


def assert_grads_agree(plain: Network, recorded: Network) -> None:
    """Each within 0.3 % of its largest entry: half the kernels add in an order of their own."""
    for a, b in zip(grads(plain), grads(recorded), strict=True):
        assert float((a - b).abs().max()) <= 3e-3 * float(a.abs().max()) + 1e-5


def grads(net: Network) -> list[torch.Tensor]:
    found = [p.grad for p in net.parameters() if p.grad is not None]
    return [g.detach().clone() for g in found]


def test_on_the_cpu_nothing_is_recorded() -> None:
    torch.manual_seed(0)
    net = create_model("tiny", 5)
    x = torch.randint(0, 256, (2, 3, 32, 32)).float()
    expected = net.eval()(x)
    net.record(True)
    assert torch.equal(net(x), expected)
    net.train()(x).sum().backward()
    assert net._recorded is not None
    assert not net._recorded._recordings


def test_only_the_device_and_a_known_backbone_record() -> None:
    method = loss_method()
    Runtime(torch.device("cpu")).place(method)
    assert all(net._recorded is None for _, net in method.networks())


@needs_gpu
@pytest.mark.parametrize("backbone", ["tiny", "efficientnet_lite0", "resnet18"])
def test_outputs_gradients_and_statistics_are_those_of_a_plain_pass(backbone: str) -> None:
    plain, recorded = pair(backbone)
    for step in range(3):
        outs = []
        for net in (plain, recorded):
            net.zero_grad(set_to_none=True)
            outs.append(net(images(step)))
            outs[-1].square().sum().backward()
        torch.testing.assert_close(outs[1], outs[0], **CLOSE)
        assert_grads_agree(plain, recorded)
    for (name, a), (_, b) in zip(plain.named_buffers(), recorded.named_buffers(), strict=True):
        torch.testing.assert_close(b, a, **CLOSE, msg=name)


@needs_gpu
def test_two_passes_before_the_backward_pass_do_not_disturb_each_other() -> None:
    plain, recorded = pair()
    for _ in range(2):
        for net in (plain, recorded):
            net.zero_grad(set_to_none=True)
            first, second = net(images(0)), net(images(1))
            (first.square().sum() + second.sin().sum()).backward()
        assert_grads_agree(plain, recorded)
    assert isinstance(recorded._recorded, Recorded)
    (same,) = recorded._recorded._recordings.values()
    assert len(same) == 2


@needs_gpu
def test_passes_that_never_go_backward_are_not_kept() -> None:
    _, net = pair()
    for step in range(_MOST + 3):
        net(images(step))
    assert net._recorded is not None
    (same,) = net._recorded._recordings.values()
    assert len(same) == 1


@needs_gpu
def test_more_passes_than_recordings_run_as_usual() -> None:
    plain, recorded = pair()
    for net in (plain, recorded):
        sum(net(images(step)).square().sum() for step in range(_MOST + 2)).backward()  # type: ignore[union-attr]
    assert_grads_agree(plain, recorded)


@needs_gpu
def test_freezing_is_followed() -> None:
    plain, recorded = pair("efficientnet_lite0")
    for stages, norms in ((0, False), (3, True), (0, False)):
        for net in (plain, recorded):
            net.freeze(stages, batch_norm=norms)
            net.zero_grad(set_to_none=True)
            net(images(0)).square().sum().backward()
        assert len(grads(plain)) == len(grads(recorded))
        assert_grads_agree(plain, recorded)


@needs_gpu
def test_training_gives_the_same_history_and_bits_when_determinism_is_asked_for() -> None:
    made = make_scenes("train", 40)
    labels = single_positive(Labels.from_dense(made.truth, made.classes))
    data = Loader(TensorImages(made.images), labels, size=24, device="cuda", cache="device")
    ends = []
    try:
        for record in (False, True, True):
            method = loss_method(dropout=0.2)
            runtime = Runtime(torch.device("cuda"), "fp32", deterministic=True, record=record)
            result = fit(method, data, plan(epochs=3, augment="crop"), runtime=runtime)
            ends.append((result.history[-1]["loss"], torch.cat([p.detach().flatten() for p in method.parameters()])))
    finally:
        torch.use_deterministic_algorithms(False)
    assert ends[1][0] == ends[2][0]
    assert torch.equal(ends[1][1], ends[2][1])
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-3)

"""The label-wise decoder, against the same formulas in float64 loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.engine import fit
from pluralis.errors import RecipeError
from pluralis.losses import create_loss
from pluralis.method import LossMethod
from pluralis.models import HEADS, create_model
from pluralis.models.label_decoder import LabelDecoder, sine_positions
from tests.toys import plan, scenes


def make(variant: str = "paper", channels: int = 8, classes: int = 3, **more: object) -> LabelDecoder:
    torch.manual_seed(0)
    size = {} if variant == "released" else {"dim": 12}
    head = LabelDecoder(channels, classes, heads=2, variant=variant, **{**size, **more})  # type: ignore[arg-type]
    with torch.no_grad():
        for p in head.parameters():
            p.add_(0.1 * torch.randn_like(p))  # biases and norms away from 0 and 1
    return head.eval()


def reference(head: LabelDecoder, features: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Logits [B, C] and the last attention [B, C, h·w], head by head."""
    p = {k: v.detach().double().numpy() for k, v in head.state_dict().items()}
    x = features.double().numpy()
    d, h, w = head.dim, *x.shape[2:]

    def norm(v: np.ndarray, name: str) -> np.ndarray:
        v = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5)
        return v * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(v: np.ndarray, name: str) -> np.ndarray:
        return v @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def block(
        name: str, own: np.ndarray, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        q, k, v = linear(query, f"{name}.query"), linear(key, f"{name}.key"), linear(value, f"{name}.value")
        parts, maps, width = [], [], d // 2
        for i in range(2):
            s = slice(i * width, (i + 1) * width)
            a = np.exp(q[:, s] @ k[:, s].T / math.sqrt(width))
            a /= a.sum(1, keepdims=True)
            parts.append(a @ v[:, s])
            maps.append(a)
        y = norm(own + linear(np.concatenate(parts, 1), f"{name}.out"), f"{name}.norm1")
        inner = np.maximum(linear(y, f"{name}.ffn.0"), 0)
        return norm(y + linear(inner, f"{name}.ffn.3"), f"{name}.norm2"), (maps[0] + maps[1]) / 2

    place = np.zeros((h, w, d))
    for row in range(h):
        for column in range(w):
            for i in range(d // 4):
                for half, u in enumerate(((row + 1) / h * 2 * math.pi, (column + 1) / w * 2 * math.pi)):
                    angle = u / 10_000 ** (4 * i / d)
                    place[row, column, half * d // 2 + 2 * i] = math.sin(angle)
                    place[row, column, half * d // 2 + 2 * i + 1] = math.cos(angle)
    place = place.reshape(h * w, d)

    logits, maps = [], []
    for one in x:
        f = one.reshape(len(one), h * w).T
        f = linear(f, "project") if "project.weight" in p else f
        f, _ = block("encoder", f, f + place, f + place, f)
        e = p["queries"]
        for i in range(len(head.decoder)):
            e, attention = block(f"decoder.{i}", e, e, f + place, f)
        logits.append((e * p["weight"]).sum(1) + p["bias"])
        maps.append(attention)
    return np.stack(logits), np.stack(maps)


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (4, 2)])
def test_logits_and_attention_follow_the_formulas(variant: str, shape: tuple[int, int]) -> None:
    head = make(variant).double()
    features = torch.randn(2, 8, *shape, dtype=torch.float64)
    logits, maps = reference(head, features)
    np.testing.assert_allclose(head(features).detach().numpy(), logits, rtol=1e-5, atol=1e-6)  # positions are float32
    found = head.attention(features)
    assert found.shape == (2, 3, *shape)
    np.testing.assert_allclose(found.flatten(2).numpy(), maps, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.sum((2, 3)), torch.ones(2, 3, dtype=found.dtype))


def test_embeddings_are_what_is_classified() -> None:
    head, features = make(), torch.randn(2, 8, 3, 3)
    embeddings = head.embed(features)
    assert embeddings.shape == (2, 3, 12)
    torch.testing.assert_close(head.classify(embeddings), head(features))


def test_a_vector_is_a_map_of_one_position() -> None:
    head, features = make(), torch.randn(2, 8)
    torch.testing.assert_close(head(features), head(features[..., None, None]))
    assert head.attention(features).tolist() == torch.ones(2, 3, 1, 1).tolist()


def test_classes_are_independent_and_places_are_not() -> None:
    head, features = make(), torch.randn(2, 8, 3, 3)
    logits = head(features)
    assert not torch.allclose(head(features.flip(-1)), logits, atol=1e-3)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        for p in (head.queries, head.weight, head.bias):
            p.copy_(p[order].clone())
    torch.testing.assert_close(head(features), logits[:, order])


def test_every_place_has_its_own_encoding() -> None:
    codes = sine_positions(14, 14, 64)
    assert codes.abs().max() <= 1
    distance = torch.cdist(codes, codes).fill_diagonal_(9)
    assert distance.min() > 0.1


def test_bias_moves_the_logits_and_must_be_finite() -> None:
    head, features = make(), torch.randn(2, 8, 3, 3)
    head.set_bias(torch.zeros(3))
    before = head(features)
    head.set_bias(torch.tensor([-3.0, 0.0, 2.0]))
    torch.testing.assert_close(head(features), before + torch.tensor([-3.0, 0.0, 2.0]))
    with pytest.raises(RecipeError, match="class 1"):
        head.set_bias(torch.tensor([0.0, -torch.inf, 1.0]))


@pytest.mark.parametrize("setting", [{"attention_dropout": 0.5}, {"attention_dropout": 0.0, "dropout": 0.5}])
def test_dropout_acts_in_training_only(setting: dict[str, float]) -> None:
    head, features = make(**setting).train(), torch.randn(4, 8, 3, 3)
    assert not torch.equal(head(features), head(features))
    head.eval()
    assert torch.equal(head(features), head(features))


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_attention_is_without_dropout_and_leaves_the_mode(variant: str) -> None:
    head, features = make(variant, attention_dropout=0.5), torch.randn(2, 8, 3, 3)
    expected = head.attention(features)
    assert not head.training
    head.train()
    assert torch.equal(head.attention(features), expected)
    assert all(module.training for module in head.modules())
    with pytest.raises(RuntimeError):
        head.attention(torch.randn(2, 8, 3, 3, dtype=torch.complex64))
    assert head.training, "also after a failure"


def test_the_released_decoder_is_the_larger_one() -> None:
    head = LabelDecoder(16, 5, variant="released")
    block = 4 * (16 * 16 + 16) + (16 * 64 + 64 + 64 * 16 + 16) + 4 * 16
    assert sum(p.numel() for p in head.parameters()) == 3 * block + 2 * 5 * 16 + 5
    assert head.dim == 16


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dim": 18}, "multiple of 4"),
        ({"dim": 16, "heads": 3}, "multiple of 4 and of the heads"),
        ({"dim": 16, "variant": "released"}, "no projection"),
        ({"variant": "other"}, "paper, released"),
        ({"attention_dropout": 1.0}, "attention_dropout"),
        ({"ffn": 0}, "ffn"),
    ],
)
def test_impossible_settings(params: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        HEADS["label-decoder"](8, 3, **params)


def test_a_plain_loss_learns_with_it_and_every_part_moves() -> None:
    torch.manual_seed(0)
    net = create_model("tiny", 10, "label-decoder", dropout=0.1, head_params={"dim": 16})
    before = {k: v.detach().clone() for k, v in net.head.named_parameters()}
    result = fit(LossMethod(net, create_loss("an")), scenes(16), plan(epochs=4, augment="none"))
    assert result.history[-1]["loss"] < 0.8 * result.history[0]["loss"]
    assert not [k for k, v in net.head.named_parameters() if torch.equal(v, before[k])]


def test_bfloat16_stays_close() -> None:
    head, features = make().eval(), torch.randn(2, 8, 5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = head(features)
        maps = head.attention(features)
    torch.testing.assert_close(half.float(), head(features), rtol=0.1, atol=0.1)
    torch.testing.assert_close(maps.sum((2, 3)), torch.ones(2, 3), rtol=1e-3, atol=1e-3)

"""The head of semantic decoupling and graph propagation, the label graph, and files of word vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pluralis.errors import DataError, RecipeError
from pluralis.labels import Labels
from pluralis.models import HEADS, create_model
from pluralis.models import word_vectors as reader
from pluralis.models.semantic_graph import SemanticGraphHead, co_occurrence
from pluralis.models.word_vectors import read_word_vectors

CLASSES = ("Cat", "traffic light", "dining_table")
LABELS = Labels.from_lists([[0, 1], [0], [0], [0, 1]], CLASSES)
LINES = "the 9 9 9\ncat 1 2 3\ntraffic 1 0 0\nlight 0 1 -4e0\ndining 2 2 2\ntable 0 0 0\ncat 7 7 7\n"


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    path.write_text(LINES)
    return path


def head_of(**params: object) -> SemanticGraphHead:
    torch.manual_seed(0)
    return SemanticGraphHead(6, 3, **{"word_dim": 4, **params})  # type: ignore[arg-type]


def reference(head: SemanticGraphHead, x: np.ndarray) -> np.ndarray:
    """One image [D, K], class by class; the two layers of the published score and their constant written out."""
    s = {k: v.double().numpy() for k, v in head.state_dict().items()}
    sigma = lambda t: 1 / (1 + np.exp(-t))  # noqa: E731
    x = s["reduce.weight"] @ x
    x = (x - s["norm.running_mean"][:, None]) / np.sqrt(s["norm.running_var"][:, None] + 1e-5)
    x = x * s["norm.weight"][:, None] + s["norm.bias"][:, None]
    own = []
    for c in range(len(s["bias"])):
        score = [
            s["score.weight"][0] @ np.tanh((s["look.weight"] @ x[:, k]) * (s["name.weight"] @ s["words"][c])) + 5.0
            for k in range(x.shape[1])
        ]
        a = np.exp(score) / np.exp(score).sum()
        own.append(sum(a[k] * x[:, k] for k in range(x.shape[1])))
    h, width = np.array(own), x.shape[0]
    wz, wr, wc = s["propagate.message.weight"].reshape(3, width, -1)
    bz, br, bc = s["propagate.message.bias"].reshape(3, width)
    uz, ur = s["propagate.gates.weight"].reshape(2, width, width)
    for _ in range(head.propagate.steps):
        new = []
        for c in range(len(h)):
            into, out = (sum(g[j] * h[j] for j in range(3)) for g in (s["graph"][c], s["graph"][:, c]))
            m = np.concatenate([into, out])
            z, r = sigma(wz @ m + bz + uz @ h[c]), sigma(wr @ m + br + ur @ h[c])
            new.append((1 - z) * h[c] + z * np.tanh(wc @ m + bc + s["propagate.candidate.weight"] @ (r * h[c])))
        h = np.array(new)
    out = [np.tanh(s["output.weight"] @ np.concatenate([h[c], own[c]]) + s["output.bias"]) for c in range(3)]
    return np.array([s["weight"][c] @ out[c] + s["bias"][c] for c in range(3)])


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_formula(steps: int) -> None:
    head = head_of(steps=steps).double()
    head.start(LABELS)
    head.set_bias(torch.tensor([0.5, -1.0, 2.0]))
    features = torch.randn(4, 6, 2, 3, dtype=torch.float64)
    head(features)  # moves the running statistics
    head.eval()
    expected = [reference(head, image.flatten(1).numpy()) for image in features]
    np.testing.assert_allclose(head(features).detach().numpy(), expected, rtol=1e-10)


def test_pooling_comes_before_everything() -> None:
    plain, pooled = head_of().eval(), head_of(pool=2).eval()
    x = torch.randn(2, 6, 4, 6)
    means = x.unflatten(3, (3, 2)).unflatten(2, (2, 2)).mean((3, 5))
    torch.testing.assert_close(pooled(x), plain(means))
    assert not torch.allclose(pooled(x), plain(x), atol=1e-4)
    odd = torch.randn(2, 6, 5, 3)  # what is left at the border is averaged too
    cells = [odd[:, :, i : i + 2, j : j + 2].mean((2, 3)) for i in (0, 2, 4) for j in (0, 2)]
    torch.testing.assert_close(pooled(odd), plain(torch.stack(cells, -1).unflatten(-1, (3, 2))))
    for one in (torch.randn(2, 6, 1, 1), torch.randn(2, 6)):
        torch.testing.assert_close(pooled(one), plain(one))
    with pytest.raises(RecipeError, match="pool is 0"):
        head_of(pool=0)


def test_messages_pass_between_classes_that_occur_together() -> None:
    head = head_of().eval()
    features = torch.randn(2, 6)
    alone = head(features)
    head.start(LABELS)
    told = head(features)
    moved = (told - alone).abs() > 1e-6
    assert moved[:, :2].all()
    assert not moved[:, 2].any(), "a class that is never present hears only itself"


def test_the_label_graph() -> None:
    labels = Labels.from_dense([[1, 1, 0, -1], [1, 0, 0, 1], [1, 1, -1, 0], [0, 0, 0, 0]])
    expected = [[1, 2 / 3, 0, 1 / 3], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    assert co_occurrence(labels).tolist() == [pytest.approx(row) for row in expected]


def test_one_positive_a_row_tells_nothing_of_co_occurrence() -> None:
    assert torch.equal(co_occurrence(Labels.from_lists([[0], [2], [2], []], 4)), torch.eye(4))
    assert torch.equal(co_occurrence(Labels.from_lists([], 2)), torch.eye(2))


@pytest.mark.parametrize("shape", [(2, 6), (1, 6), (1, 6, 1, 1), (3, 6, 4, 4)])
def test_trains_on_maps_and_vectors_and_single_rows(shape: tuple[int, ...]) -> None:
    head = head_of(dropout=0.2)
    head.start(LABELS)
    logits = head(torch.randn(shape))
    assert logits.shape == (shape[0], 3)
    logits.square().sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_a_vector_is_a_map_of_one_position() -> None:
    head = head_of().eval()
    x = torch.randn(2, 6)
    torch.testing.assert_close(head(x), head(x[:, :, None, None]))


def test_bias_and_sizes() -> None:
    head = head_of()
    assert torch.equal(head.bias, torch.zeros(3))
    head.set_bias(torch.tensor([1.0, 2.0, 3.0]))
    assert head.bias.tolist() == [1, 2, 3]
    with pytest.raises(RecipeError, match="3 classes"):
        head.set_bias(torch.zeros(2))
    with pytest.raises(RecipeError, match="3 classes but the labels 2"):
        head.start(Labels.from_lists([[0]], 2))
    large = SemanticGraphHead(2048, 2)
    assert (large.reduce.out_features, large.look.out_features, large.words.shape[1]) == (1024, 512, 300)
    assert (head.reduce.out_features, head.look.out_features) == (6, 3)
    for wrong in ({"steps": -1}, {"word_dim": 0}, {"width": 1.5}, {"word_vectors": ""}, {"word_vectors": 3}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            head_of(**wrong)


def test_predictions_in_half_precision_are_finite() -> None:
    head = head_of().eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert head(1e4 * torch.randn(2, 6, 3, 3)).isfinite().all()


def test_word_vectors_by_name_and_by_the_mean_of_words(vectors: Path) -> None:
    got = read_word_vectors(str(vectors), CLASSES, 3)
    assert got.tolist() == [[1, 2, 3], [0.5, 0.5, -2], [1, 1, 1]]


def test_a_name_of_its_own_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("4 2\nt-shirt 1 2\nt 0 0\nshirt 0 0\n\n")  # with the header that some tools write
    assert read_word_vectors(str(path), ["T-shirt"], 2).tolist() == [[1, 2]]


def test_vectors_that_were_never_read_are_missed(vectors: Path) -> None:
    """Without them every class would look at the same place, in silence."""
    head = head_of(word_vectors=str(vectors), word_dim=3).eval()
    empty = head.state_dict()
    with pytest.raises(RecipeError, match=r"glove\.txt were not read yet; call start\(labels\)"):
        head(torch.randn(2, 6))
    head.start(LABELS)
    head(torch.randn(2, 6))
    copied = head_of(word_vectors=str(vectors), word_dim=3).eval()
    copied.load_state_dict({k: torch.zeros_like(v) if k == "words" else v for k, v in empty.items()})
    with pytest.raises(RecipeError, match="not read yet"):
        copied(torch.randn(2, 6))
    copied.load_state_dict(head.state_dict())
    copied(torch.randn(2, 6))


def test_vectors_are_kept_with_the_weights(vectors: Path) -> None:
    params = {"word_vectors": str(vectors), "word_dim": 3}
    assert HEADS["semantic-graph"] is SemanticGraphHead
    net = create_model("tiny", 3, "semantic-graph", head_params=params).eval()
    net.head.start(LABELS)
    vectors.unlink()  # a finished run is used where the file is not
    other = create_model("tiny", 3, "semantic-graph", head_params=params).eval()
    other.load_state_dict(net.state_dict())
    x = torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8)
    assert torch.equal(other(x), net(x))
    assert "words" not in dict(net.head.named_parameters())
    assert torch.equal(other.head.get_buffer("graph"), co_occurrence(LABELS))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cat 1 2 x\n", "line 1: .*'x'"),
        ("the 1\ncat 1 2\n", "line 2 has 2 numbers, not 3; .*word_dim"),
        ("cat 1 2 3 4\n", "line 1 has 4 numbers"),
        ("cat\n", "line 1 has 0 numbers"),
        ("cat 1 nan 3\n", "line 1 .*not finite"),
        ("cat 1 1e99 3\n", "line 1 .*not finite"),
        ("cat 1 2 3\n", "has none for 'traffic light', 'dining_table'"),
        ("cat 1 2 3\nlight 1 2 3\n", "'traffic light'"),
        ("", "'Cat'"),
        ("\0\n\n \n", "'Cat'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "v.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=complaint):
        read_word_vectors(str(path), CLASSES, 3)


def test_endless_lines_and_other_encodings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LONGEST_LINE", 1000)
    path = tmp_path / "v.txt"
    path.write_bytes(b"\xff\xfe 1 2 3\ncat 1 2 3\n" + b"x" * 5000)
    with pytest.raises(DataError, match="line 3 is longer"):
        read_word_vectors(str(path), ["cat"], 3)
    path.write_bytes(b"\xff\xfe 1 2 3\ncat 1 2 3")
    assert read_word_vectors(str(path), ["cat"], 3).tolist() == [[1, 2, 3]]


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(DataError, match="plain file"):
            read_word_vectors(str(path), ["cat"], 3)

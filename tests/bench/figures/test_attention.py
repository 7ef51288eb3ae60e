from __future__ import annotations

import numpy as np
import pytest
import torch

from pluralis.bench.figures.attention import attention, draw_attention
from pluralis.bench.store import Result
from pluralis.data.augment import resize
from pluralis.data.protocols import single_positive
from pluralis.data.scenes import make_scenes
from pluralis.errors import DataError
from pluralis.labels import Labels
from pluralis.trained_run import load_run


def test_maps_are_those_of_the_head_for_the_written_and_the_most_probable_labels(kept: list[Result]) -> None:
    run = kept[3]
    found = attention(run, count=2, labels=3)
    trained = load_run(run.folder, "cpu")
    (_, net), scenes = next(trained.method.networks()), make_scenes("train", 60)
    rows = np.sort(np.argsort(-(scenes.truth > 0).sum(1), kind="stable")[:2])
    given = single_positive(Labels.from_dense(scenes.truth, scenes.classes), 1200).dense()
    for one, row in zip(found, rows, strict=True):
        with torch.no_grad():
            features = net.features(resize(scenes.images[[row]], 24))
            p, maps = net.head(features).sigmoid()[0], net.head.attention(features)[0]
        written = int(given[row].argmax())
        rest = [c for c in p.argsort(descending=True).tolist() if c != written][:2]
        assert one.labels == tuple(trained.classes[c] for c in [written, *rest])
        assert one.written == (True, False, False)
        assert one.p == pytest.approx(p[[written, *rest]].numpy(), rel=1e-5)
        assert np.allclose(one.maps, maps[[written, *rest]].numpy(), atol=1e-6)
        assert one.maps.sum((1, 2)) == pytest.approx(1)
        assert one.picture.shape == (24, 24, 3)


def test_test_pictures_have_nothing_written(kept: list[Result]) -> None:
    (one,) = attention(kept[3], count=1, labels=4, part="test")
    assert one.written == (False,) * 4
    assert (np.diff(one.p) <= 0).all()


def test_the_run_with_the_decoder_is_drawn_and_others_are_refused(kept: list[Result]) -> None:
    figure = draw_attention(kept, count=2, labels=2)
    assert len(figure.axes) == 6
    assert "written" in figure.axes[1].get_title()
    assert "p = 0." in figure.axes[2].get_title()
    with pytest.raises(DataError, match="label-decoder"):
        draw_attention(kept[:2])

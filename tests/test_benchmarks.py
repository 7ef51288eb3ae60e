"""Formulas that only a benchmark has, and whether stored results are still those of its recipes."""

from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks.papers_page import RESULTS
from benchmarks.pick_model import likelihood
from benchmarks.voc2012 import Bench
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


def test_stored_results_of_voc2012_belong_to_the_recipes_that_make_them_today() -> None:
    """A default that changes would make them figures of something else, and the queue would run them all again."""
    bench = Bench(Path("unused"), ["fair", "default", "large", "draw", "mean"], [], [], RESULTS, 3)
    missing = [row.key for row in bench.rows() if len(bench.runs(row)) < row.seeds]
    assert not missing


def test_kept_norms_are_other_runs() -> None:
    rows = Bench(Path("unused"), ["fair", "kept-fair"], [], [], None, 3).rows()
    plain, kept = ({row.name: row for row in rows if row.group == group} for group in ("fair", "kept-fair"))
    assert plain.keys() == kept.keys() == {"an", "all labels", "em-apl", "gr", "cls", "lac", "pu-mlc"}
    assert not {row.recipe_hash([]) for row in plain.values()} & {row.recipe_hash([]) for row in kept.values()}
    learning = {row.recipe_hash(["train.freeze_bn=false"]) for row in plain.values()}
    assert learning == {row.recipe_hash([]) for row in plain.values()}

"""Digit scenes: the same bytes every time, digits that no two splits share, and a truth that can be seen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from pluralis.data import scenes
from pluralis.data.scenes import CLASSES, Split, digit_rows, make_scenes, single_digits
from pluralis.errors import DataError

SPLITS: tuple[Split, ...] = ("train", "val", "test")


def plans(split: Split, count: int) -> list[scenes._Plan]:
    return [plan for _, plan in scenes._plans(split, count, 0, 48, scenes._SCENES)]


def test_shapes_types_and_names() -> None:
    made = make_scenes("train", 5, size=40)
    assert made.images.shape == (5, 3, 40, 40)
    assert made.images.dtype == torch.uint8
    assert made.truth.shape == (5, 10)
    assert made.truth.dtype == np.int8
    assert made.classes == CLASSES == tuple("0123456789")
    images, digit = single_digits(5)
    assert images.shape == (5, 3, 48, 48)
    assert images.dtype == torch.uint8
    assert digit.shape == (5,)
    assert digit.dtype == torch.int64


def test_same_arguments_give_the_same_bytes() -> None:
    one, two = make_scenes("val", 40, seed=3), make_scenes("val", 40, seed=3)
    assert torch.equal(one.images, two.images)
    assert np.array_equal(one.truth, two.truth)
    assert torch.equal(single_digits(9)[0], single_digits(9)[0])


def test_seed_split_and_kind_change_the_images() -> None:
    base = make_scenes("train", 4).images
    assert not torch.equal(base, make_scenes("train", 4, seed=1).images)
    assert not torch.equal(base, make_scenes("test", 4).images)
    assert not torch.equal(base, single_digits(4)[0])
    noise = [plans(split, 1)[0].noise for split in SPLITS]
    assert not np.array_equal(noise[0], noise[1])
    assert not np.array_equal(noise[0], noise[2])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 50])
def test_a_larger_count_only_adds_images(count: int) -> None:
    few, many = make_scenes("train", count), make_scenes("train", 70)
    assert torch.equal(few.images, many.images[:count])
    assert np.array_equal(few.truth, many.truth[:count])
    assert torch.equal(single_digits(count)[0], single_digits(70)[0][:count])


def test_splits_share_no_digit_and_use_them_all() -> None:
    rows = [set(digit_rows(split).tolist()) for split in SPLITS]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 1797
    labels = scenes._digits()[1]
    for split in SPLITS:
        assert np.bincount(labels[digit_rows(split)]).min() >= 30


@pytest.mark.parametrize("split", SPLITS)
def test_a_scene_uses_only_digits_of_its_split(split: Split) -> None:
    allowed = digit_rows(split)
    for plan in plans(split, 300):
        for used in (plan.digit, plan.fragment):
            assert np.isin(used[used >= 0], allowed).all()


@pytest.mark.parametrize("split", SPLITS)
def test_truth_is_complete_balanced_and_about_three_a_scene(split: Split) -> None:
    truth = make_scenes(split, 2000).truth
    assert set(np.unique(truth)) == {-1, 1}
    number = (truth > 0).sum(axis=1)
    assert number.min() >= 1
    assert number.max() <= 6
    assert 2.9 < number.mean() < 3.2
    share = (truth > 0).mean(axis=0)
    assert share.min() > 0.22
    assert share.max() < 0.40


def test_truth_is_what_was_planned() -> None:
    labels, truth = scenes._digits()[1], make_scenes("test", 60).truth
    digits = np.concatenate([plan.digit for plan in plans("test", 60)])
    for row, used in zip(truth, digits, strict=True):
        assert set(np.flatnonzero(row == 1)) == set(labels[used[used >= 0]])


def test_every_listed_digit_is_visible_where_it_was_put() -> None:
    for plan in plans("test", 160):
        whole = scenes._draw(plan).astype(int)
        for k in range(plan.digit.shape[1]):
            present = plan.digit[:, k] >= 0
            digit = plan.digit.copy()
            digit[:, k] = -1
            without = scenes._draw(dataclasses.replace(plan, digit=digit)).astype(int)
            changed = np.abs(whole - without).max(axis=1) > 15
            assert (changed.sum(axis=(1, 2))[present] >= 20).all()
            assert not changed[~present].any()


def test_digits_lie_inside_the_image() -> None:
    for plan in plans("train", 300):
        assert plan.box[..., :2].min() >= 0
        assert (plan.box[..., :2] + plan.box[..., 2:]).max() <= 48 + 1e-3


def test_single_digits_have_one_digit_of_every_class() -> None:
    images, digit = single_digits(500, split="val")
    assert images.shape[0] == 500
    assert np.bincount(digit.numpy(), minlength=10).min() > 20
    plan = next(scenes._plans("val", 16, 0, 48, scenes._SINGLE))[1]
    assert ((plan.digit >= 0).sum(axis=1) == 1).all()
    assert np.array_equal(scenes._digits()[1][plan.digit[:, 0]], digit[:16].numpy())


@pytest.mark.parametrize(
    ("split", "count", "seed", "size"),
    [("train", 0, 0, 48), ("train", -1, 0, 48), ("train", 1, -1, 48), ("train", 1, 0, 8), ("dev", 1, 0, 48)],
)
def test_impossible_requests_are_refused(split: Split, count: int, seed: int, size: int) -> None:
    with pytest.raises(DataError, match="digit scenes"):
        make_scenes(split, count, seed, size)

"""Strong augmentation against Pillow, parts of pictures against slices, and what is drawn for whom."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from pluralis.data import augment, randaugment
from pluralis.data.augment import AUGMENTS, COLUMNS, Augment, make_view
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.randaugment import COLOUR, FILL, GEOMETRIC, OPERATIONS, Strong, mean_level
from pluralis.data.scenes import make_scenes
from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.method import Clock
from pluralis.seeding import generator
from pluralis.stage import Stage

PIXELS = make_scenes("train", 6).images  # uint8 [6, 3, 48, 48]
RAMP = torch.arange(64.0)


def draws(name: str, rows: int = 6, seed: int = 0) -> Tensor:
    return torch.rand(rows, AUGMENTS[name].columns, generator=torch.Generator().manual_seed(seed))


def chosen(first: str, second: str = "identity", sign: float = 1.0, rows: int = 6) -> Tensor:
    """Draws for these two operations, without a flip, and with the patch's centre in the top left corner."""
    table = torch.full((rows, Strong.columns), 0.999)
    for column, name in ((1, first), (2, second)):
        table[:, column] = (OPERATIONS.index(name) + 0.5) / len(OPERATIONS)
    table[:, 3:5] = 0.9 if sign > 0 else 0.1
    table[:, 5:7] = 0.0
    return table


def pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


PILLOW = {
    "identity": lambda im, f: im,
    "autocontrast": lambda im, f: ImageOps.autocontrast(im),
    "brightness": lambda im, f: ImageEnhance.Brightness(im).enhance(f),
    "contrast": lambda im, f: ImageEnhance.Contrast(im).enhance(f),
    "colour": lambda im, f: ImageEnhance.Color(im).enhance(f),
    "sharpness": lambda im, f: ImageEnhance.Sharpness(im).enhance(f),
    "solarize": lambda im, f: ImageOps.solarize(im, 179),
    "posterize": lambda im, f: ImageOps.posterize(im, 7),
}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", PILLOW)
def test_colour_operations_are_those_of_pillow(name: str, sign: float) -> None:
    """Beside the patch, which covers the top left quarter of the sides; Pillow cuts to whole levels on the way."""
    out = AUGMENTS["strong"](PIXELS, chosen(name, sign=sign), 48)
    for row in range(6):
        expected = tensor(PILLOW[name](pillow(PIXELS[row]), 1 + 0.27 * sign))
        assert (out[row] - expected)[:, 12:].abs().max() < 1.3


@pytest.mark.parametrize("name", COLOUR)
def test_the_second_operation_is_as_good_as_the_first(name: str) -> None:
    """Each with its own sign."""
    table = chosen("identity", name)
    table[:, 3], table[:, 4] = 0.9, 0.1
    alone = AUGMENTS["strong"](PIXELS, chosen(name, sign=-1.0), 48)
    assert torch.equal(AUGMENTS["strong"](PIXELS, table, 48), alone)
    assert not torch.allclose(alone, AUGMENTS["strong"](PIXELS, chosen("identity"), 48), atol=0.1)


def test_equalize_makes_grey_levels_equally_frequent() -> None:
    torch.manual_seed(0)
    narrow = (100 + 15 * torch.randn(2, 3, 64, 64)).round().clamp(0, 255)
    out = randaugment._equalize(narrow, torch.ones(2, 1, 1, 1))
    quantiles = torch.quantile(out.flatten(2), torch.tensor([0.25, 0.5, 0.75]), dim=2)
    assert (quantiles - torch.tensor([63.75, 127.5, 191.25])[:, None, None]).abs().max() < 8
    expected = tensor(ImageOps.equalize(pillow(narrow[0].byte())))
    assert (out[0] - expected).abs().mean() < 6  # it counts half a level otherwise
    flat = torch.full((1, 3, 8, 8), 77.0)
    assert torch.equal(randaugment._equalize(flat, torch.ones(1, 1, 1, 1)), flat)


def test_a_flat_picture_survives_every_operation() -> None:
    flat = torch.full((1, 3, 16, 16), 80, dtype=torch.uint8)
    for name in OPERATIONS:
        assert torch.isfinite(AUGMENTS["strong"](flat, chosen(name, name, rows=1), 16)).all()


def smooth() -> Tensor:
    """A picture [1, 3, 64, 64] whose first two channels are its own coordinates."""
    return torch.stack([RAMP.expand(64, 64), RAMP[:, None].expand(64, 64), torch.full((64, 64), 99.0)])[None]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("translate-x", lambda s: (1, 0, s * 0.3 * 150 / 331 * 64, 0, 1, 0)),
        ("translate-y", lambda s: (1, 0, 0, 0, 1, s * 0.3 * 150 / 331 * 64)),
        ("shear-x", lambda s: (1, s * 0.09, -s * 0.09 * 31.5, 0, 1, 0)),
        ("shear-y", lambda s: (1, 0, 0, s * 0.09, 1, -s * 0.09 * 31.5)),
    ],
)
def test_geometric_operations_move_coordinates(name: str, matrix: object, sign: float) -> None:
    a, b, c, d, e, f = matrix(sign)  # type: ignore[operator]
    out = AUGMENTS["strong"](smooth(), chosen(name, sign=sign, rows=1), 64)[0]
    x, y = RAMP.expand(64, 64), RAMP[:, None].expand(64, 64)
    from_x, from_y = a * x + b * y + c, d * x + e * y + f
    inside = (from_x >= 0) & (from_x <= 63) & (from_y >= 0) & (from_y <= 63) & (y >= 16)
    assert inside.sum() > 1500
    torch.testing.assert_close(out[0][inside], from_x[inside], rtol=0, atol=2e-3)
    torch.testing.assert_close(out[1][inside], from_y[inside], rtol=0, atol=2e-3)
    outside = (from_x < -1) | (from_x > 64) | (from_y < -1) | (from_y > 64)
    assert (out[:, outside] == FILL).all()


def test_rotation_is_nine_degrees_about_the_middle() -> None:
    out = AUGMENTS["strong"](smooth(), chosen("rotate", rows=1), 64)[0]
    x, y = RAMP.expand(64, 64) - 31.5, RAMP[:, None].expand(64, 64) - 31.5
    angle = math.radians(9)
    middle = (x.square() + y.square() < 30**2) & (y > -15.6)
    expected = math.cos(angle) * x + math.sin(angle) * y + 31.5
    torch.testing.assert_close(out[0][middle], expected[middle], rtol=0, atol=2e-3)


def test_two_operations_follow_each_other() -> None:
    """A shift and a shear do not commute; neither do brightness and solarize."""
    for first, second in (("translate-y", "shear-x"), ("brightness", "solarize")):
        one = AUGMENTS["strong"](PIXELS, chosen(first, second), 48)
        other = AUGMENTS["strong"](PIXELS, chosen(second, first), 48)
        assert not torch.allclose(one, other, atol=1)
    # What comes second is undone first: a place in the new picture is sheared, then shifted, to its place in the old.
    out = AUGMENTS["strong"](smooth(), chosen("translate-y", "shear-x", rows=1), 64)[0]
    torch.testing.assert_close(out[0, 20:50, 32], 32 + 0.09 * (RAMP[20:50] - 31.5), rtol=0, atol=2e-3)
    twice = AUGMENTS["strong"](smooth(), chosen("translate-x", "translate-x", rows=1), 64)[0]
    shift = 2 * 0.3 * 150 / 331 * 64
    torch.testing.assert_close(twice[0, 40, :30], RAMP[:30] + shift, rtol=0, atol=2e-3)


def test_the_flip_is_drawn_on_its_own() -> None:
    table = chosen("identity")
    table[2, 0] = 0.1
    out = AUGMENTS["strong"](PIXELS, table, 48)
    torch.testing.assert_close(out[2, :, 12:], PIXELS[2, :, 12:].flip(-1).float(), rtol=0, atol=1e-2)
    torch.testing.assert_close(out[3, :, 12:], PIXELS[3, :, 12:].float(), rtol=0, atol=1e-2)


def test_the_patch_has_half_the_side_and_ends_at_the_border() -> None:
    table = chosen("identity", rows=2)
    table[0, 5:7] = torch.tensor([0.5, 0.25])  # x, y of the centre
    white = torch.full((2, 3, 48, 48), 255, dtype=torch.uint8)
    blank = AUGMENTS["strong"](white, table, 48) == FILL
    expected = torch.zeros(2, 3, 48, 48, dtype=torch.bool)
    expected[0, :, :24, 12:36] = True
    expected[1, :, :12, :12] = True  # centred on the corner
    assert torch.equal(blank, expected)


def test_the_released_form_colours_the_patch_and_may_take_all_colour() -> None:
    table = chosen("identity", rows=2)
    table[:, 7:10] = torch.tensor([1.0, 0.0, 0.5])
    table[1, 14] = 0.1
    white = torch.full((2, 3, 48, 48), 200, dtype=torch.uint8)
    out = AUGMENTS["strong-released"](white, table, 48)
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor([255.0, 0.0, 127.5]))
    assert (out[1] - out[1, :1]).abs().max() < 1e-3
    table[:, 13], table[:, 10:13] = 0.1, torch.tensor([0.25, 0.5, 0.5])  # 20 % darker
    torch.testing.assert_close(AUGMENTS["strong-released"](white, table, 48)[0, :, 40, 40], torch.full((3,), 160.0))


def test_multi_scale_takes_each_published_side() -> None:
    out = AUGMENTS["multi-scale"](smooth().expand(200, 3, 64, 64), draws("multi-scale", 200), 32)
    width = (out[:, 0].amax((1, 2)) - out[:, 0].amin((1, 2))) / 64 * 32 / 31
    height = (out[:, 1].amax((1, 2)) - out[:, 1].amin((1, 2))) / 64 * 32 / 31
    torch.testing.assert_close(width, height, rtol=0, atol=1e-3)
    sides, counts = width.mul(8).round().div(8).unique(return_counts=True)
    assert sides.tolist() == [0.5, 0.625, 0.75, 0.875, 1.0]
    assert counts.min() > 20
    mirrored = (out[:, 0, 0, 0] > out[:, 0, 0, -1]).float().mean()
    assert 0.35 < mirrored < 0.65


def test_a_window_is_a_slice() -> None:
    table = torch.tensor([[0.0, 0.0, 0.9], [0.999, 0.5, 0.9], [0.999, 0.999, 0.1]])
    out = AUGMENTS["window"](PIXELS[:3], table, 32)
    assert out.dtype == torch.uint8
    assert torch.equal(out[0], PIXELS[0, :, :32, :32])
    assert torch.equal(out[1], PIXELS[1, :, 8:40, 16:])
    assert torch.equal(out[2], PIXELS[2, :, 16:, 16:].flip(-1))
    assert torch.equal(AUGMENTS["window"](PIXELS[:1], table[:1], 48), PIXELS[:1])
    with pytest.raises(RecipeError, match=r"data\.store_size"):
        AUGMENTS["window"](PIXELS, draws("window"), 64)


def test_a_strong_crop_is_the_strong_view_of_a_crop() -> None:
    table = torch.cat([draws("crop"), chosen("identity")], 1)
    table[:, 4] = 0.999  # the crop is not mirrored
    expected = Augment(flip=True, area=0.4)(PIXELS, table[:, :COLUMNS], 32)
    expected[:, :, :8, :8] = FILL
    torch.testing.assert_close(AUGMENTS["strong-crop"](PIXELS, table, 32), expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("name", AUGMENTS)
def test_every_augmentation_is_a_function_of_row_and_draws(name: str) -> None:
    """The same alone and in a batch, in the range of pictures, and what it is given stays as it was."""
    pixels, table = PIXELS.repeat(6, 1, 1, 1), draws(name, 36)
    before, size = pixels.clone(), 32
    out = AUGMENTS[name](pixels, table, size)
    assert torch.equal(pixels, before)
    assert out.shape == (36, 3, size, size)
    assert out.min() >= 0
    assert out.max() <= 255
    for row in range(0, 36, 7):
        alone = AUGMENTS[name](pixels[row : row + 1], table[row : row + 1], size)[0]
        torch.testing.assert_close(alone.float(), out[row].float(), rtol=0, atol=2e-3)
    assert torch.equal(AUGMENTS[name](pixels, table, size), out)
    if name != "none":
        assert not torch.equal(AUGMENTS[name](pixels, draws(name, 36, seed=1), size), out)


@pytest.mark.parametrize("name", COLOUR)
def test_colour_operations_see_one_picture_at_a_time(name: str) -> None:
    """On a GPU they run over whole batches."""
    factor = torch.tensor([0.7, 1.0, 1.3, 0.5, 1.1, 0.0]).reshape(6, 1, 1, 1)
    out = COLOUR[name](PIXELS.float(), factor)
    for row in range(6):
        alone = COLOUR[name](PIXELS[row : row + 1].float(), factor[row : row + 1])
        torch.testing.assert_close(out[row : row + 1], alone, rtol=0, atol=1e-3)


def test_all_operations_are_drawn() -> None:
    assert len(OPERATIONS) == 14
    kinds = (draws("strong", 2000)[:, 1:3] * 14).long()
    assert (kinds.flatten().bincount(minlength=14) / 4000 - 1 / 14).abs().max() < 0.02
    assert set(GEOMETRIC) | set(COLOUR) | {"identity"} == set(OPERATIONS)


def test_each_view_draws_its_own_table_and_older_presets_draw_what_they_did() -> None:
    loader = Loader(TensorImages(PIXELS), Labels.from_lists([[0]] * 6, 2), size=32)
    (batch,) = loader.batches(6, ["crop", "strong"], 7, Clock(epoch=2))
    for view, (name, columns) in enumerate((("crop", COLUMNS), ("strong", 15))):
        table = torch.rand((6, columns), generator=generator(7, "augment", 0, 2, view))
        expected = AUGMENTS[name](PIXELS, table, 32)[batch.index]
        torch.testing.assert_close(batch.views[view], expected, rtol=0, atol=2e-3)
    assert {AUGMENTS[name].columns for name in ("none", "flip", "crop")} == {8}


@pytest.mark.parametrize("name", AUGMENTS)
def test_a_stage_knows_every_name(name: str) -> None:
    assert Stage(augment=name).augment == name


@pytest.mark.parametrize("name", AUGMENTS)
def test_a_few_at_a_time_give_what_all_together_give_whatever_the_threads(name: str) -> None:
    """Bit for bit with any number of threads: workers have one, this process has more."""
    pixels, size, threads = PIXELS.repeat(2, 1, 5, 5)[:11], 200, torch.get_num_threads()
    table = draws(name, 11)
    made = {}
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            made[count] = make_view(AUGMENTS[name], pixels, table, size)
            alone = make_view(AUGMENTS[name], pixels[:1], table[:1], size)
            assert torch.equal(alone, made.setdefault(-1, alone))
    finally:
        torch.set_num_threads(threads)
    assert made[1].shape == (11, 3, size, size)
    assert torch.equal(made[1], made[2])
    assert torch.equal(made[1], made[5])
    torch.testing.assert_close(made[1], AUGMENTS[name](pixels, table, size), rtol=0, atol=2e-3)


def test_the_level_of_a_single_picture_is_the_same_with_any_number_of_threads() -> None:
    """With one sum over the whole picture, two threads round differently in every second one."""
    pictures, threads = (
        torch.rand(20, 1, 224, 224, generator=torch.Generator().manual_seed(0)) * 255,
        torch.get_num_threads(),
    )
    levels = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            levels.append(torch.stack([mean_level(picture) for picture in pictures]))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(levels[0], levels[1])
    assert torch.equal(levels[0], levels[2])
    torch.testing.assert_close(levels[0].flatten().double(), pictures.double().mean((1, 2, 3)), rtol=1e-6, atol=0)


def test_a_part_is_sampled_where_the_affine_map_says() -> None:
    """Against torch's own grid, with what lies beyond the border mirrored, in double precision."""
    random = torch.Generator().manual_seed(0)
    pixels, (x, y) = torch.rand(7, 3, 20, 31, generator=random), torch.rand(2, 7, generator=random)
    width, height = torch.linspace(0.3, 1, 7), torch.linspace(1, 0.5, 7)
    mirror = torch.tensor([1.0, -1, -1, 1, 1, -1, 1])
    theta = torch.zeros(7, 2, 3, dtype=torch.float64)
    theta[:, 0, 0], theta[:, 0, 2] = width * mirror, (2 * x - 1) * (1 - width)
    theta[:, 1, 1], theta[:, 1, 2] = height, (2 * y - 1) * (1 - height)
    grid = F.affine_grid(theta, [7, 3, 17, 17], align_corners=False)
    expected = F.grid_sample(pixels.double(), grid, padding_mode="reflection", align_corners=False)
    found = augment._part(pixels, width, height, x, y, mirror, 17)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)

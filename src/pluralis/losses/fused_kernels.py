"""Triton kernels of `fused.py`: what takes dozens of launches in PyTorch, in one."""

# Triton's language has no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exp(x):
    """e^x for x ≤ 0 with the digits of float32: Triton's own loses those of x·log₂e as |x| grows."""
    x = tl.where(x < -200.0, -200.0, x)  # 0 all the same; a NaN stays one
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = x - n * 0.693145751953125 - n * 1.4286068203094172e-06  # the first product is exact
    return tl.exp2(n) * tl.exp(rest)


@triton.jit
def _sides(x):
    """σ(x), σ(−x) and log(1 + e^x), all from e^−|x|: no digits are lost on either side."""
    e = exp(-tl.abs(x))
    near = 1.0 + e
    low = tl.where(near == 1.0, e, tl.log(near) * (e / tl.where(near == 1.0, 1.0, near - 1.0)))  # log1p(e)
    right = tl.where(x < 0.0, e, 1.0) / near
    left = tl.where(x < 0.0, 1.0, e) / near
    return right, left, tl.where(x < 0.0, low, x + low)


@triton.jit
def _times(a, b):
    return a * b


@triton.jit
def one_rows(
    z, y, rules, loss, slope, C, GRID: tl.constexpr, MOST: tl.constexpr,
    ABSENT: tl.constexpr, SLOPE: tl.constexpr, NODES: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of z, y [N, C]: its loss in float64 and the derivative; a rule [3, NODES] is −s, w and (1−s)/s.

    Walks, of which all but the first find the row in the cache: the sum of p, and the slope of the product where its
    weight lies, which chooses the rule, up to MOST written labels having `rules` of their own; the products; the mean
    of 1/(v + 1 − p). ROOM ≥ NODES is a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    z += row * C
    y += row * C
    total = tl.zeros([BLOCK], tl.float32)
    written = tl.zeros([BLOCK], tl.int32)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        label = tl.load(y + c, mask=c < C, other=0)
        p, _, _ = _sides(tl.load(z + c, mask=c < C, other=0.0))
        total += tl.where((label == 0) & (c < C), p, 0.0)
        written += (label > 0).to(tl.int32)
    seen = tl.sum(written, 0)
    kappa = tl.sum(total, 0)
    count = tl.where(seen > 1, tl.where(seen < MOST, seen, MOST), 1)
    away = kappa / (kappa + count)  # 1 − s there
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        label = tl.load(y + c, mask=c < C, other=0)
        p, rest, _ = _sides(tl.load(z + c, mask=c < C, other=0.0))
        total += tl.where((label == 0) & (c < C), p / (rest + p * away), 0.0)
    kappa = tl.sum(total, 0)

    nearest = tl.floor(10.0 * tl.log(1.0 + kappa) + 0.5)  # as `gauss_rules`
    step = tl.where(nearest < GRID - 1, nearest, GRID - 1).to(tl.int32)
    step = tl.where(seen > 0, step, 0) + (count - 1) * GRID  # without a written label nothing is hidden
    i = tl.arange(0, ROOM)
    rule = rules + step * (3 * NODES) + i
    minus_s = tl.load(rule, mask=i < NODES, other=0.0)
    w = tl.load(rule + NODES, mask=i < NODES, other=0.0)
    v = tl.load(rule + 2 * NODES, mask=i < NODES, other=1.0).to(tl.float32)

    known_loss = tl.zeros([BLOCK], tl.float32)
    product = tl.full([ROOM, BLOCK], 1.0, tl.float64)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        minus, known, hidden = _roles(tl.load(y + c, mask=c < C, other=0), seen, c < C, ABSENT)
        value = tl.load(z + c, mask=c < C, other=0.0)
        _, _, cost = _sides(tl.where(minus > 0.0, value, -value))
        known_loss += cost * known
        e = tl.exp(-tl.abs(value.to(tl.float64)))  # in float64: near s = 1, where weight may lie, 1 − ps needs 1 − p
        chance = tl.where(value < 0.0, e, 1.0) / (1.0 + e) * hidden
        product *= 1.0 + minus_s[:, None] * chance[None, :]
    weights = tl.reduce(product, 1, _times) * w
    integral = tl.sum(weights, 0)
    tl.store(loss + row, tl.sum(known_loss, 0).to(tl.float64) - tl.log(integral))

    if SLOPE:
        slope += row * C
        shares = (weights / integral).to(tl.float32)
        for start in range(0, C, BLOCK):
            c = start + tl.arange(0, BLOCK)
            minus, known, hidden = _roles(tl.load(y + c, mask=c < C, other=0), seen, c < C, ABSENT)
            p, rest, _ = _sides(tl.load(z + c, mask=c < C, other=0.0))
            wrong = tl.where(minus > 0.0, p, rest)
            mean = tl.sum(shares[:, None] / (v[:, None] + rest[None, :]), 0)
            tl.store(slope + c, (minus + mean * p * hidden) * wrong, mask=c < C)


@triton.jit
def _roles(label, seen, inside, ABSENT: tl.constexpr):
    """As `selection_one.roles`, for a row that has a written label (`seen`) or none."""
    unknown = (label == 0) & inside
    hidden = tl.where(unknown & (seen > 0), 1.0, 0.0)
    minus = tl.where(label > 0, -1.0, tl.where(label < 0, 1.0, 0.0))
    if ABSENT:
        minus = tl.where(unknown & (seen == 0), 1.0, minus)
    return minus, tl.abs(minus), hidden


@triton.jit
def rate_rows(
    z, y, log_rates, log_unwrittens, log_rate, log_unwritten, loss, slope, C,
    PER_CLASS: tl.constexpr, ABSENT: tl.constexpr, SLOPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of z, y [N, C]: its loss in float64 and the derivative; log ρ and log(1−ρ) are numbers, or [C]."""
    row = tl.program_id(0).to(tl.int64)
    z += row * C
    y += row * C
    seen = 1
    if not ABSENT:
        written = tl.zeros([BLOCK], tl.int32)
        for start in range(0, C, BLOCK):
            c = start + tl.arange(0, BLOCK)
            written = tl.maximum(written, (tl.load(y + c, mask=c < C, other=0) > 0).to(tl.int32))
        seen = tl.max(written, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        minus, known, hidden = _roles(tl.load(y + c, mask=c < C, other=0), seen, c < C, False)
        value = tl.load(z + c, mask=c < C, other=0.0)
        if PER_CLASS:
            rate = tl.load(log_rates + c, mask=c < C, other=0.0)
            rest = tl.load(log_unwrittens + c, mask=c < C, other=0.0)
        else:
            rate = tl.full([BLOCK], log_rate, tl.float32)
            rest = tl.full([BLOCK], log_unwritten, tl.float32)
        present = value + rest  # the log-odds of r
        _, _, fold = _sides(-tl.abs(present))
        x = tl.where(value >= -rest, -rest, value) + rate - fold  # a NaN stays one
        wrong = tl.where(hidden > 0.0, x, value * minus)
        right, _, cost = _sides(wrong)
        total += cost * (known + hidden)  # where all is left out a NaN is still seen; beyond the row the cost is log 2
        if SLOPE:
            p, _, _ = _sides(value)
            _, absent, _ = _sides(present)
            unknown = p * absent * exp(rate)
            tl.store(slope + row * C + c, tl.where(hidden > 0.0, unknown, minus * right), mask=c < C)
    tl.store(loss + row, tl.sum(total.to(tl.float64), 0))


@triton.jit
def selective(
    z, y, among, common, loss, slope, entries, C, present, absent, assumed,
    LIKELY: tl.constexpr, COMMON: tl.constexpr, SLOPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x^γ log(1 + e^r) with x = σ(r): r = −z, γ = present where y > 0; r = z, γ = absent where y < 0, else assumed.

    0 where y = 0 and `among` is +∞ (LIKELY), or that class is `common` [C] (COMMON).
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    inside = at < entries
    label = tl.load(y + at, mask=inside, other=0)
    side = tl.where(label > 0, -1.0, tl.full([BLOCK], 1.0, tl.float32))
    if LIKELY:
        side = tl.where((label == 0) & (tl.load(among + at, mask=inside, other=0.0) == float("inf")), 0.0, side)
    if COMMON:
        c = ((start % C).to(tl.int32) + tl.arange(0, BLOCK)) % C
        side = tl.where((label == 0) & (tl.load(common + c) != 0), 0.0, side)
    wrong = tl.load(z + at, mask=inside, other=0.0) * side
    gamma = tl.where(label > 0, present, tl.where(label < 0, absent, assumed))
    x, rest, cost = _sides(wrong)
    factor = exp((wrong - cost) * gamma) * side
    tl.store(loss + at, factor * cost * side, mask=inside)
    if SLOPE:
        tl.store(slope + at, factor * (x + gamma * rest * cost), mask=inside)

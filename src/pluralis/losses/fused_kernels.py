"""Triton kernels of `fused.py`: what takes dozens of launches in PyTorch, in one."""

# Triton's language has no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _exp(x):
    """e^x for x ≤ 0 with the digits of float32: Triton's own loses those of x·log₂e as |x| grows."""
    x = tl.where(x < -200.0, -200.0, x)  # 0 all the same; a NaN stays one
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = x - n * 0.693145751953125 - n * 1.4286068203094172e-06  # the first product is exact
    return tl.exp2(n) * tl.exp(rest)


@triton.jit
def _sides(x):
    """σ(x), σ(−x) and log(1 + e^x), all from e^−|x|: no digits are lost on either side."""
    e = _exp(-tl.abs(x))
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
    z, y, rules, loss, slope, C, steps,
    ABSENT: tl.constexpr, SLOPE: tl.constexpr, NODES: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of z, y [N, C]: its loss in float64 and the derivative; `rules` [steps, 3, NODES] are −s, w and w·s.

    Three walks, of which the second and third find the row in the cache: the sum of p, which chooses the rule; the
    products; the mean of s/(1−ps). ROOM ≥ NODES is a power of two.
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
        written = tl.maximum(written, (label > 0).to(tl.int32))
    seen = tl.max(written, 0)

    kappa = tl.sum(total, 0)
    nearest = tl.floor(10.0 * tl.log(1.0 + kappa) + 0.5)  # as `gauss_rules`
    step = tl.where(nearest < steps - 1, nearest, steps - 1).to(tl.int32)
    step = tl.where(seen > 0, step, 0)  # nothing is hidden
    i = tl.arange(0, ROOM)
    rule = rules + step * (3 * NODES) + i
    minus_s = tl.load(rule, mask=i < NODES, other=0.0)
    w = tl.load(rule + NODES, mask=i < NODES, other=0.0)
    ws = tl.load(rule + 2 * NODES, mask=i < NODES, other=0.0)

    known_loss = tl.zeros([BLOCK], tl.float32)
    product = tl.full([ROOM, BLOCK], 1.0, tl.float64)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        minus, known, hidden = _roles(tl.load(y + c, mask=c < C, other=0), seen, c < C, ABSENT)
        value = tl.load(z + c, mask=c < C, other=0.0)
        _, _, cost = _sides(tl.where(minus > 0.0, value, -value))
        known_loss += cost * known
        p, _, _ = _sides(value)
        product *= 1.0 + minus_s[:, None] * (p * hidden).to(tl.float64)[None, :]
    products = tl.reduce(product, 1, _times)
    integral = tl.sum(products * w, 0)
    tl.store(loss + row, tl.sum(known_loss, 0).to(tl.float64) - tl.log(integral))

    if SLOPE:
        slope += row * C
        weights = (products * ws / integral).to(tl.float32)
        minus_s32 = minus_s.to(tl.float32)
        for start in range(0, C, BLOCK):
            c = start + tl.arange(0, BLOCK)
            minus, known, hidden = _roles(tl.load(y + c, mask=c < C, other=0), seen, c < C, ABSENT)
            p, rest, _ = _sides(tl.load(z + c, mask=c < C, other=0.0))
            wrong = tl.where(minus > 0.0, p, rest)
            p *= hidden
            mean = tl.sum(weights[:, None] / (1.0 + minus_s32[:, None] * p[None, :]), 0)
            tl.store(slope + c, (minus + mean * p) * wrong, mask=c < C)


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
def selective(z, code, loss, slope, entries, present, absent, assumed, SLOPE: tl.constexpr, BLOCK: tl.constexpr):
    """x^γ log(1 + e^r) with x = σ(r): r = −z, γ = present for the code −1; r = z for 1 (absent) and 2 (assumed)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    kind = tl.load(code + at, mask=inside, other=0)
    side = tl.where(kind > 0, 1.0, tl.where(kind < 0, -1.0, 0.0))
    wrong = tl.load(z + at, mask=inside, other=0.0) * side
    gamma = tl.where(kind > 1, assumed, tl.where(kind > 0, absent, present))
    x, rest, cost = _sides(wrong)
    factor = _exp((wrong - cost) * gamma) * side
    tl.store(loss + at, factor * cost * side, mask=inside)
    if SLOPE:
        tl.store(slope + at, factor * (x + gamma * rest * cost), mask=inside)


@triton.jit
def contrast_rows(similar, classes, queue_classes, rows, A, K, RELEASED: tl.constexpr, BLOCK: tl.constexpr):
    """A row of the similarities [A, A + K], which minus the derivative replaces; rows [2, A]: its value, and 1 or 0.

    First log Σ_N e^{similar} and the number of partners, block by block, and then value and derivative; 0 stands for an
    anchor that has nothing to contrast.
    """
    row = tl.program_id(0)
    similar += row.to(tl.int64) * (A + K)
    own = tl.load(classes + row)
    top = tl.full([BLOCK], -1e30, tl.float32)
    below = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    for start in range(0, A + K, BLOCK):
        t = start + tl.arange(0, BLOCK)
        value = tl.load(similar + t, mask=t < A + K, other=0.0)
        partner, rival = _pairs(classes, queue_classes, row, own, t, A, K, RELEASED)
        higher = tl.where(rival & (value > top), value, top)
        below = below * _exp(top - higher) + tl.where(rival, _exp(value - higher), 0.0)
        top = higher
        count += tl.where(partner, 1.0, 0.0)
    most = tl.max(top, 0)
    rivals = tl.sum(below * _exp(top - most), 0)
    partners = tl.sum(count, 0)
    any_pair = (partners > 0.0) & (rivals != 0.0)
    norm = most + tl.log(tl.where(rivals != 0.0, rivals, 1.0))
    weight = tl.where(any_pair, 1.0 / partners if RELEASED else 1.0, 0.0)

    found = tl.zeros([BLOCK], tl.float32)
    for start in range(0, A + K, BLOCK):
        t = start + tl.arange(0, BLOCK)
        value = tl.load(similar + t, mask=t < A + K, other=0.0)
        partner, rival = _pairs(classes, queue_classes, row, own, t, A, K, RELEASED)
        term = tl.where(partner, weight, 0.0)
        share = tl.where(rival, _exp(tl.where(rival, value - norm, 0.0)), 0.0)
        found += term * tl.where(partner, norm - value, 0.0)
        tl.store(similar + t, term - share * (weight * partners), mask=t < A + K)
    tl.store(rows + row, tl.sum(found, 0))
    tl.store(rows + A + row, tl.where(any_pair, 1.0, 0.0))


@triton.jit
def _pairs(classes, queue_classes, row, own, t, A, K, RELEASED: tl.constexpr):
    """Which of the places t are partners of an anchor, and which are rivals: see `label_contrast`."""
    kind = tl.load(classes + t, mask=t < A, other=-1)
    kind = tl.where(t < A, kind, tl.load(queue_classes + (t - A), mask=(t >= A) & (t < A + K), other=-1))
    partner = (kind == own) & (kind >= 0) & (t != row)
    rival = (kind >= 0) & ((t != row) if RELEASED else (kind != own))
    return partner, rival


@triton.jit
def unit_rows(x, out, norms, D, eps, BLOCK: tl.constexpr):
    """Rows of x [M, D] divided by their length, or by eps where that is less."""
    row = tl.program_id(0).to(tl.int64)
    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * D + d, mask=d < D, other=0.0)
        square += value * value
    norm = tl.sqrt(tl.sum(square, 0))
    tl.store(norms + row, norm)
    norm = tl.where(norm < eps, eps, norm)
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)
        tl.store(out + row * D + d, tl.load(x + row * D + d, mask=d < D, other=0.0) / norm, mask=d < D)


@triton.jit
def unit_gradient(out, norms, grad, slope, D, eps, BLOCK: tl.constexpr):
    """(g − u (u·g))/‖x‖, and g/eps where the length is less than eps."""
    row = tl.program_id(0).to(tl.int64)
    along = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)
        u = tl.load(out + row * D + d, mask=d < D, other=0.0)
        along += u * tl.load(grad + row * D + d, mask=d < D, other=0.0)
    norm = tl.load(norms + row)
    part = tl.where(norm < eps, 0.0, tl.sum(along, 0))
    norm = tl.where(norm < eps, eps, norm)
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)
        u = tl.load(out + row * D + d, mask=d < D, other=0.0)
        g = tl.load(grad + row * D + d, mask=d < D, other=0.0)
        tl.store(slope + row * D + d, (g - u * part) / norm, mask=d < D)

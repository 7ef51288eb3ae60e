"""Triton kernels of the contrast, see `contrast.py`: from embeddings, two launches; from their similarities, one."""

# Triton's language has no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from pluralis.losses.fused_kernels import exp


@triton.jit(do_not_specialize=["A", "K"])  # they change from batch to batch
def anchor_values(
    x, twins, classes, queue, queue_classes, rows, A, K, D, sharp, scale,
    TWINS: tl.constexpr, RELEASED: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a row of x [A, D], meeting x, its twin and the queue [K, D]: its column of `rows` [4, A], as `_weigh` says."""
    row = tl.program_id(0)
    own = tl.load(classes + row)
    u, _ = _anchor(x, row, D, DIM)
    top = tl.full([BLOCK], -1e30, tl.float32)
    below = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float64)
    if TWINS:  # the first partner, and nobody's rival
        v, _ = _anchor(twins, row, D, DIM)
        first = tl.arange(0, BLOCK) == 0
        count += tl.where(first, 1.0, 0.0)
        total += tl.where(first, tl.sum(u * v, 0) * sharp, 0.0).to(tl.float64)
    for start in range(0, A, BLOCK):
        t = start + tl.arange(0, BLOCK)
        similar = tl.sum(_unit(_tile(x, t, A, D, DIM)) * u[None, :], 1) * sharp
        partner, rival = _pairs(tl.load(classes + t, mask=t < A, other=-1), own, t == row, RELEASED)
        top, below, count, total = _meet(similar, partner, rival, top, below, count, total)
    for start in range(0, K, BLOCK):
        t = start + tl.arange(0, BLOCK)
        similar = tl.sum(_tile(queue, t, K, D, DIM) * u[None, :], 1) * sharp
        partner, rival = _pairs(tl.load(queue_classes + t, mask=t < K, other=-1), own, t < 0, RELEASED)
        top, below, count, total = _meet(similar, partner, rival, top, below, count, total)
    value, norm, weight, pull = _weigh(top, below, count, total, scale, RELEASED)
    tl.store(rows + row, value)
    tl.store(rows + A + row, norm)
    tl.store(rows + 2 * A + row, weight)
    tl.store(rows + 3 * A + row, pull)


@triton.jit(do_not_specialize=["A", "K"])
def anchor_slopes(
    x, twins, classes, queue, queue_classes, rows, value, slope, A, K, D, sharp,
    TWINS: tl.constexpr, RELEASED: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The value from what `anchor_values` left in `rows`, and of a row of x the derivative, a row of slope [A, D].

    An anchor moves the similarities in its own row and in its own column, which are the same numbers, and the one to
    its twin, whose derivative is A rows further down.
    """
    row = tl.program_id(0)
    own = tl.load(classes + row)
    u, length = _anchor(x, row, D, DIM)
    norm = tl.load(rows + A + row)
    weight = tl.load(rows + 2 * A + row)
    pull = tl.load(rows + 3 * A + row)
    along = tl.zeros([BLOCK, DIM], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    anchors = tl.zeros([BLOCK], tl.float32)
    for start in range(0, A, BLOCK):
        t = start + tl.arange(0, BLOCK)
        z = _unit(_tile(x, t, A, D, DIM))
        similar = tl.sum(z * u[None, :], 1) * sharp
        partner, rival = _pairs(tl.load(classes + t, mask=t < A, other=-1), own, t == row, RELEASED)
        its_norm = tl.load(rows + A + t, mask=t < A, other=0.0)
        its_weight = tl.load(rows + 2 * A + t, mask=t < A, other=0.0)
        its_pull = tl.load(rows + 3 * A + t, mask=t < A, other=0.0)
        by_row = _minus_slope(similar, partner, rival, norm, weight, pull)
        by_column = _minus_slope(similar, partner, rival, its_norm, its_weight, its_pull)
        along += (by_row + by_column)[:, None] * z
        total += tl.load(rows + t, mask=t < A, other=0.0)
        anchors += its_pull
    for start in range(0, K, BLOCK):
        t = start + tl.arange(0, BLOCK)
        z = _tile(queue, t, K, D, DIM)
        similar = tl.sum(z * u[None, :], 1) * sharp
        partner, rival = _pairs(tl.load(queue_classes + t, mask=t < K, other=-1), own, t < 0, RELEASED)
        along += _minus_slope(similar, partner, rival, norm, weight, pull)[:, None] * z
    share = 1.0
    if RELEASED:
        share = 1.0 / tl.maximum(tl.sum(anchors, 0), 1.0)
    tl.store(value, tl.sum(total, 0) * share, mask=row == 0)

    g = tl.sum(along, 0)
    d = tl.arange(0, DIM)
    if TWINS:
        v, its_length = _anchor(twins, row, D, DIM)
        g += weight * v
        tl.store(slope + (A + row) * D + d, _by_raw(-sharp * weight * u, v, its_length), mask=d < D)
    tl.store(slope + row * D + d, _by_raw(-sharp * share * g, u, length), mask=d < D)


@triton.jit
def contrast_rows(
    similar, classes, queue_classes, rows, A, K, scale,
    TWINS: tl.constexpr, RELEASED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of the similarities [A, A + K], which minus the derivative replaces; rows: its value; RELEASED: 1 or 0."""
    row = tl.program_id(0)
    similar += row.to(tl.int64) * (A + K)
    own = tl.load(classes + row)
    top = tl.full([BLOCK], -1e30, tl.float32)
    below = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, A + K, BLOCK):
        t = start + tl.arange(0, BLOCK)
        itself = (t < 0) if TWINS else (t == row)  # a twin's similarity is in the place of its own
        partner, rival = _pairs(_kinds(classes, queue_classes, t, A, K), own, itself, RELEASED)
        given = tl.load(similar + t, mask=t < A + K, other=0.0)
        top, below, count, total = _meet(given, partner, rival, top, below, count, total)
    value, norm, weight, pull = _weigh(top, below, count, total, scale, RELEASED)
    for start in range(0, A + K, BLOCK):
        t = start + tl.arange(0, BLOCK)
        itself = (t < 0) if TWINS else (t == row)
        partner, rival = _pairs(_kinds(classes, queue_classes, t, A, K), own, itself, RELEASED)
        given = tl.load(similar + t, mask=t < A + K, other=0.0)
        tl.store(similar + t, _minus_slope(given, partner, rival, norm, weight, pull), mask=t < A + K)
    tl.store(rows + row, value)
    if RELEASED:
        tl.store(rows + A + row, pull)


@triton.jit
def _tile(x, t, count, D, DIM: tl.constexpr):
    """The rows t of x [count, D] as [BLOCK, DIM], 0 beyond its edges."""
    d = tl.arange(0, DIM)
    return tl.load(x + t[:, None] * D + d[None, :], mask=(t < count)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def _unit(tile):
    """Its rows divided by their length, or by 1e-12 where that is less: as `F.normalize`."""
    length = tl.sqrt(tl.sum(tile * tile, 1))
    return tile / tl.where(length < 1e-12, 1e-12, length)[:, None]


@triton.jit
def _anchor(x, row, D, DIM: tl.constexpr):
    """A row of x at length 1, as `_unit`, and the length that it has."""
    d = tl.arange(0, DIM)
    own = tl.load(x + row * D + d, mask=d < D, other=0.0)
    length = tl.sqrt(tl.sum(own * own, 0))
    return own / tl.where(length < 1e-12, 1e-12, length), length


@triton.jit
def _by_raw(g, u, length):
    """The derivative by a row from that by it at length 1, u."""
    part = tl.where(length < 1e-12, 0.0, tl.sum(u * g, 0))
    return (g - u * part) / tl.where(length < 1e-12, 1e-12, length)


@triton.jit
def _kinds(classes, queue_classes, t, A, K):
    """The classes of the places t: first the anchors, then the queue."""
    kind = tl.load(classes + t, mask=t < A, other=-1)
    return tl.where(t < A, kind, tl.load(queue_classes + (t - A), mask=(t >= A) & (t < A + K), other=-1))


@triton.jit
def _pairs(kind, own, itself, RELEASED: tl.constexpr):
    """Which places are partners of an anchor, and which are rivals, as `label_contrast` says: both ways alike."""
    inside = (kind >= 0) & (own >= 0)
    partner = inside & (kind == own) & ~itself
    rival = inside & (~itself if RELEASED else (kind != own))
    return partner, rival


@triton.jit
def _meet(similar, partner, rival, top, below, count, total):
    """One block more: Σ_N e^similar is below·e^top; `count` and the sum `total` of the similarities are of partners."""
    higher = tl.where(rival & (similar > top), similar, top)
    below = below * exp(top - higher) + tl.where(rival, exp(similar - higher), 0.0)
    count += tl.where(partner, 1.0, 0.0)
    total += tl.where(partner, similar, 0.0).to(tl.float64)
    return higher, below, count, total


@triton.jit
def _weigh(top, below, count, total, scale, RELEASED: tl.constexpr):
    """After all blocks: `scale` times the anchor's value, log Σ_N e^similar, its weight of a partner and of all rivals.

    All but the second are 0 for an anchor that has nothing to contrast.
    """
    most = tl.max(top, 0)
    rivals = tl.sum(below * exp(top - most), 0)
    partners = tl.sum(count, 0)
    some = (partners > 0.0) & (rivals != 0.0)  # a NaN is some
    norm = most + tl.log(tl.where(rivals != 0.0, rivals, 1.0))
    weight = tl.where(some, scale / tl.maximum(partners, 1.0) if RELEASED else scale, 0.0)
    pull = tl.where(some, scale if RELEASED else scale * partners, 0.0)
    apart = (partners.to(tl.float64) * norm.to(tl.float64) - tl.sum(total, 0)).to(tl.float32)
    return tl.where(some, weight * apart, 0.0), norm, weight, pull


@triton.jit
def _minus_slope(similar, partner, rival, norm, weight, pull):
    share = tl.where(rival, exp(tl.where(rival, similar - norm, 0.0)), 0.0)
    return tl.where(partner, weight, 0.0) - share * pull

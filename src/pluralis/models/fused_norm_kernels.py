"""Triton kernels of `fused_norm.py`. A map in channels-last order is a matrix x [M, C], M = batch·height·width.

z = scale·x + shift with scale = γ·rstd and shift = β − mean·scale; y = min(max(z, 0), 6) where ACT, else z.
"""

# Triton's language has no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _relu6(z, ACT: tl.constexpr):
    if ACT:
        z = tl.where(z < 0.0, 0.0, tl.where(z > 6.0, 6.0, z))  # a NaN stays one
    return z


@triton.jit
def _add_parts(sums, parts, C, c, BP: tl.constexpr, BC: tl.constexpr):
    """Both rows of sums [2, parts, C] at the channels c, added over the parts, always in the same order."""
    first = tl.zeros([BP, BC], tl.float32)
    second = tl.zeros([BP, BC], tl.float32)
    for start in range(0, parts, BP):
        p = start + tl.arange(0, BP)
        mask = (p < parts)[:, None] & (c < C)[None, :]
        at = p[:, None] * C + c[None, :]
        first += tl.load(sums + at, mask=mask, other=0.0)
        second += tl.load(sums + parts * C + at, mask=mask, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def column_moments(x, sums, M, C, rows_each, BM: tl.constexpr, BC: tl.constexpr):
    """Sums of (x − x[0]) and its square over `rows_each` rows: sums [2, parts, C]."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    origin = tl.load(x + c, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros([BM, BC], tl.float32)
    second = tl.zeros([BM, BC], tl.float32)
    end = tl.minimum((part + 1) * rows_each, M)
    for start in range(part * rows_each, end, BM):
        m = start + tl.arange(0, BM)
        mask = (m < end)[:, None] & inside[None, :]
        value = tl.load(x + m[:, None].to(tl.int64) * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - origin[None, :], 0.0)
        first += value
        second += value * value
    tl.store(sums + part * C + c, tl.sum(first, 0), mask=inside)
    tl.store(sums + (parts + part) * C + c, tl.sum(second, 0), mask=inside)


@triton.jit
def finish_moments(
    x, sums, gamma, beta, running_mean, running_var, tracked, saved, M, C, parts, eps, momentum,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """saved [4, C] = mean, rstd, scale, shift; moves the running statistics."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = c < C
    first, second = _add_parts(sums, parts, C, c, BP, BC)
    offset = first / M
    variance = tl.maximum(second / M - offset * offset, 0.0)
    mean = tl.load(x + c, mask=inside, other=0.0).to(tl.float32) + offset
    rstd = 1.0 / tl.sqrt(variance + eps)
    scale = tl.load(gamma + c, mask=inside, other=0.0) * rstd
    shift = tl.load(beta + c, mask=inside, other=0.0) - mean * scale
    tl.store(saved + c, mean, mask=inside)
    tl.store(saved + C + c, rstd, mask=inside)
    tl.store(saved + 2 * C + c, scale, mask=inside)
    tl.store(saved + 3 * C + c, shift, mask=inside)
    old_mean = tl.load(running_mean + c, mask=inside, other=0.0)
    old_var = tl.load(running_var + c, mask=inside, other=0.0)
    unbiased = variance * (M / tl.maximum(M - 1, 1).to(tl.float32))
    tl.store(running_mean + c, old_mean + momentum * (mean - old_mean), mask=inside)
    tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)


@triton.jit
def apply_norm(x, y, saved, M, C, ACT: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    mask = (m < M)[:, None] & inside[None, :]
    at = m[:, None].to(tl.int64) * C + c[None, :]
    scale = tl.load(saved + 2 * C + c, mask=inside, other=0.0)
    shift = tl.load(saved + 3 * C + c, mask=inside, other=0.0)
    z = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    tl.store(y + at, _relu6(z, ACT).to(y.dtype.element_ty), mask=mask)


@triton.jit
def apply_running(
    x, y, gamma, beta, running_mean, running_var, M, C, eps, ACT: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    mask = (m < M)[:, None] & inside[None, :]
    at = m[:, None].to(tl.int64) * C + c[None, :]
    scale = tl.load(gamma + c, mask=inside, other=0.0) / tl.sqrt(tl.load(running_var + c, mask=inside, other=1.0) + eps)
    shift = tl.load(beta + c, mask=inside, other=0.0) - tl.load(running_mean + c, mask=inside, other=0.0) * scale
    z = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    tl.store(y + at, _relu6(z, ACT).to(y.dtype.element_ty), mask=mask)


@triton.jit
def kept_gradient(
    x, dy, dx, gamma, beta, running_mean, running_var, sums, M, C, rows_each, eps,
    ACT: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx = scale·g of `apply_running`, and the sums of g and g·x̂ over `rows_each` rows: sums [2, parts, C]."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    mean = tl.load(running_mean + c, mask=inside, other=0.0)
    rstd = 1.0 / tl.sqrt(tl.load(running_var + c, mask=inside, other=1.0) + eps)
    scale = tl.load(gamma + c, mask=inside, other=0.0) * rstd
    shift = tl.load(beta + c, mask=inside, other=0.0) - mean * scale
    first = tl.zeros([BM, BC], tl.float32)
    second = tl.zeros([BM, BC], tl.float32)
    end = tl.minimum((part + 1) * rows_each, M)
    for start in range(part * rows_each, end, BM):
        m = start + tl.arange(0, BM)
        mask = (m < end)[:, None] & inside[None, :]
        at = m[:, None].to(tl.int64) * C + c[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        if ACT:
            z = value * scale[None, :] + shift[None, :]
            g = tl.where((z > 0.0) & (z < 6.0), g, 0.0)
        tl.store(dx + at, (scale[None, :] * g).to(dx.dtype.element_ty), mask=mask)
        first += g
        second += g * ((value - mean[None, :]) * rstd[None, :])
    tl.store(sums + part * C + c, tl.sum(first, 0), mask=inside)
    tl.store(sums + (parts + part) * C + c, tl.sum(second, 0), mask=inside)


@triton.jit
def gradient_sums(x, dy, saved, sums, M, C, rows_each, ACT: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    """Sums of g and g·x̂ over `rows_each` rows, g = dy where z is inside (0, 6): sums [2, parts, C]."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    mean = tl.load(saved + c, mask=inside, other=0.0)
    rstd = tl.load(saved + C + c, mask=inside, other=0.0)
    scale = tl.load(saved + 2 * C + c, mask=inside, other=0.0)
    shift = tl.load(saved + 3 * C + c, mask=inside, other=0.0)
    first = tl.zeros([BM, BC], tl.float32)
    second = tl.zeros([BM, BC], tl.float32)
    end = tl.minimum((part + 1) * rows_each, M)
    for start in range(part * rows_each, end, BM):
        m = start + tl.arange(0, BM)
        mask = (m < end)[:, None] & inside[None, :]
        at = m[:, None].to(tl.int64) * C + c[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        if ACT:
            z = value * scale[None, :] + shift[None, :]
            g = tl.where((z > 0.0) & (z < 6.0), g, 0.0)
        first += g
        second += g * ((value - mean[None, :]) * rstd[None, :])
    tl.store(sums + part * C + c, tl.sum(first, 0), mask=inside)
    tl.store(sums + (parts + part) * C + c, tl.sum(second, 0), mask=inside)


@triton.jit
def finish_gradient(sums, saved, slope, dgamma, dbeta, M, C, parts, BP: tl.constexpr, BC: tl.constexpr):
    """dβ = Σg and dγ = Σ g·x̂; slope [2, C] = A, B of dx = scale·g + A·x + B.

    A = −scale·rstd·dγ/M and B = −scale·dβ/M − A·mean.
    """
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = c < C
    db, dg = _add_parts(sums, parts, C, c, BP, BC)
    mean = tl.load(saved + c, mask=inside, other=0.0)
    rstd = tl.load(saved + C + c, mask=inside, other=0.0)
    scale = tl.load(saved + 2 * C + c, mask=inside, other=0.0)
    a = -scale * rstd * dg / M
    tl.store(slope + c, a, mask=inside)
    tl.store(slope + C + c, -scale * db / M - a * mean, mask=inside)
    tl.store(dgamma + c, dg, mask=inside)
    tl.store(dbeta + c, db, mask=inside)


@triton.jit
def input_gradient(x, dy, dx, saved, slope, M, C, ACT: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < C
    mask = (m < M)[:, None] & inside[None, :]
    at = m[:, None].to(tl.int64) * C + c[None, :]
    scale = tl.load(saved + 2 * C + c, mask=inside, other=0.0)
    a = tl.load(slope + c, mask=inside, other=0.0)
    b = tl.load(slope + C + c, mask=inside, other=0.0)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    if ACT:
        shift = tl.load(saved + 3 * C + c, mask=inside, other=0.0)
        z = value * scale[None, :] + shift[None, :]
        g = tl.where((z > 0.0) & (z < 6.0), g, 0.0)
    tl.store(dx + at, (scale[None, :] * g + a[None, :] * value + b[None, :]).to(dx.dtype.element_ty), mask=mask)

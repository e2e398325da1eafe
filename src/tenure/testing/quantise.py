"""Plain round-to-nearest encoders for every stored encoding, to make test models.

The inverse of `model.weights.dequant`; its docstrings describe the layouts. Quality is not the aim:
a scale comes from a block's extremes, without any search.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tenure.model.weights.base import BLOCK, Encoding
from tenure.model.weights.dequant import E2M1

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


def quantise(values: npt.ArrayLike, encoding: Encoding) -> U8:
    """Values whose last axis is whole blocks, to their bytes: uint8, flat."""
    blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, BLOCK[encoding][0])
    return np.ascontiguousarray(_ENCODERS[encoding](blocks)).reshape(-1)


def _bytes(array: npt.NDArray[np.generic]) -> U8:
    """The bytes of each row."""
    rows = np.ascontiguousarray(array)
    return rows.view(np.uint8).reshape(rows.shape[0], -1)


def _f32(x: F32) -> U8:
    return _bytes(x.astype("<f4"))


def _f16(x: F32) -> U8:
    return _bytes(x.astype("<f2"))


def _bf16(x: F32) -> U8:
    """Round to nearest, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    return _bytes(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2"))


def _half(x: F32) -> F32:
    """What float16 keeps of x."""
    return x.astype(np.float16).astype(np.float32)


def _divided(x: F32, step: F32) -> F32:
    """x / step, 0 where the step is 0."""
    return np.divide(x, step, out=np.zeros_like(x), where=step != 0)


def _rounded(x: F32, low: int, high: int) -> U8:
    return np.clip(np.rint(x), low, high).astype(np.int8).view(np.uint8)


def _high(q: U8) -> U8:
    """What lies above the low nibble."""
    return q >> np.uint8(4)


def _pair(low: U8, high: U8) -> U8:
    """Two nibbles in a byte."""
    return (low & np.uint8(15)) | (high << np.uint8(4))


def _packed(q: U8) -> U8:
    """[n, 2k] nibbles to [n, k]: the first half low, the second high."""
    half = q.shape[-1] // 2
    return _pair(q[..., :half], q[..., half:])


def _symmetric(x: F32, bits: int) -> tuple[F32, U8]:
    """d and q = round(x / d) + 2^(bits-1), with d from the largest magnitude."""
    zero = 1 << (bits - 1)
    d = _half(np.abs(x).max(axis=-1, keepdims=True) / np.float32(zero - 1))
    return d, _rounded(_divided(x, d), -zero, zero - 1) + np.uint8(zero)


def _affine(x: F32, bits: int) -> tuple[F32, F32, U8]:
    """d, m and q = round((x - m) / d), from the extremes."""
    m = _half(x.min(axis=-1, keepdims=True))
    d = _half((x.max(axis=-1, keepdims=True) - m) / ((1 << bits) - 1))
    return d, m, _rounded(_divided(x - m, d), 0, (1 << bits) - 1)


def _fifth_bits(q: U8) -> U8:
    return np.packbits(_high(q), axis=1, bitorder="little")


def _q4_0(x: F32) -> U8:
    d, q = _symmetric(x, 4)
    return np.concatenate([_f16(d), _packed(q)], axis=1)


def _q4_1(x: F32) -> U8:
    d, m, q = _affine(x, 4)
    return np.concatenate([_f16(d), _f16(m), _packed(q)], axis=1)


def _q5_0(x: F32) -> U8:
    d, q = _symmetric(x, 5)
    return np.concatenate([_f16(d), _fifth_bits(q), _packed(q)], axis=1)


def _q5_1(x: F32) -> U8:
    d, m, q = _affine(x, 5)
    return np.concatenate([_f16(d), _f16(m), _fifth_bits(q), _packed(q)], axis=1)


def _q8_0(x: F32) -> U8:
    d = _half(np.abs(x).max(axis=1, keepdims=True) / 127)
    return np.concatenate([_f16(d), _rounded(_divided(x, d), -127, 127)], axis=1)


def _k_min(x: F32, bits: int) -> tuple[U8, U8]:
    """The 16 bytes of d, m, scales and minima, and q [n, 8, 32], for Q4_K and Q5_K."""
    parts = x.reshape(-1, 8, 32)
    low = np.maximum(-parts.min(axis=2), 0)
    step = (parts.max(axis=2) + low) / ((1 << bits) - 1)
    d, m = (_half(v.max(axis=1, keepdims=True) / 63) for v in (step, low))
    scales, mins = _rounded(_divided(step, d), 0, 63), _rounded(_divided(low, m), 0, 63)
    head = np.concatenate([_f16(d), _f16(m), _six_bits(scales, mins)], axis=1)
    steps = (d * scales.astype(np.float32)).reshape(-1, 8, 1)
    offsets: F32 = (m * mins.astype(np.float32)).reshape(-1, 8, 1)
    return head, _rounded(_divided(parts + offsets, steps), 0, (1 << bits) - 1)


def _six_bits(scales: U8, mins: U8) -> U8:
    """Eight 6-bit scales and minima in 12 bytes."""
    a = scales[:, :4] | (_high(scales[:, 4:]) << np.uint8(6))
    b = mins[:, :4] | (_high(mins[:, 4:]) << np.uint8(6))
    return np.concatenate([a, b, _pair(scales[:, 4:], mins[:, 4:])], axis=1)


def _groups_of_64(q: U8) -> U8:
    """[n, 8, 32] nibbles to 128 bytes: each pair of sub-blocks shares 32."""
    return _pair(q[:, 0::2], q[:, 1::2]).reshape(-1, 128)


def _q4_k(x: F32) -> U8:
    head, q = _k_min(x, 4)
    return np.concatenate([head, _groups_of_64(q)], axis=1)


def _q5_k(x: F32) -> U8:
    head, q = _k_min(x, 5)
    fifth = np.packbits(_high(q), axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([head, fifth, _groups_of_64(q)], axis=1)


def _q6_k(x: F32) -> U8:
    parts = x.reshape(-1, 16, 16)
    step = np.abs(parts).max(axis=2) / 31
    d = _half(step.max(axis=1, keepdims=True) / 127)
    scales = _rounded(_divided(step, d), 0, 127)
    steps = (d * scales.astype(np.float32)).reshape(-1, 16, 1)
    q = _rounded(_divided(parts, steps), -32, 31) + np.uint8(32)
    runs = q.reshape(-1, 2, 4, 32)
    pairs = runs.reshape(-1, 2, 2, 64)
    low = _pair(pairs[:, :, 0], pairs[:, :, 1]).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce(_high(runs) << shifts, axis=2).reshape(-1, 64)
    return np.concatenate([low, high, scales, _f16(d)], axis=1)


def _mxfp4(x: F32) -> U8:
    """The exponent puts the largest magnitude between 4 and 8, and 6 is the largest value."""
    top = np.abs(x).max(axis=1, keepdims=True)
    exponent = np.clip(np.floor(np.log2(np.maximum(top, 2.0**-120))) - 2, -127, 127)
    scaled = np.abs(x) / np.exp2(exponent)
    nearest = np.abs(scaled[..., None] - E2M1).argmin(axis=-1).astype(np.uint8)
    q = nearest | (np.signbit(x).astype(np.uint8) << np.uint8(3))
    return np.concatenate([(exponent + 127).astype(np.uint8), _packed(q)], axis=1)


_ENCODERS: dict[Encoding, Callable[[F32], U8]] = {
    Encoding.F32: _f32,
    Encoding.F16: _f16,
    Encoding.BF16: _bf16,
    Encoding.Q4_0: _q4_0,
    Encoding.Q4_1: _q4_1,
    Encoding.Q5_0: _q5_0,
    Encoding.Q5_1: _q5_1,
    Encoding.Q8_0: _q8_0,
    Encoding.Q4_K: _q4_k,
    Encoding.Q5_K: _q5_k,
    Encoding.Q6_K: _q6_k,
    Encoding.MXFP4: _mxfp4,
}

"""Stored tensors to float32, vectorised over blocks.

Block layouts are those of the GGUF format (ggml's `ggml-common.h` describes each). A block holds 32
elements, or 256 in the K encodings, whose blocks have sub-blocks with 6-bit scales. d and m below
are float16 numbers of a block, q its small integers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tenure.model.weights.base import BLOCK, Encoding, StoredTensor

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


def dequantise(tensor: StoredTensor) -> F32:
    """The tensor's values, float32 of `tensor.shape`, in a new array."""
    return dequantise_bytes(tensor.data, tensor.encoding).reshape(tensor.shape)


def dequantise_bytes(data: U8, encoding: Encoding) -> F32:
    """Whole blocks (uint8, any shape) to a flat float32 array."""
    blocks = np.ascontiguousarray(data).reshape(-1, BLOCK[encoding][1])
    return _DECODERS[encoding](blocks).reshape(-1)


def _f32(blocks: U8) -> F32:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: U8) -> F32:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: U8) -> F32:
    """The upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _halves(blocks: U8, start: int, n: int = 1) -> F32:
    """`n` float16 numbers of each block from byte `start`: float32 [n_blocks, n]."""
    return np.ascontiguousarray(blocks[:, start : start + 2 * n]).view("<f2").astype(np.float32)


def _low(packed: U8) -> U8:
    return packed & np.uint8(15)


def _high(packed: U8) -> U8:
    return packed >> np.uint8(4)


def _nibbles(packed: U8) -> U8:
    """[n, k] bytes to [n, 2k]: all low halves first, then all high halves."""
    return np.concatenate([_low(packed), _high(packed)], axis=1)


def _fifth_bits(blocks: U8, start: int) -> U8:
    """Bit j of the 32-bit mask at byte `start` as the fifth bit of element j: 0 or 16."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q4_0(blocks: U8) -> F32:
    """d (2 bytes), 32 nibbles: x = d (q - 8)."""
    q = _nibbles(blocks[:, 2:]).astype(np.float32)
    return _halves(blocks, 0) * (q - 8)


def _q4_1(blocks: U8) -> F32:
    """d, m, 32 nibbles: x = d q + m."""
    q = _nibbles(blocks[:, 4:]).astype(np.float32)
    return _halves(blocks, 0) * q + _halves(blocks, 2)


def _q5_0(blocks: U8) -> F32:
    """d, 32 fifth bits, 32 nibbles: x = d (q - 16)."""
    q = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)).astype(np.float32)
    return _halves(blocks, 0) * (q - 16)


def _q5_1(blocks: U8) -> F32:
    """d, m, 32 fifth bits, 32 nibbles: x = d q + m."""
    q = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)).astype(np.float32)
    return _halves(blocks, 0) * q + _halves(blocks, 2)


def _q8_0(blocks: U8) -> F32:
    """d, 32 signed bytes: x = d q."""
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _scales_and_mins(packed: U8) -> tuple[F32, F32]:
    """12 bytes hold eight 6-bit scales and eight 6-bit minima: two float32 [n, 8, 1].

    Bytes 0-3 and 4-7 hold the first four scales and minima in their low 6 bits; bytes 8-11 hold the
    low nibbles of the last four, whose top 2 bits are the top 2 bits of bytes 0-7.
    """
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([a & 63, _low(c) | (a >> 6 << 4)], axis=1)
    mins = np.concatenate([b & 63, _high(c) | (b >> 6 << 4)], axis=1)
    return _as_column(scales), _as_column(mins)


def _as_column(small: npt.NDArray[np.uint8 | np.int8]) -> F32:
    """[n, k] small integers to float32 [n, k, 1]."""
    return small.astype(np.float32).reshape(*small.shape, 1)


def _groups_of_64(packed: U8) -> U8:
    """128 bytes hold 256 nibbles; each 32 bytes hold 32 low halves, then 32 high: [n, 8, 32]."""
    parts = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([_low(parts), _high(parts)], axis=2).reshape(-1, 8, 32)


def _k_min(blocks: U8, q: U8) -> F32:
    """x = (d scale) q - (m min), per sub-block of 32; d and m at bytes 0 and 2."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    d, m = (_halves(blocks, start).reshape(-1, 1, 1) for start in (0, 2))
    step: F32 = d * scales
    offset: F32 = m * mins
    return step * q.astype(np.float32) - offset


def _q4_k(blocks: U8) -> F32:
    """d, m, 12 bytes of scales and minima, 256 nibbles."""
    return _k_min(blocks, _groups_of_64(blocks[:, 16:]))


def _q5_k(blocks: U8) -> F32:
    """As Q4_K with 32 bytes of fifth bits: bit s of byte j belongs to element j of sub-block s."""
    bits = np.unpackbits(blocks[:, 16:48].reshape(-1, 32, 1), axis=2, bitorder="little")
    fifth = bits.swapaxes(1, 2) << np.uint8(4)
    return _k_min(blocks, _groups_of_64(blocks[:, 48:]) | fifth)


def _q6_k(blocks: U8) -> F32:
    """128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d: x = d scale (q - 32).

    Each half of a block (128 elements) has 64 low bytes and 32 high bytes. Its four runs of 32 take
    the low halves of low bytes 0-31 and 32-63, then their high halves; run r has bits 2r and 2r + 1
    of the high bytes. A scale covers 16 elements.
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([_low(low), _high(low)], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    q: F32 = (low | (high << 4)).astype(np.float32).reshape(-1, 16, 16) - np.float32(32)
    scales = _as_column(blocks[:, 192:208].view(np.int8))
    step: F32 = _halves(blocks, 208).reshape(-1, 1, 1) * scales
    return step * q


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""The magnitudes of a 4-bit float with two exponent bits and one of mantissa."""


def _mxfp4(blocks: U8) -> F32:
    """An exponent e, 32 nibbles of sign and E2M1 magnitude: x = 2^(e - 127) value.

    The OCP Microscaling Formats specification, version 1.0; e 255 is NaN there, and not used.
    """
    values = np.concatenate([E2M1, -E2M1])
    return np.ldexp(values[_nibbles(blocks[:, 1:])], blocks[:, :1].astype(np.int32) - 127)


def _u8(blocks: U8) -> F32:
    return blocks.astype(np.float32)


_DECODERS: dict[Encoding, Callable[[U8], F32]] = {
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
    Encoding.U8: _u8,
}

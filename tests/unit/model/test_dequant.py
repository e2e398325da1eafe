"""Dequantisation against the gguf package, and the test encoders against our decoders."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants

from tenure.model.weights.base import BLOCK, Encoding, StoredTensor
from tenure.model.weights.dequant import dequantise, dequantise_bytes
from tenure.testing.quantise import quantise

BLOCKED = [e for e in Encoding if BLOCK[e][0] > 1]
AFFINE = {Encoding.Q4_0, Encoding.Q4_1, Encoding.Q5_0, Encoding.Q5_1, Encoding.Q8_0}

STEP = {
    Encoding.F32: 0.0,
    Encoding.F16: 2**-10,
    Encoding.BF16: 2**-7,
    Encoding.Q4_0: 1 / 7,
    Encoding.Q4_1: 2 / 15,
    Encoding.Q5_0: 1 / 15,
    Encoding.Q5_1: 2 / 31,
    Encoding.Q8_0: 1 / 127,
    Encoding.Q4_K: 2 / 15,
    Encoding.Q5_K: 2 / 31,
    Encoding.Q6_K: 1 / 31,
    Encoding.MXFP4: 1 / 4,
}
"""A quantisation step, relative to a block's largest magnitude."""


def oracle(encoding: Encoding) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[encoding.value]


def random_blocks(encoding: Encoding, n: int) -> np.ndarray:
    """Random bytes; where a float16 scale would be infinite or NaN its exponent is lowered."""
    rng = np.random.default_rng([7, BLOCK[encoding][1]])
    blocks = rng.integers(0, 256, (n, BLOCK[encoding][1]), dtype=np.uint8)
    halves = {Encoding.Q6_K: [208], Encoding.MXFP4: []}.get(encoding, [0, 2])
    for byte in halves:
        blocks[:, byte + 1] &= 0xBF
    if encoding is Encoding.MXFP4:
        blocks[:, 0] = blocks[:, 0].clip(2, 250)
    return blocks


@pytest.mark.parametrize("encoding", BLOCKED)
def test_random_blocks_decode_to_the_bits_of_the_gguf_package(encoding: Encoding) -> None:
    blocks = random_blocks(encoding, 300)
    expected = quants.dequantize(blocks, oracle(encoding)).reshape(-1)
    actual = dequantise_bytes(blocks, encoding)
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("encoding", [*sorted(AFFINE, key=lambda e: e.value), Encoding.BF16])
def test_what_the_gguf_package_quantises_decodes_to_the_same_values(encoding: Encoding) -> None:
    values = np.random.default_rng(3).standard_normal((6, 96), dtype=np.float32)
    packed = quants.quantize(values, oracle(encoding))
    tensor = StoredTensor("w", values.shape, encoding, packed.view(np.uint8).reshape(-1))
    expected = quants.dequantize(packed, oracle(encoding))
    np.testing.assert_array_equal(dequantise(tensor), expected)


@pytest.mark.parametrize("encoding", list(STEP))
def test_quantise_then_dequantise_stays_within_a_step(encoding: Encoding) -> None:
    values = np.random.default_rng(5).standard_normal((40, 256), dtype=np.float32)
    values[3] = 0
    back = dequantise_bytes(quantise(values, encoding), encoding).reshape(values.shape)
    bound = STEP[encoding] * np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(back - values) <= bound * 1.1).all()
    np.testing.assert_array_equal(back[3], 0)


def test_dequantise_reads_a_view_that_starts_inside_a_buffer() -> None:
    values = np.arange(64, dtype=np.float32)
    packed = np.concatenate([np.zeros(3, np.uint8), quantise(values, Encoding.F32)])
    np.testing.assert_array_equal(dequantise_bytes(packed[3:], Encoding.F32), values)

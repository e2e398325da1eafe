"""Linear layers of the extension: their values, and that only the inputs decide the bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.backend.native_model import ENCODING_NUMBERS, REQUANTIZE
from tenure.model.weights.base import BLOCK, Encoding
from tenure.model.weights.dequant import dequantise_bytes
from tenure.testing.quantise import quantise

native = pytest.importorskip("tenure._native", reason="built without the extension")

ISAS = native.kernel_isas()
FLOATS = (Encoding.F32, Encoding.F16, Encoding.BF16)
QUANTISED = tuple(e for e in ENCODING_NUMBERS if e not in FLOATS)


def make(encoding, n_out, n_in, *, isa="portable", threads=1, requantize="stored", seed=0):
    values = np.random.default_rng(seed).standard_normal((n_out, n_in)).astype(np.float32)
    stored = quantise(values, encoding)
    number, how = ENCODING_NUMBERS[encoding], REQUANTIZE[requantize]
    matrix = native.Matrix(number, stored, n_out, n_in, how, isa, threads)
    return matrix, dequantise_bytes(stored, encoding).reshape(n_out, n_in)


def activations(n_rows, n_in, seed=1):
    """Rows whose magnitudes differ by orders, as a model's do."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_rows, n_in)) * 10.0 ** rng.integers(-3, 3, (n_rows, 1))
    return x.astype(np.float32)


def apply(matrix, x, n_out, **options):
    out = options.pop("out", np.full((len(x), n_out), np.nan, np.float32))
    matrix.load(x)
    matrix.apply(out, **options)
    return out


N_REFINED = 1
"""As in native/linear.hpp."""


def as_int8(groups):
    """Groups [..., 32] as int8 times a float32 scale: values of q, and scales [..., 1]."""
    peak = np.abs(groups).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak >= 2.0**-120)
    return np.rint(groups * inverse).astype(np.float64), peak / np.float32(127)


def quantised_activations(x):
    """What the layer multiplies, in NumPy: groups of 32 as int8 times a float32 scale, and what
    that took from the groups of largest scale in the same form."""
    n_in = x.shape[1]
    groups = np.pad(x, ((0, 0), (0, -n_in % 32))).reshape(len(x), -1, 32)
    q, scale = as_int8(groups)
    held = q * scale
    first = np.argsort(-scale, axis=1, kind="stable")[:, :N_REFINED]
    rest, rest_scale = as_int8((groups - held).astype(np.float32))
    refined = np.take_along_axis(held + rest * rest_scale, first, axis=1)
    np.put_along_axis(held, first, refined, axis=1)
    return held.reshape(len(x), -1)[:, :n_in]


def held_activations(x, isa):
    """What the layer multiplies, in the extension: its product with the unit matrix."""
    n = x.shape[1]
    unit = quantise(np.eye(n, dtype=np.float32) * 127, Encoding.Q8_0)
    matrix = native.Matrix(ENCODING_NUMBERS[Encoding.Q8_0], unit, n, n, 0, isa, 1)
    return apply(matrix, x, n) / 127


def block_multiples(encoding):
    per_block = BLOCK[encoding][0]
    return st.integers(1, 1 + 512 // per_block if per_block > 1 else 300).map(
        lambda n: n * per_block
    )


@st.composite
def layers(draw):
    encoding = draw(st.sampled_from(tuple(ENCODING_NUMBERS)))
    n_out = draw(st.integers(1, 100))
    return encoding, n_out, draw(block_multiples(encoding)), draw(st.integers(1, 19))


@pytest.mark.parametrize("encoding", QUANTISED)
@pytest.mark.parametrize("isa", ISAS)
def test_quantised_layer_is_the_product_of_what_it_holds(encoding, isa):
    matrix, weights = make(encoding, 50, 512, isa=isa)
    x = activations(7, 512)
    exact = quantised_activations(x) @ weights.T.astype(np.float64)
    got = apply(matrix, x, 50)
    scale = np.abs(quantised_activations(x)) @ np.abs(weights.T.astype(np.float64))
    assert np.max(np.abs(got - exact) / scale) < 1e-6


@pytest.mark.parametrize("isa", ISAS)
def test_groups_of_outliers_are_held_more_precisely(isa):
    x = activations(5, 256, seed=2)
    for row, outliers in zip(
        x, ((40, 200), (0, 255), (31, 32), (100, 170), (250, 60)), strict=True
    ):
        row[list(outliers)] *= 300
    error = np.abs(held_activations(x, isa) - x).reshape(5, 8, 32)
    peak = np.abs(x).reshape(5, 8, 32).max(axis=2)
    order = np.argsort(-peak, axis=1)
    relative = np.take_along_axis(error.max(axis=2) / peak, order, axis=1)
    assert relative[:, :N_REFINED].max() < 0.51 / 127**2
    assert relative[:, N_REFINED:].min() > 0.1 / 127


@pytest.mark.parametrize("isa", ISAS)
def test_the_lowest_of_equally_large_groups_are_refined(isa):
    x = np.tile(activations(1, 32), (1, 5))
    error = np.abs(held_activations(x, isa) - x).reshape(5, 32).max(axis=1)
    assert error[:N_REFINED].max() * 20 < error[N_REFINED:].min()


@pytest.mark.parametrize("scale", [1e-45, 1e-40, 1e-37, 1e-35, 1e-30, 1e30])
def test_instruction_sets_agree_on_values_of_any_size(scale):
    x = (np.random.default_rng(3).standard_normal((3, 96)) * scale).astype(np.float32)
    results = [apply(make(Encoding.Q4_1, 33, 96, isa=isa)[0], x, 33) for isa in ISAS]
    assert np.isfinite(results[0]).all()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("encoding", FLOATS)
@pytest.mark.parametrize("isa", ISAS)
def test_float_layer_is_the_product_of_what_it_holds(encoding, isa):
    matrix, weights = make(encoding, 50, 700, isa=isa)
    x = activations(7, 700)
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    scale = np.abs(x.astype(np.float64)) @ np.abs(weights.T.astype(np.float64))
    assert np.max(np.abs(apply(matrix, x, 50) - exact) / scale) < 1e-6


@pytest.mark.parametrize("encoding", tuple(ENCODING_NUMBERS))
def test_every_encoding_is_held_without_loss(encoding):
    matrix, weights = make(encoding, 35, 512)
    row = np.empty(512, np.float32)
    for index in (0, 15, 16, 34):
        matrix.row(index, row)
        np.testing.assert_array_max_ulp(row, weights[index], maxulp=1)


@given(layers())
@settings(max_examples=60, deadline=None)
def test_instruction_sets_agree_to_the_bit(layer):
    encoding, n_out, n_in, n_rows = layer
    x = activations(n_rows, n_in)
    results = [apply(make(encoding, n_out, n_in, isa=isa)[0], x, n_out) for isa in ISAS]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.uint32), other.view(np.uint32))


@given(layers(), st.integers(1, 5), st.sampled_from(ISAS))
@settings(max_examples=60, deadline=None)
def test_a_row_is_computed_alike_alone_and_in_any_company(layer, threads, isa):
    encoding, n_out, n_in, n_rows = layer
    x = activations(n_rows, n_in)
    together = apply(make(encoding, n_out, n_in, isa=isa, threads=threads)[0], x, n_out)
    single, _ = make(encoding, n_out, n_in, isa=isa)
    alone = np.concatenate([apply(single, x[i : i + 1], n_out) for i in range(n_rows)])
    np.testing.assert_array_equal(together.view(np.uint32), alone.view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
def test_bias_comes_after_the_sum_and_the_residual_last(isa):
    matrix, _ = make(Encoding.Q4_1, 21, 64, isa=isa)
    x = activations(3, 64)
    bias = np.linspace(-1, 1, 21, dtype=np.float32)
    plain = apply(matrix, x, 21)
    np.testing.assert_array_equal(apply(matrix, x, 21, bias=bias), plain + bias)
    start = activations(3, 21, seed=5)
    added = apply(matrix, x, 21, bias=bias, residual=True, out=start.copy())
    np.testing.assert_array_equal(added, start + (plain + bias))


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_integers_do_not_saturate(isa):
    """Largest weights times largest activations, in every sign: the bound of 16-bit pair sums."""
    n_in = 64
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (16, n_in)).astype(np.float32)
    blocks = np.zeros((16 * n_in // 32, 34), np.uint8)
    blocks[:, :2] = np.array([1.0], np.float16).view(np.uint8)
    blocks[:, 2:] = np.where(signs > 0, 127, -128).astype(np.int8).view(np.uint8).reshape(-1, 32)
    number = ENCODING_NUMBERS[Encoding.Q8_0]
    matrix = native.Matrix(number, blocks.reshape(-1), 16, n_in, 0, isa, 1)
    x = np.concatenate([signs[:1], -signs[:1], np.ones((1, n_in), np.float32)]) * np.float32(127)
    weights = dequantise_bytes(blocks.reshape(-1), Encoding.Q8_0).reshape(16, n_in)
    np.testing.assert_array_equal(apply(matrix, x, 16), x @ weights.T)


@pytest.mark.parametrize(("how", "bound"), [("int8", 0.008), ("int4", 0.1)])
@pytest.mark.parametrize("encoding", FLOATS)
@pytest.mark.parametrize("n_in", [320, 333])
def test_requantised_floats_stay_close(encoding, how, bound, n_in):
    """Rows that are not whole groups are padded with zeros."""
    matrix, weights = make(encoding, 33, n_in, requantize=how)
    rows = np.empty((33, n_in), np.float32)
    for index in range(33):
        matrix.row(index, rows[index])
    error = np.sqrt(np.mean((rows - weights) ** 2)) / np.sqrt(np.mean(weights**2))
    assert error < bound


@pytest.mark.parametrize("encoding", [Encoding.Q4_0, Encoding.Q8_0, Encoding.F32])
def test_zero_rows_give_zero(encoding):
    matrix, _ = make(encoding, 17, 64)
    assert not apply(matrix, np.zeros((2, 64), np.float32), 17).any()


def test_shapes_that_do_not_fit_are_refused():
    matrix, _ = make(Encoding.Q8_0, 16, 64)
    with pytest.raises(ValueError, match="does not fit"):
        matrix.load(np.zeros((1, 32), np.float32))
    with pytest.raises(ValueError, match="do not fit"):
        native.Matrix(0, np.zeros(12, np.uint8), 1, 4, 0, "portable", 1)
    with pytest.raises(ValueError, match="instruction set"):
        native.Matrix(0, np.zeros(16, np.uint8), 1, 4, 0, "sse9", 1)

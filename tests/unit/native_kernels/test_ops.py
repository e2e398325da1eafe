"""Norms, rotary embedding and gated activations: values, and equal bits on every path."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

native = pytest.importorskip("tenure._native", reason="built without the extension")

KERNELS = {isa: native.Kernels(isa, 1) for isa in native.kernel_isas()}


def on_every_path(compute):
    """`compute(kernels)` on the portable path, once all paths are seen to give its bits."""
    results = [compute(kernels) for kernels in KERNELS.values()]
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))
    return results[0]


def some(*shape, size=1.0, seed=0):
    return (size * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


lengths = st.integers(1, 700)
rounds = settings(deadline=None, max_examples=25)


@rounds
@given(st.integers(1, 5), lengths, st.floats(1e-3, 1e3))
def test_rms_norm(n_rows, n, size):
    x, weight = some(n_rows, n, size=size), some(n, seed=1)

    def compute(kernels):
        out = np.empty_like(x)
        kernels.rms_norm(x, weight, 1e-5, out)
        return out

    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(on_every_path(compute), wanted, rtol=1e-6)


def test_head_norm_is_rms_norm_of_each_head():
    x, weight = some(4, 3, 48), some(48, seed=1)

    def compute(kernels):
        out = x.copy()
        kernels.head_norm(out, weight, 1e-6)
        return out

    flat = np.empty((12, 48), np.float32)
    KERNELS["portable"].rms_norm(x.reshape(12, 48), weight, 1e-6, flat)
    np.testing.assert_array_equal(on_every_path(compute), flat.reshape(4, 3, 48))


def angles_of(kernels, inv_freq, factor, positions):
    out = np.empty((len(positions), 2 * len(inv_freq)), np.float32)
    kernels.rotary_rows(inv_freq, factor, positions, out)
    return out


def test_angles_are_exact_to_float32_at_any_position():
    inv_freq = 10000.0 ** -(np.arange(0, 64, 2) / 64)
    positions = np.array([0, 1, 2, 63, 8191, 131_071, 1_000_000], np.int32)
    angles = positions[:, None] * inv_freq
    wanted = 1.3 * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    found = on_every_path(lambda kernels: angles_of(kernels, inv_freq, 1.3, positions))
    np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rot_dim"), [(64, 64), (64, 20), (48, 38), (8, 8)])
def test_rotation_turns_pairs(head_dim, rot_dim, interleaved):
    inv_freq = 500.0 ** -(np.arange(rot_dim // 2) / rot_dim)
    positions = np.array([3, 0, 700], np.int32)
    angles = angles_of(KERNELS["portable"], inv_freq, 1.0, positions)
    x = some(3, 5, head_dim)

    def compute(kernels):
        out = x.copy()
        kernels.rotate(out, angles, interleaved)
        return out

    half = rot_dim // 2
    first = slice(0, rot_dim, 2) if interleaved else slice(0, half)
    second = slice(1, rot_dim, 2) if interleaved else slice(half, rot_dim)
    pairs = x[..., first].astype(np.float64) + 1j * x[..., second]
    turned = pairs * np.exp(1j * positions[:, None] * inv_freq)[:, None, :]
    wanted = x.astype(np.float64)
    wanted[..., first], wanted[..., second] = turned.real, turned.imag
    np.testing.assert_allclose(on_every_path(compute), wanted, rtol=1e-6, atol=1e-6)


def silu(gate, up):
    return gate / (1 + np.exp(-gate)) * up


def gelu_tanh(gate, up):
    inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + np.tanh(inner)) * up


def relu2(gate, up):
    return np.maximum(up, 0) ** 2


def clamped_swiglu(gate, up):
    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def activation(name, gate_scale=1.0):
    return native.Activation(gate=native.Gate[name], gate_scale=gate_scale, clamp=7.0)


@rounds
@given(
    st.sampled_from([silu, gelu_tanh, relu2, clamped_swiglu]),
    lengths,
    st.floats(0.01, 50),
    st.sampled_from([1.0, 0.3]),
)
def test_gated_activations(act, n, size, gate_scale):
    gate, up = some(n, size=size), some(n, size=size, seed=1)

    def compute(kernels):
        out = np.empty_like(gate)
        kernels.gate(activation(act.__name__, gate_scale), gate, up, out)
        return out

    wanted = act(gate.astype(np.float64) * gate_scale, up.astype(np.float64))
    np.testing.assert_allclose(on_every_path(compute), wanted, rtol=3e-6, atol=1e-6 * size)


def test_activations_of_extreme_gates_are_finite():
    gate = np.array([-3e38, -1e4, -104, -88, 88, 104, 1e4, 3e38], np.float32)
    out = np.empty_like(gate)
    KERNELS["portable"].gate(activation("silu"), gate, np.ones_like(gate), out)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out, np.where(gate > 0, gate, 0), atol=1e-30)


@rounds
@given(lengths, st.floats(0.5, 100))
def test_softcap(n, cap):
    x = some(n, size=40)

    def compute(kernels):
        out = x.copy()
        kernels.softcap(out, cap)
        return out

    wanted = cap * np.tanh(x.astype(np.float64) / cap)
    np.testing.assert_allclose(on_every_path(compute), wanted, rtol=1e-6)

"""Convolutions, recurrences and routing: values, equal bits on every path, and under any chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

native = pytest.importorskip("tenure._native", reason="built without the extension")

KERNELS = {isa: native.RecurrentKernels(isa) for isa in native.kernel_isas()}

rounds = settings(deadline=None, max_examples=25)


def on_every_path(compute):
    """`compute(kernels)`, arrays, on the portable path, once all paths give its bits."""
    results = [compute(kernels) for kernels in KERNELS.values()]
    for result in results[1:]:
        same_bits(result, results[0])
    return results[0]


def same_bits(got, want):
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def some(*shape, size=1.0, seed=0):
    return (size * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def fractions(*shape, seed=0):
    return np.random.default_rng(seed).random(shape, np.float32)


def padded(n):
    return -(-n // 16) * 16


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def in_chunks(run, n_tokens, chunk):
    """Outputs of `run(tokens, fresh)` over chunks of a sequence, one after another."""
    parts = [run(slice(i, i + chunk), i == 0) for i in range(0, n_tokens, chunk)]
    return np.concatenate(parts)


def convolved(kernels, x, weight, bias, gates, silu, chunk):
    tail = np.full((len(weight) - 1, x.shape[1]), np.nan, np.float32)  # a fresh one is not read

    def run(tokens, fresh):
        out = np.empty_like(x[tokens])
        own = [gate if gate is None else gate[tokens] for gate in gates]
        kernels.conv(x[tokens], weight, bias, *own, silu, fresh, tail, out)
        return out

    return in_chunks(run, len(x), chunk), tail


@rounds
@given(st.integers(1, 8), st.integers(1, 70), st.integers(1, 20), st.booleans(), st.booleans())
def test_convolution(width, n_channels, n_tokens, gated, silu):
    x, weight = some(n_tokens, n_channels), some(width, n_channels, seed=1)
    bias = None if gated else some(n_channels, seed=2)
    gates = [some(n_tokens, n_channels, seed=s) if gated else None for s in (3, 4)]
    found, tail = on_every_path(
        lambda kernels: convolved(kernels, x, weight, bias, gates, silu, n_tokens)
    )
    u = x.astype(np.float64) * (1 if gates[0] is None else gates[0])
    padding = np.concatenate([np.zeros((width - 1, n_channels)), u])
    wanted = sum(weight[j] * padding[j : j + n_tokens] for j in range(width))
    wanted = wanted + (0 if bias is None else bias)
    wanted = wanted * sigmoid(wanted) if silu else wanted
    wanted = wanted * (1 if gates[1] is None else gates[1])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tail, padding[n_tokens:], rtol=1e-6, atol=1e-6)
    for chunk in (1, 3):
        same_bits(
            convolved(KERNELS["portable"], x, weight, bias, gates, silu, chunk), (found, tail)
        )


@rounds
@given(st.integers(1, 5), st.integers(1, 40), st.floats(0.01, 60))
def test_step_sizes(n_tokens, n_heads, size):
    raw, bias = some(n_tokens, n_heads, size=size), some(n_heads, seed=1)
    rate = -3 * fractions(n_heads)

    def compute(kernels):
        dt, decay = np.empty_like(raw), np.empty_like(raw)
        kernels.step_sizes(raw, bias, rate, 0.001, 40.0, dt, decay)
        return dt, decay

    dt, decay = on_every_path(compute)
    wanted = np.clip(np.logaddexp(0, raw.astype(np.float64) + bias), 0.001, 40.0)
    np.testing.assert_allclose(dt, wanted, rtol=2e-6)
    np.testing.assert_allclose(decay, np.exp(wanted * rate), rtol=2e-5, atol=1e-30)


def scanned(kernels, shape, rows, dt, decay, skip, chunk):
    n_heads, head_dim, d_state, _ = shape
    state = np.full(n_heads * d_state * padded(head_dim), np.nan, np.float32)

    def run(tokens, fresh):
        out = np.empty((len(rows[tokens]), n_heads * head_dim), np.float32)
        kernels.ssm(rows[tokens], *shape, dt[tokens], decay[tokens], skip, fresh, state, out)
        return out

    return in_chunks(run, len(rows), chunk), state


@rounds
@given(
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 80), st.integers(1, 20), st.integers(1, 70)
)
def test_mamba2(n_groups, per_group, head_dim, d_state, n_tokens):
    n_heads = n_groups * per_group
    shape = (n_heads, head_dim, d_state, n_groups)
    n_inner, n_state = n_heads * head_dim, n_groups * d_state
    rows, skip = some(n_tokens, n_inner + 2 * n_state), some(n_heads, seed=1)
    dt, decay = fractions(n_tokens, n_heads, seed=2), fractions(n_tokens, n_heads, seed=3)
    found, state = on_every_path(
        lambda kernels: scanned(kernels, shape, rows, dt, decay, skip, n_tokens)
    )
    wide = rows.astype(np.float64)
    wanted = np.empty((n_tokens, n_heads, head_dim))
    held = np.zeros((n_heads, d_state, head_dim))
    x, b, c = np.split(wide, [n_inner, n_inner + n_state], axis=1)
    for t in range(n_tokens):
        for h in range(n_heads):
            own = slice(h // per_group * d_state, (h // per_group + 1) * d_state)
            u = x[t, h * head_dim : (h + 1) * head_dim]
            held[h] = decay[t, h] * held[h] + np.outer(b[t, own], dt[t, h] * u)
            wanted[t, h] = c[t, own] @ held[h] + skip[h] * u
    np.testing.assert_allclose(found, wanted.reshape(n_tokens, -1), rtol=1e-4, atol=1e-4)
    kept = state.reshape(n_heads, d_state, -1)[:, :, :head_dim]
    np.testing.assert_allclose(kept, held, rtol=1e-4, atol=1e-4)
    for chunk in (1, 7, 40):
        same_bits(scanned(KERNELS["portable"], shape, rows, dt, decay, skip, chunk), (found, state))


def ruled(kernels, shape, rows, beta, decay, chunk):
    _, n_v_heads, k_dim, v_dim = shape
    state = np.full(n_v_heads * k_dim * padded(v_dim), np.nan, np.float32)

    def run(tokens, fresh):
        out = np.empty((len(rows[tokens]), n_v_heads * v_dim), np.float32)
        kernels.delta(rows[tokens], *shape, beta[tokens], decay[tokens], fresh, state, out)
        return out

    return in_chunks(run, len(rows), chunk), state


@rounds
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 40), st.integers(1, 80), st.integers(1, 40)
)
def test_the_gated_delta_rule(n_k_heads, per_key, k_dim, v_dim, n_tokens):
    n_v_heads = n_k_heads * per_key
    shape = (n_k_heads, n_v_heads, k_dim, v_dim)
    k_rows = n_k_heads * k_dim
    rows = some(n_tokens, 2 * k_rows + n_v_heads * v_dim)
    heads = np.ascontiguousarray(rows[:, : 2 * k_rows]).reshape(n_tokens, -1, k_dim)
    KERNELS["portable"].unit_heads(heads, 1.0, 1e-6)
    rows[:, : 2 * k_rows] = heads.reshape(n_tokens, -1)
    beta, decay = fractions(n_tokens, n_v_heads, seed=2), fractions(n_tokens, n_v_heads, seed=3)
    found, _ = on_every_path(lambda kernels: ruled(kernels, shape, rows, beta, decay, n_tokens))
    wide = rows.astype(np.float64)
    q, k, v = np.split(wide, [k_rows, 2 * k_rows], axis=1)
    wanted = np.empty((n_tokens, n_v_heads, v_dim))
    held = np.zeros((n_v_heads, k_dim, v_dim))
    for t in range(n_tokens):
        for h in range(n_v_heads):
            own = slice(h // per_key * k_dim, (h // per_key + 1) * k_dim)
            held[h] *= decay[t, h]
            change = beta[t, h] * (v[t, h * v_dim : (h + 1) * v_dim] - k[t, own] @ held[h])
            held[h] += np.outer(k[t, own], change)
            wanted[t, h] = q[t, own] @ held[h]
    np.testing.assert_allclose(found, wanted.reshape(n_tokens, -1), rtol=1e-4, atol=1e-4)
    for chunk in (1, 7):
        again = ruled(KERNELS["portable"], shape, rows, beta, decay, chunk)
        np.testing.assert_array_equal(again[0].view(np.uint32), found.view(np.uint32))


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("n_groups", "size"), [(1, 77), (3, 20), (2, 64)])
def test_gated_norm(gate_first, shared, n_groups, size):
    x, z = some(5, n_groups * size, size=3), some(5, n_groups * size, seed=1)
    weight = some(size if shared else n_groups * size, seed=2)

    def compute(kernels):
        out = x.copy()
        kernels.gated_norm(out, z, weight, n_groups, 1e-5, gate_first, shared)
        return (out,)

    gate = (z * sigmoid(z)).reshape(5, n_groups, size)
    wide = x.astype(np.float64).reshape(5, n_groups, size) * (gate if gate_first else 1)
    normed = wide / np.sqrt((wide**2).mean(axis=2, keepdims=True) + 1e-5)
    wanted = normed * weight.reshape(-1, size) * (1 if gate_first else gate)
    (found,) = on_every_path(compute)
    np.testing.assert_allclose(found, wanted.reshape(5, -1), rtol=1e-5, atol=1e-6)


def test_a_gate_without_a_norm():
    x, z = some(4, 50), some(4, 50, seed=1)
    out = x.copy()
    KERNELS["portable"].gated_norm(out, z, None, 1, 1e-5, True, False)
    np.testing.assert_allclose(out, x * z * sigmoid(z), rtol=1e-5, atol=1e-6)


def test_unit_heads():
    x = some(4, 3, 20)

    def compute(kernels):
        out = x.copy()
        kernels.unit_heads(out, 0.25, 1e-6)
        return (out,)

    wide = x.astype(np.float64)
    wanted = 0.25 * wide / np.sqrt((wide**2).sum(axis=2, keepdims=True) + 1e-6)
    np.testing.assert_allclose(on_every_path(compute)[0], wanted, rtol=1e-6)


def routed(kernels, logits, n_used, over_all):
    experts = np.empty((len(logits), n_used), np.int32)
    weights = np.empty((len(logits), n_used), np.float32)
    kernels.route(logits, over_all, experts, weights)
    return experts, weights


@rounds
@given(st.integers(1, 64), st.integers(1, 130), st.booleans(), st.booleans())
def test_routing(n_used, n_experts, over_all, ties):
    n_used = min(n_used, n_experts)
    logits = some(6, n_experts, size=3)
    if ties:
        logits = np.round(logits)
    experts, weights = on_every_path(lambda kernels: routed(kernels, logits, n_used, over_all))
    order = np.argsort(-logits, axis=1, kind="stable")[:, :n_used]
    np.testing.assert_array_equal(experts, order)
    chosen = np.exp(np.take_along_axis(logits, order, 1).astype(np.float64))
    total = np.exp(logits.astype(np.float64)) if over_all else chosen
    np.testing.assert_allclose(weights, chosen / total.sum(axis=1, keepdims=True), rtol=1e-5)


def test_routing_of_logits_that_are_no_numbers_names_experts():
    logits = np.full((1, 20), np.nan, np.float32)
    experts, _ = routed(KERNELS["portable"], logits, 4, over_all=True)
    assert sorted(experts[0].tolist()) == [0, 1, 2, 3]

"""Attention over pages: its values, and that only (context, settings) decide the bits."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

native = pytest.importorskip("tenure._native", reason="built without the extension")

ISAS = native.kernel_isas()
BEST = ISAS[-1]
EVERYTHING = 1 << 30
GARBAGE = 0xFF  # as fp16 and fp32: NaN


@dataclass(frozen=True)
class Layer:
    n_heads: int = 9
    n_kv_heads: int = 3
    head_dim: int = 64
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    kv_type: str = "fp16"

    @property
    def scale(self):
        return 1.25 * self.head_dim**-0.5

    def sink_logits(self):
        rng = np.random.default_rng(self.n_heads)
        return rng.standard_normal(self.n_heads).astype(np.float32) if self.sinks else None


@dataclass(frozen=True)
class Sequence:
    """The q, k, v of every position, [n, heads, head_dim]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def sequence(layer, n, seed=0):
    rng = np.random.default_rng(seed)

    def some(heads, size):
        return (size * rng.standard_normal((n, heads, layer.head_dim))).astype(np.float32)

    return Sequence(
        some(layer.n_heads, 1.5), some(layer.n_kv_heads, 1.0), some(layer.n_kv_heads, 1.0)
    )


class Cache:
    """Pages, their tables, and how many positions of each sequence are computed."""

    def __init__(self, layer, sequences, *, isa=BEST, page_size=16, threads=1, seed=0):
        self.layer = layer
        self.sequences = sequences
        self.page_size = page_size
        self.kernels = native.Kernels(isa, threads)
        counts = [-(-len(s.q) // page_size) for s in sequences]
        ids = np.random.default_rng(seed).permutation(sum(counts)) + 1
        self.tables = np.split(ids, np.cumsum(counts)[:-1])
        self.pages = native.KernelPages(
            layer.kv_type, page_size, sum(counts) + 1, layer.n_kv_heads, layer.head_dim
        )
        self.pages.fill(GARBAGE)
        self.done = [0] * len(sequences)
        self.out = [np.full_like(s.q, np.nan) for s in sequences]

    def step(self, shares):
        """Computes up to `n` more positions of sequence `i`, for each (i, n)."""
        spans = [(i, self.done[i], min(self.done[i] + n, len(self.out[i]))) for i, n in shares]
        spans = [span for span in spans if span[1] < span[2]]
        if not spans:
            return
        ends = np.cumsum([0] + [end - begin for _, begin, end in spans])
        tables = [self.tables[i][: -(-end // self.page_size)] for i, _, end in spans]
        rows = native.KernelRows(
            ends.tolist(),
            [begin for _, begin, _ in spans],
            np.cumsum([0] + [len(t) for t in tables]).tolist(),
            np.concatenate(tables).tolist(),
        )
        q, k, v = (
            np.concatenate([getattr(self.sequences[i], name)[a:b] for i, a, b in spans])
            for name in "qkv"
        )
        out = np.full_like(q, np.nan)
        layer = self.layer
        self.kernels.write_kv(self.pages, rows, k, v)
        self.kernels.plan(self.pages, rows, layer.n_heads, layer.window)
        self.kernels.attend(
            self.pages, q, out, layer.scale, layer.softcap, sinks=layer.sink_logits()
        )
        for (i, begin, end), start in zip(spans, ends[:-1], strict=True):
            self.out[i][begin:end] = out[start : start + end - begin]
            self.done[i] = end

    def run(self, chunk=EVERYTHING):
        """All sequences together, `chunk` positions of each a step."""
        while any(done < len(out) for done, out in zip(self.done, self.out, strict=True)):
            self.step([(i, chunk) for i in range(len(self.out))])
        return self.out


def stored(x, kv_type):
    """What the cache keeps of x [n, heads, head_dim], in float64."""
    if kv_type == "fp16":
        return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64)
    if kv_type == "fp32":
        return x.astype(np.float64)
    peak = np.abs(x).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    return np.rint(x * inverse).astype(np.float64) * (peak / np.float32(127))


def expected(layer, s, position):
    """[n_heads, head_dim] in float64."""
    low = max(0, position + 1 - layer.window) if layer.window else 0
    group = layer.n_heads // layer.n_kv_heads
    k = stored(s.k[low : position + 1], layer.kv_type).repeat(group, axis=1)
    v = stored(s.v[low : position + 1], layer.kv_type).repeat(group, axis=1)
    scores = layer.scale * np.einsum("hd,xhd->hx", s.q[position].astype(np.float64), k)
    if layer.softcap:
        scores = layer.softcap * np.tanh(scores / layer.softcap)
    top = scores.max(axis=1)
    sinks = layer.sink_logits()
    if sinks is not None:
        top = np.maximum(top, sinks)
    weights = np.exp(scores - top[:, None])
    total = weights.sum(axis=1) + (0 if sinks is None else np.exp(sinks - top))
    return np.einsum("hx,xhd->hd", weights, v) / total[:, None]


def assert_same_bits(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@st.composite
def layers(draw):
    n_kv_heads = draw(st.integers(1, 3))
    return Layer(
        n_heads=n_kv_heads * draw(st.integers(1, 7)),
        n_kv_heads=n_kv_heads,
        head_dim=draw(st.sampled_from([8, 20, 32, 64, 80, 96, 128, 256])),
        window=draw(st.sampled_from([0, 0, 1, 7, 33, 100])),
        softcap=draw(st.sampled_from([0.0, 0.0, 3.0, 50.0])),
        sinks=draw(st.booleans()),
        kv_type=draw(st.sampled_from(["fp16", "fp32", "int8"])),
    )


counts = st.integers(1, 3)
page_sizes = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 256])


@settings(deadline=None, max_examples=60)
@given(
    layers(), st.lists(st.integers(1, 300), min_size=1, max_size=3), page_sizes, st.integers(1, 3)
)
def test_values_are_those_of_softmax_attention(layer, lengths, page_size, threads):
    sequences = [sequence(layer, n, seed) for seed, n in enumerate(lengths)]
    out = Cache(layer, sequences, page_size=page_size, threads=threads).run(chunk=97)
    for s, found in zip(sequences, out, strict=True):
        for position in {0, len(s.q) // 2, len(s.q) - 1}:
            wanted = expected(layer, s, position)
            np.testing.assert_allclose(found[position], wanted, rtol=2e-5, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(layers(), st.integers(1, 90), page_sizes, st.sampled_from(ISAS))
def test_instruction_sets_agree_to_the_bit(layer, n, page_size, isa):
    s = [sequence(layer, n)]
    wanted = Cache(layer, s, isa="portable").run()
    assert_same_bits(Cache(layer, s, isa=isa, page_size=page_size).run(chunk=31), wanted)


LAYERS = {
    "default": Layer(),
    "wide": Layer(n_heads=8, n_kv_heads=1, head_dim=128),
    "sliding": Layer(n_heads=4, n_kv_heads=2, head_dim=32, window=100, sinks=True),
    "capped": Layer(n_heads=4, n_kv_heads=4, head_dim=80, softcap=20.0),
    "int8": Layer(kv_type="int8"),
    "fp32": Layer(kv_type="fp32"),
}


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "portable"] or ISAS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_chunks_pages_threads_and_company_do_not_change_a_bit(layer, isa):
    """The reference run is one sequence alone, in one chunk, in one thread."""
    sequences = [sequence(layer, n, seed) for seed, n in enumerate([1, 70, 300, 530])]
    alone = [Cache(layer, [s], isa=isa).run()[0] for s in sequences]
    for page_size, threads, chunk in [(16, 1, EVERYTHING), (1, 2, 64), (64, 3, 7), (256, 2, 129)]:
        cache = Cache(layer, sequences, isa=isa, page_size=page_size, threads=threads, seed=chunk)
        assert_same_bits(cache.run(chunk), alone)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_decode_gives_the_bits_of_prefill(layer):
    sequences = [sequence(layer, n, seed) for seed, n in enumerate([40, 270, 515])]
    prefilled = Cache(layer, sequences).run()
    cache = Cache(layer, sequences, threads=2)
    cache.step([(i, len(s.q) - 5) for i, s in enumerate(sequences)])
    for _ in range(5):
        cache.step([(0, 1), (2, 1), (1, 1)])
    assert_same_bits(cache.out, prefilled)


def test_a_prefill_among_decoding_rows_changes_neither():
    layer = Layer()
    sequences = [sequence(layer, n, seed) for seed, n in enumerate([600, 33, 290])]
    wanted = Cache(layer, sequences).run()
    cache = Cache(layer, sequences, threads=3)
    cache.step([(0, 599), (2, 280)])
    cache.step([(2, 1), (1, 33), (0, 1)])
    cache.step([(2, 9)])
    assert_same_bits(cache.out, wanted)


def test_branches_that_share_pages_read_the_same_prefix():
    layer = Layer()
    whole = sequence(layer, 320)
    wanted = Cache(layer, [whole]).run()[0]
    cache = Cache(layer, [whole, whole], threads=2)
    cache.step([(0, 256)])
    cache.tables[1][:16] = cache.tables[0][:16]
    cache.done[1] = 256
    cache.step([(0, 64), (1, 64)])
    assert_same_bits([cache.out[0][256:], cache.out[1][256:]], [wanted[256:]] * 2)


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_pages_that_left_the_window_are_not_read(page_size):
    layer = Layer(window=70)
    whole = sequence(layer, 330)
    wanted = Cache(layer, [whole], page_size=page_size).run()
    cache = Cache(layer, [whole], page_size=page_size)
    cache.step([(0, 280)])
    null_page = 0
    cache.tables[0][: (280 + 1 - layer.window) // page_size] = null_page
    cache.step([(0, 49)])
    cache.step([(0, 1)])
    assert_same_bits(cache.out, wanted)


def test_bits_move_when_the_same_context_lies_elsewhere():
    """Blocks are anchored at absolute positions, and a comparison of bits sees that they are."""
    layer = Layer(window=200)
    whole = sequence(layer, 400)
    shifted = Sequence(whole.q[8:], whole.k[8:], whole.v[8:])
    here = Cache(layer, [whole]).run()[0][-100:]
    there = Cache(layer, [shifted]).run()[0][-100:]
    np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)
    assert (here.view(np.uint32) != there.view(np.uint32)).any()


@pytest.mark.parametrize("kv_type", ["fp16", "fp32", "int8"])
def test_values_beyond_fp16_saturate_and_stay_finite(kv_type):
    layer = Layer(kv_type=kv_type)
    s = sequence(layer, 20)
    large = replace(s, v=s.v * np.float32(1e5))
    found = Cache(layer, [large]).run()[0]
    wanted = expected(layer, large, 19)
    np.testing.assert_allclose(found[19], wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def test_a_row_of_zeros_survives_int8():
    layer = Layer(kv_type="int8")
    s = sequence(layer, 5)
    s.k[:] = 0
    s.v[:] = 0
    assert (Cache(layer, [s]).run()[0] == 0).all()


@pytest.mark.parametrize(
    ("kv_type", "page_size", "n_bytes"),
    [("fp16", 16, 12_288), ("fp32", 16, 24_576), ("int8", 16, 6_528), ("fp16", 1, 768)],
)
def test_page_bytes(kv_type, page_size, n_bytes):
    """3 KV heads of 64: K and V, and for int8 two scales a position and head."""
    assert native.KernelPages(kv_type, page_size, 1, 3, 64).page_bytes == n_bytes

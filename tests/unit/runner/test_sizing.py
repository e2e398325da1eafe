"""The size of the KV cache, and the memory it is taken from."""

from pathlib import Path

import pytest

from tenure.core.errors import ConfigError
from tenure.kv.spec import FullGroup, KvSpec, RecurrentGroup, SlidingGroup
from tenure.model.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, ShortConvSpec
from tenure.runner.memory import MemoryFiles, free_memory_bytes
from tenure.runner.sizing import KvWish, kv_groups, size_kv

GIB = 2**30


def model(*layers: tuple[int, int | None], context_len: int = 4096) -> ModelSpec:
    """One layer for each (group, window)."""
    parts = tuple(
        LayerSpec((AttentionSpec(2, 1, 32, 1.0, None, window=window, group=group),), MlpSpec(64))
        for group, window in layers
    )
    return ModelSpec("tiny", 100, 64, context_len, parts, 1e-5, tied_head=True)


FULL = model((0, None), (0, None))
MIXED = model((0, None), (1, 128), (1, 128))


def wish(max_kv_tokens: int | None, **fields: int) -> KvWish:
    return KvWish(
        **{"page_size": 16, "n_sequences": 4, "step_tokens": 64, **fields},
        max_kv_tokens=max_kv_tokens,
    )


def test_groups_come_from_the_layers() -> None:
    assert kv_groups(FULL) == (FullGroup(0),)
    assert kv_groups(MIXED) == (FullGroup(0), SlidingGroup(0, 128))
    assert kv_groups(model((1, None), (0, 7))) == (SlidingGroup(0, 7), FullGroup(0))


@pytest.mark.parametrize("layers", [[(0, None), (0, 8)], [(0, None), (2, 8)]])
def test_groups_that_make_no_sense_are_refused(layers: list[tuple[int, int | None]]) -> None:
    with pytest.raises(ValueError, match="exactly one kind"):
        kv_groups(model(*layers))


def test_tokens_become_whole_pages() -> None:
    assert size_kv(FULL, [1000], wish(1000), GIB) == KvSpec(16, (FullGroup(63),))


def test_a_sliding_group_holds_windows_not_histories() -> None:
    # 127 earlier positions and 64 new ones touch at most 13 pages; 8 sequences.
    kv = size_kv(MIXED, [1000, 1000], wish(100_000), GIB)
    assert kv.groups == (FullGroup(6250), SlidingGroup(104, 128))
    kv = size_kv(MIXED, [1000, 1000], wish(160), GIB)
    assert kv.groups == (FullGroup(10), SlidingGroup(10, 128))


def test_without_full_attention_tokens_count_in_the_window() -> None:
    kv = size_kv(model((0, 128)), [1000], wish(100_000), GIB)
    assert kv.groups == (SlidingGroup(6250, 128),)


HYBRID = ModelSpec(
    "tiny",
    100,
    64,
    4096,
    (
        LayerSpec((AttentionSpec(2, 1, 32, 1.0, None),), None),
        LayerSpec((ShortConvSpec(64, 3, group=1),), MlpSpec(64)),
    ),
    1e-5,
    tied_head=True,
)


def test_running_states_are_counted_and_not_measured_in_tokens() -> None:
    kv = size_kv(HYBRID, [1000, 5000], wish(1000, n_checkpoints=6), GIB)
    assert kv.groups == (FullGroup(63), RecurrentGroup(4 + 6, checkpoint_every=64))
    kv = size_kv(HYBRID, [1000, 5000], wish(1000, n_checkpoints=0, step_tokens=50), GIB)
    assert kv.groups == (FullGroup(63), RecurrentGroup(4))
    with pytest.raises(ConfigError, match="max_kv_tokens 1000 takes"):
        size_kv(HYBRID, [1000, 5000], wish(1000, n_checkpoints=100), 500_000)


def test_checkpoints_are_taken_where_full_steps_end() -> None:
    kv = size_kv(HYBRID, [1000, 5000], wish(1000, step_tokens=50), GIB)
    assert kv.groups[1] == RecurrentGroup(16, checkpoint_every=64)


def test_states_take_no_more_than_their_share_of_memory() -> None:
    """A quarter of half of 8 MB holds 10 states of 100 kB; the rest goes to tokens."""
    full, states = size_kv(HYBRID, [1000, 100_000], wish(None, n_sequences=64), 8_000_000).groups
    assert states == RecurrentGroup(10, checkpoint_every=64)
    # 4 MB less 10 states and the page that none uses.
    assert full == FullGroup(2900 - 1)
    _, states = size_kv(HYBRID, [1000, 10**6], wish(None, n_sequences=64), 12_000_000).groups
    assert states.n_pages == 4


def test_half_of_free_memory_by_default() -> None:
    (group,) = size_kv(FULL, [10_000], wish(None, n_sequences=1000), 2_000_000).groups
    # 100 pages fit in half of it, and one of them is the null page.
    assert group == FullGroup(99)


def test_no_more_than_every_sequence_can_use() -> None:
    (group,) = size_kv(FULL, [10], wish(None), 100 * GIB).groups
    assert group == FullGroup(4 * 4096 // 16)


def test_too_much_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        size_kv(FULL, [2**20], wish(16 * 100), 50 * 2**20)
    for part in ("max_kv_tokens 1600", "101.0 MiB", "50.0 MiB", "at most 784 tokens"):
        assert part in str(caught.value)
    kv = size_kv(FULL, [2**20], wish(784), 50 * 2**20)
    assert kv.groups == (FullGroup(49),)


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"256 tokens takes 17\.0 MiB.*10\.0 MiB"):
        size_kv(FULL, [2**20], wish(None), 20 * 2**20)


@pytest.mark.parametrize("n_tokens", [0, 15, 2**31])
def test_a_size_out_of_range_is_refused(n_tokens: int) -> None:
    with pytest.raises(ConfigError, match="max_kv_tokens must be in"):
        size_kv(FULL, [1], wish(n_tokens), GIB)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def files(tmp_path: Path) -> MemoryFiles:
    write(tmp_path / "proc/meminfo", "MemTotal: 900 kB\nMemAvailable:     600 kB\nSwap: 0 kB\n")
    return MemoryFiles(tmp_path / "proc", tmp_path / "cgroup")


def test_memory_that_the_kernel_offers(files: MemoryFiles) -> None:
    assert free_memory_bytes(files) == 600 * 1024


def test_a_cgroup_bounds_it(files: MemoryFiles) -> None:
    write(files.proc / "self/cgroup", "0::/box/inner\n")
    write(files.cgroup / "box/inner/memory.max", "max\n")
    write(files.cgroup / "box/inner/memory.current", "5\n")
    write(files.cgroup / "box/memory.max", "300000\n")
    write(files.cgroup / "box/memory.current", "250000\n")
    write(files.cgroup / "box/memory.stat", "anon 100\ninactive_file 50000\n")
    assert free_memory_bytes(files) == 300_000 - 250_000 + 50_000


def test_a_cgroup_of_version_1_bounds_it(files: MemoryFiles) -> None:
    write(files.proc / "self/cgroup", "5:cpu:/\n4:memory:/box\n")
    write(files.cgroup / "memory/box/memory.limit_in_bytes", "1000\n")
    write(files.cgroup / "memory/box/memory.usage_in_bytes", "1200\n")
    write(files.cgroup / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(files.cgroup / "memory/memory.usage_in_bytes", "7\n")
    assert free_memory_bytes(files) == 0


def test_this_machine_has_memory() -> None:
    assert free_memory_bytes() > 2**20
    assert free_memory_bytes(MemoryFiles(Path("/nowhere"), Path("/nowhere"))) > 2**20

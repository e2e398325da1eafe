from __future__ import annotations

import pytest

from tenure.kv.spec import FullGroup, KvSpec


@pytest.mark.parametrize("page_size", [0, 3, 512])
def test_a_page_is_a_power_of_two_up_to_256(page_size: int) -> None:
    with pytest.raises(ValueError, match="page_size"):
        KvSpec(page_size, (FullGroup(1),))


def test_a_cache_has_a_group() -> None:
    with pytest.raises(ValueError, match="group"):
        KvSpec(16, ())

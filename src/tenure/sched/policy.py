"""How many tokens a step may have, and who waits for whose prefix."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.sched.request import Request, Running


def prefill_budget(step_tokens: int, mixed_tokens: int, n_decoding: int) -> int:
    """Tokens of a step that may go to requests with more than one token to compute.

    While others decode, a step stays small (`mixed_tokens`), so that their time between tokens does
    too; the tokens being decoded count against the step.
    """
    if not n_decoding:
        return step_tokens
    return max(1, min(mixed_tokens, step_tokens - n_decoding))


def shares_unfinished_prefix(
    request: Request, n_matched: int, running: Iterable[Request], page_size: int
) -> bool:
    """Whether a running request is computing a prefix that `request` could take over.

    True when more than half of what `request` would compute, and at least a page, is about to be
    published by a request that is still computing its prompt. Waiting for it costs that request's
    prefill at most, which ends in any case.
    """
    n_missing = len(request) - n_matched
    for other in running:
        if other.spec.namespace != request.spec.namespace or other.published_prompt:
            continue
        n_common = _common_prefix(request, other, n_matched)
        n_gain = n_common // page_size * page_size - n_matched
        if n_gain >= page_size and 2 * n_gain > n_missing and _is_ahead(other, n_matched):
            return True
    return False


def _is_ahead(other: Request, n_matched: int) -> bool:
    match other.state:
        case Running(lease):
            return lease.committed >= n_matched
        case _:
            return False


def _common_prefix(a: Request, b: Request, start: int) -> int:
    """The length of the common prefix, given that the first `start` tokens are not of interest.

    Tokens before `start` are taken as equal only where they are: the spans are compared whole.
    """
    n = min(a.n_prompt, b.n_prompt)
    if start >= n:
        return start
    if a.read(0, start) != b.read(0, start):
        return 0
    left, right = a.read(start, n), b.read(start, n)
    if left == right:
        return n
    low, high = 0, len(left)
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return start + low

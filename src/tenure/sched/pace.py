"""How much prefill may join a step in which others decode, from the speed that was measured.

It changes how long a step takes, never what comes out of it.
"""

from __future__ import annotations

STRETCH = 0.9
"""A mixed step may take this much longer than a step that only decodes: under twice as long."""

LEAST_TOKENS = 8
"""Prefill always moves on, however slow it is beside the decoding."""

WEIGHT = 0.2
"""What the newest step counts for in a running mean."""


class Pace:
    """Running means of what steps cost, in seconds.

    `_decode_s[b]` is that of a step of only decoding rows, whose number has b bits; `_token_s` is
    what a token of prefill adds. Until both are known, `mixed_tokens` is the answer.
    """

    def __init__(self, mixed_tokens: int) -> None:
        self._mixed_tokens = mixed_tokens
        self._decode_s: dict[int, float] = {}
        self._token_s: float | None = None

    def saw(self, n_decoding: int, n_prefill: int, seconds: float) -> None:
        """A step of that make-up took so long; a time of 0 was not measured."""
        if seconds <= 0:
            return
        bucket = n_decoding.bit_length()
        if not n_prefill:
            self._decode_s[bucket] = _mean(self._decode_s.get(bucket), seconds)
        elif n_prefill >= LEAST_TOKENS:
            decode_s = self._decode_s.get(bucket, 0.0) if n_decoding else 0.0
            added_s = max(seconds - decode_s, 0.0) / n_prefill
            self._token_s = _mean(self._token_s, added_s)

    @property
    def token_s(self) -> float | None:
        """Seconds that a token of prefill adds to a step; None until it was measured."""
        return self._token_s

    def mixed_budget(self, n_decoding: int) -> int:
        """Tokens of prefill that keep a step with so many decoding rows under twice its time."""
        decode_s = self._decode_s.get(n_decoding.bit_length())
        if decode_s is None or not self._token_s:
            return self._mixed_tokens
        return max(LEAST_TOKENS, int(STRETCH * decode_s / self._token_s))


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + WEIGHT * (now - before)

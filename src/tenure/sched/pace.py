"""How much prefill may join a step in which others decode, from the speed that was measured.

It changes how long a step takes, never what comes out of it.
"""

from __future__ import annotations

STRETCH = 0.9
"""A mixed step may take this much longer than running turns are used to: under twice as long."""

MOST = 3.0
"""Whatever they are used to, it may take this many times as long as a step that only decodes."""

HABIT = 0.001
"""By how much a step moves the median of what turns are used to. Where prompts keep coming, mixed
steps become the rule in some hundreds of them; a single prompt hardly counts.
"""

LEAST_TOKENS = 8
"""Prefill always moves on, however slow it is beside the decoding."""

PROBE = 16
"""After so many mixed steps one only decodes: a sum does not tell what each of its parts costs."""

WEIGHT = 0.2
"""What the newest step counts for in a running mean."""

EXACT = 16
"""Up to so many decoding rows each number has a mean of its own; above, 16 of them share one."""


class Pace:
    """Running means of what steps cost, in seconds.

    `_decode_s[n]` is that of a step of only `n` decoding rows, `_token_s` what a token of prefill
    adds. Until both are known, `mixed_tokens` is the answer. On a busy server steps that only
    decode are rare, so a number of rows that was not seen is judged by the nearest that was, a row
    more or less taken to cost what a token of prefill does.

    `_usual` is the median of steps with decoding rows, in multiples of a step that only decodes.
    It is what a client sees between two tokens; with prefill in most steps that is more than
    decoding alone takes.
    """

    def __init__(self, mixed_tokens: int) -> None:
        self._mixed_tokens = mixed_tokens
        self._decode_s: dict[int, float] = {}
        self._token_s: float | None = None
        self._usual = 1.0
        self._n_mixed = 0

    def saw(self, n_decoding: int, n_prefill: int, seconds: float) -> None:
        """A step of that make-up took so long; a time of 0 was not measured.

        How far a mixed step is from what was expected goes to both of its parts, in proportion to
        the square of their shares (normalised least mean squares; Haykin, Adaptive Filter Theory,
        chapter 6). So a machine that slows down slows both, and does not count against prefill.
        """
        if seconds <= 0 or not n_decoding + n_prefill:
            return
        decode_s = self._expected_s(n_decoding)
        if decode_s is not None:
            self._get_used_to(seconds / decode_s)
        self._n_mixed = self._n_mixed + 1 if n_decoding and n_prefill else 0
        if not n_prefill:
            bucket = _bucket(n_decoding)
            self._decode_s[bucket] = _mean(self._decode_s.get(bucket), seconds)
        elif n_prefill >= LEAST_TOKENS and (self._token_s is None or not n_decoding):
            added_s = seconds - (decode_s or 0.0)
            if added_s > 0:
                self._token_s = _mean(self._token_s, added_s / n_prefill)
        elif self._token_s is not None and decode_s is not None:
            prefill_s = n_prefill * self._token_s
            step = WEIGHT * (seconds - decode_s - prefill_s) / (decode_s**2 + prefill_s**2)
            for bucket in self._decode_s:
                self._decode_s[bucket] *= max(0.5, 1 + step * decode_s)
            self._token_s *= max(0.5, 1 + step * prefill_s)

    @property
    def token_s(self) -> float | None:
        """Seconds that a token of prefill adds to a step; None until it was measured."""
        return self._token_s

    @property
    def wants_decoding_alone(self) -> bool:
        """Whether the next step should have no prefill beside its decoding rows."""
        return self._n_mixed >= PROBE

    def mixed_budget(self, n_decoding: int) -> int:
        """Tokens of prefill that keep a step with so many decoding rows under twice the usual."""
        decode_s = self._expected_s(n_decoding)
        if decode_s is None or not self._token_s:
            return self._mixed_tokens
        longer = STRETCH + (1 + STRETCH) * (self._usual - 1)
        return max(LEAST_TOKENS, int(min(longer, MOST - 1) * decode_s / self._token_s))

    def _get_used_to(self, times: float) -> None:
        """Move the median towards a step that took so many times one that only decodes.

        Stochastic approximation of a quantile (Robbins and Monro, 1951), of the logarithm.
        """
        moved = self._usual * (1 + HABIT if times > self._usual else 1 - HABIT)
        self._usual = min(max(1.0, moved), MOST)

    def _expected_s(self, n_decoding: int) -> float | None:
        """Of a step with only so many decoding rows."""
        if not n_decoding or not self._decode_s:
            return None
        n_seen = min(self._decode_s, key=lambda n: abs(n - n_decoding))
        seen_s, n_rows = self._decode_s[n_seen], _bucket(n_decoding)
        added_s = (n_rows - n_seen) * (self._token_s or 0.0)
        return max(seen_s + added_s, seen_s * min(1, n_rows / n_seen))


def _bucket(n_decoding: int) -> int:
    return n_decoding if n_decoding <= EXACT else n_decoding // EXACT * EXACT


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + WEIGHT * (now - before)

"""Names for the content of pages: equal names, equal bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from tenure.core.tokens import TokenLog, Tokens

DIGEST_BYTES = 32


class PageKeys:
    """Digests of page-aligned prefixes, each made from the one before it and a page of tokens.

    digest(0) is over the format and the namespace; digest(n + 1) over digest(n) and the tokens of
    page n. What a page holds in some group is a function of the prefix that it ends, so a key is
    that digest and the group. `page_format` names model, arithmetic, layout and page size.

    Digests of a log are kept with it, as far as they were asked for: going on from there costs the
    new tokens only.
    """

    def __init__(self, page_format: str, page_size: int) -> None:
        self._format = page_format.encode()
        self._page_size = page_size
        self._known: WeakKeyDictionary[TokenLog, tuple[str, int, bytes]] = WeakKeyDictionary()

    def start(self, namespace: str) -> bytes:
        """The digest of no tokens."""
        parts = (self._format, namespace.encode("utf-8", "surrogatepass"))
        return _digest(*(len(part).to_bytes(8, "little") + part for part in parts))

    def follow(self, digest: bytes, ids: Tokens) -> Iterator[bytes]:
        """The digest after each whole page of `ids`, which come after those of `digest`."""
        data, width = ids.tobytes(), 4 * self._page_size
        for at in range(0, len(data) - width + 1, width):
            digest = _digest(digest, data[at : at + width])
            yield digest

    def after(self, namespace: str, log: TokenLog, n_pages: int) -> bytes:
        """The digest of the first `n_pages` of `log`; O(pages from the nearest known one on)."""
        size = self._page_size
        at, digest = 0, b""
        for part, n_counting in log.parts():
            known = self._known.get(part)
            if known is None or known[0] != namespace:
                continue
            if known[1] <= min(n_pages, n_counting // size):
                _, at, digest = known
                break
        else:
            digest = self.start(namespace)
        more = list(self.follow(digest, log.read(at * size, n_pages * size)))
        digest = more[-1] if more else digest
        self.note(namespace, log, n_pages, digest)
        return digest

    def note(self, namespace: str, log: TokenLog, n_pages: int, digest: bytes) -> None:
        """`digest` is that of the first `n_pages` of `log`; kept if it is further than what is."""
        known = self._known.get(log)
        if known is None or known[0] != namespace or known[1] < n_pages:
            self._known[log] = namespace, n_pages, digest

    @staticmethod
    def of_group(digest: bytes, group: int) -> bytes:
        """The key of the page of `group` that ends the prefix of `digest`."""
        return digest + group.to_bytes(1, "little")


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()

"""API keys, and the tenants that hold them."""

from __future__ import annotations

import hashlib
import hmac
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from tenure.core.errors import ConfigError
from tenure.core.tenant import EVERYBODY, Tenant, TenantLimits

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

DIGEST_HEX = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request; an operator may also look at and steer the engine as a whole."""

    tenant: Tenant
    operator: bool = False


ANYBODY = Caller(EVERYBODY, operator=True)
"""Every caller of a server without keys."""


class TenantEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What a keys file says of one tenant; `sha256` are hex digests of further keys."""

    keys: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    operator: bool = False
    sessions: int | None = None
    turns_at_once: int | None = None
    queue_share: float | None = None
    kv_tokens: int | None = None
    max_tokens: int | None = None

    def limits(self) -> TenantLimits:
        """Raises ConfigError."""
        return TenantLimits(
            sessions=self.sessions,
            turns_at_once=self.turns_at_once,
            queue_share=self.queue_share,
            kv_tokens=self.kv_tokens,
            max_tokens=self.max_tokens,
        )


class KeysFile(msgspec.Struct, forbid_unknown_fields=True):
    """A keys file: tenants by name, each as TenantEntry says."""

    tenant: dict[str, object]


class KeyRing:
    """Finds the caller by the key of a request.

    Keys are kept as SHA-256 digests, and compared in constant time. A ring without keys lets
    everybody in.
    """

    def __init__(
        self, api_key: str | None = None, path: Path | None = None, *, share_kv: bool = False
    ) -> None:
        """`api_key` is the operator's. Raises ConfigError for a file that cannot be used."""
        self._api_key = api_key
        self.path = path
        self._share_kv = share_kv
        self._callers = self._read()
        self._tenants = _by_name(self._callers)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return self._api_key is not None or self.path is not None

    def find(self, key: bytes) -> Caller | None:
        """Whose key it is."""
        if not self.required:
            return ANYBODY
        digest = hashlib.sha256(key).digest()
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                return caller
        return None

    def tenant(self, name: str) -> Tenant:
        """A tenant with the limits that hold now; one that has no key any more has none."""
        return self._tenants.get(name) or Tenant(name)

    def reload(self) -> bool:
        """Read the file again; a file that cannot be used changes nothing, and is logged."""
        try:
            callers = self._read()
        except ConfigError as error:
            log.error("keys_not_reloaded", reason=error.message)
            return False
        self._callers, self._tenants = callers, _by_name(callers)
        log.info("keys_reloaded", keys=len(self._callers))
        return True

    # -- inside

    def _read(self) -> Mapping[bytes, Caller]:
        callers: dict[bytes, Caller] = {}
        if self._api_key is not None:
            own = Tenant(shares_kv=self._share_kv)
            callers[_digest(self._api_key, "api_key")] = Caller(own, operator=True)
        if self.path is not None:
            for name, entry in read_keys_file(self.path).items():
                self._add(callers, name, entry)
        return callers

    def _add(self, callers: dict[bytes, Caller], name: str, entry: TenantEntry) -> None:
        where = f"{self.path}: tenant {name!r}"
        if not name:
            raise ConfigError(f"{self.path}: a tenant needs a name")
        if not entry.keys and not entry.sha256:
            raise ConfigError(f"{where} has neither keys nor sha256")
        try:
            caller = Caller(Tenant(name, entry.limits(), self._share_kv), entry.operator)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.message}") from error
        digests = [_digest(key, f"{where}: keys") for key in entry.keys]
        digests += [_from_hex(text, where) for text in entry.sha256]
        for digest in digests:
            if digest in callers:
                raise ConfigError(f"{where}: one of its keys is given twice")
            callers[digest] = caller


def _by_name(callers: Mapping[bytes, Caller]) -> Mapping[str, Tenant]:
    return {caller.tenant.name: caller.tenant for caller in callers.values()}


def read_keys_file(path: Path) -> Mapping[str, TenantEntry]:
    """The tenants that a TOML or (by its name) JSON file describes. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        entries = msgspec.convert(found, KeysFile).tenant
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # Of a file full of secrets only what is wrong with its form is shown.
        raise ConfigError(f"{path}: {error}") from error
    return {name: _entry(path, name, entry) for name, entry in entries.items()}


def _entry(path: Path, name: str, entry: object) -> TenantEntry:
    try:
        return msgspec.convert(entry, TenantEntry)
    except ValueError as error:
        raise ConfigError(f"{path}: tenant {name!r}: {error}") from error


def check_key(key: str, what: str) -> None:
    """Raises ConfigError for a key that no client could send."""
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(f"{what} must be printable ASCII and not empty")
    if key != key.strip():
        raise ConfigError(f"{what} must not begin or end with a space: headers lose it")


def _digest(key: str, what: str) -> bytes:
    check_key(key, what)
    return hashlib.sha256(key.encode()).digest()


def _from_hex(text: str, where: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(text) != DIGEST_HEX or len(digest) != DIGEST_HEX // 2:
        raise ConfigError(f"{where}: sha256 must be {DIGEST_HEX} hexadecimal digits")
    return digest

"""Logits of llama.cpp, from the C functions in the xllamacpp wheel. Runs under the peer's Python.

usage: python _llama_logits.py MODEL N_CTX THREADS

Reads one context a line from stdin (a JSON list of at most N_CTX ids), and writes the logits after
each of its tokens to stdout: float32 [n_tokens, n_vocab], native byte order, nothing around it.
The server's own interface scores no prompt, so there is no other exact way to them.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int8,
    c_int32,
    c_uint8,
    c_uint32,
    c_void_p,
)

from xllamacpp import xllamacpp  # pyright: ignore[reportMissingImports] - the peer's

N_BATCH = 512
FLASH_ATTENTION_DISABLED = 0


class ModelParams(Structure):
    """Only its defaults are used, so it needs no names, just enough room."""

    _fields_ = (("opaque", c_uint8 * 512),)


class ContextParams(Structure):
    """The head of llama_context_params as of the pinned wheel, and room for what follows."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("unused", c_uint32 * 3),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("opaque", c_uint8 * 456),
    )


KNOWN_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
}
"""A wheel whose defaults differ has another layout, and must not be written to by this one."""


class Batch(Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


class Llama:
    """One model with one context."""

    def __init__(self, model: str, n_ctx: int, threads: int) -> None:
        self._lib = _library()
        params = self._lib.llama_context_default_params()
        if any(getattr(params, name) != value for name, value in KNOWN_DEFAULTS.items()):
            sys.exit("this xllamacpp lays out llama_context_params in another way than expected")
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, N_BATCH, N_BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = FLASH_ATTENTION_DISABLED
        loaded = self._lib.llama_model_load_from_file(
            os.fsencode(model), self._lib.llama_model_default_params()
        )
        self._context = self._lib.llama_init_from_model(loaded, params)
        self._batch = self._lib.llama_batch_init(N_BATCH, 0, 1)
        self.n_vocab = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(loaded))

    def forget(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def logits(self, ids: list[int], first: int) -> memoryview:
        """Logits after each of `ids` (at most N_BATCH of them) at positions from `first`."""
        batch = self._batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if code := self._lib.llama_decode(self._context, batch):
            sys.exit(f"llama_decode failed with {code}")
        n = len(ids) * self.n_vocab
        found = self._lib.llama_get_logits(self._context)
        return memoryview(ctypes.cast(found, POINTER(c_float * n)).contents).cast("B")


def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(xllamacpp.__file__)
    for name, result, arguments in (
        ("llama_model_default_params", ModelParams, ()),
        ("llama_context_default_params", ContextParams, ()),
        ("llama_model_load_from_file", c_void_p, (c_char_p, ModelParams)),
        ("llama_model_get_vocab", c_void_p, (c_void_p,)),
        ("llama_vocab_n_tokens", c_int32, (c_void_p,)),
        ("llama_init_from_model", c_void_p, (c_void_p, ContextParams)),
        ("llama_get_memory", c_void_p, (c_void_p,)),
        ("llama_memory_clear", None, (c_void_p, ctypes.c_bool)),
        ("llama_batch_init", Batch, (c_int32, c_int32, c_int32)),
        ("llama_decode", c_int32, (c_void_p, Batch)),
        ("llama_get_logits", POINTER(c_float), (c_void_p,)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def main() -> None:
    # The library may print to stdout; only logits may leave there.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    llama = Llama(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    for line in sys.stdin:
        ids = json.loads(line)
        llama.forget()
        for first in range(0, len(ids), N_BATCH):
            out.write(llama.logits(ids[first : first + N_BATCH], first))
        out.flush()


if __name__ == "__main__":
    main()

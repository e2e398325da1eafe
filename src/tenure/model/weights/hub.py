"""Checkpoints from a Hugging Face hub, fetched into its own cache."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm.asyncio import tqdm_asyncio

from tenure.core.errors import ModelError

PATTERNS = ("*.safetensors", "*.json", "tokenizer.model", "*.jinja")
"""All that is ever fetched: no pickled weights, no code."""

IGNORED = ("*/*", "consolidated*")
"""Subfolders (other formats), and a second copy of the weights in some repositories."""


def fetch_snapshot(repo_id: str, progress: Callable[[str, int, int], None]) -> Path:
    """Fetch the newest snapshot of `repo_id` (`owner/name`) and return its folder.

    Files in the cache are not fetched again, and without a network a whole cached snapshot is used.
    `HF_ENDPOINT`, `HF_HOME` and `HF_TOKEN` are honoured. Raises ModelError when the repository does
    not exist or is not open to us, or when it can neither be reached nor found in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = snapshot_download(
            repo_id,
            allow_patterns=list(PATTERNS),
            ignore_patterns=list(IGNORED),
            tqdm_class=_reporting_bar(f"fetching {repo_id}", progress),
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{repo_id} is gated: accept its terms on the hub and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{repo_id}: neither a local path nor a repository on the hub that is open to you; "
            "check the spelling, or set HF_TOKEN for a private one"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{repo_id} is not in the local cache and the hub cannot be reached; connect once to "
            "fetch it, set HF_ENDPOINT to a mirror, or give a local path"
        ) from error
    except (OSError, HFValidationError) as error:
        raise ModelError(f"{repo_id} cannot be fetched: {error}") from error
    return Path(folder)


def _reporting_bar(what: str, progress: Callable[[str, int, int], None]) -> type[tqdm_asyncio[Any]]:
    """A silent progress bar that passes byte counts on."""

    class ReportingBar(tqdm_asyncio):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self.unit == "B" and self.total:
                progress(what, int(self.n), int(self.total))
            return shown

    return ReportingBar

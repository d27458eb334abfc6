"""A Hub repository's files in its folder of the cache, with one line for each way that fails."""

from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] - of whichever HTTP library it uses
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import os_error
from lensaudit.hub import reachable
from lensaudit.models.registry import (
    ModelSpec,
)

WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")

UNWANTED = ("*/*", "consolidated*", "*.index.fp16.json")
"""Subfolders (other formats) and Mistral's second copy of its weights."""

_LINES: tuple[tuple[type[Exception], str], ...] = (
    (
        GatedRepoError,
        "is gated; accept its terms on the Hub and log in (`hf auth login` or HF_TOKEN)",
    ),
    (RevisionNotFoundError, "has no revision {revision!r}; name another branch, tag or commit"),
    (
        RepositoryNotFoundError,
        "no such repository on the Hub, or a private one; check the name, or log in",
    ),
)
"""The first kind that fits counts: a gated repository is also one not found."""


def fetch(spec: ModelSpec) -> Path:
    """The folder with a Hub repository's files; what the cache holds is not fetched again.

    Raises:
        InputError: there is no such repository or revision, no access, or no network.
    """
    from huggingface_hub import snapshot_download  # a third of a second to import

    try:
        return Path(
            snapshot_download(
                spec.repo,
                revision=spec.revision,
                allow_patterns=list(WANTED),
                ignore_patterns=list(UNWANTED),
                local_files_only=not reachable(),
            )
        )
    except (OSError, HTTPError, ValueError) as error:
        raise explained(error, spec) from error


def check_at_hand(spec: ModelSpec) -> None:
    """Refuse a Hub model that can neither be fetched nor is kept, before anything takes time.

    Raises:
        InputError: there is no network, and it is not in the cache.
    """
    for one in (spec, spec.adapter):
        if one is not None and one.local is None and not reachable():
            fetch(one)


def explained(error: Exception, spec: ModelSpec) -> LensAuditError:
    """The user's line for what the Hub's library raised.

    The error's own text is not quoted: it may be long or hold a token.
    """
    name = spec.name if spec.name == spec.repo else f"{spec.name} ({spec.repo})"
    for kind, line in _LINES:
        if isinstance(error, kind):
            return InputError(f"{name}: {line.format(revision=spec.revision)}")
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        said = f"the Hub answers with HTTP {status}; try again later"
        if status in (401, 403):
            said = "the Hub refuses access; check HF_TOKEN, or log in with `hf auth login`"
    elif isinstance(error, LocalEntryNotFoundError | HTTPError | ConnectionError):
        said = "cannot be fetched: no network, and not in the local cache; name a local folder"
        if constants.HF_HUB_OFFLINE:
            said = "is not in the local cache and HF_HUB_OFFLINE is set; unset it, or name a folder"
    elif isinstance(error, OSError):
        return os_error(error, Path(error.filename or constants.HF_HUB_CACHE))
    else:
        said = "is not a name the Hub accepts; wanted organisation/name"
    return InputError(f"{name}: {said}")

"""Fetching a checkpoint from the Hugging Face Hub, and one line for each way it fails."""

from pathlib import Path

from huggingface_hub import constants, snapshot_download
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
from lensaudit.models.spec import ModelSpec

WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_PICKLED = ("pytorch_model*.bin",)
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
_OFFLINE = "is not in the local cache and HF_HUB_OFFLINE is set; unset it, or name a local folder"
_NO_NETWORK = "cannot be fetched: no network, and not in the local cache; name a local folder"


def fetch(spec: ModelSpec, *, allow_pickle: bool = False) -> Path:
    """The folder with a Hub repository's files; what the cache holds is not fetched again.

    Raises:
        InputError: there is no such repository or revision, no access, or no network.
    """
    patterns = [*WANTED, *(_PICKLED if allow_pickle else ())]
    try:
        folder = snapshot_download(
            spec.repo,
            revision=spec.revision,
            allow_patterns=patterns,
            ignore_patterns=list(UNWANTED),
        )
    except (OSError, HTTPError, ValueError) as error:
        raise explained(error, spec) from error
    return Path(folder)


def explained(error: Exception, spec: ModelSpec) -> LensAuditError:
    """The user's line for what the Hub's library raised.

    The error's own text is not quoted: it may be long or hold a token.
    """
    name = spec.name if spec.name == spec.repo else f"{spec.name} ({spec.repo})"
    for kind, line in _LINES:
        if isinstance(error, kind):
            return InputError(f"{name}: {line.format(revision=spec.revision)}")
    if isinstance(error, HfHubHTTPError):
        return InputError(f"{name}: {_http_line(error.response.status_code)}")
    if isinstance(error, LocalEntryNotFoundError | HTTPError | ConnectionError):
        return InputError(f"{name}: {_OFFLINE if constants.HF_HUB_OFFLINE else _NO_NETWORK}")
    if isinstance(error, OSError):
        return os_error(error, Path(error.filename or constants.HF_HUB_CACHE))
    return InputError(f"{name}: is not a name the Hub accepts; wanted organisation/name")


def _http_line(status: int) -> str:
    if status in (401, 403):
        return "the Hub refuses access; check HF_TOKEN, or log in with `hf auth login`"
    return f"the Hub answers with HTTP {status}; try again later"

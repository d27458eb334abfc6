"""A Hub repository's files in its folder of the cache, with one line for each way that fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants

from lensaudit.errors import InputError, LensAuditError
from lensaudit.files import os_error
from lensaudit.hub import reachable
from lensaudit.models.hashing import TOKENIZER_FILES
from lensaudit.models.registry import ModelSpec

WANTED = ("*.safetensors", "*.json", "*.jinja", *TOKENIZER_FILES)
"""Files of a model's folder that are read: weights, and how they are used."""
UNWANTED = ("*/*", "consolidated*", "*.index.fp16.json")
"""Subfolders (other formats) and Mistral's second copy of its weights."""


def fetch(spec: ModelSpec) -> Path:
    """The folder with a Hub repository's files; what the cache holds is not fetched again.

    Raises:
        InputError: there is no such repository or revision, no access, or no network.
    """
    from huggingface_hub import snapshot_download  # a third of a second to import

    with asking(spec):
        return Path(
            snapshot_download(
                spec.repo,
                revision=spec.revision,
                allow_patterns=list(WANTED),
                ignore_patterns=list(UNWANTED),
                local_files_only=not reachable(),
            )
        )


@contextmanager
def asking(spec: ModelSpec) -> Iterator[None]:
    """Ask the Hub for a repository; what its library raises becomes the user's line.

    Raises:
        LensAuditError: there is no such repository or revision, no access, or no network.
    """
    # a tenth of a second, and a finished command asks nothing
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    try:
        yield
    except (OSError, HTTPError, ValueError) as error:
        raise _explained(error, spec) from error


def _explained(error: Exception, spec: ModelSpec) -> LensAuditError:
    """The error's own text is not quoted: it may be long or hold a token."""
    from huggingface_hub import errors
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    name = spec.name if spec.name == spec.repo else f"{spec.name} ({spec.repo})"
    for kind, line in {  # the first that fits: a gated one is also not found
        errors.GatedRepoError: "is gated; accept its terms on the Hub and log in "
        "(`hf auth login` or HF_TOKEN)",
        errors.RevisionNotFoundError: f"has no revision {spec.revision!r}; name another branch, "
        "tag or commit",
        errors.RepositoryNotFoundError: "no such repository on the Hub, or a private one; check "
        "the name, or log in",
    }.items():
        if isinstance(error, kind):
            return InputError(f"{name}: {line}")
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        said = f"the Hub answers with HTTP {status}; try again later"
        if status in (401, 403):
            said = "the Hub refuses access; check HF_TOKEN, or log in with `hf auth login`"
    elif isinstance(error, errors.LocalEntryNotFoundError | HTTPError | ConnectionError):
        said = "cannot be fetched: no network, and not in the local cache; name a local folder"
        if constants.HF_HUB_OFFLINE:
            said = "is not in the local cache and HF_HUB_OFFLINE is set; unset it, or name a folder"
    elif isinstance(error, OSError):
        return os_error(error, Path(error.filename or constants.HF_HUB_CACHE))
    else:
        said = "is not a name the Hub accepts; wanted organisation/name"
    return InputError(f"{name}: {said}")

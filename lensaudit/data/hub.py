"""Rows of a data set on the Hugging Face Hub, or one line on why there are none."""

from pathlib import Path
from typing import Any

from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

from lensaudit.errors import InputError


def hub_rows(repo: str, config: str, split: str, *, instead: str) -> list[dict[str, Any]]:
    """The rows of one split, from the Hub or the cache of `datasets`.

    Args:
        repo: `organisation/name`.
        config: the data set's configuration.
        split: `train` …
        instead: what to do where it cannot be fetched; ends the message.

    Raises:
        InputError: no network and nothing cached, or no such data set, configuration or split.
    """
    import datasets.config  # seconds to import
    from huggingface_hub import HfApi  # a tenth of one

    try:
        # datasets tries for 23 s before it notices that there is no network; this fails at once
        if not _is_cached(Path(datasets.config.HF_DATASETS_CACHE), repo, config):
            HfApi().dataset_info(repo, timeout=20)
        return [dict(row) for row in datasets.load_dataset(repo, config, split=split)]
    except (OSError, HTTPError, ValueError, RuntimeError) as error:
        # not the error's own text: it may be long or hold a token
        raise InputError(
            f"{repo} {config}: cannot be fetched ({type(error).__name__}); {instead}"
        ) from error


def _is_cached(cache: Path, repo: str, config: str) -> bool:
    return (cache / repo.replace("/", "___").lower() / config).is_dir()

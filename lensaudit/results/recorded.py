"""One record in one folder: read where the run is finished, else made and written there."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from lensaudit.errors import TryAgainError
from lensaudit.files import make_folder, write_json
from lensaudit.progress import FolderRemark, Notice, unheard
from lensaudit.results.manifest import MANIFEST, manifest
from lensaudit.results.reading import SUMMARY, Record, document, read_as
from lensaudit.results.run_folder import RunFolder, held, seal, taken_as_it_is
from lensaudit.turns import in_turn

BUSY = "another process writes into this folder; waiting for it"


def in_folder(
    run: RunFolder,
    record: type[Record],
    work: Callable[[], Record],
    *,
    device: str,
    files: Iterable[str],
    file: str = SUMMARY,
    kind: str | None = None,
    fresh: bool = False,
    ready: Callable[[], object] = lambda: None,
    computed: Callable[[], object] = lambda: None,
    notice: Notice = unheard,
) -> Record:
    """The record of a run in its folder: read where it is finished, else made now.

    Where another process makes one there, this one waits for it.

    Args:
        run: its folder, which says what is asked.
        record: of its kind, as its file holds it.
        work: writes all other files, and returns the record.
        device: for the manifest.
        files: that the manifest answers for.
        file: of the record.
        kind: for the manifest; None: the command's first word.
        fresh: make it again.
        ready: refuses what `work` cannot do, before the folder is touched.
        computed: what `work` writes; a finished run, be it another one that is replaced, stays as
            it is until that is there.
        notice: told that there is nothing to do, or that another process is waited for.

    Raises:
        InputError: the folder holds something else.
        TryAgainError: another run has begun there meanwhile.
    """
    started, out = time.monotonic(), run.path

    def there() -> Record:
        notice(taken_as_it_is(out))
        return read_as(record, out / file)

    if run.is_done and not fresh:  # it may lie where nobody writes
        return there()
    ready()
    with in_turn(make_folder(out), lambda: notice(FolderRemark(f"{out}: {BUSY}"))):
        # since its folder was chosen, another process may have begun or finished a run there
        run = replace(run, tell=unheard)
        if run.path != out:
            raise TryAgainError(f"{out}: another run has begun in it; run again")
        if run.is_done and not fresh:
            return there()
        if (out / MANIFEST).exists():
            computed()
        run.begin()
        found = work()
        write_json(out / file, document(found))
        how = {**run.asked, "device": device, "started": started}
        made = manifest(run.command, kind=kind or run.command.partition(" ")[0], **how)
        seal(out, made, key=run.key, files=files, name=run.manifest)
        return found


def planned(
    run: RunFolder, plan: Callable[[], str], *, fresh: bool = False, what: str = "run"
) -> str:
    """What a run would do, in words: nothing where its folder holds it already.

    Args:
        run: its folder.
        plan: of a run that is to be made.
        fresh: it is made again.
        what: it makes.

    Raises:
        InputError: the folder holds something else.
    """
    path, is_done = run.path, run.is_done
    return f"nothing to do: {held(path, what)}" if is_done and not fresh else plan()

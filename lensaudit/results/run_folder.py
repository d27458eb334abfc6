"""The folder of a run that is found again by its key: all that the run wrote into it.

A key is a hash of everything that determines what is written. Of a run `begin` marks a folder as
its own, `seal` writes the manifest last of all: the key and the hash of every file it speaks of. A
folder with a manifest is finished; one with a mark can go on; readers compare the hashes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_json
from lensaudit.partials import is_partial
from lensaudit.progress import FolderRemark, Notice, unheard
from lensaudit.results.integrity import answered_for, misfits
from lensaudit.results.manifest import BEGUN, MANIFEST, Manifest
from lensaudit.results.owner import (
    OTHERWISE,
    another,
    check_free,
    claim,
    mark_in,
    other_owner,
    place_of,
)
from lensaudit.results.question import LOOKED_AT_BYTES
from lensaudit.results.reading import JsonObject, json_object, part
from lensaudit.results.run_log import difference


def begin(folder: Path, key: str, command: str, asked: JsonObject | None = None) -> Path:
    """Mark `folder` as the run's of this key, and take away the verdict of an earlier one.

    Args:
        folder: of the run.
        key: of the run.
        command: as its manifest will call it.
        asked: options and inputs of the run, as its manifest will have them.

    Raises:
        InputError: a link in it leads elsewhere, or it cannot be written.
    """
    if link := next(_links_out(make_folder(folder)), None):
        raise InputError(f"{link}: is a link to elsewhere, and lensaudit makes none; move it away")
    # first of all: on a full disk the folder stays the run's, begun or finished
    inputs = {**part(asked, "inputs"), "key": key}
    write_json(folder / BEGUN, {**(asked or {}), "command": command, "inputs": inputs})
    (folder / MANIFEST).unlink(missing_ok=True)
    return folder


def _links_out(folder: Path) -> Iterator[Path]:
    """Links of a folder's tree that lead out of it; those of `.venv` and its like aside."""
    home, at = folder.resolve(), len(folder.parts)
    for one in folder.rglob("*"):
        ours = one.is_symlink() and not one.parts[at].startswith(".")
        if ours and not one.resolve().is_relative_to(home):
            yield one


def seal(
    folder: Path, made: Manifest, *, key: str, files: Iterable[str], name: str = MANIFEST
) -> Path:
    """Write the manifest, last of all: with it the folder is finished.

    Args:
        folder: of the run.
        made: how it was made.
        key: of the run.
        files: names below `folder` that the manifest answers for.
        name: of the manifest.
    """
    return replace(made, inputs={**made.inputs, "key": key}).write(folder, files, name)


def held(folder: Path, what: str = "run") -> str:
    """Message where a run is asked again, or what it makes."""
    return f"{folder} holds this {what} already"


def taken_as_it_is(folder: Path, what: str = "run") -> FolderRemark:
    """Message where a run is asked again and its result is read.

    The mark of having begun goes, which a run leaves that is killed right behind its manifest.
    """
    with suppress(OSError):  # it may lie where nobody writes
        (folder / BEGUN).unlink(missing_ok=True)
    return FolderRemark(f"{held(folder, what)}; nothing to do")


def finished(folder: Path, key: str, command: str, name: str = MANIFEST) -> bool:
    """Whether `folder` holds the finished work of this very run, with no file changed.

    Args:
        folder: may hold anything, or be missing.
        key: of the run.
        command: as its manifest calls it.
        name: of the manifest.
    """
    with suppress(InputError):
        return check_own(folder, key, command, name)
    return False


def check_own(
    folder: Path, key: str, command: str, name: str = MANIFEST, asked: JsonObject | None = None
) -> bool:
    """Whether `folder` holds this very run, finished; refuses one with anything else in it.

    Arguments are those of `finished` and `begin`.

    Raises:
        InputError: another command's, another run's, nobody's, or this one's with files that were
            changed since.
    """
    check_free(folder, command)
    there = folder.is_dir() and not all(map(is_partial, folder.iterdir()))
    if (mark := mark_in(folder, name)) is not None:
        try:
            found = json_object(folder / mark)
        except InputError:
            if (folder / mark).exists():
                raise
            return check_own(folder, key, command, name, asked)  # its run has ended meanwhile
        held = part(found, "inputs").get("key")
        # earlier versions began a run without its key: what they left is gone on with
        if held != key and not (mark == BEGUN and held is None):
            raise InputError(f"{folder}: {another(difference(found, asked or {}))}; {OTHERWISE}")
        for line in misfits(folder, name=name, largest=LOOKED_AT_BYTES) if mark == name else ():
            raise InputError(f"{folder}: {line}; {OTHERWISE}")
    elif there:
        raise InputError(
            f"{folder}: is not empty and holds no run of this command; name another --out"
        )
    return mark == name


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The one owner of a folder: where a run writes, what is there already, what is replaced.

    Where nobody named a folder and another run's results are in the usual one, the run goes beside
    it, and is found there again. In a folder that was named, what another command wrote stays; what
    another run of the command wrote goes only with `force`.
    """

    usual: Path
    """Where results go; or the folder that was named."""
    command: str
    key: str
    """Of all that tells the run from others of the command; the package's code is no part of it."""
    asked: JsonObject = field(default_factory=dict)
    """Options and inputs of the run, as its manifest has them: they name what differs."""
    named: bool = True
    force: bool = False
    tell: Notice = unheard
    """Told where the result goes instead, or what is replaced."""
    manifest: str = MANIFEST
    """Its name."""

    @cached_property
    def path(self) -> Path:
        """Folder that the run writes into; nothing is touched yet.

        Raises:
            InputError: the folder was named, and holds something else.
        """
        replaced = self.force and self._is_of_command
        how = {"named": self.named, "replaced": replaced, "tell": self.tell}
        return place_of(self.usual, self._other, self.key, **how)

    @cached_property
    def _other(self) -> str | None:
        """What else is in the usual folder; None where that is free, or holds this run."""
        try:
            check_own(self.usual, self.key, self.command, asked=self.asked)
        except InputError as error:
            return str(error).removeprefix(f"{self.usual}: ")
        return None

    @property
    def _is_of_command(self) -> bool:
        """Did this command begin or finish what is in the usual folder?"""
        return other_owner(self.usual, self.command) is None and mark_in(self.usual) is not None

    @property
    def is_done(self) -> bool:
        """Does it hold this very run, finished?"""
        return finished(self.path, self.key, self.command, self.manifest)

    @property
    def is_replacing(self) -> bool:
        """Does another run's result have to go first?"""
        return self._other is not None and self.path == self.usual

    def begin(self) -> Path:
        """Mark the folder as this run's; files of the run that is replaced go."""
        if self.is_replacing and (self.path / MANIFEST).exists():
            for one in answered_for(self.path / MANIFEST):
                one.unlink(missing_ok=True)
        return begin(self.path, self.key, self.command, self.asked)


@dataclass(frozen=True, kw_only=True)
class LogFolder(RunFolder):
    """A folder whose logs keep what every run of a command was told: a result is made of them.

    Several runs share it, each with files and a manifest of its own. Their work stays in the logs,
    so that another run's result is replaced; `run_log.tell_replaced` says so.
    """

    files: Sequence[str]
    """Of the result."""

    @cached_property
    def path(self) -> Path:
        """Folder that the run writes into; nothing is touched yet.

        Raises:
            InputError: another command's, or files of nobody we know lie in it.
        """
        check_free(self.usual, self.command, self.files, self.manifest)
        return self.usual

    def begin(self) -> Path:
        """Mark the folder as begun; the earlier result stays until this one is there."""
        claim(self.usual, self.command, self.files, self.manifest)
        return self.usual

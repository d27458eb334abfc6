"""Servers, keys and addresses: which server is asked, and where a key must not go."""

import base64
import html
import ipaddress
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lensaudit.errors import InputError
from lensaudit.files import check_plain

OPENAI_URL = "https://api.openai.com/v1"
DEFAULT_KEY_ENV = "OPENAI_API_KEY"
NO_KEY = "EMPTY"
"""Sent to local servers, which want some word."""
_SECRET = re.compile(r"\b(?:sk|pk|rk|gsk|hf|xai)[-_][A-Za-z0-9_-]{6,}|(?i:bearer)\s+[^\s\"']{6,}")
_MAX_KEY_BYTES = 4096
_BLANKS = r"[\s\u00ad\u200b-\u200f\u2060\ufeff]{0,3}"
"""Between the characters of a key that is spaced out; also those that have no width."""
_NO_DIGITS = re.compile(r"[\s\\\u00ad\u200b-\u200f\u2060\ufeff]+")
"""Blanks, and what JSON escapes with."""
_LONG_ENOUGH = 8
"""Characters of a key whose disguises are no words of an honest text."""
_ALIKE = {"+": r"(?:\+|-|\\u002b|%2[bB])", "/": r"(?:\\?/|_|%2[fF])"}
"""Digits of base64 that are others in addresses."""


@dataclass(frozen=True)
class Endpoint:
    """A language model behind an address."""

    base_url: str
    model: str
    key: str = field(default=NO_KEY, repr=False)
    """Never written: not in results, caches, logs or messages."""
    option: str = "--base-url"
    """What the address was given as."""

    @property
    def host(self) -> str:
        """Host, port and any path but `/v1`, by which a gateway tells its providers apart.

        Caches and results name it.
        """
        path = urlsplit(self.base_url).path
        return self.netloc + ("" if path == "/v1" else path)

    @property
    def netloc(self) -> str:
        """Host and port alone: what an earlier version took for the host."""
        return urlsplit(self.base_url).netloc

    def redacted(self, text: str) -> str:
        """Text of the server without the key, or anything that looks like one."""
        squeezed = _NO_DIGITS.sub("", text)
        for pattern, signs in self._patterns if self.key != NO_KEY else ():
            if any(sign in squeezed for sign in signs):
                text = pattern.sub("[key]", text)
        return _SECRET.sub("[key]", text)

    def cleared(self, value: Any) -> Any:
        """A JSON value of the server with every text in it redacted, names of fields too."""
        match value:
            case str():
                return self.redacted(value)
            case dict():
                return {self.redacted(name): self.cleared(one) for name, one in value.items()}
            case list():
                return [self.cleared(one) for one in value]
            case _:
                return value

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], tuple[str, ...]]]:
        """The key in any escapes, spaced out, turned around or recoded; texts each of which needs.

        One of them must stand there, blanks aside, before a pattern is tried.
        """
        disguises = _disguised(self.key) if len(self.key) >= _LONG_ENOUGH else ()
        known = [(_BLANKS.join(map(_spelt, self.key)), ("",)), *disguises]
        return [(re.compile(pattern), signs) for pattern, signs in known]


def open_endpoint(
    model: str,
    base_url: str | None = None,
    *,
    key_env: str | None = None,
    key_file: Path | None = None,
    offline: bool = False,
    option: str = "--base-url",
) -> Endpoint:
    """The endpoint with its key: from `key_file`, from the variable `key_env`, or none if local.

    `OPENAI_API_KEY` is sent by default only where `base_url` is OpenAI's or the one in
    `OPENAI_BASE_URL`; for any other server the key must be named. `option` names the address.

    Raises:
        InputError: a bad address, no key, a key that others can read, or one that would travel
            unencrypted.
    """
    url = check_url(address_of(base_url), option)
    if not model.strip():
        raise InputError("the judge's model has no name; give --judge")
    key = NO_KEY if offline else _key(url, key_env, key_file)
    if key != NO_KEY and url.startswith("http://") and not is_local(url):
        raise InputError(f"{url}: the key would travel unencrypted; use https")
    return Endpoint(url, model, key, option)


def address_of(base_url: str | None) -> str:
    """The address that a choice stands for: without one that of the environment, or OpenAI's."""
    return base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL


def check_url(url: str, option: str = "--base-url") -> str:
    """The address without a trailing slash; `option` names it in errors.

    Raises:
        InputError: not http(s), or with a user, a query or a fragment in it; of the last three
            nothing is shown.
    """
    # before it is split: of "https://me:a#b@host" the password is host and fragment
    if "@" in url:
        raise InputError(f"{option} holds a user name or password; give a key by --key-env")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # quotes the address
        raise InputError(f"{option} is no address; wanted http(s)://host[:port]/v1") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{option} is {url!r}, wanted http(s)://host[:port]/v1")
    if parts.query or parts.fragment:
        raise InputError(f"{option} holds a query or fragment; wanted http(s)://host[:port]/v1")
    return url.rstrip("/")


def is_local(url: str) -> bool:
    """Loopback, private and link-local addresses, and the name localhost.

    >>> is_local("http://127.0.0.1:8000/v1"), is_local("https://api.openai.com/v1")
    (True, False)
    """
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_link_local


def _disguised(key: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The key reversed, in hex, and in base64 at each of the three places where it may begin."""
    yield _BLANKS.join(map(_spelt, reversed(key))), (_NO_DIGITS.sub("", key[::-1]),)
    digits = key.encode().hex()
    yield rf"(?i:{_BLANKS.join(digits)})", (digits, digits.upper())
    for before in range(3):
        text = base64.b64encode(bytes(before) + key.encode() + bytes(3)).decode()
        # digits of six bits that the key alone decides; of the last one, more may be its own
        first, last = -(-8 * before // 6), 8 * (before + len(key)) // 6
        *own, more = (_ALIKE.get(one, _spelt(one)) for one in text[first : last + 1])
        sure = text[first:last]
        signs = (sure, sure.replace("+", "-").replace("/", "_"))
        yield rf"{_BLANKS.join(own)}(?:{more}={{0,2}})?", signs


def _spelt(character: str) -> str:
    r"""Pattern of a character as it is, and as JSON (in JSON ...), HTML and addresses escape it.

    >>> [bool(re.fullmatch(_spelt('"'), one)) for one in ('"', r"\"", r"\\u0022", "&quot;", "%22")]
    [True, True, True, True, True]
    """
    code = ord(character)
    plain = r"\\{1,8}(?:u005c)?" if character == "\\" else rf"\\{{0,8}}{re.escape(character)}"
    # a character that HTML leaves as it is must not stand here twice: two ways to read each of
    # forty are 2^40 ways to read a key whose last one is wrong
    entity = html.escape(character)
    named = "" if entity == character else f"|{re.escape(entity)}"
    return rf"(?:{plain}|(?i:\\{{1,8}}u{code:04x}|&#0*{code};|&#x0*{code:x};|%{code:02x}){named})"


def _key(url: str, key_env: str | None, key_file: Path | None) -> str:
    if key_file is not None:
        return read_key(key_file)
    if key_env is not None:
        if not os.environ.get(key_env):
            raise InputError(f"the variable {key_env} is not set; it should hold the key")
        return check_key(os.environ[key_env], f"the variable {key_env}")
    own = {OPENAI_URL, address_of(None).rstrip("/")}
    if os.environ.get(DEFAULT_KEY_ENV) and urlsplit(url).netloc in {
        urlsplit(one).netloc for one in own
    }:
        return check_key(os.environ[DEFAULT_KEY_ENV], f"the variable {DEFAULT_KEY_ENV}")
    if is_local(url):
        return NO_KEY
    raise InputError(
        f"no key for {urlsplit(url).netloc}; name a variable by --key-env or a file by --key-file"
    )


def read_key(path: Path) -> str:
    """The key in a file that only its owner can read.

    Raises:
        InputError: missing, readable by others, or not one line of text.
    """
    check_plain(path)
    try:
        descriptor = os.open(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            mode = os.fstat(descriptor).st_mode
            # checked on the open file: the name could point elsewhere a moment later
            if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise InputError(
                    f"{path}: others can read this key (mode {stat.S_IMODE(mode):04o}); "
                    f"run: chmod 600 {path}"
                )
            content = stream.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: the key cannot be read ({error.strerror})") from error
    if len(content) > _MAX_KEY_BYTES:
        raise InputError(f"{path}: too long for a key; wanted one line")
    return check_key(content.decode("utf-8", "replace"), str(path))


def check_key(text: str, source: str) -> str:
    """The key without blanks around it.

    Raises:
        InputError: empty, or not printable ASCII without blanks; the message does not show it.
    """
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{source}: holds no key; wanted one line of ASCII without blanks")
    return key

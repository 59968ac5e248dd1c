"""The API keys of this process: read once at start, compared in constant time, known to the rest by their names."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tasks.api_keys import NamedKey, doubles, parse_lines, parse_value
from tasks.contracts import SHARES
from tasks.settings import Settings, SettingsInvalid

MAX_SHOWN = 20  #: problems of a keys file that are listed


class Caller(NamedTuple):
    """Who sent a request, by the key."""

    name: str  #: of the key; empty: the key has none, or the server is open
    share: int  #: of a lane's turns, 0 .. SHARES - 1


NOBODY = Caller("", 0)


class ApiKeys:
    """All keys that are let in. False when there is none: the server is open."""

    def __init__(self, keys: Iterable[NamedKey]) -> None:
        ordered = sorted(keys)  # every API process gives a name the same share
        self._callers = [
            (_digest(key.key.encode()), Caller(key.name, index % SHARES)) for index, key in enumerate(ordered)
        ]

    def __bool__(self) -> bool:
        return bool(self._callers)

    def find(self, given: bytes) -> Caller | None:
        """Whose key it is. How long that takes tells nothing of the keys: each one is compared, by its digest."""
        digest = _digest(given)
        found = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def load_keys(settings: Settings) -> ApiKeys:
    """Those of LIS_API_KEY and LIS_API_KEYS_FILE together.

    Raises SettingsInvalid with a line for each problem. A file that cannot be read, or that has no key, is one: it
    must not open the server to everybody.
    """
    keys = parse_value(settings.api_key.get_secret_value())
    problems: list[str] = []
    if settings.api_keys_file:
        of_file, problems = _read_file(Path(settings.api_keys_file).expanduser())
        keys += of_file
    problems += doubles(keys)
    if problems:
        lines = [f"LIS_API_KEYS_FILE is '{settings.api_keys_file}'; {problem}" for problem in problems]
        more = [f"... and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
        raise SettingsInvalid("\n".join(lines[:MAX_SHOWN] + more))
    return ApiKeys(keys)


def _read_file(path: Path) -> tuple[list[NamedKey], list[str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return [], ["it is no UTF-8 text"]
    except OSError as exc:
        return [], [f"it cannot be read: {exc.strerror}"]
    keys, problems = parse_lines(text.split("\n"))
    return keys, problems if keys or problems else ["it has no key in it"]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

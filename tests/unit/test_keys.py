"""LIS_API_KEY and LIS_API_KEYS_FILE: which texts name which keys, and what is said of wrong ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from api.keys import Caller, load_keys
from tasks.settings import SettingsInvalid
from tests.unit.routes_support import settings

BLANK_FREE = "a key must be printable ASCII without blanks: it travels in an HTTP header"
NAME = "a name has up to 64 ASCII letters, digits, '_', '.', '@' and '-' and begins with a letter or a digit"
LIST = "LIS_API_KEY is wrong; with a comma it must be a list of name:key, and "
DOUBLE = "LIS_API_KEY is wrong; it has a key or a name twice: "


def names(value: str, *keys: str) -> list[str | None]:
    """The name under which each key is let in; None: it is not."""
    found = load_keys(settings(api_key=value))
    callers = [found.find(key.encode()) for key in keys]
    return [caller and caller.name for caller in callers]


def problems_of(**values: object) -> list[str]:
    with pytest.raises(SettingsInvalid) as info:
        load_keys(settings(**values))
    return str(info.value).splitlines()


@pytest.mark.parametrize("key", ["key", "alice:key", "a:b:c", ":", "sk-12=34+/", "#key", "k" * 500])
def test_a_value_without_a_comma_is_one_key_as_it_stands(key: str) -> None:
    assert names(key, key, key.rpartition(":")[2] + "x", key + ",") == ["", None, None]


@pytest.mark.parametrize("value", ["alice:k1,bob:k2", " alice:k1 , bob : k2 ", "alice:k1,bob:k2,", ",alice:k1,,bob:k2"])
def test_a_value_with_a_comma_is_a_list(value: str) -> None:
    assert names(value, "k1", "k2", "alice:k1", value) == ["alice", "bob", None, None]


def test_a_comma_at_the_end_names_a_single_key() -> None:
    assert names("alice:k1,", "k1", "alice:k1", "alice:k1,") == ["alice", None, None]


def test_a_key_of_a_list_may_have_colons() -> None:
    assert names("alice:k:1,bob::", "k:1", ":") == ["alice", "bob"]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("k\u00e4y", "LIS_API_KEY is wrong; it must be printable ASCII without blanks: it travels in an HTTP header"),
        ("one two", "LIS_API_KEY is wrong; it must be printable ASCII without blanks: it travels in an HTTP header"),
        ("s3cret,other", LIST + "entry 1: it is no name:key; entry 2: it is no name:key"),
        ("a:s3cret,s3cret2", LIST + "entry 2: it is no name:key"),
        ("a:s3cret,b:", LIST + f"entry 2: {BLANK_FREE}"),
        ("a:s3cret,b:k k", LIST + f"entry 2: {BLANK_FREE}"),
        (":s3cret,b:k", LIST + f"entry 1: {NAME}"),
        ("-a:s3cret,b b:k", LIST + f"entry 1: {NAME}; entry 2: {NAME}"),
        ("n" * 65 + ":s3cret,", LIST + f"entry 1: {NAME}"),
        (",", LIST + "it has no entry"),
        ("a:s3cret,b:s3cret", DOUBLE + "entry 2: the key is the same as that of entry 1"),
        ("a:s3cret,b:x,a:y", DOUBLE + "entry 3: the name is the same as that of entry 1"),
    ],
)
def test_a_wrong_value_is_told_without_the_keys(value: str, line: str) -> None:
    assert problems_of(api_key=value) == [line]


def test_no_key_at_all_is_an_open_server() -> None:
    assert not load_keys(settings())
    assert load_keys(settings(api_key="key"))


# -- the file -------------------------------------------------------------------------------------


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_the_lines_of_a_file(tmp_path: Path) -> None:
    text = "\ufeff# family\r\nbob:k2\r\n\r\n  alice : k1 \n\t# none\nbare\nwith:comma,and:colon\n#x:y\nlast:one"
    keys = load_keys(settings(api_keys_file=write(tmp_path, text)))
    found = {key: keys.find(key.encode()) for key in ("k1", "k2", "bare", "comma,and:colon", "one")}
    assert found == {
        "k1": Caller("alice", 0),
        "k2": Caller("bob", 1),
        "one": Caller("last", 2),
        "bare": Caller("line-6", 3),
        "comma,and:colon": Caller("with", 4),
    }
    assert [keys.find(key) for key in (b"", b"y", b"#x:y", b"# family", b"alice", b"k1 ")] == [None] * 6


def test_the_file_adds_to_the_variable(tmp_path: Path) -> None:
    keys = load_keys(settings(api_key="first", api_keys_file=write(tmp_path, "alice:k1")))
    assert [keys.find(key) for key in (b"first", b"k1")] == [Caller("", 0), Caller("alice", 1)]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("ok:k\n\na:k k\n", [f"line 3: {BLANK_FREE}"]),
        ("k k\nb b:k\nok:k\nc:\n", [f"line 1: {BLANK_FREE}", f"line 2: {NAME}", f"line 4: {BLANK_FREE}"]),
        ("a:s3cret\n#\nb:s3cret\n", ["line 3: the key is the same as that of line 1"]),
        ("a:s3cret\na:other\n", ["line 2: the name is the same as that of line 1"]),
        ("a:first\n", ["line 1: the key is the same as that of the key"]),
        ("", ["it has no key in it"]),
        ("# a:k\n\n", ["it has no key in it"]),
        (b"a:\xff\n", ["it is no UTF-8 text"]),
        (b"a:\0\n", [f"line 1: {BLANK_FREE}"]),
    ],
)
def test_a_wrong_file_is_told_line_by_line_without_the_keys(
    tmp_path: Path, text: str | bytes, problems: list[str]
) -> None:
    path = write(tmp_path, text)
    got = problems_of(api_key="first", api_keys_file=path)
    assert got == [f"LIS_API_KEYS_FILE is '{path}'; {problem}" for problem in problems]


def test_a_file_that_is_not_there_does_not_open_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "absent")
    assert problems_of(api_keys_file=path) == [
        f"LIS_API_KEYS_FILE is '{path}'; it cannot be read: No such file or directory"
    ]
    assert problems_of(api_keys_file=str(tmp_path)) == [
        f"LIS_API_KEYS_FILE is '{tmp_path}'; it cannot be read: Is a directory"
    ]


def test_of_many_wrong_lines_the_first_twenty_are_told(tmp_path: Path) -> None:
    lines = problems_of(api_keys_file=write(tmp_path, "a b\n" * 30))
    assert len(lines) == 21
    assert lines[-1] == "... and 10 more"


@pytest.mark.parametrize("command", [["-m", "api.serve"], ["-m", "api.cli", "--role", "api"]], ids=["serve", "cli"])
def test_a_server_with_a_wrong_file_does_not_start_and_says_why(tmp_path: Path, command: list[str]) -> None:
    path = write(tmp_path, "a:s3cret\nb:s3cret\n")
    env = os.environ | {"LIS_API_KEYS_FILE": path, "LIS_REDIS_URL": "redis://127.0.0.1:1/0"}
    ended = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert ended.stderr == (
        "local-inference-server: settings are wrong:\n"
        f"LIS_API_KEYS_FILE is '{path}'; line 2: the key is the same as that of line 1\n"
    )

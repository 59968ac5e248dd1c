"""What LIS_FILES_URL may be, and what is said of one that cannot be used."""

from pathlib import Path
from typing import Any

import pytest

from api.batches.service import Batches
from api.batches.storage import open_storage
from tasks.settings import SettingsInvalid
from tests.unit.fake_jobs import FakeJobs
from tests.unit.routes_support import settings


def test_without_a_url_files_are_in_the_data_folder(tmp_path: Path) -> None:
    open_storage(settings(data_dir=tmp_path)).write("a", b"x")
    assert (tmp_path / "files" / "a").read_bytes() == b"x"


@pytest.mark.parametrize("prefix", ["", "file://", "local://"])
def test_a_folder_is_taken_with_and_without_a_scheme(tmp_path: Path, prefix: str) -> None:
    open_storage(settings(files_url=f"{prefix}{tmp_path}/kept")).write("a/b", b"x")
    assert (tmp_path / "kept" / "a" / "b").read_bytes() == b"x"


def test_opening_writes_nothing(tmp_path: Path) -> None:
    Batches(settings(data_dir=tmp_path), FakeJobs())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "word"), [("nope://user:secret@host/x", "nope"), ("s3://user:secret@bucket/x", "s3fs")]
)
def test_a_scheme_that_cannot_be_used_names_the_variable_and_no_secret(url: str, word: str) -> None:
    with pytest.raises(SettingsInvalid, match="LIS_FILES_URL") as info:
        open_storage(settings(files_url=url))
    assert word in str(info.value)
    assert "secret" not in str(info.value)


@pytest.mark.parametrize(
    "values",
    [
        {"files_url": "s3://"},
        {"files_url": "://x"},
        {"files_ttl_s": 59},
        {"files_max_bytes": -1},
        {"batch_slice_tokens": 0},
    ],
)
def test_a_bad_value_stops_the_start(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsInvalid, match="LIS_"):
        settings(**values)

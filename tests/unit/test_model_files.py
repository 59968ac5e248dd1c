import hashlib
import json
from pathlib import Path

import pytest

from tasks.hub import HubFile
from tasks.model_files import Place, is_same_content, part_names, places


def hub_file(content: bytes, etag: str) -> HubFile:
    return HubFile("acme/tiny", "tiny.gguf", "c" * 40, etag, len(content))


def test_a_plain_name_is_its_only_part() -> None:
    assert part_names("q4/tiny.gguf") == ["q4/tiny.gguf"]


def test_any_part_of_a_split_gguf_names_them_all() -> None:
    assert part_names("q4/big-00002-of-00002.gguf") == ["q4/big-00001-of-00002.gguf", "q4/big-00002-of-00002.gguf"]


def test_parts_are_looked_for_together_only() -> None:
    assert [place.path for place in places(Path("m"), "a/b", "x.gguf")] == [Path("m/a/b/x.gguf"), Path("m/x.gguf")]
    part = "x-00001-of-00002.gguf"
    assert [place.path for place in places(Path("m"), "a/b", part)] == [Path("m/a/b", part)]


@pytest.mark.parametrize(
    "etag",
    [
        hashlib.sha256(b"GGUF1").hexdigest(),
        hashlib.sha1(b"blob 5\0GGUF1", usedforsecurity=False).hexdigest(),
    ],
    ids=["sha256 of LFS", "git blob"],
)
def test_content_is_compared_by_the_hash_that_the_hub_gives(tmp_path: Path, etag: str) -> None:
    path = tmp_path / "tiny.gguf"
    for content, same in ((b"GGUF1", True), (b"GGUF2", False), (b"GGUF", False)):
        path.write_bytes(content)
        assert is_same_content(path, hub_file(b"GGUF1", etag), lambda _: None) is same


def test_a_mirror_without_hashes_is_compared_by_size(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF2")
    assert is_same_content(path, hub_file(b"GGUF1", "W/123"), lambda _: None)
    assert not is_same_content(path, hub_file(b"GGUF", "W/123"), lambda _: None)


def test_a_record_holds_until_the_file_is_touched(tmp_path: Path) -> None:
    place = Place(tmp_path / "tiny.gguf", "acme/tiny", "tiny.gguf")
    assert not place.is_verified()
    place.path.write_bytes(b"GGUF1")
    place.mark_verified(hub_file(b"GGUF1", "e"))
    assert place.is_verified()
    assert not place._replace(repo="other/tiny").is_verified()
    place.path.write_bytes(b"GGUF12")
    assert not place.is_verified()


@pytest.mark.parametrize("damage", ["", "[]", "{", json.dumps({"repo": "acme/tiny"})])
def test_a_damaged_record_only_means_that_the_file_is_checked_again(tmp_path: Path, damage: str) -> None:
    place = Place(tmp_path / "tiny.gguf", "acme/tiny", "tiny.gguf")
    place.path.write_bytes(b"GGUF1")
    place.mark_verified(hub_file(b"GGUF1", "e"))
    place.record.write_text(damage)
    assert not place.is_verified()

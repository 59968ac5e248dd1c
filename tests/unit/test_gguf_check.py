"""Files that are no whole GGUF are refused with a line that says why."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from tasks.engines.base import ModelLoadError
from tasks.engines.llamacpp.gguf_check import BLOCKS, check_gguf
from tests.support_models import tiny_llama_path


def message(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        check_gguf(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path.parent) not in text
    return text


def write(path: Path, split_count: int = 0) -> Path:
    writer = GGUFWriter(path, "llama")
    if split_count:
        writer.add_uint16("split.count", split_count)
    writer.add_array("some.words", ["a", "b"])
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_tensor("weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_whole_file_passes() -> None:
    path = tiny_llama_path()
    header = check_gguf(path)
    assert header.metadata["general.architecture"] == "llama"
    assert 0 <= path.stat().st_size - header.expected_bytes < 64


def test_arrays_are_passed_over(tmp_path: Path) -> None:
    assert check_gguf(write(tmp_path / "m.gguf")).n_tensors == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_file_names_both_sizes(tmp_path: Path, share: float) -> None:
    data = tiny_llama_path().read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    text = message(path)
    assert "truncated" in text
    assert str(path.stat().st_size) in text


def test_every_cut_within_the_header_is_a_clear_error(tmp_path: Path) -> None:
    data = write(tmp_path / "m.gguf").read_bytes()
    for size in range(4, 300):
        (tmp_path / "cut.gguf").write_bytes(data[:size])
        assert "truncated" in message(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    "start", [b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1", b"lmgg\x01\0\0\0", b"", b"GG"]
)
def test_another_kind_of_file_shows_its_first_bytes(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(start)
    text = message(path)
    assert "not a GGUF" in text
    assert "empty" in text if not start else repr(start[:4])[2:-1] in text


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    assert "directory" in message(tmp_path)
    assert "does not exist" in message(tmp_path / "none.gguf")


def test_an_unknown_version(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(b"GGUF" + (99).to_bytes(4, "little") + bytes(64))
    assert "version 99" in message(path)


def test_parts_joined_into_one_file(tmp_path: Path) -> None:
    assert "split" in message(write(tmp_path / "joined.gguf", split_count=3))


def test_a_part_that_is_not_the_first(tmp_path: Path) -> None:
    assert "choose part 1" in message(write(tmp_path / "m-00002-of-00002.gguf", split_count=2))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf", split_count=2)
    assert "m-00002-of-00002.gguf" in message(first)
    write(tmp_path / "m-00002-of-00002.gguf", split_count=2)
    assert check_gguf(first).metadata["split.count"] == 2


def test_block_sizes_are_ggmls() -> None:
    known = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    del known[GGMLQuantizationType.Q8_1]  # for computing only, and of another size in C
    assert known == BLOCKS

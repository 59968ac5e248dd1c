"""`LIS_GGUF_PATH`: what is wrong with it is said in one line that names it."""

from pathlib import Path

import pytest

from tasks.engines.base import ModelLoadError
from tasks.hub import ModelSource
from tasks.model_store import local_gguf, resolve_models
from tasks.settings import load_settings


def source(path: Path) -> ModelSource:
    return ModelSource("LIS_GGUF", "acme/tiny", "tiny.gguf", str(path))


def refusal(path: Path) -> str:
    with pytest.raises(ModelLoadError) as info:
        local_gguf(source(path))
    return str(info.value)


def test_local_files_are_taken_as_they_are(tmp_path: Path) -> None:
    chat, embedding = tmp_path / "chat.gguf", tmp_path / "embedding.gguf"
    chat.write_bytes(b"GGUF")
    embedding.write_bytes(b"GGUF")
    settings = load_settings(gguf_path=str(chat), embedding_gguf_path=str(embedding), embedding_enabled=True)
    resolved = resolve_models(settings, lambda line, fraction: None)
    assert (resolved.gguf_path, resolved.embedding_gguf_path) == (str(chat), str(embedding))


def test_a_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert local_gguf(source(Path("~/x.gguf"))) == tmp_path / "x.gguf"


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    assert refusal(path) == f"LIS_GGUF_PATH is '{path}'; there is no such file"


def test_a_folder_tells_which_ggufs_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert refusal(tmp_path).endswith("; it must be a GGUF file, and this is a folder; it has a.gguf")


def test_a_split_gguf_needs_all_parts_and_is_opened_by_the_first(tmp_path: Path) -> None:
    first, second = tmp_path / "b-00001-of-00002.gguf", tmp_path / "b-00002-of-00002.gguf"
    second.write_bytes(b"GGUF")
    assert refusal(second) == f"LIS_GGUF_PATH is '{second}'; its part {first.name} is not there"
    first.write_bytes(b"GGUF")
    assert local_gguf(source(second)) == first


def test_a_chat_template_that_is_not_there_is_named_with_the_models(tmp_path: Path) -> None:
    settings = load_settings(gguf_path=str(tmp_path), chat_template_path="/nowhere/x.jinja")
    with pytest.raises(ModelLoadError) as info:
        resolve_models(settings, lambda line, fraction: None)
    assert str(info.value) == "LIS_CHAT_TEMPLATE_PATH is '/nowhere/x.jinja'; there is no such file"


def test_the_fake_engine_needs_no_files() -> None:
    settings = load_settings(backend="fake", gguf_path="/nowhere/x.gguf")
    assert resolve_models(settings, lambda line, fraction: None) is settings

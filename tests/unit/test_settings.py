from pathlib import Path
from typing import Any

import pytest

from tasks import settings as settings_module
from tasks.setting_types import ENV_FILE, PROJECT_ROOT
from tasks.settings import Settings, SettingsInvalid, load_settings
from tasks.settings_problems import unknown_variables
from tasks.settings_table import settings_rows, settings_table


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in settings_rows():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(settings_module, "ENV_FILE", tmp_path / "none.env")


def problems(**overrides: Any) -> list[str]:
    with pytest.raises(SettingsInvalid) as info:
        load_settings(**overrides)
    return str(info.value).splitlines()


def write_env(tmp_path: Path, text: str) -> Path:
    path = tmp_path / ".env"
    path.write_text(text, encoding="utf-8")
    return path


def test_command_line_over_environment_over_file_over_profile_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = {"n_ctx": 1001, "n_batch": 1002, "n_ubatch": 1000, "max_queue": 1004}
    env_file = write_env(tmp_path, "LIS_N_CTX=2001\nLIS_N_BATCH=2002\nLIS_N_UBATCH=2000\n")
    monkeypatch.setenv("LIS_N_CTX", "3001")
    monkeypatch.setenv("LIS_N_BATCH", "3002")
    settings = load_settings(profile, env_file=env_file, n_ctx=4001)
    values = (settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.max_queue, settings.max_model_length)
    assert values == (4001, 3002, 2000, 1004, 2048)


def test_only_prefixed_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "3000")
    monkeypatch.setenv("HOST", "elsewhere")
    assert (load_settings().port, load_settings().host) == (8000, "0.0.0.0")


def test_the_env_file_is_the_projects_own_and_not_that_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    write_env(tmp_path, "LIS_PORT=1\n")
    monkeypatch.chdir(tmp_path)
    assert Path(__file__).parents[2] / ".env" == ENV_FILE
    assert load_settings().port != 1
    assert load_settings().models_dir.is_absolute()


def test_an_env_file_of_windows_notepad_is_read(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes("LIS_PORT=9001 \r\nLIS_MODEL_ALIAS='tiny' # mine\r\n".encode("utf-8-sig"))
    settings = load_settings(env_file=path)
    assert (settings.port, settings.model_alias) == (9001, "tiny")


def test_an_env_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"LIS_PORT=\xff\xfe")
    with pytest.raises(SettingsInvalid, match=r"\.env cannot be read as UTF-8 text") as info:
        load_settings(env_file=path)
    assert "\n" not in str(info.value)


def test_blanks_around_values_and_case_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {
        "LIS_PORT": " 9000 ",
        "LIS_EMBEDDING_ENABLED": " No ",
        "LIS_BACKEND": "LlamaCpp ",
        "LIS_CACHE_TYPE_K": "Q8_0",
        "LIS_LOG_LEVEL": " debug",
        "LIS_API_KEY": "key\n",
        "LIS_CORS_ORIGINS": "https://a.example , https://b.example,",
    }.items():
        monkeypatch.setenv(variable, value)
    settings = load_settings()
    assert (settings.port, settings.embedding_enabled, settings.backend) == (9000, False, "llamacpp")
    assert (settings.cache_type_k, settings.log_level) == ("q8_0", "DEBUG")
    assert settings.api_key.get_secret_value() == "key"
    assert settings.cors_origins == ["https://a.example", "https://b.example"]


def test_the_blank_at_the_end_of_a_prefix_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    env_file = write_env(tmp_path, 'LIS_EMBEDDING_INPUT_PREFIX="query: "\n')
    assert load_settings(env_file=env_file).embedding_input_prefix == "query: "
    monkeypatch.setenv("LIS_EMBEDDING_INPUT_PREFIX", "passage: ")
    assert load_settings().embedding_input_prefix == "passage: "


def test_an_empty_value_is_as_good_as_not_set_unless_it_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in settings_rows():
        monkeypatch.setenv(variable, "")
    settings = load_settings()
    changed = {
        name: getattr(settings, name)
        for name, field in Settings.model_fields.items()
        if getattr(settings, name) != field.get_default(call_default_factory=True)
    }
    assert changed == {
        "cors_origins": [],
        "gguf_repo": "",
        "gguf_file": "",
        "embedding_gguf_repo": "",
        "embedding_gguf_file": "",
    }


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("LIS_PORT", "http", "LIS_PORT is 'http'; it must be a whole number from 1 to 65535"),
        ("LIS_PORT", "70000", "LIS_PORT is '70000'; it must be from 1 to 65535"),
        ("LIS_N_CTX", "0", "LIS_N_CTX is '0'; it must be at least 256"),
        ("LIS_N_CTX", "4096.5", "LIS_N_CTX is '4096.5'; it must be a whole number at least 256"),
        ("LIS_BUSY_TIMEOUT", "0", "LIS_BUSY_TIMEOUT is '0'; it must be above 0 and at most 3600"),
        ("LIS_BUSY_TIMEOUT", "soon", "LIS_BUSY_TIMEOUT is 'soon'; it must be a number above 0 and at most 3600"),
        ("LIS_STALL_TIMEOUT", "nan", "LIS_STALL_TIMEOUT is 'nan'; it must be a number from 1 to 86400"),
        ("LIS_EMBEDDING_ENABLED", "maybe", "LIS_EMBEDDING_ENABLED is 'maybe'; it must be true or false"),
        ("LIS_FLASH_ATTN", "yes", "LIS_FLASH_ATTN is 'yes'; it must be 'auto', 'on' or 'off'"),
        ("LIS_MODEL_ALIAS", "my model", "LIS_MODEL_ALIAS is 'my model'; it must be one word without blanks"),
        ("HF_ENDPOINT", "hub.example", "HF_ENDPOINT is 'hub.example'; it must be a URL that starts with https:// or http://"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_what_it_may_be(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, line: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert problems() == [line]


def test_one_error_lists_every_bad_setting_those_of_two_settings_together_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {
        "LIS_PORT": "http",
        "LIS_N_BATCH": "64",
        "LIS_EMBEDDING_POOLING": "sum",
        "LIS_EMBEDDING_MODEL_ALIAS": "llama-3.2-1b",
        "LIS_FLASH_ATTN": "off",
        "LIS_CACHE_TYPE_V": "q8_0",
    }.items():
        monkeypatch.setenv(variable, value)
    assert problems() == [
        "LIS_PORT is 'http'; it must be a whole number from 1 to 65535",
        "LIS_EMBEDDING_POOLING is 'sum'; it must be 'last', 'mean' or 'cls'",
        "LIS_N_UBATCH is '128'; it must be at most LIS_N_BATCH (64)",
        "LIS_EMBEDDING_MODEL_ALIAS is 'llama-3.2-1b'; it must differ from LIS_MODEL_ALIAS",
        "LIS_CACHE_TYPE_V is 'q8_0'; with LIS_FLASH_ATTN 'off' it must be f16 or bf16",
    ]


def test_a_wrong_setting_does_not_make_another_one_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIS_N_BATCH", "lots")
    monkeypatch.setenv("LIS_N_UBATCH", "512")
    assert problems() == ["LIS_N_BATCH is 'lots'; it must be a whole number at least 1"]


def test_a_bad_option_of_the_command_line_is_named_by_its_variable() -> None:
    assert problems(port=0) == ["LIS_PORT is '0'; it must be from 1 to 65535"]


def test_a_misspelt_override_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        load_settings(prot=1)


@pytest.mark.parametrize(
    "url", ["http://:s3cret@host", "redis://:s3cret@host:port", "redis:s3cret", "unix://s3cret", "redis://s3 cret"]
)
def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("LIS_REDIS_URL", url)
    monkeypatch.setenv("LIS_API_KEY", "s3cret käy")
    lines = problems()
    assert lines == [
        "LIS_API_KEY is wrong; it must be printable ASCII without blanks: it travels in an HTTP header",
        "LIS_REDIS_URL is wrong; it must be a URL that starts with redis:// or rediss:// or unix://",
    ]
    good = load_settings(api_key="s3cret", redis_url="redis://:s3cret@host:6379/0", hf_token="s3cret")
    assert "s3cret" not in f"{good!r} {good} {good.model_dump()}"


@pytest.mark.parametrize("url", ["redis://localhost", "rediss://u:p@h:6380/1", "unix://:p%2F@/run/valkey.sock?db=0"])
def test_redis_urls_of_all_kinds_are_taken(url: str) -> None:
    assert load_settings(redis_url=url).redis_url.get_secret_value() == url


def test_a_child_process_reads_the_very_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = load_settings(
        api_key="k", redis_url="unix:///x", cors_origins=["https://a", "https://b"], embedding_enabled=False,
        n_threads=3, busy_timeout_s=2.5, n_gpu_layers=-1, models_dir=Path("/m"), hf_token="t",
        embedding_input_prefix="query: ", embedding_gguf_file="", log_level="DEBUG",
    )  # fmt: skip
    for settings in (changed, load_settings(cors_origins=[])):
        for variable, value in settings.to_env().items():
            monkeypatch.setenv(variable, value)
        assert load_settings().model_dump() == settings.model_dump()
        assert load_settings().to_env() == settings.to_env()


def test_a_variable_that_is_no_setting_is_noticed_with_the_nearest_name(tmp_path: Path) -> None:
    env_file = write_env(tmp_path, "LIS_MODEL_ALAIS=x\nLIS_REDIS_PASSWORD=y\nOTHER=z\n")
    environ = {"LIS_NCTX": "1", "LIS_ZZZZZZ": "2", "lis_port": "3", "PATH": "4"}
    assert unknown_variables(Settings, env_file, environ) == [
        "LIS_MODEL_ALAIS is no setting; did you mean LIS_MODEL_ALIAS?",
        "LIS_NCTX is no setting; did you mean LIS_N_CTX?",
        "LIS_ZZZZZZ is no setting",
    ]
    assert unknown_variables(Settings, tmp_path / "absent", {}) == []


def test_the_readme_has_every_setting_with_its_default() -> None:
    in_readme = {}
    for line in (PROJECT_ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith(("`LIS_", "`HF_")):
            in_readme[cells[0].strip("`")] = cells[1]
    assert in_readme == {variable: default for variable, (default, _) in settings_rows().items()}


def test_the_table_has_a_meaning_for_every_setting() -> None:
    assert all(meaning for _, meaning in settings_rows().values())
    assert len(settings_table().splitlines()) == len(Settings.model_fields) + 2

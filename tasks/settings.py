"""Settings: every LIS_* variable, read once and validated together.

Precedence: command line over environment over `.env` over profile over default. The table for users is in the README
(`python -m tasks.settings_table` prints it); `tests/unit/test_settings.py` checks that both say the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tasks.setting_types import (
    ENV_FILE,
    LOWER_CASE,
    MAY_BE_EMPTY,
    PROJECT_ROOT,
    CacheType,
    LongSeconds,
    ModelName,
    Pooling,
    Seconds,
    api_key_value,
    env,
    folder_url,
    physical_cores,
    url_of,
    worker_name_chars,
)
from tasks.settings_problems import problems_of


class SettingsInvalid(Exception):
    """One or more settings are wrong. `str()` is a line for each: its name, its value and what it may be."""


class Settings(BaseSettings):
    """All settings. Fields carry their unit; the variable is in the alias, its meaning for users in the description."""

    model_config = SettingsConfigDict(env_file_encoding="utf-8-sig", extra="ignore", frozen=True)

    # API
    api_key: Annotated[SecretStr, AfterValidator(api_key_value)] = env(
        "API_KEY",
        SecretStr(""),
        "key that clients send as `Authorization: Bearer …`, or several: `name:key,name:key`. Empty: open to everybody",
    )
    api_keys_file: str = env("API_KEYS_FILE", "", "a file with more keys, a `name:key` on each line; the API reads it")
    host: str = env(
        "HOST",
        "0.0.0.0",  # noqa: S104 - it serves the home network, and warns when it has no key there
        "address the API listens on; `127.0.0.1` keeps it to this machine",
        min_length=1,
    )
    port: int = env("PORT", 8000, "port the API listens on", ge=1, le=65535)
    cors_origins: Annotated[list[str], NoDecode] = env(
        "CORS_ORIGINS", ["*"], "origins of web pages that may call the API, separated by commas. Empty: none"
    )
    max_body_bytes: int = env("MAX_BODY_BYTES", 32 * 1024 * 1024, "largest request body in bytes", ge=1024)

    # queue
    redis_url: Annotated[SecretStr, url_of("redis", "rediss", "unix")] = env(
        "REDIS_URL", SecretStr(""), "broker and reply channel, `redis://:password@host:6379/0`. Empty: the embedded one"
    )
    busy_timeout_s: float = env(
        "BUSY_TIMEOUT", 30.0, "seconds a request waits for the GPU before `503 server_busy`", gt=0, le=3600
    )
    max_queue: int = env(
        "MAX_QUEUE", 64, "waiting requests per lane and API key before `503 server_busy` at once. `0`: no bound", ge=0
    )
    batch_max_wait_s: Seconds = env(
        "BATCH_MAX_WAIT",
        600.0,
        "seconds that a request of the batch lane is passed over before it gets one turn. `0`: it waits for ever",
        ge=0,
    )
    admission: Literal["wait", "estimate"] = env(
        "ADMISSION",
        "wait",
        "`estimate`: a request whose expected wait is over 1.5 times what it may be is refused at once. `wait`: never",
    )
    idempotency_ttl_s: Seconds = env(
        "IDEMPOTENCY_TTL",
        600.0,
        "seconds that an answer is kept for a retry with its `Idempotency-Key`. `0`: the header is ignored",
        ge=0,
    )
    result_backend: Annotated[SecretStr, url_of("redis", "rediss", "unix")] = env(
        "RESULT_BACKEND", SecretStr(""), "Redis for results of tasks that programs send by Celery. Empty: LIS_REDIS_URL"
    )
    worker_name: Annotated[str, AfterValidator(worker_name_chars)] = env(
        "WORKER_NAME",
        "",
        "name of this worker; two on one machine need two names. Empty: from the host name",
        max_length=100,
    )
    stall_timeout_s: Seconds = env(
        "STALL_TIMEOUT",
        120.0,
        "seconds without any sign of life before a hung engine is killed and started again",
        ge=1,
    )
    drain_timeout_s: Seconds = env(
        "DRAIN_TIMEOUT", 30.0, "seconds that running requests get to end when a worker is told to stop", ge=0
    )

    # files and batches
    files_url: Annotated[SecretStr, AfterValidator(folder_url)] = env(
        "FILES_URL",
        SecretStr(""),
        "where files and batches are kept: a folder, or a URL of fsspec's. Empty: `files` in LIS_DATA_DIR",
    )
    files_ttl_s: LongSeconds = env("FILES_TTL", 604_800.0, "seconds that files and finished batches are kept", ge=60)
    files_max_bytes: int = env(
        "FILES_MAX_BYTES", 10 * 1024**3, "most bytes of all files together; then uploads get `507`. `0`: no bound", ge=0
    )
    batch_slice_tokens: int = env(
        "BATCH_SLICE_TOKENS", 4096, "tokens that a batch embeds in one turn; between turns others get theirs", ge=1
    )

    # chat model
    backend: Literal["llamacpp", "fake"] = env("BACKEND", "llamacpp", "engine: `llamacpp`, or `fake` for tests")
    model_alias: ModelName = env("MODEL_ALIAS", "llama-3.2-1b", "chat model's name in `/v1/models`, and in the client")
    gguf_repo: str = env(
        "GGUF_REPO", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Hugging Face repository of the chat GGUF"
    )
    gguf_file: str = env("GGUF_FILE", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", "its file there; of a split GGUF any part")
    gguf_path: str = env("GGUF_PATH", "", "a local chat GGUF instead")
    chat_template_path: str = env("CHAT_TEMPLATE_PATH", "", "a Jinja file to use instead of the GGUF's chat template")
    n_gpu_layers: int = env("N_GPU_LAYERS", -1, "layers on the GPU: `-1` all, `0` CPU only", ge=-1)
    n_ctx: int = env(
        "N_CTX", 4096, "context window in tokens, prompt and answer. More breaks the embedder on a 2 GB card", ge=256
    )
    n_batch: int = env("N_BATCH", 256, "tokens of a prompt that are decoded at once", ge=1)
    n_ubatch: int = env(
        "N_UBATCH", 128, "tokens per pass of the model; its logits cost n_vocab x this x 4 bytes of memory", ge=1
    )
    n_threads: int = Field(
        default_factory=physical_cores, validation_alias="LIS_N_THREADS", description="decode threads", ge=1, le=1024
    )
    parallel: int = env("PARALLEL", 1, "requests decoded together; 1 answers each one soonest", ge=1, le=64)
    flash_attn: Literal["auto", "on", "off"] = env("FLASH_ATTN", "auto", "flash attention: `auto`, `on`, `off`")
    cache_type_k: CacheType = env(
        "CACHE_TYPE_K", "f16", "type of the cached keys: f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"
    )
    cache_type_v: CacheType = env("CACHE_TYPE_V", "f16", "type of the cached values, likewise")
    max_model_length: int = env(
        "MAX_MODEL_LENGTH", 2048, "most tokens of one answer, and how many when the client names no number", ge=1
    )

    max_n: int = env("MAX_N", 8, "most choices of one prompt that a request may ask for (`n`, `best_of`)", ge=1, le=128)

    # embedding model
    embedding_enabled: bool = env("EMBEDDING_ENABLED", True, "`false`: no embedding model")
    embedding_model_alias: ModelName = env(
        "EMBEDDING_MODEL_ALIAS", "qwen3-embedding-0.6b", "embedding model's name in `/v1/models`"
    )
    embedding_gguf_repo: str = env(
        "EMBEDDING_GGUF_REPO", "Qwen/Qwen3-Embedding-0.6B-GGUF", "Hugging Face repository of the embedding GGUF"
    )
    embedding_gguf_file: str = env("EMBEDDING_GGUF_FILE", "Qwen3-Embedding-0.6B-Q8_0.gguf", "its file there")
    embedding_gguf_path: str = env("EMBEDDING_GGUF_PATH", "", "a local embedding GGUF instead")
    embedding_n_gpu_layers: int = env(
        "EMBEDDING_N_GPU_LAYERS", 0, "as LIS_N_GPU_LAYERS. `0`: the weights stay in RAM, the GPU still computes", ge=-1
    )
    embedding_n_ctx: int = env(
        "EMBEDDING_N_CTX", 512, "tokens per text, longer ones are cut; lowered to what the model was trained for", ge=8
    )
    embedding_n_ubatch: int = env(
        "EMBEDDING_N_UBATCH", 128, "tokens per pass. BERT-like encoders need LIS_EMBEDDING_N_CTX here", ge=1
    )
    embedding_batch_size: int = env(
        "EMBEDDING_BATCH_SIZE", 4, "texts per call of the library; between calls the GPU is free for chat", ge=1, le=256
    )
    embedding_pooling: Pooling = env(
        "EMBEDDING_POOLING",
        "last",
        "how token vectors become one: `last`, `mean`, `cls`. A wrong one gives bad vectors",
    )
    embedding_input_prefix: str = env(
        "EMBEDDING_INPUT_PREFIX", "", 'put before every text, blanks included; e5 wants `"query: "`, quoted in `.env`'
    )
    embedding_max_inputs: int = env("EMBEDDING_MAX_INPUTS", 128, "most texts of one request", ge=1)
    embedding_mrl: bool = env(
        "EMBEDDING_MRL", True, "the model is Matryoshka-trained: `dimensions` may shorten vectors"
    )

    # Hugging Face Hub, by the names that its own tools use
    hf_endpoint: Annotated[str, url_of("https", "http")] = Field(
        "https://huggingface.co", validation_alias="HF_ENDPOINT", description="the Hub, or a mirror of it"
    )
    hf_token: SecretStr = Field(
        SecretStr(""), validation_alias="HF_TOKEN", description="token for gated and private repositories"
    )
    hf_offline: bool = Field(
        False, validation_alias="HF_HUB_OFFLINE", description="`true`: never ask the Hub, use the files that are there"
    )

    # files and logs
    models_dir: Path = env("MODELS_DIR", PROJECT_ROOT / "models", "where downloaded GGUFs are kept")
    data_dir: Path = env("DATA_DIR", PROJECT_ROOT / "data", "the embedded broker's files, and those of batches")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = env(
        "LOG_LEVEL", "INFO", "`DEBUG`, `INFO`, `WARNING` or `ERROR`"
    )
    log_prompts: bool = env("LOG_PROMPTS", False, "`true`: Flower and `celery inspect` show the texts of requests")

    # the fake engine
    fake_prefill_s: Seconds = env("FAKE_PREFILL", 0.0, "seconds before the fake engine's first token", ge=0)
    fake_token_s: Seconds = env("FAKE_TOKEN", 0.0, "seconds per token of the fake engine", ge=0)

    @field_validator("*", mode="before")
    @classmethod
    def _clean(cls, value: Any, info: ValidationInfo) -> Any:
        """Undo what hands and files add: blanks around a value, another case, an empty value for 'not set'."""
        name = info.field_name or ""
        if not isinstance(value, str) or name == "embedding_input_prefix":
            return value
        value = value.strip()
        if not value and name not in MAY_BE_EMPTY:
            return cls.model_fields[name].get_default(call_default_factory=True)
        if name == "cors_origins":
            return [origin.strip() for origin in value.split(",") if origin.strip()]
        if name == "log_level":
            return value.upper()
        return value.lower() if name in LOWER_CASE else value

    @model_validator(mode="after")
    def _together(self) -> "Settings":
        problems = []
        if self.n_ubatch > self.n_batch:
            problems.append(f"LIS_N_UBATCH is '{self.n_ubatch}'; it must be at most LIS_N_BATCH ({self.n_batch})")
        if self.embedding_enabled and self.model_alias == self.embedding_model_alias:
            alias = self.embedding_model_alias
            problems.append(f"LIS_EMBEDDING_MODEL_ALIAS is '{alias}'; it must differ from LIS_MODEL_ALIAS")
        if self.flash_attn == "off" and self.cache_type_v not in ("f16", "bf16"):
            why = "with LIS_FLASH_ATTN 'off' it must be f16 or bf16"  # llama.cpp refuses the context otherwise
            problems.append(f"LIS_CACHE_TYPE_V is '{self.cache_type_v}'; {why}")
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def has_api_key(self) -> bool:
        """False: the server is open to everybody."""
        return bool(self.api_key.get_secret_value() or self.api_keys_file)

    def to_env(self) -> dict[str, str]:
        """The variables that make a child process read these very settings, secrets included."""
        env = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            elif isinstance(value, list):
                value = ",".join(value)
            env[str(field.validation_alias)] = str(value)
        return env


def load_settings(
    profile: Mapping[str, Any] | None = None, *, env_file: Path | None = None, **overrides: Any
) -> Settings:
    """Settings from environment and `.env`, with `overrides` (by field name) on top and `profile` (likewise) below.

    `env_file` is another one than `ENV_FILE`. Raises SettingsInvalid, with a line for each problem.
    """
    env_file = env_file or ENV_FILE

    class Profiled(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **named: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            below = InitSettingsSource(settings_cls, init_kwargs=_by_variable(profile or {}))
            return named["init_settings"], named["env_settings"], named["dotenv_settings"], below

    def read(values: Mapping[str, Any]) -> Settings:
        options: dict[str, Any] = {"_env_file": env_file, **_by_variable(values)}
        return Profiled(**options)

    try:
        return read(overrides)
    except ValidationError as exc:
        raise SettingsInvalid("\n".join(problems_of(exc, Settings, read, overrides))) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsInvalid(f"{env_file} cannot be read as UTF-8 text: {exc}") from None


def _by_variable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field name, as values by variable. If pydantic took both, it would read plain `PORT` and `HOST` too."""
    return {str(Settings.model_fields[name].validation_alias): value for name, value in values.items()}

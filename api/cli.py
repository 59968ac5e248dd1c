"""The command `local-inference-server`."""

import asyncio
import json
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from api.batches.storage import open_storage
from api.keys import load_keys
from tasks.quick_exit import skip_last_collection
from tasks.settings import SettingsInvalid, load_settings


class Role(StrEnum):
    ALL = "all"
    API = "api"


class PoolingOption(StrEnum):
    LAST = "last"
    MEAN = "mean"
    CLS = "cls"


cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _option(*flags: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar)


@cli.command()
def serve(
    model: Annotated[str | None, _option(metavar="REPO[:FILE]", help="Chat GGUF on the Hub, or a path.")] = None,
    alias: Annotated[str | None, _option(metavar="NAME", help="Its name in /v1/models.")] = None,
    embedding_model: Annotated[str | None, _option(metavar="REPO[:FILE]", help="Embedding GGUF, likewise.")] = None,
    embedding_alias: Annotated[str | None, _option(metavar="NAME", help="Its name in /v1/models.")] = None,
    embedding_pooling: Annotated[PoolingOption | None, _option(help="How token vectors become one.")] = None,
    embedding_gpu_layers: Annotated[int | None, _option(metavar="N", help="Its layers on the GPU; -1: all.")] = None,
    no_embeddings: Annotated[bool, _option("--no-embeddings", help="No embedding model.")] = False,
    host: Annotated[str | None, _option(help="Address to listen on.")] = None,
    port: Annotated[int | None, _option(help="Port to listen on.")] = None,
    demo: Annotated[bool, _option("--demo", help="Two small packaged models; needs no GPU, Hub or Redis.")] = False,
    role: Annotated[Role, _option(help="all: broker, worker and API; api: the API alone.")] = Role.ALL,
) -> None:
    """OpenAI-compatible inference server for one local GPU, with a task queue in front of it.

    Every setting can also be given as an environment variable or in a .env file: see the README.
    """
    from api.supervisor import Supervisor

    overrides: dict[str, Any] = {
        **_model("gguf", model),
        **_model("embedding_gguf", embedding_model),
        "model_alias": alias,
        "embedding_model_alias": embedding_alias,
        "embedding_pooling": embedding_pooling.value if embedding_pooling else None,
        "embedding_n_gpu_layers": embedding_gpu_layers,
        "embedding_enabled": False if no_embeddings else None,
        "host": host,
        "port": port,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        settings = load_settings(**given)
        if demo and role is Role.ALL:
            settings = load_settings(_demo_profile(settings.models_dir), **given)
        load_keys(settings)
        open_storage(settings)
        if role is Role.API and not settings.redis_url.get_secret_value():
            raise SettingsInvalid("LIS_REDIS_URL is not set; with --role api it must name the workers' Redis")
    except SettingsInvalid as exc:
        typer.echo(f"local-inference-server: settings are wrong:\n{exc}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(asyncio.run(Supervisor(settings, role.value).run()))


def _model(prefix: str, value: str | None) -> dict[str, str]:
    """`path/to/file.gguf`, `owner/repo` or `owner/repo:file.gguf` as settings."""
    if value is None:
        return {}
    if Path(value).expanduser().is_file():
        return {f"{prefix}_path": str(Path(value).expanduser())}
    repo, _, file = value.partition(":")
    return {f"{prefix}_path": "", f"{prefix}_repo": repo, f"{prefix}_file": file}


def _demo_profile(models_dir: Path) -> dict[str, Any]:
    """Prepare the demo models, in a process of its own, and return the settings that fit them."""
    command = [sys.executable, "-m", "tasks.demo_models", str(models_dir)]
    made = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own module
    if made.returncode != 0:
        raise typer.Exit(made.returncode)
    profile: dict[str, Any] = json.loads(made.stdout)
    return profile


def main() -> None:
    skip_last_collection()
    cli()


if __name__ == "__main__":
    main()

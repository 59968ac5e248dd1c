"""The command `local-inference-batch`.

Imports what it needs when it needs it, so that `--help` is there at once.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.batch_command.problems import CommandError, UsageError

if TYPE_CHECKING:
    from api.batch_command.http_client import BatchApi

DEFAULT_SERVER = "http://127.0.0.1:8000/v1"
FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

cli = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Embeds many texts through an OpenAI-compatible Batch API. --server and --key may also be given as"
    " LIS_SERVER or OPENAI_BASE_URL, and LIS_API_KEY or OPENAI_API_KEY.",
)

ServerOption = Annotated[
    str, typer.Option("--server", metavar="URL", help="The API.", envvar=["LIS_SERVER", "OPENAI_BASE_URL"])
]
KeyOption = Annotated[
    str,
    typer.Option("--key", metavar="KEY", help="Its key.", envvar=["LIS_API_KEY", "OPENAI_API_KEY"], show_envvar=False),
]
BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="As `list` shows it.")]


def _option(*flags: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar)


@cli.command()
def embed(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help=".jsonl, .csv, .txt (a line a text) or a folder of text files.")
    ],
    output: Annotated[Path, _option("-o", "--output", metavar="OUTPUT", help=".jsonl, .npy or .parquet.")],
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = "",
    model: Annotated[str | None, _option(metavar="NAME", help="Default: the server's embedding model.")] = None,
    dimensions: Annotated[int | None, _option(metavar="N", help="Numbers of each vector, fewer than it has.")] = None,
    field: Annotated[str, _option(metavar="NAME", help="Of a .jsonl: the field that has the text.")] = "text",
    column: Annotated[str | None, _option(metavar="NAME", help="Of a .csv; default: `text`, or the only one.")] = None,
    skip_empty: Annotated[bool, _option("--skip-empty", help="Leave out texts that are blank.")] = False,
    resume: Annotated[bool, _option("--resume", help="Go on where the last run stopped.")] = False,
    detach: Annotated[bool, _option("--detach", help="Ctrl-C leaves the batches running on the server.")] = False,
    no_wait: Annotated[bool, _option("--no-wait", help="Send, and end; --resume collects later.")] = False,
    overwrite: Annotated[bool, _option("--overwrite", help="OUTPUT may exist.")] = False,
) -> None:
    """Embed the texts of INPUT and write their vectors to OUTPUT, in the input's order.

    Ctrl-C cancels what runs on the server. The exit status is 1 when a text could not be embedded: it is reported
    with its line, has `"embedding": null` in a .jsonl or .parquet and a row of NaN in a .npy. Until the end there are
    OUTPUT.state and OUTPUT.vectors, from which --resume goes on.
    """
    from api.batch_command.embed_run import Run
    from api.batch_command.inputs import Source
    from api.batch_command.job import Job
    from api.batch_command.outputs import check_output

    with _reported(), _api(server, key) as api:
        texts = Source(path=source, field=field, column=column, skip_empty=skip_empty)
        texts.check()
        check_output(output, source)
        if output.exists() and not (overwrite or resume):
            raise UsageError(f"{output} exists; --overwrite replaces it")
        job = Job(texts, output, model or api.embedding_model(), dimensions, detach or no_wait)
        run = Run(job, api, resume)
        try:
            with run.bar:
                if no_wait:
                    run.send_all()
                    run.bar.say(f"sent: {', '.join(run.batch_ids()) or 'nothing new'}; --resume collects")
                    return
                failed = run.finish()
        except KeyboardInterrupt:
            _stop(run, detach)
            raise typer.Exit(INTERRUPTED) from None
        finally:
            run.close()
    run.bar.say(f"{run.bar.summary(failed)}: {output}")
    if failed:
        run.bar.say(f"{failed:,} failed; --resume tries them again")
        raise typer.Exit(FAILED)


def _stop(run: Any, detach: bool) -> None:
    ids = run.batch_ids()
    if detach:
        run.bar.say(f"left running: {', '.join(ids) or 'nothing'}; --resume goes on")
    else:
        run.bar.say(f"batches cancelled on the server: {run.cancel()}; --resume goes on")


@cli.command("list")
def list_batches(
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = "",
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20,
) -> None:
    """The newest batches."""
    from api.batch_command.show import print_batches

    with _reported(), _api(server, key) as api:
        print_batches(api.batches(limit))


@cli.command()
def status(batch: BatchId, server: ServerOption = DEFAULT_SERVER, key: KeyOption = "") -> None:
    """All that is known of a batch."""
    from api.batch_command.show import print_batch

    with _reported(), _api(server, key) as api:
        print_batch(api.batch(batch))


@cli.command()
def wait(batch: BatchId, server: ServerOption = DEFAULT_SERVER, key: KeyOption = "") -> None:
    """Wait until a batch has ended. The exit status is 0 when each of its requests was answered."""
    from api.batch_command.show import print_batch, wait_for

    with _reported(), _api(server, key) as api:
        try:
            ended = wait_for(api, batch)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        print_batch(ended)
    if ended["status"] != "completed" or (ended.get("request_counts") or {}).get("failed"):
        raise typer.Exit(FAILED)


@cli.command()
def cancel(batch: BatchId, server: ServerOption = DEFAULT_SERVER, key: KeyOption = "") -> None:
    """Cancel a batch. What it has done by then can be fetched."""
    with _reported(), _api(server, key) as api:
        typer.echo(api.cancel(batch)["status"])


@cli.command()
def fetch(
    batch: BatchId,
    output: Annotated[Path, _option("-o", "--output", metavar="FILE", help="A .jsonl; `-`: standard output.")],
    server: ServerOption = DEFAULT_SERVER,
    key: KeyOption = "",
) -> None:
    """Write a batch's output file to FILE, and its error file, where it has one, to FILE.errors.jsonl."""
    from api.batch_command.show import fetch_files

    with _reported(), _api(server, key) as api:
        errors = fetch_files(api, batch, output)
    if errors:
        raise typer.Exit(FAILED)


@contextmanager
def _api(server: str, key: str) -> "Iterator[BatchApi]":
    from api.batch_command.http_client import BatchApi

    api = BatchApi(server, key, lambda text: typer.echo(text, err=True))
    try:
        yield api
    finally:
        api.close()


@contextmanager
def _reported() -> Iterator[None]:
    """What ends the command, as one line and an exit status."""
    try:
        yield
    except CommandError as exc:
        typer.echo(f"local-inference-batch: {exc}", err=True)
        raise typer.Exit(WRONG_USE if isinstance(exc, UsageError) else FAILED) from None
    except BrokenPipeError:  # `fetch -o - | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except OSError as exc:
        typer.echo(f"local-inference-batch: {exc.filename or ''}: {exc.strerror or exc}", err=True)
        raise typer.Exit(FAILED) from None


def main() -> None:
    cli()


if __name__ == "__main__":
    main()

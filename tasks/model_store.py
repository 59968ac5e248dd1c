"""Where GGUFs come from: a local path, or the Hugging Face Hub into `LIS_MODELS_DIR`.

A file that was verified once is used without asking anybody, so a start needs no network; a newer revision on the Hub
is fetched when the file is deleted. huggingface_hub is imported only when the Hub must be asked.
"""

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from tasks.download import MEGABYTE, PATIENCE, Job, Patience, download
from tasks.download_progress import DownloadProgress, Report
from tasks.engines.base import Cancelled, ModelLoadError
from tasks.hub import Hub, HubFile, HubUnavailable, ModelSource
from tasks.interruptible import run_interruptibly
from tasks.model_files import is_same_content, part_names, places
from tasks.settings import Settings

logger = logging.getLogger(__name__)

SPACE_KEPT_FREE_BYTES = 64 * 1024 * 1024  #: so that a broker on the same disk can go on writing its append-only file
REPO_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


def resolve_models(
    settings: Settings,
    report: Report,
    should_stop: Callable[[], bool] = lambda: False,
    patience: Patience = PATIENCE,
) -> Settings:
    """The settings with `gguf_path` and `embedding_gguf_path` set to files that are there, downloaded when needed.

    Blocks. `report` gets a status line and the fraction (0..1) of all downloads, about once a second and from another
    thread. `should_stop` is asked ten times a second. Raises ModelLoadError with one line that names the setting, and
    Cancelled within a second after `should_stop` said yes; the next start goes on from there.
    """
    if settings.backend == "fake":
        return settings
    template = Path(settings.chat_template_path).expanduser()
    if settings.chat_template_path and not template.is_file():
        raise ModelLoadError(f"LIS_CHAT_TEMPLATE_PATH is '{settings.chat_template_path}'; there is no such file")
    sources = model_sources(settings)
    hub = Hub(settings.hf_endpoint, settings.hf_token.get_secret_value() or None, settings.hf_offline)

    def work(stop: threading.Event) -> list[Path]:
        return _Resolution(hub, settings.models_dir, report, stop, patience).resolve(sources)

    paths = run_interruptibly(work, should_stop)
    return settings.model_copy(update=dict(zip(("gguf_path", "embedding_gguf_path"), map(str, paths), strict=False)))


def model_sources(settings: Settings) -> list[ModelSource]:
    """The chat model's source, then the embedding model's when there is to be one."""
    sources = [ModelSource("LIS_GGUF", settings.gguf_repo, settings.gguf_file, settings.gguf_path)]
    if settings.embedding_enabled:
        embedding = (settings.embedding_gguf_repo, settings.embedding_gguf_file, settings.embedding_gguf_path)
        sources.append(ModelSource("LIS_EMBEDDING_GGUF", *embedding))
    return sources


class _Resolution:
    """One run of `resolve_models`, on its thread."""

    def __init__(self, hub: Hub, models_dir: Path, report: Report, stop: threading.Event, patience: Patience) -> None:
        self._hub = hub
        self._models_dir = models_dir
        self._report = report
        self._stop = stop
        self._patience = patience

    def resolve(self, sources: Sequence[ModelSource]) -> list[Path]:
        """The path of each model (of its first part). All questions come first, so that what is wrong shows before
        gigabytes are loaded."""
        paths: list[Path] = []
        jobs: list[Job] = []
        for source in sources:
            if source.path:
                paths.append(local_gguf(source))
                continue
            self._check_names(source)
            parts = [self._find(source, name) for name in part_names(source.file)]
            jobs += [part for part in parts if isinstance(part, Job)]
            paths.append(parts[0].place.path if isinstance(parts[0], Job) else parts[0])
        self._check_space(jobs)
        progress = DownloadProgress(self._tell, jobs)
        for job in jobs:
            download(self._hub, job, progress.file_started(job), self._stop, self._patience)
            progress.file_done(job)
        return paths

    def _check_names(self, source: ModelSource) -> None:
        """Both become paths in the models directory."""
        if not REPO_NAME.fullmatch(source.repo) or ".." in source.repo:
            why = f"it must be a repository's name, as in 'owner/name' (or set {source.prefix}_PATH)"
            raise source.is_wrong("REPO", source.repo, why)
        if "\\" in source.file or {"", ".", ".."} & set(source.file.split("/")) - {source.file}:
            raise source.is_wrong("FILE", source.file, "it must be a file's path inside the repository")
        if not source.file.lower().endswith(".gguf"):
            raise source.is_wrong("FILE", source.file, self._hub.not_in_repo(source, source.file))

    def _find(self, source: ModelSource, name: str) -> Path | Job:
        """The file, or what it takes to get it."""
        candidates = places(self._models_dir, source.repo, name)
        for place in candidates:
            if place.is_verified():
                return place.path
        present = [place for place in candidates if place.path.is_file()]
        try:
            file = self._look_up(source, name, tries=1 if present else self._patience.lookups)
        except (HubUnavailable, ModelLoadError) as exc:
            if present:
                logger.warning(
                    "using a model file that could not be checked against the hub",
                    extra={"path": str(present[0].path), "reason": str(exc)},
                )
                return present[0].path
            if isinstance(exc, ModelLoadError):
                raise
            raise ModelLoadError(
                f"cannot get {source.repo}/{name}: {exc} (without a network, set {source.prefix}_PATH to a local file)"
            ) from exc
        for place in present:
            self._tell(f"verifying {name}", 0.0)
            if is_same_content(place.path, file, lambda _: self._go_on()):
                place.mark_verified(file)
                return place.path
            logger.warning(
                "a model file is not the one on the hub: the hub's is downloaded", extra={"path": str(place.path)}
            )
        return Job(source, file, candidates[0])

    def _look_up(self, source: ModelSource, name: str, tries: int) -> HubFile:
        self._tell(f"looking up {source.repo}/{name}", 0.0)
        for failures in range(1, tries):
            try:
                return self._hub.describe(source, name)
            except HubUnavailable as exc:
                logger.warning("the hub does not answer, trying again", extra={"reason": str(exc)})
                if self._stop.wait(self._patience.wait_s(failures, exc.retry_after_s)):
                    raise Cancelled from None
        return self._hub.describe(source, name)

    def _check_space(self, jobs: Sequence[Job]) -> None:
        """Before anything is written. Raises ModelLoadError."""
        needed = sum(job.missing_bytes() for job in jobs)
        if not needed:
            return
        existing = next(path for path in (self._models_dir, *self._models_dir.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if needed + SPACE_KEPT_FREE_BYTES > free:
            names = ", ".join(PurePosixPath(job.file.name).name for job in jobs)
            raise ModelLoadError(
                f"not enough disk space in LIS_MODELS_DIR ('{self._models_dir}') for {names}: {needed} bytes "
                f"({needed / MEGABYTE:,.0f} MB) are needed and {SPACE_KEPT_FREE_BYTES / MEGABYTE:,.0f} MB are to stay "
                f"free, but {free} bytes ({free / MEGABYTE:,.0f} MB) are free"
            )

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Cancelled

    def _tell(self, line: str, fraction: float) -> None:
        self._go_on()
        self._report(line, fraction)


def local_gguf(source: ModelSource) -> Path:
    """The file of a `…_PATH` setting; of a split GGUF its first part. Raises ModelLoadError."""
    path = Path(source.path).expanduser()
    if path.is_dir():
        found = sorted(entry.name for entry in path.iterdir() if entry.name.lower().endswith(".gguf"))[:6]
        inside = f"; it has {', '.join(found)}" if found else ""
        raise source.is_wrong("PATH", source.path, f"it must be a GGUF file, and this is a folder{inside}")
    parts = [path.with_name(name) for name in part_names(path.name)]
    for part in parts:
        if not part.is_file():
            which = "there is no such file" if part == path else f"its part {part.name} is not there"
            raise source.is_wrong("PATH", source.path, which)
        if not os.access(part, os.R_OK):
            raise source.is_wrong("PATH", source.path, f"{part.name} may not be read by this user")
    return parts[0]

"""The Hugging Face Hub: what a file there is, and its bytes from an offset on.

Addresses, headers, the token and the error types are huggingface_hub's; the bytes are fetched here. Its own download
(2.4.0) cannot go on where it broke off: it writes to a file of a random name and removes that on any failure. Plain
HTTP also for files in xet storage, which the Hub's `resolve` address serves with `Range`: the xet client needs further
hosts and starts over too. huggingface_hub is imported when needed, for it costs memory that a server with its files in
place need not pay.
"""

import difflib
import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tasks.engines.base import ModelLoadError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

NAMES_SHOWN = 6  #: of the GGUFs in a repository, nearest name first
RETRY_STATUS = (408, 425, 429, 500, 502, 503, 504)


class HubUnavailable(Exception):
    """No answer, or one that says to try again. `str()` is the reason, for a person."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class RangeRefused(Exception):
    """The Hub has no byte at this offset: the partial file is not a part of the file."""


class ModelSource(NamedTuple):
    """Where the settings say that a model comes from."""

    prefix: str  #: of the setting names: LIS_GGUF or LIS_EMBEDDING_GGUF
    repo: str
    file: str
    path: str

    def is_wrong(self, part: str, value: str, why: str) -> ModelLoadError:
        """`LIS_GGUF_FILE is 'x'; …`, as settings errors read."""
        return ModelLoadError(f"{self.prefix}_{part} is '{value}'; {why}")


class HubFile(NamedTuple):
    """One file of a repository, at one commit."""

    repo: str
    name: str
    commit: str
    etag: str  #: sha256 of LFS and xet files, git's blob hash of others
    size: int


class Chunk(NamedTuple):
    offset: int  #: in the file, bytes
    data: bytes


class Hub:
    """Blocking calls to one Hub. Errors that trying again cannot mend are ModelLoadError and name the setting."""

    def __init__(self, endpoint: str, token: str | None = None, offline: bool = False) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._token = token
        self._offline = offline

    def describe(self, source: ModelSource, name: str) -> HubFile:
        """What `main` has under this name now. Raises HubUnavailable, ModelLoadError."""
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

        with self._errors(source, name):
            url = hf_hub_url(source.repo, name, endpoint=self.endpoint)
            found = get_hf_file_metadata(url, token=self._token, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        if not found.etag or not found.size or not found.commit_hash:
            # what a captive portal or a filtering proxy answers with status 200
            raise HubUnavailable(f"the answer of {self.endpoint} has no file hash, size and commit; is it the Hub?")
        return HubFile(source.repo, name, found.commit_hash, found.etag, found.size)

    def ggufs(self, source: ModelSource) -> list[str]:
        """The GGUF files of the repository. Raises HubUnavailable, ModelLoadError."""
        from huggingface_hub import HfApi

        with self._errors(source, ""):
            names = HfApi(endpoint=self.endpoint, token=self._token).list_repo_files(source.repo)
        return sorted(name for name in names if name.lower().endswith(".gguf"))

    def read_from(self, source: ModelSource, file: HubFile, start: int) -> Generator[Chunk]:
        """The file's bytes from `start` on, in chunks of at most 64 KiB. Close it when leaving early.

        The first chunk's offset is 0 where a server or proxy ignores `Range`. Raises HubUnavailable, RangeRefused,
        ModelLoadError; ends early without an error where a proxy hides a broken connection.
        """
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined] # documented

        # the Hub's own address every time: the signed one that it redirects to expires within the hour, and the
        # client keeps the token from that other host
        url = hf_hub_url(file.repo, file.name, revision=file.commit, endpoint=self.endpoint)
        headers = build_hf_headers(token=self._token) | {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with (
            self._errors(source, file.name),
            get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response,
        ):
            if response.status_code == 416:
                raise RangeRefused
            hf_raise_for_status(response)
            offset = _first_byte(response.headers.get("Content-Range"))
            for data in response.iter_raw():
                yield Chunk(offset, data)
                offset += len(data)

    @contextmanager
    def _errors(self, source: ModelSource, name: str) -> Generator[None]:
        """Turn what huggingface_hub and its HTTP client raise into our two kinds."""
        import httpx2  # huggingface_hub's HTTP client: what get_session() is and raises
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

        try:
            if self._offline:
                raise OfflineModeIsEnabled
            yield
        except HFValidationError:
            raise source.is_wrong("REPO", source.repo, "it must be a repository's name, as in 'owner/name'") from None
        except OfflineModeIsEnabled:
            raise HubUnavailable("HF_HUB_OFFLINE is set") from None
        except HfHubHTTPError as exc:
            status = exc.response.status_code
            if status in RETRY_STATUS:
                raise HubUnavailable(f"{self.endpoint} answers {status}", _retry_after_s(exc.response.headers)) from exc
            raise self._refused(exc, source, name) from exc
        except httpx2.TimeoutException as exc:
            raise HubUnavailable(f"{self.endpoint} does not answer in time") from exc
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as exc:
            raise ModelLoadError(f"HF_ENDPOINT is '{self.endpoint}'; it must be a URL: {exc}") from exc
        except (httpx2.HTTPError, json.JSONDecodeError) as exc:
            raise HubUnavailable(f"the connection to {self.endpoint} failed ({_one_line(exc)})") from exc

    def _refused(self, exc: "HfHubHTTPError", source: ModelSource, name: str) -> ModelLoadError:
        """Say what the user can do about a 401, 403 or 404."""
        from huggingface_hub.errors import (
            DisabledRepoError,
            EntryNotFoundError,
            GatedRepoError,
            RepositoryNotFoundError,
        )

        status = exc.response.status_code
        if isinstance(exc, EntryNotFoundError):
            return source.is_wrong("FILE", name, self.not_in_repo(source, name))
        if isinstance(exc, GatedRepoError):
            account = "the account of HF_TOKEN has no access" if self._has_token() else "HF_TOKEN is not set"
            page = f"{self.endpoint}/{source.repo}"
            why = f"it is gated and {account}: accept its licence at {page} and set HF_TOKEN to a token of that account"
        elif isinstance(exc, DisabledRepoError):
            why = "the Hub has disabled it"
        elif isinstance(exc, RepositoryNotFoundError):
            why = f"{self.endpoint} has no such repository, or it is private and HF_TOKEN must be set"
        elif status == 401:
            return ModelLoadError(f"HF_TOKEN is not accepted by {self.endpoint}: set a valid token, or none ({status})")
        elif status == 403:
            why = "HF_TOKEN lacks the permission to read it"
        else:
            return ModelLoadError(f"{self.endpoint} answers {status} for {source.repo}/{name}")
        return source.is_wrong("REPO", source.repo, f"{why} ({status})")

    def not_in_repo(self, source: ModelSource, name: str) -> str:
        """Why a name does not do, with a few names that do."""
        try:
            names = self.ggufs(source)
        except HubUnavailable as exc:
            return f"it must be a GGUF file of {source.repo} (its list of files is not to be had: {exc})"
        if not names:
            return f"{source.repo} has no GGUF file at all: choose a repository that has"
        ranked = sorted(names, key=lambda other: -difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio())
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        return f"it must be a GGUF file of {source.repo}, which has {', '.join(ranked[:NAMES_SHOWN])}{more}"

    def _has_token(self) -> bool:
        from huggingface_hub import get_token

        return bool(self._token or get_token())


def _first_byte(content_range: str | None) -> int:
    match = re.match(r"bytes (\d+)-", content_range or "")
    return int(match[1]) if match else 0


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def _one_line(exc: BaseException) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__

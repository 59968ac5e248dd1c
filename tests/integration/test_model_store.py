"""Downloads against a Hub on loopback, with everything that can go wrong between here and there."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.download import Patience
from tasks.engines.base import Cancelled, ModelLoadError
from tasks.model_store import resolve_models
from tasks.settings import Settings, load_settings
from tests.hub_server import HubServer, serving
from tests.support import wait_until

SIZE = 3_000_000
CONTENT = b"GGUF" + random.Random(1).randbytes(SIZE - 4)
EMBEDDING = b"GGUF" + random.Random(2).randbytes(200_000)
SHORT = Patience(lookups=2, reads=3, first_wait_s=0.01, longest_wait_s=0.02)
ROOT = Path(__file__).parents[2]

RESOLVE = """
import sys
from tasks.engines.base import ModelLoadError
from tasks.model_store import resolve_models
from tasks.settings import load_settings
try:
    settings = resolve_models(load_settings(), lambda line, fraction: print(line, flush=True))
except ModelLoadError as exc:
    sys.exit(f"ERROR {exc}")
print("PATH", settings.gguf_path)
print("IMPORTED", "huggingface_hub" in sys.modules)
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    chat = {"tiny.gguf": CONTENT, "README.md": b"x"}
    with serving({"acme/tiny": chat, "acme/embed": {"embed.gguf": EMBEDDING}}) as hub:
        yield hub


def settings_for(hub: HubServer, models_dir: Path, **changes: Any) -> Settings:
    defaults: dict[str, Any] = {
        "gguf_repo": "acme/tiny",
        "gguf_file": "tiny.gguf",
        "gguf_path": "",
        "embedding_enabled": False,
        "models_dir": models_dir,
        "hf_endpoint": hub.url,
        "hf_token": "",
    }
    return load_settings(**(defaults | changes))


def resolve(settings: Settings, lines: list[tuple[str, float]] | None = None) -> Settings:
    return resolve_models(settings, lambda *line: None if lines is None else lines.append(line), patience=SHORT)


def refusal(settings: Settings) -> str:
    with pytest.raises(ModelLoadError) as info:
        resolve(settings)
    message = str(info.value)
    assert "\n" not in message
    return message


def fresh_process(hub: HubServer, models_dir: Path, **env: str) -> "subprocess.Popen[str]":
    """A process that resolves the chat model as a worker does, with everything from its environment."""
    variables = {
        "HF_ENDPOINT": hub.url,
        "LIS_GGUF_REPO": "acme/tiny",
        "LIS_GGUF_FILE": "tiny.gguf",
        "LIS_GGUF_PATH": "",
        "LIS_EMBEDDING_ENABLED": "false",
        "LIS_MODELS_DIR": str(models_dir),
    }
    return subprocess.Popen(
        [sys.executable, "-c", RESOLVE], cwd=ROOT, env=os.environ | variables | env, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def whole_files(models_dir: Path) -> list[Path]:
    return [path for path in models_dir.rglob("tiny.gguf") if path.is_file()]


def partial_size(models_dir: Path) -> int:
    return sum(path.stat().st_size for path in models_dir.rglob("*.incomplete"))


def test_both_models_are_downloaded_and_the_next_start_asks_nobody(hub: HubServer, tmp_path: Path) -> None:
    changes = {"embedding_enabled": True, "embedding_gguf_repo": "acme/embed", "embedding_gguf_file": "embed.gguf"}
    lines: list[tuple[str, float]] = []
    settings = resolve(settings_for(hub, tmp_path, embedding_gguf_path="", **changes), lines)
    assert Path(settings.gguf_path).read_bytes() == CONTENT
    assert Path(settings.embedding_gguf_path).read_bytes() == EMBEDDING
    fractions = [fraction for _, fraction in lines]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert any(line.startswith("downloading tiny.gguf: ") for line, _ in lines)

    hub.requests.clear()
    again = resolve(settings_for(hub, tmp_path, embedding_gguf_path="", **changes))
    assert (again.gguf_path, again.embedding_gguf_path) == (settings.gguf_path, settings.embedding_gguf_path)
    assert hub.requests == []


def test_a_start_with_verified_files_does_not_import_huggingface_hub(hub: HubServer, tmp_path: Path) -> None:
    resolve(settings_for(hub, tmp_path))
    output, errors = fresh_process(hub, tmp_path).communicate(timeout=30)
    assert output.splitlines() == [f"PATH {tmp_path}/acme/tiny/tiny.gguf", "IMPORTED False"], errors


def test_broken_connections_are_resumed_by_range_in_the_same_run(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.break_at, hub.faults.breaks_left = SIZE // 2, 2
    assert Path(resolve(settings_for(hub, tmp_path)).gguf_path).read_bytes() == CONTENT
    half = f"bytes={SIZE // 2}-"
    assert [request.range for request in hub.requests if request.method == "GET"] == [None, half, half]
    assert hub.served_bytes == SIZE


def test_an_interrupted_download_has_no_final_name_and_goes_on_at_the_next_start(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.faults.break_at = SIZE * 4 // 10
    message = refusal(settings_for(hub, tmp_path))
    assert "acme/tiny/tiny.gguf broke off at 1 of 3 MB" in message
    assert "goes on" in message
    assert whole_files(tmp_path) == []
    assert partial_size(tmp_path) == SIZE * 4 // 10

    hub.faults.break_at = None
    resolve(settings_for(hub, tmp_path))
    assert whole_files(tmp_path)[0].read_bytes() == CONTENT
    assert hub.served_bytes == SIZE
    assert partial_size(tmp_path) == 0


def test_a_killed_process_leaves_a_download_that_the_next_one_finishes(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.hold_at = SIZE * 7 // 10
    process = fresh_process(hub, tmp_path)
    wait_until(lambda: partial_size(tmp_path) == SIZE * 7 // 10, "70 % on disk", timeout_s=30)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert whole_files(tmp_path) == []

    hub.faults.hold_at = None
    hub.faults.release.set()
    output, errors = fresh_process(hub, tmp_path).communicate(timeout=30)
    assert f"PATH {tmp_path}/acme/tiny/tiny.gguf" in output, errors
    assert hashlib.sha256(whole_files(tmp_path)[0].read_bytes()).digest() == hashlib.sha256(CONTENT).digest()
    assert hub.served_bytes < 1.1 * SIZE


def test_two_processes_at_once_download_the_file_once(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.hold_at = SIZE // 2
    processes = [fresh_process(hub, tmp_path) for _ in range(2)]
    wait_until(lambda: sum(r.method == "HEAD" for r in hub.requests) == 2, "both have looked it up", timeout_s=30)
    hub.faults.release.set()
    for process in processes:
        output, errors = process.communicate(timeout=30)
        assert f"PATH {tmp_path}/acme/tiny/tiny.gguf" in output, errors
    assert hub.served_bytes == SIZE


def test_a_stop_in_mid_download_ends_within_a_second_and_keeps_what_is_there(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.hold_at = SIZE // 2
    stop = threading.Event()
    ended: list[float] = []

    def run() -> None:
        with pytest.raises(Cancelled):
            resolve_models(settings_for(hub, tmp_path), lambda *_: None, stop.is_set, SHORT)
        ended.append(time.monotonic())

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: partial_size(tmp_path) == SIZE // 2, "half of it on disk")
    stopped_s = time.monotonic()
    stop.set()
    thread.join(timeout=5)
    assert ended[0] - stopped_s < 1.0
    hub.faults.hold_at = None
    hub.faults.release.set()
    resolve(settings_for(hub, tmp_path))
    assert whole_files(tmp_path)[0].read_bytes() == CONTENT


def test_a_stop_ends_a_look_up_that_hangs(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.hold_heads = True
    began_s = time.monotonic()
    with pytest.raises(Cancelled):
        resolve_models(settings_for(hub, tmp_path), lambda *_: None, lambda: True, SHORT)
    assert time.monotonic() - began_s < 1.0


def test_too_little_space_is_refused_before_anything_is_written(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.claimed_size = 10**15
    models_dir = tmp_path / "models"
    message = refusal(settings_for(hub, models_dir))
    assert "not enough disk space in LIS_MODELS_DIR" in message
    assert "1000000000000000 bytes" in message
    assert "are free" in message
    assert hub.served_bytes == 0
    assert not models_dir.exists()


def test_a_damaged_download_is_fetched_again(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.corrupt_downloads = 1
    assert Path(resolve(settings_for(hub, tmp_path)).gguf_path).read_bytes() == CONTENT
    assert hub.served_bytes == 2 * SIZE


def test_a_download_that_stays_damaged_is_an_error_and_leaves_no_file(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.corrupt_downloads = 9
    assert "damaged twice" in refusal(settings_for(hub, tmp_path))
    assert whole_files(tmp_path) == []
    assert partial_size(tmp_path) == 0


def test_a_proxy_that_ignores_range_starts_the_file_over(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.break_at, hub.faults.breaks_left, hub.faults.ignore_range = SIZE // 2, 1, True
    assert Path(resolve(settings_for(hub, tmp_path)).gguf_path).read_bytes() == CONTENT


def test_a_new_revision_does_not_continue_the_old_ones_partial_file(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.break_at = SIZE // 2
    refusal(settings_for(hub, tmp_path))
    newer = CONTENT[::-1]
    hub.files["acme/tiny"]["tiny.gguf"] = newer
    hub.faults.break_at = None
    assert Path(resolve(settings_for(hub, tmp_path)).gguf_path).read_bytes() == newer
    assert partial_size(tmp_path) == 0


def test_a_cut_file_under_the_final_name_is_replaced(hub: HubServer, tmp_path: Path) -> None:
    path = Path(resolve(settings_for(hub, tmp_path)).gguf_path)
    path.write_bytes(CONTENT[: SIZE // 2])
    assert Path(resolve(settings_for(hub, tmp_path)).gguf_path).read_bytes() == CONTENT


def test_a_file_copied_into_the_models_directory_is_used_after_a_check(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    assert resolve(settings_for(hub, tmp_path)).gguf_path == str(tmp_path / "tiny.gguf")
    assert hub.served_bytes == 0


def test_a_copied_file_that_differs_is_not_overwritten(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF of mine")
    assert Path(resolve(settings_for(hub, tmp_path)).gguf_path).read_bytes() == CONTENT
    assert (tmp_path / "tiny.gguf").read_bytes() == b"GGUF of mine"


def test_a_split_gguf_is_downloaded_whole_and_opened_by_its_first_part(hub: HubServer, tmp_path: Path) -> None:
    parts = {f"q4/big-0000{n}-of-00003.gguf": random.Random(n).randbytes(1000 * n) for n in (1, 2, 3)}
    hub.files["acme/big"] = parts
    settings = resolve(settings_for(hub, tmp_path, gguf_repo="acme/big", gguf_file="q4/big-00002-of-00003.gguf"))
    assert Path(settings.gguf_path).name == "big-00001-of-00003.gguf"
    for name, content in parts.items():
        assert (Path(settings.gguf_path).parent / Path(name).name).read_bytes() == content


def test_the_token_goes_to_the_hub_and_not_to_the_storage_it_redirects_to(tmp_path: Path) -> None:
    files = {"acme/tiny": {"tiny.gguf": CONTENT}}
    with serving(files) as storage, serving(files, redirect_to=storage) as hub:
        hub.gated.add("acme/tiny")
        settings = resolve(settings_for(hub, tmp_path, hf_token="hf_good"))
        assert Path(settings.gguf_path).read_bytes() == CONTENT
        assert {request.authorization for request in hub.requests} == {"Bearer hf_good"}
        assert [(request.method, request.authorization) for request in storage.requests] == [("GET", None)]


def test_a_gated_repository_says_what_to_do(hub: HubServer, tmp_path: Path) -> None:
    hub.gated.add("acme/tiny")
    for token, status in (("", "401"), ("hf_other", "403")):
        message = refusal(settings_for(hub, tmp_path, hf_token=token))
        assert message.startswith("LIS_GGUF_REPO is 'acme/tiny'; it is gated")
        assert f"accept its licence at {hub.url}/acme/tiny" in message
        assert "HF_TOKEN" in message
        assert status in message
        assert "hf_other" not in message


def test_a_repository_that_is_not_there(hub: HubServer, tmp_path: Path) -> None:
    message = refusal(settings_for(hub, tmp_path, gguf_repo="acme/nothing"))
    assert message.startswith("LIS_GGUF_REPO is 'acme/nothing'; ")
    assert "no such repository" in message


@pytest.mark.parametrize("name", ["tiny.Q4_K_M.gguf", "", "Q4_K_M"])
def test_a_file_that_is_not_there_lists_those_that_are(hub: HubServer, tmp_path: Path, name: str) -> None:
    message = refusal(settings_for(hub, tmp_path, gguf_file=name))
    assert message == f"LIS_GGUF_FILE is '{name}'; it must be a GGUF file of acme/tiny, which has tiny.gguf"


def test_the_embedding_model_is_named_by_its_own_settings(hub: HubServer, tmp_path: Path) -> None:
    changes = {"embedding_enabled": True, "embedding_gguf_repo": "acme/embed", "embedding_gguf_file": "x.gguf"}
    message = refusal(settings_for(hub, tmp_path, embedding_gguf_path="", **changes))
    assert message.startswith("LIS_EMBEDDING_GGUF_FILE is 'x.gguf'; ")
    assert hub.served_bytes == 0  # the chat model's gigabytes wait until every name is known to be right


@pytest.mark.parametrize("repo", ["", "a/b/c", "../x", "https://huggingface.co/acme/tiny", "acme/ti ny"])
def test_a_wrong_repository_name_is_refused_without_asking(hub: HubServer, tmp_path: Path, repo: str) -> None:
    assert refusal(settings_for(hub, tmp_path, gguf_repo=repo)).startswith(f"LIS_GGUF_REPO is '{repo}'; it must be")
    assert hub.requests == []


@pytest.mark.parametrize("name", ["../x.gguf", "/x.gguf", "a//x.gguf", "a\\x.gguf"])
def test_a_file_name_that_leaves_the_directory_is_refused(hub: HubServer, tmp_path: Path, name: str) -> None:
    assert refusal(settings_for(hub, tmp_path, gguf_file=name)).startswith(f"LIS_GGUF_FILE is '{name}'; it must be")
    assert hub.requests == []


def test_a_hub_that_answers_503_for_a_while_is_asked_again(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.statuses = [503]
    assert Path(resolve(settings_for(hub, tmp_path)).gguf_path).read_bytes() == CONTENT
    hub.faults.statuses = [503, 503]
    (tmp_path / "acme/tiny/tiny.gguf").unlink()
    assert "answers 503" in refusal(settings_for(hub, tmp_path))


def test_no_network_is_one_line_that_names_the_way_out(hub: HubServer, tmp_path: Path) -> None:
    hub.close()
    message = refusal(settings_for(hub, tmp_path))
    assert message.startswith(f"cannot get acme/tiny/tiny.gguf: the connection to {hub.url} failed (")
    assert "LIS_GGUF_PATH" in message


def test_a_hub_that_does_not_answer_in_time(hub: HubServer, tmp_path: Path) -> None:
    hub.faults.hold_heads = True
    output, errors = fresh_process(hub, tmp_path, HF_HUB_ETAG_TIMEOUT="1").communicate(timeout=60)
    assert f"{hub.url} does not answer in time" in errors, output


def test_offline_mode_asks_nobody_and_says_what_is_missing(hub: HubServer, tmp_path: Path) -> None:
    _, errors = fresh_process(hub, tmp_path, HF_HUB_OFFLINE="1").communicate(timeout=30)
    assert "ERROR cannot get acme/tiny/tiny.gguf: HF_HUB_OFFLINE is set" in errors
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    output, _ = fresh_process(hub, tmp_path, HF_HUB_OFFLINE="1").communicate(timeout=30)
    assert f"PATH {tmp_path}/tiny.gguf" in output
    assert hub.requests == []


def test_a_models_directory_that_cannot_be_written(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    assert "LIS_MODELS_DIR" in refusal(settings_for(hub, tmp_path / "models"))


def test_an_endpoint_that_is_no_host_name_is_named(hub: HubServer, tmp_path: Path) -> None:
    message = refusal(settings_for(hub, tmp_path, hf_endpoint="http://\u2603.example"))
    assert message.startswith("HF_ENDPOINT is 'http://\u2603.example'; it must be a URL: ")

"""The API process on its own: small, and free of the engine."""

from pathlib import Path

import psutil

from tests.stack import Stack

MIB = 1024 * 1024


def test_the_api_process_stays_under_100_mib_at_rest(fake_live: Stack) -> None:
    assert fake_live.api is not None
    assert psutil.Process(fake_live.api.pid).memory_info().rss < 100 * MIB


def test_the_api_process_has_no_llama_cpp_in_it(live: Stack) -> None:
    assert live.api is not None
    maps = Path(f"/proc/{live.api.pid}/maps").read_text()
    assert "libllama" not in maps
    assert "libggml" not in maps
    (engine,) = live.engine_pids()
    assert "libllama" in Path(f"/proc/{engine}/maps").read_text()

"""The worker's side of the engine process, with the fake engine in a real child."""

from pathlib import Path
from typing import Any

import pytest

from tasks.contracts import EmbedRequest, WorkerStatus
from tasks.ended import LOST
from tasks.engine_host import EngineHost
from tasks.settings import load_settings
from tests.stack import free_port
from tests.support import wait_until


def test_a_message_that_is_not_understood_ends_the_engine_and_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(backend="fake", data_dir=tmp_path)
    states: list[WorkerStatus] = []
    host = EngineHost(
        settings, "worker", "boot", f"redis://127.0.0.1:{free_port()}/0", lambda status, _: states.append(status)
    )
    host.start()
    try:
        host.wait_ready(lambda: None)
        first = host.pid
        handle = host._handle

        def refuse_ends(message: list[Any], process: Any) -> None:
            if message[0] == "ended":
                raise ValueError("a field is missing")
            handle(message, process)

        monkeypatch.setattr(host, "_handle", refuse_ends)
        request = EmbedRequest(id="embd-1", model="m", reply_to="", texts=["a"])
        assert host.run("embed", request).outcome == LOST
        wait_until(lambda: host.pid != first, "the engine is started again", 30.0)
        monkeypatch.undo()
        host.wait_ready(lambda: None)
        assert host.run("embed", request).outcome == "finished"
        assert states[-1] is WorkerStatus.READY
    finally:
        host.stop()

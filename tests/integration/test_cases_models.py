"""Reported bugs of the models route and of model names."""

import time
from typing import Any

import pytest

from tests.service_calls import CHATS, POSTS, Service, chat_body, error_of, good
from tests.stack import CHAT, EMBED, N_CTX
from tests.support import wait_until


@pytest.mark.parametrize("name", ["no-such-model", CHAT.upper(), CHAT + " ", "../" + CHAT, "模型", "x" * 5000])
def test_unknown_model_is_never_answered_by_another(fake: Service, name: str) -> None:
    """MOD-01"""
    with fake.nothing_starts():
        for path, body in POSTS:
            for stream in (False, True):
                error = error_of(fake.post(path, body | {"model": name, "stream": stream}), 404, "model_not_found")
                assert error["param"] == "model"
                assert CHAT in error["message"]
                assert EMBED in error["message"]
                assert len(error["message"]) < 1000


@pytest.mark.parametrize("model", ["absent", None, "", "  ", 5, True, [CHAT], {"id": CHAT}])
def test_missing_or_mistyped_model(fake: Service, model: Any) -> None:
    """MOD-01"""
    with fake.nothing_starts():
        for path, body in POSTS:
            sent = {key: value for key, value in body.items() if key != "model"}
            if model != "absent":
                sent["model"] = model
            assert error_of(fake.post(path, sent), 400)["param"] == "model"


def test_answers_name_the_model_that_was_asked(real: Service) -> None:
    """MOD-01"""
    for path, body in POSTS:
        assert good(real.post(path, body)).json()["model"] == body["model"]


def test_list_has_what_strict_clients_want_and_what_routes_take(real: Service) -> None:
    """MOD-02"""
    body = good(real.client.get("/v1/models")).json()
    assert body["object"] == "list"
    models = {model["id"]: model for model in body["data"]}
    assert list(models) == [CHAT, EMBED]
    for name, model in models.items():
        assert model["object"] == "model"
        assert type(model["created"]) is int
        assert 0 < model["created"] <= time.time() + 1
        assert model["owned_by"]
        assert good(real.client.get(f"/v1/models/{name}")).json() == model
    assert models[CHAT]["meta"]["n_ctx"] == N_CTX
    assert models[EMBED]["meta"]["n_embd"] == 384
    assert good(real.client.get("/v1/models")).json() == body


def test_lists_and_health_wait_for_no_generation(slow: Service) -> None:
    """MOD-04: one runs and would for 50 s, another waits for it."""
    took_s = []
    with slow.opened_stream("Never stop.", max_tokens=1000), slow.sent(CHATS, chat_body("Say OK.")):
        wait_until(lambda: slow.n_waiting() == 1, "one waits")
        for path in ("/v1/models", f"/v1/models/{CHAT}", "/health") * 7:
            started_s = time.monotonic()
            good(slow.client.get(path))
            took_s.append(time.monotonic() - started_s)
    assert max(took_s) < 1.0
    slow.assert_alive()

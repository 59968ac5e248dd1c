"""Reported bugs of keys and CORS, on the whole service."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service_calls import CHATS, POSTS, REFUSED, Refused, Service, error_of, good
from tests.stack import CHAT, KEY

ORIGIN = {"Origin": "http://app.example"}
PATHS = [*[path for path, _ in POSTS], "/v1/models", f"/v1/models/{CHAT}", "/health", "/v1/nope"]


@pytest.fixture(scope="module")
def keyless(fake: Service) -> Iterator[httpx.Client]:
    """Sends no key by itself."""
    with httpx.Client(base_url=fake.stack.base, timeout=30.0) as client:
        yield client


@pytest.mark.parametrize("scheme", ["bearer ", "BEARER ", "bEaReR ", "Bearer   "])
def test_scheme_of_the_key_may_have_any_case(keyless: httpx.Client, scheme: str) -> None:
    """AUTH-01"""
    headers = {"Authorization": scheme + KEY}
    assert good(keyless.get("/v1/models", headers=headers)).json()["object"] == "list"
    for path, body in POSTS:
        good(keyless.post(path, json=body, headers=headers))


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param({}, id="AUTH-03 none"),
        pytest.param({"Authorization": ""}, id="AUTH-03 empty"),
        pytest.param({"Authorization": "Bearer"}, id="AUTH-03 scheme alone"),
        pytest.param({"Authorization": KEY}, id="AUTH-03 no scheme"),
        pytest.param({"Authorization": "Basic eDp5"}, id="AUTH-03 Basic"),
        pytest.param({"Authorization": f"Basic {KEY}"}, id="AUTH-03 key as Basic"),
        pytest.param({"Authorization": f"Bearer {KEY}x"}, id="AUTH-03 longer"),
        pytest.param({"Authorization": f"Bearer {KEY[:-1]}"}, id="AUTH-03 shorter"),
        pytest.param({"Authorization": f"Bearer {KEY.upper()}"}, id="AUTH-03 other case"),
        pytest.param({"Authorization": f"Bearer Bearer {KEY}"}, id="AUTH-03 scheme twice"),
        pytest.param({"Authorization": f"Bearer {KEY}, Bearer {KEY}"}, id="AUTH-03 key twice"),
        pytest.param({"Authorization": b"Bearer \xc3\xa9\xff"}, id="AUTH-03 no ASCII"),
        pytest.param({"api-key": KEY, "x-api-key": KEY}, id="AUTH-03 other headers"),
        pytest.param({"Cookie": f"Authorization=Bearer {KEY}"}, id="AUTH-03 cookie"),
    ],
)
def test_odd_credentials_are_a_401_on_every_route(
    fake: Service, keyless: httpx.Client, credentials: dict[str, Any]
) -> None:
    with fake.nothing_starts():
        for path, body in POSTS:
            for extra in ({}, {"stream": True}):
                response = keyless.post(path, json=body | extra, headers=credentials)
                error_of(response, 401, "invalid_api_key")
                assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/models", f"/v1/models/{CHAT}", "/v1/nope", f"/v1/models?api_key={KEY}"):
            error_of(keyless.get(path, headers=credentials), 401, "invalid_api_key")
    assert keyless.get("/health", headers=credentials).status_code == 200


@pytest.mark.parametrize("value", ["Bearer ", "Bearer  \t ", "  "])
def test_blank_token_is_none(fake: Service, value: str) -> None:
    """AUTH-03: client libraries refuse to send these."""
    sent = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: {value}\r\nConnection: close\r\n\r\n"
    assert fake.exchange(sent.encode()).split()[1] == b"401"


def test_key_is_asked_for_before_the_body_is_looked_at(keyless: httpx.Client) -> None:
    """AUTH-03: a stranger learns nothing of models or fields, and costs nothing."""
    for body in (b"{", b'{"model": "no-such"}', b" " * 2_000_000):
        error_of(keyless.post(CHATS, content=body), 401, "invalid_api_key")


@pytest.mark.parametrize("path", PATHS)
def test_preflight_of_any_path_needs_no_key(keyless: httpx.Client, path: str) -> None:
    """AUTH-04"""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    for key in ({}, {"Authorization": "Bearer wrong"}):
        response = keyless.options(path, headers=ORIGIN | asked | key)
        assert (response.status_code, response.content) == (204, b"")
        assert response.headers["access-control-allow-origin"] == "*"
        assert "POST" in response.headers["access-control-allow-methods"]
        assert response.headers["access-control-allow-headers"] == "authorization,content-type"


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: f"AUTH-06 {refused.name}")
def test_web_page_can_read_every_error(fake: Service, refused: Refused) -> None:
    response = refused.send(fake, **ORIGIN)
    assert response.status_code == refused.status
    success = fake.client.get("/v1/models", headers=ORIGIN).headers
    for header in ("access-control-allow-origin", "access-control-expose-headers"):
        assert response.headers[header] == success[header]


@pytest.mark.parametrize("stream", [False, True])
def test_web_page_can_read_every_answer(fake: Service, stream: bool) -> None:
    """AUTH-06: a success, its id and its wait."""
    for path, body in POSTS:
        response = good(fake.post(path, body | {"stream": stream}, **ORIGIN))
        assert response.headers["access-control-allow-origin"] == "*"
        for name in ("x-request-id", "x-queue-wait-ms"):
            assert name in response.headers
            assert name in response.headers["access-control-expose-headers"]

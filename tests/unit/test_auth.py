"""Who is let in, and by which name."""

import logging

import pytest
from pydantic import SecretStr

from api.app import create_app
from api.auth import check_key
from api.errors import InvalidApiKey
from api.keys import NOBODY, ApiKeys
from tasks.api_keys import NamedKey
from tasks.contracts import Lane
from tests.unit.fake_jobs import FakeJobs
from tests.unit.routes_support import POSTS, settings

ONE = ApiKeys([NamedKey("", "key", "")])
SEVERAL = ApiKeys([NamedKey("bob", "key-b", ""), NamedKey("alice", "key-a", ""), NamedKey("carol", "key:c", "")])


@pytest.mark.parametrize("header", ["Bearer key", "bearer key", "BEARER key", "Bearer  key", "Bearer key  "])
def test_right_key(header: str) -> None:
    assert check_key("/v1/models", header, ONE) == NOBODY


WRONG = [
    *[None, "", " ", "key", "Basic eDp5", "Token key", "Bearer", "Bearer ", "Bearer wrong", "Bearer key2"],
    *["Bearer ke", "Bearer key key", "Bearer\tkey", "Bearer \xff", "Bearer \u20ac"],
]


@pytest.mark.parametrize("header", WRONG)
def test_wrong_key(header: str | None) -> None:
    with pytest.raises(InvalidApiKey):
        check_key("/v1/models", header, ONE)


@pytest.mark.parametrize("header", [*WRONG, "Bearer alice", "Bearer alice:key-a", "Bearer key-a,key-b", "Bearer key-"])
def test_wrong_key_among_several(header: str | None) -> None:
    with pytest.raises(InvalidApiKey):
        check_key("/v1/models", header, SEVERAL)


def test_each_key_has_its_name_and_shares_go_by_the_sorted_names() -> None:
    found = [check_key("/v1/models", f"Bearer {key}", SEVERAL) for key in ("key-a", "key-b", "key:c")]
    assert found == [("alice", 0), ("bob", 1), ("carol", 2)]


def test_the_seventeenth_key_takes_its_turns_with_the_first() -> None:
    many = ApiKeys([NamedKey(f"k{number:02}", f"key-{number}", "") for number in range(17)])
    shares = [check_key("/", f"Bearer key-{number}", many).share for number in range(17)]
    assert shares == [*range(16), 0]


def test_key_beyond_ascii_is_compared_by_its_bytes() -> None:
    keys = ApiKeys([NamedKey("", "schlüssel", "")])
    check_key("/v1/models", "Bearer " + "schlüssel".encode().decode("latin-1"), keys)


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_is_open(path: str) -> None:
    check_key(path, None, ONE)


@pytest.mark.parametrize("path", ["/healthy", "/v1/models", "/", "/health/x"])
def test_nothing_else_is_open(path: str) -> None:
    with pytest.raises(InvalidApiKey):
        check_key(path, None, ONE)


def test_without_a_key_all_is_open() -> None:
    assert check_key("/v1/models", None, ApiKeys([])) == NOBODY


async def test_requests_carry_the_share_of_their_key_and_the_log_its_name(
    jobs: FakeJobs, caplog: pytest.LogCaptureFixture
) -> None:
    client = create_app(settings(api_key=SecretStr("alice:key-a,bob:key-b")), jobs).test_client()
    with caplog.at_level(logging.INFO, "api.access"):
        for key in ("key-a", "key-b"):
            for path, body in POSTS:
                response = await client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
                assert response.status_code == 200
        assert (await client.post(POSTS[0][0], json=POSTS[0][1])).status_code == 401
    assert [request.share for request in jobs.submitted] == [0] * (len(POSTS) - 1) + [1] * (len(POSTS) - 1)
    assert jobs.embedded_in == [(Lane.INTERACTIVE, 0), (Lane.INTERACTIVE, 1)]
    names = [getattr(record, "key", None) for record in caplog.records if record.name == "api.access"]
    assert names == ["alice"] * len(POSTS) + ["bob"] * len(POSTS) + [None]
    assert "key-a" not in caplog.text


async def test_without_names_the_log_has_no_field(jobs: FakeJobs, caplog: pytest.LogCaptureFixture) -> None:
    client = create_app(settings(api_key=SecretStr("key")), jobs).test_client()
    with caplog.at_level(logging.INFO, "api.access"):
        await client.post(POSTS[0][0], json=POSTS[0][1], headers={"Authorization": "Bearer key"})
    assert [hasattr(record, "key") for record in caplog.records if record.name == "api.access"] == [False]
    assert jobs.submitted[0].share == 0

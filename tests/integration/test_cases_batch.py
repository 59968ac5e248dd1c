"""Reported bugs of files and batches."""

import json
from typing import Any

import pytest

from tests.service_calls import CHATS, EMBEDDINGS, Service, error_of, good
from tests.stack import CHAT, EMBED
from tests.support import wait_until

Json = dict[str, Any]
BODIES: dict[str, Json] = {
    EMBEDDINGS: {"model": EMBED, "input": "hello world"},
    CHATS: {"model": CHAT, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 2},
}


def row(custom_id: str | None, url: str = EMBEDDINGS, **changes: Any) -> bytes:
    """A line; what is None in it is left out."""
    line = {"custom_id": custom_id, "method": "POST", "url": url, "body": BODIES.get(url, BODIES[EMBEDDINGS])} | changes
    return json.dumps({name: value for name, value in line.items() if value is not None}).encode()


def upload(service: Service, data: bytes, name: str = "in.jsonl", purpose: str | None = "batch") -> Any:
    form = {} if purpose is None else {"purpose": purpose}
    return service.client.post("/v1/files", data=form, files={"file": (name, data)})


def ended(service: Service, data: bytes, endpoint: str = EMBEDDINGS) -> Json:
    """A batch of this file, once it has come to an end or is sure to be run."""
    file_id = good(upload(service, data)).json()["id"]
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
    path = f"/v1/batches/{good(service.client.post('/v1/batches', json=body)).json()['id']}"

    def is_settled() -> bool:
        return good(service.client.get(path)).json()["status"] not in ("validating", "in_progress", "finalizing")

    wait_until(is_settled, "the batch has ended", 60)
    found: Json = good(service.client.get(path)).json()
    return found


def errors_of(batch: Json) -> list[tuple[int, str]]:
    assert batch["status"] == "failed"
    return [(error["line"], error["code"]) for error in batch["errors"]["data"]]


@pytest.mark.parametrize("places", [(0, 1), (0, 3), (2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("custom_id", ["same", "ü" * 300, " ", "0"])
def test_duplicate_ids_are_refused_with_their_lines(fake: Service, places: tuple[int, ...], custom_id: str) -> None:
    """BAT-01"""
    ids = [custom_id if index in places else f"id-{index}" for index in range(4)]
    batch = ended(fake, b"\n".join(row(name) for name in ids))
    assert errors_of(batch) == [(place + 1, "duplicate_custom_id") for place in places[1:]]


def test_malformed_lines_are_reported_by_number_and_none_is_run(fake: Service) -> None:
    """BAT-02"""
    no_messages = {"model": CHAT}
    lines = [
        row("good", CHATS),
        b"this is not JSON",
        b"",
        row("c", CHATS, method=None),
        row("d", "/v1/nope"),
        row(None, CHATS),
        row("f", CHATS, body=no_messages),
        row("g", CHATS, body=BODIES[CHATS] | {"stream": True}),
        row("last", CHATS),
    ]
    with fake.nothing_starts():
        batch = ended(fake, b"\n".join(lines), CHATS)
        assert [line for line, _ in errors_of(batch)] == [2, 4, 5, 6, 7, 8]
    assert batch["output_file_id"] is None


@pytest.mark.parametrize(
    "line", [b"null", b"[]", b"7", b'"text"', b"{", b'{"custom_id": "a"', b"\xff\xfe", b"{}", b"{'custom_id': 'a'}"]
)
def test_a_line_of_any_other_kind_is_reported(fake: Service, line: bytes) -> None:
    """BAT-02"""
    assert [number for number, _ in errors_of(ended(fake, row("a") + b"\n" + line + b"\n"))] == [2]


@pytest.mark.parametrize("name", ["texts.txt", "texts.csv", "texts.pdf", "TEXTS.TXT"])
def test_a_file_of_another_kind_is_refused(fake: Service, name: str) -> None:
    """BAT-04"""
    assert error_of(upload(fake, row("a"), name), 400)["param"] == "file"


def test_an_empty_file_no_file_and_no_purpose_are_refused(fake: Service) -> None:
    """BAT-04"""
    assert error_of(upload(fake, b""), 400)["param"] == "file"
    assert error_of(upload(fake, row("a"), purpose=None), 400)["param"] == "purpose"
    for answer in (
        fake.client.post("/v1/files", data={"purpose": "batch"}, files={"other": ("a.jsonl", b"x")}),
        fake.client.post("/v1/files", files={"purpose": (None, "batch"), "file": (None, "text and no file")}),
    ):
        assert error_of(answer, 400)["param"] == "file"
    error_of(fake.client.post("/v1/files", data={"purpose": "batch"}), 415)
    error_of(fake.client.post("/v1/files", json={"purpose": "batch"}), 415)


def test_too_many_lines_fail(fake: Service) -> None:
    """BAT-04"""
    data = b"\n".join(row(str(number)) for number in range(50_001))
    assert errors_of(ended(fake, data)) == [(50_001, "too_many_lines")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_byte_order_marks_line_ends_and_blank_lines_do_not_matter(fake: Service, start: bytes, end: bytes) -> None:
    """BAT-04. A last line that is bad is found where it is, so all before it was read."""
    data = start + end.join([row("a"), b"", row("b"), b"  ", b"bad"])
    assert errors_of(ended(fake, data + end)) == [(5, "invalid_json_line")]

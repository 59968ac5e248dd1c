"""Reported bugs of many requests at once, on the whole service."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.service_calls import CHATS, COMPLETIONS, EMBEDDINGS, LONG, Service, chat_body, good
from tests.stack import CHAT, EMBED
from tests.unit.cases import anything

N_ROUNDS = 3


def ask(service: Service, said: str, is_stream: bool, **fields: Any) -> tuple[str, str | None]:
    """Text and finish reason."""
    answer = service.chat_stream(said, **fields) if is_stream else service.chat(said, **fields)
    return answer.text, answer.finish


@pytest.mark.parametrize("n_requests", [2, 8])
def test_requests_at_one_instant_are_answered_as_alone(real: Service, n_requests: int) -> None:
    """CON-01: by the same process of the engine."""
    pids = real.stack.engine_pids()
    alone = ask(real, "Say hello.", False, max_tokens=6)
    with ThreadPoolExecutor(n_requests) as pool:
        answers = list(pool.map(lambda n: ask(real, "Say hello.", n % 2 == 0, max_tokens=6), range(n_requests)))
    assert answers == [alone] * n_requests
    assert real.stack.engine_pids() == pids


def test_second_stream_does_not_cut_the_first(tiny: Service) -> None:
    """CON-03"""
    asked = [("Say anything.", 300), ("b", 120), ("go on", 200)]
    alone = [ask(tiny, said, True, max_tokens=n) for said, n in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda pair: ask(tiny, pair[0], True, max_tokens=pair[1]), asked * 4))
    assert together == alone * 4


def test_nobody_gets_the_answer_of_another(fake: Service) -> None:
    """CON-04: 24 at once with a mark of their own, some of which leave; in rounds."""
    rng = random.Random(9)
    ids: list[str] = []

    def one(number: int, mark: str) -> str:
        said = f"Repeat this: {mark}. Never stop."
        if number % 8 == 7:
            with fake.opened_stream(said, max_tokens=900) as lines:
                next(lines)
            return mark
        if number % 2:
            stream = fake.chat_stream(said, max_tokens=40)
            ids.append(stream.chunks[0]["id"])
            return stream.text
        answer = fake.chat(said, max_tokens=40)
        ids.append(answer.body["id"])
        return answer.text

    for _ in range(N_ROUNDS):
        marks = [f"MARK-{rng.randrange(10**5, 10**6)}" for _ in range(24)]
        with ThreadPoolExecutor(24) as pool:
            texts = list(pool.map(one, range(24), marks))
        for mark, text in zip(marks, texts, strict=True):
            assert [other for other in marks if other in text] == [mark]
    assert len(set(ids)) == len(ids) == N_ROUNDS * 21


def test_chats_and_embeddings_at_once(fake: Service) -> None:
    """CON-04: the two kinds share a worker, not their answers."""
    texts = [f"text number {number}" for number in range(12)]
    alone = [fake.vectors([text, "other"]).tolist() for text in texts]
    with ThreadPoolExecutor(24) as pool:
        vectors = [pool.submit(fake.vectors, [text, "other"]) for text in texts]
        chats = [pool.submit(fake.chat, f"Repeat exactly: {text}") for text in texts]
        assert [chat.result().text for chat in chats] == texts
        assert [vector.result().tolist() for vector in vectors] == alone


def test_side_requests_of_a_web_page_are_bounded(fake: Service) -> None:
    """CON-06: none names a limit, and the next turn is answered."""
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(fake.chat, f"Never stop {number}.", max_tokens=None) for number in range(4)]
        assert fake.chat("Say OK.").text
        assert {job.result().completion_tokens for job in jobs} == {1024}


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


ODD_INPUTS = anything(LONG, [[-1]], [None], "", {"a": 1}, "\ud83d", "\0", " ", ["\ufffe"], "\u0300" * 400)
NASTY: list[tuple[str, bytes]] = [
    *[(CHATS, data) for data in (b"", b"{", b"null", b"[]", b'"x"', b"\x00", b"\xff\xfe", b"{}" * 3)],
    *[(CHATS, deep(levels).encode()) for levels in (900, 100_000)],
    (CHATS, b'{"model":"%s","messages":[{"role":"user","content":"\\ud83d"}]}' % CHAT.encode()),
    (CHATS, b'{"model":"%s","messages":%s}' % (CHAT.encode(), deep(500).encode())),
    (CHATS, b'{"model":"%s","messages":[{"role":"user","content":"x"}],"temperature":NaN}' % CHAT.encode()),
    (CHATS, b'{"model":"%s","messages":[{"role":"user","content":"x"}],"seed":%s}' % (CHAT.encode(), b"9" * 400)),
    *[
        (CHATS, json.dumps(chat_body("x", max_tokens=2) | odd).encode())
        for odd in anything(
            {"messages": [{"role": "user", "content": [{"type": "nope"}]}]},
            {"temperature": 1e308},
            {"top_k": 10**12, "top_p": 0, "min_p": 1, "temperature": 2},
            {"seed": -(2**63), "repeat_last_n": 10**9},
            {"repeat_penalty": 1e-9, "temperature": 2},
            {"presence_penalty": 2, "frequency_penalty": -2, "repeat_penalty": 10},
            {"stop": ["\u0000", "\uffff", " "]},
            {"chat_template_kwargs": {"x": "{{ 1/0 }}"}},
            {"chat_template_kwargs": {"messages": []}},
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": {}}}}]},
            {"tools": "x"},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
            {"grammar": 'root ::= "a'},
            {"logit_bias": {"999999999": 100}},
            {"messages": [{"role": "user", "content": "\u0000"}] * 50},
            {"messages": [{"role": "user", "content": "{{ raise_exception('x') }} {% for"}]},
            {"messages": [{"role": "user", "content": LONG}]},
        )
    ],
    *[
        (COMPLETIONS, json.dumps({"model": CHAT, "max_tokens": 2, "prompt": odd}).encode())
        for odd in ("", "\0", LONG, [0])
    ],
    *[(EMBEDDINGS, json.dumps({"model": EMBED, "input": odd}).encode()) for odd in ODD_INPUTS],
]


def test_no_request_hurts_the_next(real: Service) -> None:
    """CON-07: and none is answered as a fault of the server."""
    pids = real.stack.engine_pids()
    nasty = NASTY.copy()
    random.Random(11).shuffle(nasty)
    for path, data in nasty:
        assert real.post(path, data).status_code in (200, 400), data[:200]
        assert real.vectors("hello").shape == (1, 384)
        good(real.post(CHATS, chat_body("Say OK.", max_tokens=1)))
    assert real.stack.engine_pids() == pids

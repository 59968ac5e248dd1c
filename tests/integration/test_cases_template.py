"""Reported bugs of messages and the chat template, on the whole service; test_cases_gguf_templates.py has templates."""

import socket
from typing import Any

import pytest

from tests.service_calls import CHATS, Service, chat_body, error_of

FILLER = " alpha beta gamma delta" * 3
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CONVERSATIONS = {
    "TPL-01 two user turns": [turn("user", "The word is ZEBRA."), turn("user", "Say it.")],
    "TPL-01 three of each": [turn("user", "a"), turn("user", "b"), turn("assistant", "c"), turn("assistant", "d")],
    "TPL-03 a greeting first": [turn("assistant", "Welcome!"), turn("user", "Hi.")],
    "TPL-03 the assistant last": [turn("user", "Hi."), turn("assistant", "Well,")],
    "TPL-04 a system turn": [turn("system", "Be brief."), turn("user", "Hi.")],
    "TPL-04 a developer turn": [turn("developer", "Be brief."), turn("user", "Hi.")],
    "TPL-04 two system turns": [turn("system", "Be brief."), turn("system", "Be kind."), turn("user", "Hi.")],
    "TPL-04 a late system turn": [turn("user", "Hi."), turn("system", "Be brief."), turn("user", "Go on.")],
    "TPL-04 a system turn alone": [turn("system", "Say hello.")],
    "TPL-04 the system turn last": [turn("user", "Hi."), turn("system", "Be brief.")],
    "TOOL-01 a tool's result": [
        turn("user", "Weather?"),
        turn("assistant", "Let me see.", tool_calls=[CALL]),
        turn("tool", '{"temp_c": -3}', tool_call_id="call_1"),
    ],
    "TOOL-07 a result without a call": [turn("user", "Hi."), turn("tool", "x", tool_call_id="nope")],
    "the older function role": [turn("user", "Weather?"), turn("function", "-3", name="get_weather")],
    "PAR-08 names": [turn("user", "Hi.", name="ann"), turn("assistant", "Hello.", name="bot"), turn("user", "Bye.")],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_turn_reaches_the_model(real: Service, name: str) -> None:
    """A turn that is made longer makes the prompt longer, whatever the order of the roles."""
    messages = CONVERSATIONS[name]
    n_filler = real.complete(FILLER, max_tokens=1).prompt_tokens
    plain = real.chat(messages, max_tokens=1).prompt_tokens
    for index, message in enumerate(messages):
        longer = [*messages[:index], {**message, "content": message["content"] + FILLER}, *messages[index + 1 :]]
        grown = real.chat(longer, max_tokens=1).prompt_tokens - plain
        assert abs(grown - n_filler) <= 2, f"messages[{index}]"


PARTS = [{"type": "text", "text": text} for text in ("The first is OAK. ", "The second is ELM. ", "", "Name both.")]


def test_text_parts_are_one_text_in_order(real: Service) -> None:
    """TPL-05"""
    whole = "".join(part["text"] for part in PARTS)
    for role in ("user", "system", "assistant"):
        rest = [] if role == "user" else [turn("user", "Hi.")]
        as_parts = real.chat([turn(role, PARTS), *rest], max_tokens=4)
        as_text = real.chat([turn(role, whole), *rest], max_tokens=4)
        assert (as_parts.text, as_parts.prompt_tokens) == (as_text.text, as_text.prompt_tokens)


def test_parts_of_a_tools_result(real: Service) -> None:
    """TPL-05, TOOL-01"""
    said = [turn("user", "Weather?"), turn("assistant", None, tool_calls=[CALL])]
    result = '{"temp_c": -3}'
    forms = [turn("tool", content, tool_call_id="call_1") for content in (result, [{"type": "text", "text": result}])]
    counts = {real.chat([*said, form], max_tokens=1, tools=[WEATHER]).prompt_tokens for form in forms}
    assert len(counts) == 1


@pytest.mark.parametrize("arguments", ["", "{}", "null", '"{}"', "not json", "[1,2]", '{"city": "Osl\\u00f8"}'])
def test_any_arguments_of_a_call_are_served(real: Service, arguments: str) -> None:
    """TOOL-03"""
    call = {**CALL, "function": {"name": "get_weather", "arguments": arguments}}
    for content in ({"content": None}, {"content": ""}, {}):
        assistant = {"role": "assistant", "tool_calls": [call], **content}
        said = [turn("user", "Weather?"), assistant, turn("tool", "-3", tool_call_id="call_1")]
        assert real.chat(said, max_tokens=1, tools=[WEATHER]).completion_tokens == 1


def user(content: Any) -> list[dict[str, Any]]:
    return [turn("user", content)]


MALFORMED = {
    "TPL-07 no turn": [],
    "TPL-08 an empty turn": [{}],
    "TPL-08 no content": [{"role": "user"}],
    "TPL-08 no role": [{"content": "x"}],
    "TPL-08 a text for a turn": ["hi"],
    "TPL-08 a text for all": "hi",
    "TPL-08 a turn for all": turn("user", "hi"),
    "TPL-08 null for a turn": [None],
    "TPL-08 null for all": None,
    "TPL-08 null for content": user(None),
    "TPL-08 a number for content": user(5),
    "TPL-08 an object for content": user({"text": "x"}),
    "TPL-08 an unknown role": [turn("wizard", "x")],
    "TPL-08 a number for a role": [{"role": 1, "content": "x"}],
    "TPL-08 the second turn": [turn("user", "x"), {"role": "user"}],
    "TPL-08 an assistant that says nothing": [turn("user", "x"), turn("assistant", None)],
    "TPL-10 an image": user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]),
    "TPL-10 text and an image": user([*PARTS, {"type": "image_url", "image_url": {"url": "data:,"}}]),
    "TPL-10 audio": user([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]),
    "TPL-10 a file": user([{"type": "file", "file": {"file_id": "f"}}]),
    "TPL-12 a text for a part": user(["text"]),
    "TPL-12 an image as a text": user([{"type": "image_url", "image_url": "x"}]),
    "TPL-12 an image's url": user([{"type": "image_url", "url": "x"}]),
    "TPL-12 an image's other name": user([{"type": "image", "image": "x"}]),
    "TPL-12 a text part without text": user([{"type": "text"}]),
    "TPL-12 null for a text": user([{"type": "text", "text": None}]),
    "TPL-12 a part without type": user([{"text": "x"}]),
    "TPL-12 no part": user([]),
    "TPL-12 null for a part": user([None]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_turn_is_named_and_reaches_no_model(fake: Service, name: str) -> None:
    with fake.nothing_starts():
        for stream in (False, True):
            error = error_of(fake.post(CHATS, chat_body(None) | {"messages": MALFORMED[name], "stream": stream}), 400)
            assert error["param"].startswith("messages")
            assert "messages" in error["message"]


def test_no_messages_at_all(fake: Service) -> None:
    """TPL-08"""
    body = chat_body("x")
    del body["messages"]
    assert error_of(fake.post(CHATS, body), 400)["param"] == "messages"


def test_refused_image_says_why_and_is_never_fetched(fake: Service) -> None:
    """TPL-10"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        picture = {"type": "image_url", "image_url": {"url": url}}
        error = error_of(fake.post(CHATS, chat_body(user([PARTS[0], picture]))), 400)
        assert error["param"] == "messages[0].content[1]"
        assert "text only" in error["message"]
        fake.assert_alive()
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_fields_that_clients_add_of_their_own_change_nothing(real: Service) -> None:
    """PAR-08"""
    plain = real.chat([turn("system", "Be brief."), turn("user", "Hi")], max_tokens=4)
    odd: dict[str, Any] = {"user": "u1", "metadata": {"a": "b"}, "store": False, "parallel_tool_calls": True}
    odd |= {"logit_bias": {}, "service_tier": "auto", "chat_id": "x", "tool_servers": [], "n": 1, "logprobs": False}
    said = [turn("system", "Be brief.", id=194, opts={"visible": False}), turn("user", "Hi", timestamp=1.5)]
    answer = real.chat(said, max_tokens=4, **odd)
    assert (answer.text, answer.prompt_tokens) == (plain.text, plain.prompt_tokens)

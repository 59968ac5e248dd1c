"""Input items of /v1/responses -> chat messages."""

from typing import Any

import pytest

from api.protocol.fields import Fields, InvalidRequest
from api.protocol.responses_input import read_input
from tests.unit.cases import anything


def read(given: Any, **fields: Any) -> list[dict[str, Any]]:
    return read_input(Fields({"input": given} | fields))


def said(role: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


def text(*texts: str, kind: str = "input_text") -> list[dict[str, Any]]:
    return [{"type": kind, "text": item} for item in texts]


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind} | fields


def call(number: int = 1) -> dict[str, Any]:
    return item("function_call", id=f"fc_{number}", call_id=f"call_{number}", name="f", arguments="{}", status=None)


def result(number: int = 1, output: Any = "sunny") -> dict[str, Any]:
    return item("function_call_output", call_id=f"call_{number}", output=output)


def thought(words: str) -> dict[str, Any]:
    return item("reasoning", id="rs_1", summary=[], content=text(words, kind="reasoning_text"))


def chat_call(number: int = 1) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat_result(number: int = 1, content: str = "sunny") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call_{number}"}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ("hi", [said("user", "hi")]),
        ("", [said("user", "")]),
        ([said("user")], [said("user")]),
        ([said("developer"), said("user")], [said("developer"), said("user")]),
        ([item("message", **said("user", text("a ", "b")))], [said("user", "a b")]),
        (
            [item("message", id="msg_1", status="completed", **said("assistant", text("a", kind="output_text")))],
            [said("assistant", "a")],
        ),
        ([said("assistant", [{"type": "refusal", "refusal": "no"}])], [said("assistant", "no")]),
        ([said("assistant", [])], [said("assistant", "")]),
    ],
)
def test_messages(given: Any, messages: list[dict[str, Any]]) -> None:
    assert read(given) == messages


def test_instructions_come_first() -> None:
    assert read([said("user")], instructions="be brief") == [said("system", "be brief"), said("user")]
    assert read("x", instructions=None) == read("x", instructions="") == [said("user")]


def test_calls_and_results_are_turns_of_chat() -> None:
    assert read([said("user"), call(1), call(2), result(1), result(2, text("a", "b"))]) == [
        said("user"),
        said("assistant", "", tool_calls=[chat_call(1), chat_call(2)]),
        chat_result(1),
        chat_result(2, "ab"),
    ]


def test_calls_belong_to_the_text_before_them() -> None:
    assert read([said("assistant", "let me see"), call(1)]) == [
        said("assistant", "let me see", tool_calls=[chat_call(1)])
    ]


def test_a_call_after_a_result_is_a_turn_of_its_own() -> None:
    turns = read([call(1), result(1), call(2), result(2)])
    assert [turn["role"] for turn in turns] == ["assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize("output", anything("", []))
def test_a_tool_may_have_nothing_to_say(output: Any) -> None:
    assert read([call(), result(1, output)])[-1] == chat_result(1, "")


@pytest.mark.parametrize("after", [said("assistant"), call()])
def test_reasoning_belongs_to_the_turn_that_follows(after: dict[str, Any]) -> None:
    [turn] = read([thought("so "), thought("that"), after])
    assert turn["reasoning_content"] == "so that"


def test_reasoning_between_two_calls_parts_them() -> None:
    first, second = read([thought("one"), call(1), thought("two"), call(2)])
    assert (first["reasoning_content"], second["reasoning_content"]) == ("one", "two")


def test_reasoning_without_a_turn_or_without_text_is_left_out() -> None:
    sealed = item("reasoning", id="rs_1", summary=[{"type": "summary_text", "text": "s"}], encrypted_content="AAAA")
    assert read([thought("x"), said("user")]) == [said("user")]
    assert read([said("user"), sealed, said("assistant")]) == [said("user"), said("assistant")]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        *[(bad, "input") for bad in anything(None, [], {}, 5, True, [thought("alone")])],
        (["hi"], "input[0]"),
        ([None], "input[0]"),
        ([{}], "input[0].type"),
        ([{"type": 5}], "input[0].type"),
        ([said("user"), said("wizard")], "input[1].role"),
        ([said("tool")], "input[0].role"),
        ([item("message")], "input[0].role"),
        *[([said("user", bad)], "input[0].content") for bad in anything(None, 5, [], {})],
        ([said("user", ["x"])], "input[0].content[0]"),
        ([said("user", [{"type": "input_text"}])], "input[0].content[0].text"),
        ([said("user", [{"type": "poem"}])], "input[0].content[0].type"),
        ([item("function_call", call_id="c", arguments="{}")], "input[0].name"),
        ([item("function_call", call_id="c", name="f", arguments=[])], "input[0].arguments"),
        ([item("function_call", call_id=5, name="f", arguments="")], "input[0].call_id"),
        *[([result(1, bad)], "input[0].output") for bad in anything(None, 5, {})],
        ([item("function_call_output", call_id=5, output="x")], "input[0].call_id"),
        ([item("reasoning", content="x")], "input[0].content"),
        ([item("reasoning", content=["x"])], "input[0].content[0]"),
    ],
)
def test_what_is_wrong_is_named(given: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(given)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
    assert caught.value.code is None


@pytest.mark.parametrize("kind", ["input_image", "input_audio", "input_file"])
def test_other_content_than_text_is_refused(kind: str) -> None:
    for given in ([said("user", [{"type": kind}])], [result(1, [{"type": kind}])]):
        with pytest.raises(InvalidRequest) as caught:
            read(given)
        assert caught.value.code == "unsupported_value"
        assert str(caught.value.param).startswith("input[0].")


@pytest.mark.parametrize(
    "kind", ["item_reference", "compaction", "web_search_call", "custom_tool_call", "mcp_call", "of_tomorrow"]
)
def test_other_items_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read([said("user"), item(kind, id="x")])
    assert (caught.value.param, caught.value.code) == ("input[1]", "unsupported_value")
    assert kind in caught.value.message


@pytest.mark.parametrize("bad", anything(5, [], {}))
def test_instructions_are_a_string(bad: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read("x", instructions=bad)
    assert caught.value.param == "instructions"

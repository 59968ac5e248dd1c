"""Tools, calls and results as the templates of every format show them."""

from typing import Any

import pytest

from tasks.contracts import GenerateRequest, ToolChoice
from tasks.engines.llamacpp.answer_planner import AnswerPlanner
from tasks.engines.llamacpp.chat_template import ChatTemplate
from tests.unit.template_samples import CHATML, GEMMA, LLAMA3, PHI
from tests.unit.tool_template_samples import BY_FORMAT, EFFORT, HERMES, MISTRAL_ARRAY, OPENED_THINKING, QWEN3

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "the weather <now>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
SAMPLES = {f"{name}-{index}": source for name, sources in BY_FORMAT.items() for index, source in enumerate(sources)}
every_template = pytest.mark.parametrize("source", SAMPLES.values(), ids=SAMPLES.keys())


def turn(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(
    arguments: str = '{"city": "Oslo"}', name: str = "get_weather", call_id: str | None = "call_1"
) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if call_id is None else made | {"id": call_id}


def request_of(messages: list[dict[str, Any]], **more: Any) -> GenerateRequest:
    return GenerateRequest(id="r", model="m", reply_to="a", messages=messages, **({"tools": TOOLS} | more))


def render(source: str, messages: list[dict[str, Any]], **more: Any) -> str:
    template = ChatTemplate(source, TOKENS)
    planner = AnswerPlanner(template, lambda mark: None)
    return template.render(*planner.rendering_of(request_of(messages, **more)))


def assert_in_order(prompt: str, *texts: str) -> None:
    position = 0
    for text in texts:
        position = prompt.index(text, position) + len(text)


@every_template
def test_tools_reach_every_model(source: str) -> None:
    prompt = render(source, [turn("user", "Weather?")])
    for text in ("get_weather", "the weather <now>", "city", "Weather?"):
        assert text in prompt


@every_template
def test_tools_and_a_system_text_reach_every_model(source: str) -> None:
    prompt = render(source, [turn("system", "Be brief."), turn("user", "Weather?")])
    for text in ("Be brief.", "get_weather", "Weather?"):
        assert text in prompt


@every_template
@pytest.mark.parametrize("content", ["Let me look.", "", None])
def test_a_round_trip(source: str, content: str | None) -> None:
    messages = [
        turn("user", "Weather?"),
        turn("assistant", content, tool_calls=[call()]),
        turn("tool", '{"temp_c": -3}', tool_call_id="call_1"),
        turn("assistant", "It is cold."),
        turn("user", "Really?"),
    ]
    prompt = render(source, messages)
    assert_in_order(prompt, "Weather?", "Oslo", "-3", "It is cold.")
    assert "Really?" in prompt
    assert "None" not in prompt


@every_template
@pytest.mark.parametrize("ids", [("call_1", "call_2"), (None, None)], ids=["with ids", "without"])
def test_a_round_trip_of_several_calls(source: str, ids: tuple[str | None, str | None]) -> None:
    results = [{} if call_id is None else {"tool_call_id": call_id} for call_id in ids]
    messages = [
        turn("user", "Weather?"),
        turn("assistant", None, tool_calls=[call(call_id=ids[0]), call('{"city": "Rome"}', call_id=ids[1])]),
        turn("tool", "result-one", **results[0]),
        turn("tool", "result-two", **results[1]),
    ]
    prompt = render(source, messages)
    assert_in_order(prompt, "Weather?", "Oslo", "Rome")
    assert_in_order(prompt, "Weather?", "result-one", "result-two")


@pytest.mark.parametrize("source", [LLAMA3], ids=["one call at a time"])
def test_several_calls_become_turns_where_the_template_takes_one(source: str) -> None:
    messages = [
        turn("user", "Weather?"),
        turn("assistant", "I ask.", tool_calls=[call(call_id="a"), call('{"city": "Rome"}', call_id="b")]),
        turn("tool", "result-b", tool_call_id="b"),
        turn("tool", "result-a", tool_call_id="a"),
    ]
    prompt = render(source, messages)
    assert_in_order(prompt, '"parameters": {"city": "Oslo"}', "result-a", '"parameters": {"city": "Rome"}', "result-b")


@every_template
@pytest.mark.parametrize("arguments", ["", "{}", "null", '"{}"', "not json", "[1,2]", '{"city": "Oslo"}'])
def test_any_arguments_render(source: str, arguments: str) -> None:
    messages = [
        turn("user", "x"),
        turn("assistant", None, tool_calls=[call(arguments)]),
        turn("tool", "result", tool_call_id="call_1"),
    ]
    assert "result" in render(source, messages)


@every_template
def test_a_result_without_a_call(source: str) -> None:
    assert_in_order(render(source, [turn("user", "hi"), turn("tool", "seven", tool_call_id="nope")]), "hi", "seven")


def test_a_model_without_tools_sees_its_calls_in_the_form_that_it_is_told_to_write() -> None:
    messages = [
        turn("user", "x"),
        turn("assistant", "I ask.", tool_calls=[call()]),
        turn("tool", "r", tool_call_id="call_1"),
    ]
    prompt = render(CHATML, messages)
    assert 'I ask.\n{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}<|im_end|>' in prompt
    assert "<|im_start|>user\nResult of get_weather:\nr<|im_end|>" in prompt


@pytest.mark.parametrize("source", [CHATML, PHI, GEMMA], ids=["chatml", "phi", "no system turn"])
def test_instructions_are_there_where_the_template_knows_no_tools(source: str) -> None:
    prompt = render(source, [turn("user", "x")])
    assert "You can call these functions:" in prompt
    assert '{"tool_calls": [' in prompt


@pytest.mark.parametrize("source", [HERMES, MISTRAL_ARRAY, LLAMA3], ids=["hermes", "mistral", "llama"])
def test_no_instructions_where_the_template_has_its_own(source: str) -> None:
    assert "You can call these functions:" not in render(source, [turn("user", "x")])


def test_no_instructions_without_tools() -> None:
    assert "functions" not in render(CHATML, [turn("user", "x")], tools=None)


def test_instructions_say_that_a_call_must_come() -> None:
    choice = {"tool_choice": ToolChoice.REQUIRED, "tool_name": "get_weather"}
    assert "Call the function get_weather" in render(CHATML, [turn("user", "x")], **choice)


def test_enable_thinking_reaches_the_template_and_the_plan() -> None:
    off = {"template_kwargs": {"enable_thinking": False}}
    prompt = render(QWEN3, [turn("user", "x")], **off)
    assert prompt.endswith("<think>\n\n</think>\n\n")
    planner = AnswerPlanner(ChatTemplate(QWEN3, TOKENS), lambda mark: None)
    assert planner.plan(request_of([], **off), prompt).opening is None
    assert planner.plan(request_of([]), render(QWEN3, [turn("user", "x")])).opening == "<think>"


def test_reasoning_effort_reaches_the_template() -> None:
    assert render(EFFORT, [turn("user", "x")], template_kwargs={"reasoning_effort": "high"}).endswith("effort: high")


def test_an_answer_begins_inside_where_the_prompt_opens_the_section() -> None:
    planner = AnswerPlanner(ChatTemplate(OPENED_THINKING, TOKENS), lambda mark: None)
    plan = planner.plan(request_of([]), render(OPENED_THINKING, [turn("user", "x")]))
    assert plan.new_parser().in_reasoning
    assert plan.opening is None

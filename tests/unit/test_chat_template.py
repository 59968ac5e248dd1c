"""Rendering of messages by chat templates of many makes."""

from datetime import datetime
from typing import Any

import pytest

from tasks.engines.base import InvalidRequest, ModelLoadError
from tasks.engines.llamacpp.chat_template import ChatTemplate, Rendering
from tasks.engines.llamacpp.template_env import chat_environment, tojson
from tests.unit.template_samples import ALL, CHATML, EXTENSIONS, GEMMA, LLAMA3, MISTRAL, PARTS, PHI, QWEN

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENS, chat_environment(now=lambda: datetime(2031, 5, 6)))


def turn(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def assert_in_order(prompt: str, *texts: str) -> None:
    position = 0
    for text in texts:
        position = prompt.index(text, position) + len(text)


every_template = pytest.mark.parametrize("source", ALL.values(), ids=ALL.keys())


def test_a_plain_conversation_is_rendered_as_the_template_says() -> None:
    messages = [turn("user", "Hi"), turn("assistant", "Hello"), turn("user", "Bye")]
    assert template(CHATML).render(messages) == (
        "<|im_start|>system\nDefault.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


@every_template
@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([("user", "one")], id="one turn"),
        pytest.param([("system", "zero"), ("user", "one"), ("user", "two")], id="two users"),
        pytest.param([("assistant", "one"), ("user", "two")], id="greeting"),
        pytest.param([("system", "zero"), ("assistant", "one"), ("user", "two")], id="system and greeting"),
        pytest.param([("system", "zero"), ("system", "one"), ("user", "two")], id="two systems"),
        pytest.param([("developer", "one"), ("user", "two")], id="developer"),
        pytest.param(
            [("user", "one"), ("assistant", "two"), ("assistant", "three"), ("user", "four")], id="two assistants"
        ),
        pytest.param([("user", "one"), ("assistant", "two"), ("system", "three"), ("user", "four")], id="late system"),
        pytest.param([("system", "one")], id="system alone"),
    ],
)
def test_every_template_takes_every_order_of_roles_and_loses_nothing(
    source: str, messages: list[tuple[str, str]]
) -> None:
    prompt = template(source).render([turn(role, content) for role, content in messages])
    for _, content in messages:
        assert content in prompt


@every_template
def test_a_round_trip_of_a_tool_reaches_every_model(source: str) -> None:
    messages = [
        turn("user", "Weather?"),
        turn("assistant", None, tool_calls=[CALL]),
        turn("tool", '{"temp_c": -3}', tool_call_id="call_1"),
    ]
    prompt = template(source).render(messages)
    assert_in_order(prompt, "Weather?", "get_weather", "Oslo", "-3")
    assert "None" not in prompt


@every_template
def test_a_tool_result_without_a_call(source: str) -> None:
    prompt = template(source).render([turn("user", "hi"), turn("tool", "seven", tool_call_id="nope")])
    assert_in_order(prompt, "hi", "seven")


@pytest.mark.parametrize("arguments", ["", "{}", "null", '"{}"', "not json", "[1,2]", '{"city": "Oslo"}'])
@every_template
def test_any_arguments_render(source: str, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [turn("user", "x"), turn("assistant", None, tool_calls=[call]), turn("tool", "r", tool_call_id="c")]
    assert "r" in template(source).render(messages)


def test_arguments_reach_the_template_as_a_mapping() -> None:
    messages = [turn("user", "x"), turn("assistant", None, tool_calls=[CALL]), turn("tool", "r", tool_call_id="call_1")]
    assert '"parameters": {"city": "Oslo"}' in template(LLAMA3).render(messages)


def test_tools_are_written_as_transformers_writes_them() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "Grüße <b> & 'x'"}}
    prompt = template(LLAMA3).render([turn("user", "x")], Rendering(tools=[tool]))
    assert '{\n    "type": "function",\n    "function": {\n        "name": "f",' in prompt
    assert "Grüße <b> & 'x'" in prompt


def test_system_is_folded_into_the_first_user_turn_where_it_is_refused() -> None:
    prompt = template(GEMMA).render(
        [turn("system", "Be brief."), turn("user", "Hi"), turn("assistant", "Yo"), turn("user", "?")]
    )
    assert prompt.startswith("<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYo")


def test_system_stays_a_turn_where_it_is_taken() -> None:
    assert "<|im_start|>system\nBe brief.<|im_end|>" in template(CHATML).render(
        [turn("system", "Be brief."), turn("user", "Hi")]
    )


def test_developer_is_a_system_turn_for_templates_that_echo_any_role() -> None:
    prompt = template(CHATML).render([turn("developer", "Be brief."), turn("user", "Hi")])
    assert "<|im_start|>system\nBe brief." in prompt
    assert "developer" not in prompt


def test_developer_stays_for_templates_that_know_it() -> None:
    source = (
        "{% for m in messages %}{% if m.role in ['developer', 'user', 'assistant'] %}[{{ m.role }}]{{ m.content }}"
        "{% endif %}{% endfor %}"
    )
    assert template(source).render([turn("developer", "D"), turn("user", "U")]) == "[developer]D[user]U"


def test_tool_results_become_user_text_where_the_template_leaves_tools_out() -> None:
    messages = [
        turn("user", "x"),
        turn("assistant", None, tool_calls=[CALL]),
        turn("tool", "cold", tool_call_id="call_1"),
    ]
    assert "<|user|>\nResult of get_weather:\ncold<|end|>" in template(PHI).render(messages)


def test_a_greeting_comes_after_an_empty_user_turn_where_turns_are_strict() -> None:
    prompt = template(GEMMA).render([turn("assistant", "Welcome to KIWI-3."), turn("user", "Code?")])
    assert "<start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\nWelcome to KIWI-3." in prompt


def test_long_ids_of_calls_are_shortened_where_the_template_demands_it() -> None:
    call = CALL | {"id": "call_0123456789abcdef"}
    messages = [
        turn("user", "x"),
        turn("assistant", None, tool_calls=[call]),
        turn("tool", "1", tool_call_id=call["id"]),
    ]
    assert "[TOOL_CALLS]" in template(MISTRAL).render(messages)


def test_extensions_of_the_renderer() -> None:
    prompt = template(EXTENSIONS).render([turn("user", "a"), turn("assistant", "b"), turn("user", "c")])
    assert prompt == '<user>ab</s><user>c<date>2031</date>{"a": "<é&\'>"}<s>'


def test_break_ends_a_loop() -> None:
    assert "last" not in template(EXTENSIONS).render([turn("user", "x")] * 41 + [turn("assistant", "last")])


def test_template_kwargs_reach_the_template_and_cannot_replace_the_messages() -> None:
    rendering = Rendering(template_kwargs={"enable_thinking": False, "messages": [], "add_generation_prompt": False})
    prompt = template(QWEN).render([turn("user", "Hi")], rendering)
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_reasoning_of_earlier_turns_is_cut_by_the_template() -> None:
    messages = [turn("user", "a"), turn("assistant", "<think>hm</think>\n\nb"), turn("user", "c")]
    assert "hm" not in template(QWEN).render(messages)


def test_content_in_parts_where_the_template_wants_them() -> None:
    assert template(PARTS).traits.with_parts
    assert "<|im_start|>user\nHi<|im_end|>" in template(PARTS).render([turn("user", "Hi")])


def test_an_intended_refusal_says_why() -> None:
    refusal = "{% if 'bad' in m.content %}{{ raise_exception('No bad words') }}{% endif %}"
    source = "{% for m in messages %}" + refusal + "{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequest) as caught:
        template(source).render([turn("user", "bad")])
    assert "No bad words" in caught.value.message
    assert caught.value.param == "messages"


def test_an_accident_does_not_show_the_template() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% if m.content == 'x' %}{{ secret_thing.a.b }}{% endif %}{% endfor %}"
    )
    with pytest.raises(InvalidRequest) as caught:
        template(source).render([turn("user", "x")])
    assert "secret_thing" not in caught.value.message


@pytest.mark.parametrize(
    "source", ["{% for m in messages %}{{ m.content }}", "{{ nonsense", "{% unknown_tag %}", "constant", "{{ 1 / 0 }}"]
)
def test_an_unusable_template_stops_the_start(source: str) -> None:
    with pytest.raises(ModelLoadError, match="LIS_CHAT_TEMPLATE_PATH"):
        template(source)


@pytest.mark.parametrize(
    "body",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = m.content %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ m.content * 1000 }}{% endfor %}",
        "{{ m.content * 99999999 }}",
        "{{ 9 ** 999999999 }}",
        "{{ m.content.__class__.__mro__ }}",
    ],
)
def test_a_message_cannot_make_a_template_run_away(body: str) -> None:
    source = "{% for m in messages %}{{ m.content }}{% if m.content == 'evil' %}" + body + "{% endif %}{% endfor %}"
    with pytest.raises(InvalidRequest):
        template(source).render([turn("user", "evil")])


def test_tojson_can_escape_and_sort() -> None:
    assert tojson({"b": "é", "a": 1}, ensure_ascii=True, sort_keys=True) == '{"a": 1, "b": "\\u00e9"}'
    assert tojson([1, 2], separators=(",", ":")) == "[1,2]"

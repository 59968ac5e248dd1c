"""Reported bugs of GGUFs whose chat template is unusual: tiny models that differ in their template only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.engines.base import ModelLoadError
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tests.engine_contract import RecordingSink, chat_request, run
from tests.integration.test_chat_engine import load_chat
from tests.reference_tokens import reference_prompt_tokens
from tests.service_calls import CHATS, Service, chat_body, error_of
from tests.stack import Stack
from tests.support import wait_until
from tests.tiny_gguf import write_tiny_llama

EACH = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}assistant: "
STRICT = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>\\n' }}{% endfor %}<|im_start|>model\n"
)
EXTENSIONS = {
    "generation": "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}",
    "strftime_now": "{{ strftime_now('%Y-%m-%d') }} " + EACH,
    "bos and eos": "{{ bos_token }}{{ eos_token }}" + EACH,
    "raise_exception": "{% if messages | length == 0 %}{{ raise_exception('none') }}{% endif %}" + EACH,
    "tojson": "{{ messages | tojson }} {{ messages | tojson(indent=2) }}" + EACH,
    "break": "{% for m in messages %}{{ m['content'] }}{% break %}{% endfor %}",
    "continue": "{% for m in messages %}{% if m.role == 'x' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}" + EACH,
    "macro": "{% macro say(m) %}{{ m['content'] }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
    "methods": "{% for m in messages %}{{ m.content.strip().split('</think>')[-1].lstrip('\\n') }}{% endfor %}",
    "unknown names": "{% if enable_thinking is defined and enable_thinking %}x{% endif %}{% if tools %}y{% endif %}"
    + EACH,
    "slices": "{% for m in messages[::-1] %}{{ m['content'] }}{% endfor %}",
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    """An engine for a tiny model with this chat template."""
    engines: list[LlamaChatEngine] = []

    def load(template: str | None) -> tuple[LlamaChatEngine, Path]:
        path = tmp_path / "model.gguf"
        write_tiny_llama(path, template)
        engines.append(load_chat(path, n_ctx=512))
        return engines[-1], path

    yield load
    for engine in engines:
        engine.close()


def prompt_tokens(engine: LlamaChatEngine, messages: list[dict[str, Any]]) -> int:
    sink = run(engine, chat_request(messages=messages, max_tokens=1))
    assert sink.error is None
    return sink.usage.prompt_tokens


def turns(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


@pytest.mark.parametrize(
    "said",
    [
        turns(("system", "Only MANGO."), ("user", "hello")),
        turns(("user", "one"), ("user", "two")),
        turns(("assistant", "Welcome."), ("user", "hello")),
        turns(("user", "one"), ("system", "Only MANGO."), ("user", "two"), ("assistant", "x"), ("user", "y")),
    ],
)
def test_template_that_refuses_roles_gets_all_that_was_said(make: Any, said: list[dict[str, Any]]) -> None:
    """TPL-01, TPL-03, TPL-04: each turn's text still makes the prompt longer."""
    engine, _ = make(STRICT)
    plain = prompt_tokens(engine, said)
    for index, message in enumerate(said):
        longer = [*said[:index], message | {"content": message["content"] + "~~~~~~~~~~"}, *said[index + 1 :]]
        assert prompt_tokens(engine, longer) == plain + 10


@pytest.mark.parametrize("template", [STRICT, "{{ bos_token }}" + EACH, EACH, "{{ bos_token + bos_token }}" + EACH])
def test_first_token_is_there_exactly_as_the_reference_has_it(make: Any, template: str) -> None:
    """TPL-13: the vocabulary wants one added, and the template may write it itself."""
    engine, path = make(template)
    said = turns(("user", "hello you"))
    assert prompt_tokens(engine, said) == reference_prompt_tokens(str(path), said)


@pytest.mark.parametrize("template", [None, "", "  \n"], ids=["none", "empty", "blank"])
def test_model_without_a_template_is_refused_with_what_to_do(make: Any, template: str | None) -> None:
    """TPL-15: never another family's template in silence."""
    with pytest.raises(ModelLoadError, match=r"no chat template.*LIS_CHAT_TEMPLATE_PATH"):
        make(template)


def test_model_without_a_template_is_no_silent_service(tmp_path: Path) -> None:
    """TPL-15: the log says why, and a chat is refused at once."""
    path = tmp_path / "model.gguf"
    write_tiny_llama(path, None)
    env = {"LIS_GGUF_PATH": str(path), "LIS_N_CTX": "512", "LIS_EMBEDDING_ENABLED": "false"}
    with Stack(env, ready=False) as stack:
        assert stack.worker is not None
        assert stack.worker.popen.wait(60.0) == 78
        assert "no chat template" in stack.log_text()
        wait_until(lambda: stack.health()["status"] not in ("unreachable", "loading"), "the API has seen it go", 30.0)
        service = Service(stack)
        error = error_of(service.post(CHATS, chat_body("hello")), 503)
        service.client.close()
    assert error["code"] == "model_loading"
    assert "no chat template" in error["message"]


@pytest.mark.parametrize("name", EXTENSIONS, ids=lambda name: f"TPL-16 {name}")
def test_extension_that_publishers_use_loads_and_answers(make: Any, name: str) -> None:
    engine, _ = make(EXTENSIONS[name])
    sink: RecordingSink = run(engine, chat_request("hello", max_tokens=3))
    assert sink.error is None
    assert sink.usage.completion_tokens >= 1

"""Calls from a real model, by templates of every format: what must come comes, and nothing of a mark leaves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tasks.contracts import FinishReason, Sampling, ToolChoice
from tasks.engines.llamacpp.decoder import Decoder
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tasks.engines.llamacpp.model import ChatModel
from tests.engine_contract import RecordingSink, chat_request, run
from tests.integration.test_chat_engine import settings
from tests.support_models import smollm2_path
from tests.unit.tool_formats.reading import Calls
from tests.unit.tool_formats.requests import SCHEMA, WEATHER, function
from tests.unit.tool_template_samples import BY_FORMAT

TOOLS = [function("get_weather", WEATHER), function("now")]
ASKED = [{"role": "user", "content": "What is the weather in Oslo?"}]


class Rig(NamedTuple):
    engine: LlamaChatEngine
    format_name: str


@pytest.fixture(scope="module", params=list(BY_FORMAT))
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    path = Path(tmp_path_factory.mktemp("templates")) / "template.jinja"
    path.write_text(BY_FORMAT[request.param][0], encoding="utf-8")
    chosen = settings(smollm2_path(), chat_template_path=str(path))
    engine = LlamaChatEngine(Decoder(lambda: ChatModel(chosen)), chosen)
    yield Rig(engine, request.param)
    engine.close()


def ask(rig: Rig, **more: Any) -> RecordingSink:
    wanted: dict[str, Any] = {"messages": ASKED, "tools": TOOLS, "max_tokens": 160, "sampling": Sampling(temperature=0)}
    return run(rig.engine, chat_request(**(wanted | more)))


def calls_of(sink: RecordingSink) -> Calls:
    names = [name for _, _, _, name, _ in sink.calls if name]
    texts = ["" for _ in names]
    for _, index, _, _, arguments in sink.calls:
        texts[index] += arguments
    return list(zip(names, texts, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_named_tool_is_called_with_valid_arguments(rig: Rig, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=3)
    sink = ask(rig, tool_choice=ToolChoice.REQUIRED, tool_name="get_weather", sampling=sampling)
    [(name, arguments)] = calls_of(sink)
    assert (name, sink.text) == ("get_weather", "")
    if sink.reason is FinishReason.TOOL_CALLS:
        values = json.loads(arguments)
        assert isinstance(values["city"], str)
        assert set(values) <= {"city", "unit", "days"}
    else:
        assert (sink.reason, temperature > 0) == (FinishReason.LENGTH, True)


def test_a_function_without_parameters_is_called_without_arguments(rig: Rig) -> None:
    sink = ask(rig, tool_choice=ToolChoice.REQUIRED, tool_name="now")
    [(name, arguments)] = calls_of(sink)
    assert (name, json.loads(arguments), sink.text, sink.reason) == ("now", {}, "", FinishReason.TOOL_CALLS)


@pytest.mark.parametrize("stop", ["{", ":", "now", "["])
def test_a_stop_text_does_not_cut_a_call_that_must_come(rig: Rig, stop: str) -> None:
    sink = ask(rig, tool_choice=ToolChoice.REQUIRED, tool_name="now", stop=[stop])
    [(name, arguments)] = calls_of(sink)
    assert (name, json.loads(arguments), sink.text, sink.reason) == ("now", {}, "", FinishReason.TOOL_CALLS)


def test_an_answer_or_a_call_where_both_may_come(rig: Rig) -> None:
    sink = ask(rig, grammar=SCHEMA, tools=TOOLS[:1])
    if sink.calls:
        assert sink.text == ""
    elif sink.reason is FinishReason.STOP:
        assert isinstance(json.loads(sink.text)["answer"], int)

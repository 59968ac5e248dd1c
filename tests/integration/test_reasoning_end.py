"""Reasoning is no end of an answer that a grammar is of."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.contracts import FinishReason, Sampling, ToolChoice
from tasks.engines.llamacpp.decoder import Decoder
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tasks.engines.llamacpp.model import ChatModel
from tests.engine_contract import RecordingSink, chat_request, run
from tests.integration.test_chat_engine import settings
from tests.support_models import smollm2_path
from tests.unit.tool_formats.requests import SCHEMA, WEATHER, function
from tests.unit.tool_template_samples import OPENED_THINKING

TOOLS = [function("get_weather", WEATHER)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaChatEngine]:
    path = Path(tmp_path_factory.mktemp("templates")) / "template.jinja"
    path.write_text(OPENED_THINKING, encoding="utf-8")
    chosen = settings(smollm2_path(), chat_template_path=str(path))
    engine = LlamaChatEngine(Decoder(lambda: ChatModel(chosen)), chosen)
    yield engine
    engine.close()


def think_and_end(engine: LlamaChatEngine, **more: Any) -> RecordingSink:
    """The answer of a model that thinks, and wants nothing but to end."""
    eog = engine._decoder.model.vocab.eog
    sampling = Sampling(temperature=0, logit_bias=[(int(token), 50.0) for token in eog])
    messages = [{"role": "user", "content": "Say hello."}]
    return run(engine, chat_request(messages=messages, max_tokens=12, sampling=sampling, **more))


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS}], ids=["plain", "tools"])
def test_a_free_answer_may_end_while_the_model_thinks(engine: LlamaChatEngine, more: dict[str, Any]) -> None:
    sink = think_and_end(engine, **more)
    assert (sink.reason, sink.usage.completion_tokens) == (FinishReason.STOP, 1)


@pytest.mark.parametrize(
    "more",
    [{"grammar": SCHEMA}, {"grammar": SCHEMA, "tools": TOOLS}, {"tools": TOOLS, "tool_choice": ToolChoice.REQUIRED}],
    ids=["schema", "schema or calls", "required call"],
)
def test_an_answer_with_a_grammar_does_not_end_before_the_grammar(
    engine: LlamaChatEngine, more: dict[str, Any]
) -> None:
    sink = think_and_end(engine, **more)
    assert (sink.reason, sink.usage.reasoning_tokens) == (FinishReason.LENGTH, 12)
    assert sink.reasonings[0]

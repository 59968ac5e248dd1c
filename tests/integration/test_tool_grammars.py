"""Grammars of calls on a real vocabulary, where tokens do not end where the grammar's parts do."""

from collections.abc import Iterator

import numpy as np
import pytest

from tasks.contracts import Grammar, GrammarKind
from tasks.engines.llamacpp.decoder import Decoder
from tasks.engines.llamacpp.engine import LlamaChatEngine
from tasks.engines.llamacpp.model import ChatModel
from tasks.tool_formats.base import ToolFormat
from tests.engine_contract import chat_request
from tests.integration.test_chat_engine import settings
from tests.support_models import smollm2_path, tiny_llama_path
from tests.unit.tool_formats.reading import feed_all
from tests.unit.tool_formats.requests import REQUIRED, SCHEMA, TOOLS, every_format, one, plan, two


@pytest.fixture(scope="module", params=["smollm2", "tiny"])
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaChatEngine]:
    chosen = settings(smollm2_path() if request.param == "smollm2" else tiny_llama_path())
    engine = LlamaChatEngine(Decoder(lambda: ChatModel(chosen)), chosen)
    yield engine
    engine.close()


def accepts(engine: LlamaChatEngine, grammar: str, text: str) -> bool:
    """However it is cut into tokens: as the model would, and always the longest that fits."""
    ways = [engine._vocab.tokenize(text), engine._model.grammar_tokens.tokenizer().greedy_tokenize(text)]
    ways = [tokens for tokens in ways if b"".join(map(engine._vocab.piece, tokens)) == text.encode()]
    assert ways
    accepted = set()
    for tokens in ways:
        matcher = engine._model.grammar_tokens.compile(grammar, "tools")
        accepted.add(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
    assert len(accepted) == 1
    return accepted == {True}


def write(engine: LlamaChatEngine, grammar: str, seed: int, most: int = 400) -> str:
    """Any text of the grammar, chosen token by token; it may be cut off."""
    rng = np.random.default_rng(seed)
    matcher = engine._model.grammar_tokens.compile(grammar, "tools")
    mask = np.zeros(engine._vocab.n_tokens // 32 + 1, dtype=np.int32)
    data = b""
    for _ in range(most):
        if matcher.is_stopped():
            break
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        allowed = allowed[allowed < engine._vocab.n_tokens]
        if not len(allowed) or (matcher.is_accepting() and rng.random() < 0.5):
            break
        token = int(rng.choice(allowed))
        assert matcher.consume_token(token)
        data += engine._vocab.piece(token)
    return data.decode(errors="replace")


@every_format
def test_real_tokens_of_calls_are_accepted(engine: LlamaChatEngine, tool_format: ToolFormat) -> None:
    grammar = plan(tool_format, is_special=False, **REQUIRED).grammar
    assert grammar
    assert accepts(engine, grammar, one(tool_format))
    assert accepts(engine, grammar, two(tool_format))
    assert not accepts(engine, grammar, one(tool_format).replace("city", "town"))


@every_format
def test_real_tokens_of_an_answer_or_a_call_are_accepted(engine: LlamaChatEngine, tool_format: ToolFormat) -> None:
    for grammar in (SCHEMA, Grammar(kind=GrammarKind.JSON_OBJECT)):
        made = plan(tool_format, is_special=False, grammar=grammar).grammar
        assert made
        assert accepts(engine, made, '{"answer": 42}')
        assert accepts(engine, made, one(tool_format))


@every_format
def test_whatever_the_grammar_lets_through_is_a_call(engine: LlamaChatEngine, tool_format: ToolFormat) -> None:
    made = plan(tool_format, is_special=False, tools=TOOLS[:1], **REQUIRED)
    assert made.grammar
    whole = 0
    for seed in range(12):
        parser = made.new_parser()
        found = feed_all(parser, write(engine, made.grammar, seed))
        assert found.content == ""
        assert all(name == "get_weather" for name, _ in found.calls)
        whole += parser.has_calls
    assert whole


def test_the_plan_of_a_model_whose_template_knows_no_tools(engine: LlamaChatEngine) -> None:
    request = chat_request(messages=[{"role": "user", "content": "x"}], tools=TOOLS, **REQUIRED)
    prompt = engine._chat_prompt(request).text
    made = engine.plan_for(request, prompt)
    assert "Call at least one" in prompt
    assert made.grammar
    assert made.grammar.startswith("start: calls")
    assert made.preserved == frozenset()


def test_only_control_tokens_are_no_text_to_a_grammar(engine: LlamaChatEngine) -> None:
    vocab = engine._vocab
    assert vocab.special_id("<|im_end|>") == vocab.tokenize("<|im_end|>", parse_special=True)[0]
    assert vocab.special_id("<tool_call>") is None
    assert vocab.special_id("the") is None
    assert vocab.special_id("") is None

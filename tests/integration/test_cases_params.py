"""Reported bugs of parameters, with a real model: several choices, log probabilities, samplers, structured answers."""

import json
from typing import Any

import pytest

from tests.service_calls import CHATS, COMPLETIONS, GREEDY, Service, chat_body, error_of, good
from tests.unit.cases import anything

NUMBER = "Pick a number from 1 to 1000. Reply with the number only."
CAT = "Invent a name for a cat and explain it."
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
STATEMENT = 'root ::= "The answer is " ("yes" | "no") "."'


def wrapped(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "p", "schema": schema} | fields}


# -- several choices -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 8])
def test_as_many_choices_as_asked_for(real: Service, n: int) -> None:
    """PAR-01"""
    warm: dict[str, Any] = {"temperature": 1.2, "max_tokens": 8, "n": n}
    alone = real.chat(NUMBER, **warm | {"n": 1})
    answer = real.chat(NUMBER, **warm)
    texts = [choice["message"]["content"] for choice in answer.body["choices"]]
    assert [choice["index"] for choice in answer.body["choices"]] == list(range(n))
    assert answer.prompt_tokens == alone.prompt_tokens
    assert answer.completion_tokens <= 8 * n
    assert n == 1 or len(set(texts)) > 1
    assert [choice["message"]["content"] for choice in real.chat(NUMBER, **warm).body["choices"]] == texts
    streamed = real.chat_stream(NUMBER, **warm)
    assert streamed.is_done
    for index, text in enumerate(texts):
        own = [choice for choice in streamed.choices if choice["index"] == index]
        assert "".join(choice["delta"].get("content") or "" for choice in own) == text
        assert [choice["delta"]["role"] for choice in own if "role" in choice["delta"]] == ["assistant"]
        assert len([choice for choice in own if choice["finish_reason"]]) == 1
    assert streamed.choices[0]["index"] == 0


def test_several_prompts_with_several_choices_each(real: Service) -> None:
    """PAR-01, CMP-01"""
    prompts = ["The sky is", "Two plus two is", "Cats say"]
    answer = real.complete(prompts, n=2, max_tokens=4)
    singles = [real.complete(prompt, max_tokens=4) for prompt in prompts]
    assert [choice["index"] for choice in answer.body["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer.body["choices"]] == [single.text for single in singles for _ in "12"]
    assert answer.prompt_tokens == sum(single.prompt_tokens for single in singles)
    streamed = real.complete_stream(prompts, n=2, max_tokens=4)
    for choice in answer.body["choices"]:
        own = [said for said in streamed.choices if said["index"] == choice["index"]]
        assert "".join(said["text"] for said in own) == choice["text"]


def test_best_of_is_the_most_probable_of_them(real: Service) -> None:
    warm: dict[str, Any] = {"temperature": 1.5, "max_tokens": 6}
    every = real.complete("My favourite colour is", n=4, logprobs=0, **warm).body["choices"]
    best = real.complete("My favourite colour is", best_of=4, **warm)

    def mean(choice: dict[str, Any]) -> float:
        logprobs = choice["logprobs"]["token_logprobs"]
        return float(sum(logprobs) / len(logprobs))

    assert [choice["text"] for choice in best.body["choices"]] == [max(every, key=mean)["text"]]
    assert best.body["choices"][0]["logprobs"] is None
    assert best.completion_tokens > 6


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        *[(CHATS, {"n": bad}, "n") for bad in anything(0, -1, 9, "2", 1.5)],
        (COMPLETIONS, {"n": 9}, "n"),
        (COMPLETIONS, {"n": 3, "best_of": 2}, "best_of"),
        # PAR-02
        *[(CHATS, {"temperature": bad}, "temperature") for bad in anything(-1, 5, "hot")],
        *[(CHATS, {"top_p": bad}, "top_p") for bad in (2, -0.5)],
        (CHATS, {"max_tokens": "10"}, "max_tokens"),
        (CHATS, {"presence_penalty": 9}, "presence_penalty"),
        (CHATS, {"mirostat": 3}, "mirostat"),
        (CHATS, {"dry_base": "x"}, "dry_base"),
        (CHATS, {"logit_bias": {"5": 200}}, "logit_bias"),
        (CHATS, {"top_logprobs": 5}, "top_logprobs"),
        (CHATS, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": 1, "echo": True}, "logprobs"),
        (CHATS, {"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        # PAR-09
        (CHATS, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (CHATS, {"response_format": wrapped(PERSON), "grammar": STATEMENT}, "grammar"),
        (CHATS, {"grammar": 'root ::= "a'}, "grammar"),
    ],
)
def test_wrong_value_is_named_and_reaches_no_model(fake: Service, path: str, fields: Any, param: str) -> None:
    said = {"messages": [{"role": "user", "content": "x"}]} if path == CHATS else {"prompt": "x"}
    with fake.nothing_starts():
        for stream in (False, True):
            error = error_of(fake.post(path, {**GREEDY, **said, "stream": stream, **fields}), 400)
            assert (error["param"], param in error["message"]) == (param, True)


@pytest.mark.parametrize("value", anything("yes", 1, "true"))
def test_stream_that_is_no_boolean_is_named(fake: Service, value: Any) -> None:
    """PAR-02"""
    assert error_of(fake.post(CHATS, chat_body("x", stream=value)), 400)["param"] == "stream"


# -- samplers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler",
    [
        {},
        {"n": 2},
        {"mirostat": 1},
        {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"]},
        {"typical_p": 0.7},
        {"min_p": 0.2, "top_k": 0},
        {"logit_bias": {"100": 3, "cat": -5}},
        {"response_format": wrapped(PERSON)},
    ],
)
def test_seed_gives_the_same_text_whatever_ran_before(real: Service, sampler: dict[str, Any]) -> None:
    """PAR-04"""
    warm: dict[str, Any] = {"temperature": 0.9, "seed": 123, "max_tokens": 24, **sampler}

    def texts() -> list[str]:
        return [choice["message"]["content"] for choice in real.chat(CAT, **warm).body["choices"]]

    first, second = texts(), texts()
    real.chat("Say something about the sea.", max_tokens=4, temperature=1.0)
    real.vectors("hello")
    assert first == second == texts()
    assert first[0]


def test_another_seed_gives_another_text(real: Service) -> None:
    """PAR-04"""
    texts = {real.chat(CAT, temperature=0.9, seed=seed, max_tokens=16).text for seed in range(4)}
    assert len(texts) > 1


def test_bias_by_text_and_by_token(real: Service) -> None:
    plain = real.chat(CAT, max_tokens=4, logprobs=True)
    first = plain.body["choices"][0]["logprobs"]["content"][0]["token"]
    for banned in ({first: -100}, {first: False}):
        answer = real.chat(CAT, max_tokens=4, logprobs=True, logit_bias=banned)
        assert answer.body["choices"][0]["logprobs"]["content"][0]["token"] != first
    assert error_of(real.post(CHATS, chat_body(CAT, logit_bias={"999999999": 1})), 400)["param"] == "logit_bias"


def test_answer_goes_on_as_long_as_it_must(real: Service) -> None:
    said = "Say OK."
    assert real.chat(said, ignore_eos=True, max_tokens=60).completion_tokens == 60
    assert real.chat(said, min_tokens=50, max_tokens=60).completion_tokens >= 50


@pytest.mark.parametrize("effort", ["none", "low", "high"])
def test_effort_and_template_arguments_are_taken_by_a_model_without_reasoning(real: Service, effort: str) -> None:
    answer = real.chat("Say OK.", max_tokens=4, reasoning_effort=effort, chat_template_kwargs={"enable_thinking": True})
    assert answer.text
    assert "reasoning_content" not in answer.body["choices"][0]["message"]
    assert answer.body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


# -- log probabilities -----------------------------------------------------------------------------


@pytest.mark.parametrize("top", [None, 0, 3, 20])
def test_logprobs_of_a_chat(real: Service, top: int | None) -> None:
    """PAR-06"""
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": top, "max_tokens": 5}
    answer = real.chat(CAT, **asked)
    content = answer.body["choices"][0]["logprobs"]["content"]
    assert len(content) == answer.completion_tokens == 5
    assert b"".join(bytes(token["bytes"]) for token in content).decode() == answer.text
    assert "".join(token["token"] for token in content) == answer.text
    assert all(-9999 <= token["logprob"] <= 0 for token in content)
    for token in content:
        assert len(token["top_logprobs"]) == (top or 0)
        best = [item["logprob"] for item in token["top_logprobs"]]
        assert best == sorted(best, reverse=True)
        if best:  # greedy: what was generated is the most probable
            assert token["token"] == token["top_logprobs"][0]["token"]
            assert token["logprob"] == pytest.approx(best[0], abs=1e-3)
    streamed = real.chat_stream(CAT, **asked)
    blocks = [choice["logprobs"] for choice in streamed.choices if choice["logprobs"]]
    streamed_content = [token for block in blocks for token in block["content"]]
    assert [token["token"] for token in streamed_content] == [token["token"] for token in content]
    for choice in streamed.choices:
        if choice["logprobs"]:
            assert "".join(t["token"] for t in choice["logprobs"]["content"]) == choice["delta"]["content"]


def test_logprobs_of_tokens_that_are_parts_of_characters(real: Service) -> None:
    """PAR-06"""
    answer = real.chat("Write emojis.", grammar='root ::= "🎉🦜" "né"', logprobs=True, top_logprobs=2, max_tokens=60)
    content = answer.body["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in content).decode() == answer.text == "🎉🦜né"


@pytest.mark.parametrize("n", [0, 2, 5])
def test_logprobs_of_a_completion(real: Service, n: int) -> None:
    answer = real.complete("Once upon a", logprobs=n, max_tokens=5)
    block = answer.body["choices"][0]["logprobs"]
    assert "".join(block["tokens"]) == answer.text
    assert len(block["tokens"]) == len(block["token_logprobs"]) == len(block["top_logprobs"]) == 5
    placed = zip(block["text_offset"], block["tokens"], strict=True)
    assert all(answer.text[at:].startswith(token) for at, token in placed)
    for token, logprob, top in zip(block["tokens"], block["token_logprobs"], block["top_logprobs"], strict=True):
        assert top[token] == logprob <= 0
        assert max(1, n) <= len(top) <= n + 1


# -- structured answers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": wrapped(PERSON, strict=True)},
        {"response_format": wrapped(PERSON, strict=False)},
        {"response_format": wrapped(PERSON)},
        {"response_format": {"type": "json_object", "schema": PERSON}},
        {"json_schema": PERSON},
        {"schema": PERSON},
    ],
)
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_answer_conforms_to_its_schema(real: Service, fields: dict[str, Any], temperature: float) -> None:
    """PAR-09"""
    asked = {"max_tokens": 200, "temperature": temperature, **fields}
    answer = real.chat("Give me a person.", **asked)
    assert answer.finish == "stop"
    person = json.loads(answer.text)
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)
    assert len(person["name"]) <= 20
    assert " " * 21 not in answer.text
    assert real.chat_stream("Give me a person.", **asked).text == answer.text


def test_schema_holds_for_each_choice_and_in_completions(real: Service) -> None:
    """PAR-09"""
    chats = real.chat("A person, please.", response_format=wrapped(PERSON), n=3, temperature=1.2, max_tokens=200)
    texts = [choice["message"]["content"] for choice in chats.body["choices"]]
    texts.append(real.complete("A person as JSON:", response_format=wrapped(PERSON), max_tokens=200).text)
    assert all(set(json.loads(text)) == {"name", "age"} for text in texts)


def test_any_object(real: Service) -> None:
    """PAR-09: an object, or an answer cut at its limit; never blanks without end."""
    for temperature in (0, 1.5):
        answer = real.chat(
            "Give me JSON.", response_format={"type": "json_object"}, max_tokens=150, temperature=temperature
        )
        assert answer.text.startswith("{")
        assert " " * 21 not in answer.text
        if answer.finish == "stop":
            assert isinstance(json.loads(answer.text), dict)


def test_llama_cpps_grammar(real: Service) -> None:
    answer = real.chat("Is the sky blue?", grammar=STATEMENT, temperature=1.5)
    assert answer.text in ("The answer is yes.", "The answer is no.")
    assert answer.finish == "stop"


def test_schema_that_cannot_be_enforced_names_the_keyword(fake: Service) -> None:
    """PAR-09"""
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}
    error = error_of(fake.post(CHATS, chat_body("x", response_format=wrapped(schema))), 400)
    assert "pattern" in error["message"]


def test_text_is_the_format_of_every_answer(real: Service) -> None:
    plain = real.chat("Say OK.", max_tokens=4)
    assert real.chat("Say OK.", max_tokens=4, response_format={"type": "text"}).text == plain.text
    body = good(real.post(CHATS, chat_body("Say OK.", max_tokens=4, response_format=None))).json()
    assert body["choices"][0]["message"]["content"] == plain.text

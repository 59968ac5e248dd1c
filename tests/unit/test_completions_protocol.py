"""Bodies of text completions, and the JSON of their answers."""

from typing import Any

import pytest

from api.protocol.answers import Generation
from api.protocol.choices import Answer, Choice, Part
from api.protocol.completions import MAX_PROMPTS, CompletionAnswer, parse_completion
from api.protocol.fields import InvalidRequest
from tasks.contracts import FinishReason, GenerateRequest, TokenLogprob
from tests.unit.cases import anything
from tests.unit.fake_jobs import delta, ended, finished, scored

MAX_N = 8


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi"} | fields


def parse(**fields: Any) -> GenerateRequest:
    return parse_completion(completion(**fields), MAX_N).request


def format_of(**fields: Any) -> CompletionAnswer:
    return CompletionAnswer(parse_completion(completion(**fields), MAX_N))


def whole(choices: list[Choice], **fields: Any) -> list[dict[str, Any]]:
    end = finished()
    body = format_of(**fields).whole(Answer(choices, end.usage, end.timings), queue_ms=0)
    assert body["object"] == "text_completion"
    assert body["usage"]["completion_tokens"] == 2
    answered: list[dict[str, Any]] = body["choices"]
    return answered


def choice_of(text: str, *logprobs: float) -> Choice:
    return Choice(text, logprobs=[TokenLogprob(b"x", logprob) for logprob in logprobs])


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["hi", "", " ", ["hi"], [""], ["a", "b"], ["a"] * MAX_PROMPTS])
def test_prompt(prompt: Any) -> None:
    """CMP-01"""
    assert parse(prompt=prompt).prompts == (prompt if isinstance(prompt, list) else [prompt])


@pytest.mark.parametrize(
    "prompt",
    [None, [], {}, 5, True, [None], [1, 2], [[1, 2]], [{}], ["a", 5], [True], ["a", ["b"]], ["a"] * (MAX_PROMPTS + 1)],
)
def test_wrong_prompt_is_named(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(prompt=prompt)
    assert caught.value.param == "prompt"
    assert "prompt" in caught.value.message


def test_neutral_values_change_nothing() -> None:
    body = completion(best_of=1, n=1, suffix=None, logprobs=None, logit_bias={}, echo=None, response_format=None)
    assert parse_completion(body, MAX_N) == parse_completion(completion(), MAX_N)
    assert parse(suffix="", logprobs=False) == parse()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *[({"n": bad}, "n") for bad in anything(0, MAX_N + 1, "2", True)],
        *[({"best_of": bad}, "best_of") for bad in anything(0, MAX_N + 1, "2", True)],
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        *[({"logprobs": bad}, "logprobs") for bad in anything(-1, 21, "5", True, 1.5)],
        ({"logprobs": 0, "echo": True}, "logprobs"),
        *[({"suffix": bad}, "suffix") for bad in anything(5, ["x"], True)],
        *[({"echo": bad}, "echo") for bad in anything("yes", 1)],
        ({"grammar": 5}, "grammar"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ],
)
def test_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("fields", "n", "logprobs", "keep", "shows"),
    [
        ({}, 1, None, None, False),
        ({"n": 3}, 3, None, None, False),
        ({"n": 2, "best_of": 2}, 2, None, None, False),
        ({"n": 2, "best_of": 2, "stream": True}, 2, None, None, False),
        ({"best_of": 4}, 4, 0, 1, False),
        ({"n": 2, "best_of": 4, "logprobs": 3}, 4, 3, 2, True),
        ({"logprobs": 0}, 1, 0, None, True),
        ({"logprobs": 20}, 1, 20, None, True),
    ],
)
def test_best_of_generates_more_and_asks_for_logprobs(
    fields: dict[str, Any], n: int, logprobs: int | None, keep: int | None, shows: bool
) -> None:
    parsed = parse_completion(completion(**fields), MAX_N)
    assert (parsed.request.n, parsed.request.logprobs) == (n, logprobs)
    assert (parsed.keep, parsed.shows_logprobs) == (keep, shows)


def test_suffix() -> None:
    assert parse(suffix=" end").suffix == " end"


# -- whole answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("echo", [False, True])
def test_choices_of_several_prompts_are_numbered_in_order(echo: bool) -> None:
    texts = ["a0", "a1", "b0", "b1"]
    choices = whole([Choice(text) for text in texts], prompt=["A", "B"], n=2, echo=echo)
    expected = [f"{text[0].upper()}{text}" if echo else text for text in texts]
    assert [(choice["index"], choice["text"]) for choice in choices] == list(enumerate(expected))
    assert all(choice["logprobs"] is None for choice in choices)


def test_best_of_answers_with_the_most_probable_per_token() -> None:
    generated = [
        choice_of("long", -1.0, -1.0, -1.0),
        choice_of("short", -2.0),
        choice_of("best", -0.5, -0.6),
        choice_of(""),
        *[choice_of(f"b{index}", -float(index)) for index in (4, 3, 2, 1)],
    ]
    choices = whole(generated, prompt=["A", "B"], n=2, best_of=4, echo=False)
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "best"), (1, "long"), (2, "b1"), (3, "b2")]
    assert all(choice["logprobs"] is None for choice in choices)


def test_best_of_echoes_the_prompt_of_each_choice() -> None:
    generated = [choice_of("a", -1.0), choice_of("aa", -2.0), choice_of("b", -1.0), choice_of("bb", -2.0)]
    choices = whole(generated, prompt=["A", "B"], n=1, best_of=2, echo=True)
    assert [choice["text"] for choice in choices] == ["Aa", "Bb"]


def test_logprobs_in_the_older_shape() -> None:
    tokens = [
        TokenLogprob(b" a", -0.5, [(b" a", -0.5), (b" b", -1.5)]),
        TokenLogprob(b"\xc3", -3.0, [(b"x", -0.1)]),
        TokenLogprob(b"\xa9", -0.25, []),
        TokenLogprob(b"z", float("-inf"), []),
    ]
    [choice] = whole([Choice(" aéz", logprobs=tokens)], logprobs=2)
    assert choice["logprobs"] == {
        "tokens": [" a", "bytes:\\xc3", "bytes:\\xa9", "z"],
        "token_logprobs": [-0.5, -3.0, -0.25, -9999.0],
        "top_logprobs": [
            {" a": -0.5, " b": -1.5},
            {"x": -0.1, "bytes:\\xc3": -3.0},
            {"bytes:\\xa9": -0.25},
            {"z": -9999.0},
        ],
        "text_offset": [0, 2, 2, 3],
    }


# -- chunks ----------------------------------------------------------------------------------------


def test_stream_of_several_prompts_with_their_echoes() -> None:
    answer = format_of(prompt=["A", "B"], echo=True, stream=True)
    parts: list[Part] = [delta(" one"), ended(0, FinishReason.LENGTH), delta(" two", choice=1)]
    chunks = answer.opening() + [chunk for part in parts for chunk in answer.part(part)]
    chunks += answer.closing(finished(), 0.0)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in choices] == [
        (0, "A", None),
        (0, " one", None),
        (0, "", "length"),
        (1, "B", None),
        (1, " two", None),
        (1, "", "stop"),
    ]


def test_stream_without_an_echo_has_no_opening() -> None:
    assert format_of(stream=True).opening() == []


def test_offsets_go_on_from_chunk_to_chunk_and_begin_anew_with_each_choice() -> None:
    answer = format_of(stream=True, n=2, logprobs=1)
    parts: list[Part] = [
        scored((" a", -1.0), ("é", -1.0)),
        scored(("b", -1.0)),
        ended(0),
        scored(("c", -1.0), choice=1),
    ]
    chunks = [chunk for part in parts for chunk in answer.part(part)]
    blocks = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    assert [block and block["text_offset"] for block in blocks] == [[0, 2], [3], None, [0]]


def test_generation_defaults_show_all_choices() -> None:
    request = GenerateRequest(id="cmpl-1", model="m", reply_to="a", prompts=["Once"])
    end = finished()
    body = CompletionAnswer(Generation(request, False, False)).whole(
        Answer([Choice(" upon")], end.usage, end.timings), 0.0
    )
    assert body["choices"] == [{"index": 0, "text": " upon", "logprobs": None, "finish_reason": "stop"}]

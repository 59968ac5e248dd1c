"""Reported bugs of stop texts. The model's own answer is the measure; most hold for any text, so nonsense will do."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.service_calls import CHATS, Service, Streamed, Whole, chat_body, error_of

SAID, PROMPT = "Say anything.", "1 2 3 4"  #: the tiny model goes on for long after these
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "</s>", "<s>", "<|eot_id|>", "<end_of_turn>")
N_TOKENS = 40

Answer = Whole | Streamed
WAYS = pytest.mark.parametrize("way", ["chat", "chat_stream", "complete", "complete_stream"])


@pytest.fixture(scope="module")
def counted(tiny: Service) -> str:
    text = tiny.chat(SAID, max_tokens=N_TOKENS).text
    assert len(text) > 40
    return text


@pytest.fixture(scope="module")
def told(tiny: Service) -> str:
    """The same for a text completion."""
    text = tiny.complete(PROMPT, max_tokens=N_TOKENS).text
    assert len(text) > 40
    return text


def ask(service: Service, way: str, **fields: Any) -> Answer:
    call: Callable[..., Answer] = getattr(service, way)
    prompt = SAID if way.startswith("chat") else PROMPT
    return call(prompt, **{"max_tokens": N_TOKENS, **fields})


def cut(text: str, *stops: str) -> str:
    """Before the first match of any."""
    return text[: min(text.index(stop) for stop in stops if stop in text)]


@WAYS
@pytest.mark.parametrize("length", [1, 2, 6, 20])
def test_stop_text_of_any_length_cuts_and_none_of_it_leaves(
    tiny: Service, counted: str, told: str, way: str, length: int
) -> None:
    """STOP-01, STOP-10: long ones span tokens."""
    text = counted if way.startswith("chat") else told
    middle = len(text) // 2
    stop = text[middle : middle + length]
    for form in (stop, [stop]):
        answer = ask(tiny, way, stop=form)
        assert (answer.text, answer.finish) == (cut(text, stop), "stop")


@pytest.mark.parametrize("way", ["chat", "chat_stream"])
def test_earliest_match_wins_whatever_the_order(tiny: Service, counted: str, way: str) -> None:
    """STOP-05: also where one begins within the other, and the longer one is complete later."""
    later, earlier = counted[30:34], counted[11:15]
    within = counted[12:20]
    for stops in ([later, earlier, "zzz"], ["zzz", earlier, later], [within, earlier], [later, within]):
        answer = ask(tiny, way, stop=stops)
        assert (answer.text, answer.finish) == (cut(counted, *stops), "stop")


@WAYS
def test_what_was_held_back_for_a_stop_text_comes_at_the_end(tiny: Service, way: str) -> None:
    """STOP-03: an end that only begins like one."""
    plain = ask(tiny, way, max_tokens=12)
    for held in (1, 4, len(plain.text)):
        answer = ask(tiny, way, max_tokens=12, stop=[plain.text[-held:] + "zzzzqqqq"])
        assert (answer.text, answer.finish) == (plain.text, plain.finish)


@WAYS
@pytest.mark.parametrize("stop", ["", [""], ["", "zzzz"], None, []], ids=ascii)
def test_empty_stop_is_no_stop(tiny: Service, way: str, stop: Any) -> None:
    """STOP-07, STOP-08"""
    plain = ask(tiny, way, max_tokens=10)
    answer = ask(tiny, way, max_tokens=10, stop=stop)
    assert (answer.text, answer.finish) == (plain.text, plain.finish)


@pytest.mark.parametrize("stop", [None, [], "", ["zzzz"], ["<|im_end|>"]], ids=ascii)
def test_end_of_turn_ends_the_answer_whatever_the_stop(real: Service, stop: Any) -> None:
    """STOP-08: its own stop texts do not replace the model's end."""
    said = "What is the capital of France? Answer in one word."
    plain = real.chat(said, max_tokens=60)
    answer = real.chat(said, max_tokens=60, stop=stop)
    assert (answer.text, answer.finish) == (plain.text, "stop")


@pytest.mark.parametrize("said", ["What is the capital of France?", "Say hello.", "Hi"])
def test_no_control_token_is_in_an_answer(real: Service, said: str) -> None:
    """STOP-09"""
    whole, stream = real.chat(said, max_tokens=32), real.chat_stream(said, max_tokens=32)
    assert not any(special in text for special in SPECIALS for text in (whole.text, stream.text))
    assert stream.text == whole.text
    assert stream.finish == whole.finish


def test_short_turn_ends_by_itself(real: Service) -> None:
    """STOP-09"""
    assert real.chat("What is the capital of France? Answer in one word.", max_tokens=60).finish == "stop"


@pytest.mark.parametrize("text", ["🎉", "漢字", "e\u0301", "\n", "\u2028", "</stop>"], ids=ascii)
def test_stop_text_of_any_characters(fake: Service, text: str) -> None:
    """STOP-01"""
    for answer in (
        fake.chat(f"Repeat exactly: before {text}after", stop=text),
        fake.chat_stream(f"Repeat exactly: before {text}after", stop=[text]),
    ):
        assert (answer.text, answer.finish) == ("before ", "stop")


@pytest.mark.parametrize("stop", [5, True, {}, [None], [["a"]], ["a", 5], ["x" * 2000], [str(n) for n in range(99)]])
def test_unusable_stop_is_named(fake: Service, stop: Any) -> None:
    """STOP-10: never taken and ignored."""
    with fake.nothing_starts():
        assert error_of(fake.post(CHATS, chat_body("Hi", stop=stop)), 400)["param"] == "stop"

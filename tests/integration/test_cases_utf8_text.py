"""Reported bugs of characters that span tokens, and of blanks at borders, with a real model."""

import unicodedata

import pytest

from tests.service_calls import Service

#: beginnings that the model goes on with in characters of two to four bytes
PATTERNS = {
    "emoji": "Emoji list: 🎉, 🎈, 🎊, 🎁, 🎂,",
    "accents": "The word café is French. Other French words: naïve, résumé,",
    "Greek": "Greek letters: α, β, γ, δ,",
    "Japanese": "Japanese numbers: 一, 二, 三,",
    "flags": "🇯🇵 Japan\n🇫🇷 France\n🇩🇪 Germany\n",
    "beyond the basic plane": "𠮷 𠮷 𠮷 𠮷 𠮷 𠮷",
}


@pytest.mark.parametrize("name", PATTERNS, ids=lambda name: f"UTF8-01 {name}")
def test_characters_that_span_tokens_arrive_whole(real: Service, name: str) -> None:
    prompt = PATTERNS[name]
    whole = real.complete(prompt, max_tokens=16)
    stream = real.complete_stream(prompt, max_tokens=16)
    assert any(ord(character) > 0x7F for character in whole.text), "the model goes on with the pattern"
    assert "\ufffd" not in whole.text
    assert stream.text == whole.text
    for piece in stream.pieces:
        assert not any(unicodedata.category(character) == "Cs" for character in piece)


def test_answer_cut_within_a_character_has_only_whole_ones(real: Service) -> None:
    """UTF8-03: at every length; and nothing of it gets into the next answer."""
    prompt = PATTERNS["beyond the basic plane"]
    longest = real.complete(prompt, max_tokens=8).text
    plain = real.chat("Say OK.", max_tokens=4).text
    for max_tokens in range(1, 9):
        whole = real.complete(prompt, max_tokens=max_tokens)
        stream = real.complete_stream(prompt, max_tokens=max_tokens)
        assert (whole.finish, whole.completion_tokens) == ("length", max_tokens)
        assert longest.startswith(whole.text)
        assert "\ufffd" not in whole.text
        assert (stream.text, stream.finish) == (whole.text, "length")
    assert real.chat("Say OK.", max_tokens=4).text == plain


def test_stream_is_the_whole_where_a_model_writes_broken_characters(tiny: Service) -> None:
    """UTF8-01, UTF8-03: a model of random weights writes any bytes; both ways show the same, at every length."""
    for max_tokens in range(1, 40):
        whole = tiny.chat("Say anything.", max_tokens=max_tokens)
        stream = tiny.chat_stream("Say anything.", max_tokens=max_tokens)
        assert (stream.text, stream.finish) == (whole.text, whole.finish)
        assert not any(unicodedata.category(character) == "Cs" for character in whole.text)


@pytest.mark.parametrize(
    "prompt", ["Once upon a", "Once upon a ", " Once", "One\n", "\n\n", "1, 2,\t3,\t", "日本", ""], ids=ascii
)
def test_blanks_between_prompt_and_answer_are_kept(real: Service, tiny: Service, prompt: str) -> None:
    """UTF8-04: for a tokenizer of bytes and one of pieces that begin with a blank."""
    for service in (real, tiny):
        whole = service.complete(prompt, max_tokens=5)
        assert whole.text
        assert service.complete_stream(prompt, max_tokens=5).text == whole.text
        assert service.complete(prompt, max_tokens=5, echo=True).text == prompt + whole.text
        assert service.complete_stream(prompt, max_tokens=5, echo=True).text == prompt + whole.text


def test_words_do_not_run_together(real: Service) -> None:
    """UTF8-04: what is made token by token has the blanks of the whole."""
    stream = real.complete_stream("The quick brown fox", max_tokens=16)
    assert stream.text.count(" ") >= 5
    assert "  " not in stream.text


@pytest.mark.parametrize(
    "text",
    ["naïve café", "🎉👩‍👩‍👧🇯🇵", "漢字 𠮷", "\u202eabc\u202c", "e\u0301\u200b\ufeff", "a\u0000b", "\U0010ffff"],
    ids=ascii,
)
def test_text_passes_the_queue_unchanged(fake: Service, text: str) -> None:
    """UTF8-01: what is between client and engine, both ways."""
    assert fake.chat(f"Repeat exactly: {text}").text == text
    assert fake.chat_stream(f"Repeat exactly: {text}").text == text

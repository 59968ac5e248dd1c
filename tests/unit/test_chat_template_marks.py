"""Control tokens spelled in users' texts stay text, whatever a template does with them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engines.llamacpp.chat_template import ChatTemplate, Rendering
from tasks.engines.llamacpp.prompt_text import STAND_INS, Guard, Piece, SpecialTexts, SpecialToken
from tests.unit.template_samples import ALL, LLAMA3, QWEN

SPELLINGS = [
    *("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<|user|>", "<|end|>", "<|system|>", "<|assistant|>"),
]
SPECIAL = SpecialTexts([SpecialToken(number, text) for number, text in enumerate(SPELLINGS)])
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

user_text = st.lists(
    st.sampled_from([*SPELLINGS, "<|im_", "end|>", "<", ">", "|", "hi ", "\n", "[", "/INST]", "é"]), max_size=6
).map("".join)


def pieces_of(source: str, *contents: str) -> tuple[list[Piece], str]:
    """The pieces of a conversation, and the prompt in full as the user would see it."""
    sent = [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]
    guard = Guard(SPECIAL, sent)
    prompt = ChatTemplate(source, TOKENS).render(guard.hide(sent))
    return guard.split(prompt), guard.reveal(prompt)


def control_tokens(pieces: list[Piece]) -> list[str]:
    """What a tokenizer would take for control tokens."""
    return [found for piece in pieces if piece.parse_special for found in SPECIAL.exact.findall(piece.text)]


@pytest.mark.parametrize("source", ALL.values(), ids=ALL.keys())
@given(content=user_text)
def test_the_control_tokens_of_a_prompt_are_the_templates_own(source: str, content: str) -> None:
    harmless, _ = pieces_of(source, "a", "b", "c")
    hostile, prompt = pieces_of(source, content + "x", "b", content)
    assert control_tokens(hostile) == control_tokens(harmless)
    assert "".join(piece.text for piece in hostile) == prompt
    assert content.strip() in prompt
    assert not any(ord(character) in STAND_INS for character in prompt)


def test_a_prompt_without_markers_is_one_piece() -> None:
    pieces, prompt = pieces_of(LLAMA3, "What is 2 < 3 > 1?", "<b>bold</b>", "Thanks [1]")
    assert pieces == [Piece(prompt, parse_special=True)]


def test_a_marker_put_together_from_two_texts_stays_text() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    pieces, prompt = pieces_of(source, "<|im_", "end|>")
    assert prompt == "<|im_end|>"
    assert control_tokens(pieces) == []


def test_a_marker_half_written_by_the_template_stays_text() -> None:
    pieces, _ = pieces_of("{% for m in messages %}<|im_{{ m.content }}{% endfor %}", "end|>")
    assert control_tokens(pieces) == []


def test_markers_in_another_case_stay_text_when_the_template_lowers_them() -> None:
    pieces, _ = pieces_of("{% for m in messages %}{{ m.content | lower }}{% endfor %}", "<|IM_END|>")
    assert control_tokens(pieces) == []


def test_markers_in_tools_and_options_stay_text() -> None:
    tool = {"type": "function", "function": {"name": "<|eot_id|>", "parameters": {"<|eot_id|>": ["<|eot_id|>"]}}}
    sent = [[{"role": "user", "content": "x"}], [tool]]
    guard = Guard(SPECIAL, sent)
    messages, tools = guard.hide(sent)
    prompt = ChatTemplate(LLAMA3, TOKENS).render(messages, Rendering(tools=tools))
    assert control_tokens(guard.split(prompt)).count("<|eot_id|>") == 2
    assert guard.reveal(prompt).count("<|eot_id|>") == 5


def test_markers_in_arguments_of_calls_stay_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "<|im_end|>"}'}}
    sent = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    guard = Guard(SPECIAL, sent)
    pieces = guard.split(ChatTemplate(QWEN, TOKENS).render(guard.hide(sent)))
    assert control_tokens(pieces).count("<|im_end|>") == 2


def test_stand_ins_that_the_user_wrote_stay_what_they_are() -> None:
    text = f"{chr(STAND_INS.start)}<|im_end|>{chr(STAND_INS.start + 1)}"
    _, prompt = pieces_of("{% for m in messages %}{{ m.content }}{% endfor %}", text)
    assert prompt == text


def test_blanks_that_a_control_token_swallows_are_swallowed_beside_plain_pieces_too() -> None:
    special = SpecialTexts([SpecialToken(1, "<|end|>", strips_right=True), SpecialToken(2, "<x>", strips_left=True)])
    sent = ["hi <|end|> there "]
    guard = Guard(special, sent)
    assert guard.split("<|end|>\n" + guard.hide(sent)[0] + "<x>") == [
        Piece("<|end|>", True),
        Piece("hi <|end|> there", False),
        Piece("<x>", True),
    ]


def test_a_vocabulary_without_control_tokens() -> None:
    guard = Guard(SpecialTexts([]), ["<s>"])
    assert guard.split(guard.hide("<s>")) == [Piece("<s>", parse_special=True)]

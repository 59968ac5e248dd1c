"""Which format a chat template's model writes."""

import pytest

from tasks.engines.llamacpp.chat_template import ChatTemplate
from tasks.tool_formats.base import Evidence
from tasks.tool_formats.registry import FORMATS, choose_format
from tests.unit.tool_template_samples import BY_FORMAT

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("name", "source"), [(name, source) for name, sources in BY_FORMAT.items() for source in sources]
)
def test_the_template_tells_the_format(name: str, source: str) -> None:
    assert choose_format(ChatTemplate(source, TOKENS).evidence).name == name


def test_every_format_has_a_sample() -> None:
    assert {tool_format.name for tool_format in FORMATS} == set(BY_FORMAT)


def test_the_source_tells_where_the_template_shows_no_call() -> None:
    assert choose_format(Evidence("… <|python_tag|> …", shows_tools=True)).name == "llama-json"
    assert choose_format(Evidence("… <tool_call> …", shows_tools=True)).name == "hermes"
    assert choose_format(Evidence("… <tool_call> …", shows_tools=False)).name == "generic"

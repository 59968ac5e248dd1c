"""The formats, in the order in which a template is tried for them. The last one takes every template."""

from tasks.tool_formats.base import Evidence, ToolFormat
from tasks.tool_formats.generic import Generic
from tasks.tool_formats.hermes import Hermes
from tasks.tool_formats.llama_json import LlamaJson
from tasks.tool_formats.llama_pythonic import LlamaPythonic
from tasks.tool_formats.mistral import Mistral, MistralNamed

GENERIC = Generic()
FORMATS: tuple[ToolFormat, ...] = (Hermes(), MistralNamed(), Mistral(), LlamaPythonic(), LlamaJson(), GENERIC)


def choose_format(evidence: Evidence) -> ToolFormat:
    """The format of a template's model. One that shows no tools, or in a format that is not known, gets the generic."""
    if not evidence.shows_tools:
        return GENERIC
    return next(tool_format for tool_format in FORMATS if tool_format.recognises(evidence))

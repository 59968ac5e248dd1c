"""POST /v1/chat/completions: JSON -> Generation, and its answers."""

from typing import Any

from api.protocol.answers import AnswerFormat, Generation
from api.protocol.fields import Fields, InvalidRequest, check_plain
from api.protocol.messages import read_messages
from api.protocol.sampling import read_max_tokens, read_sampling, read_stop, read_stream
from api.protocol.tools import read_tools
from api.protocol.unsupported import refuse_unsupported_chat
from tasks.contracts import GenerateRequest

#: what the renderer itself gives to the template
RESERVED_TEMPLATE_NAMES = frozenset(
    [
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "raise_exception",
        "strftime_now",
    ]
)


def parse_chat(body: dict[str, Any]) -> Generation:
    """Raises InvalidRequest. Unknown fields are ignored: clients send newer ones."""
    fields = Fields(body)
    model = fields.required_string("model")
    messages = read_messages(fields)
    refuse_unsupported_chat(fields)
    stream, include_usage = read_stream(fields)
    request = GenerateRequest(
        id="",
        model=model,
        reply_to="",
        messages=messages,
        tools=read_tools(fields),
        template_kwargs=_read_template_kwargs(fields),
        sampling=read_sampling(fields),
        max_tokens=read_max_tokens(fields),
        stop=read_stop(fields),
    )
    return Generation(request, stream, include_usage)


def _read_template_kwargs(fields: Fields) -> dict[str, Any]:
    """`chat_template_kwargs`, as llama-server has it: variables for the model's chat template."""
    given = fields.mapping("chat_template_kwargs") or {}
    for name in given:
        if name in RESERVED_TEMPLATE_NAMES or not name.isidentifier():
            raise InvalidRequest(f"'chat_template_kwargs' may not set '{name}'.", "chat_template_kwargs")
    check_plain(given, "chat_template_kwargs")
    return given


class ChatAnswer(AnswerFormat):
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}

    def chunk_choice(self, text: str | None, finish_reason: str | None) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def opening(self) -> dict[str, Any]:
        """The role, named once."""
        chunk = self.heartbeat()
        chunk["choices"][0]["delta"] = {"role": "assistant", "content": ""}
        return chunk

"""POST /v1/chat/completions: JSON -> Generation, and its answers."""

from typing import Any

from api.protocol.answers import AnswerFormat, Generation, Json
from api.protocol.choices import Answer, Choice
from api.protocol.fields import Fields, InvalidRequest, check_plain
from api.protocol.logprobs import chat_logprobs, read_chat_logprobs
from api.protocol.messages import read_messages
from api.protocol.response_format import read_grammar
from api.protocol.sampling import read_choices, read_max_tokens, read_sampling, read_stop, read_stream
from api.protocol.service_tier import tier_of
from api.protocol.tools import read_tools
from api.protocol.unsupported import refuse_unsupported_chat
from tasks.contracts import Delta, Finished, GenerateRequest, ToolCall

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
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def parse_chat(body: dict[str, Any], max_n: int) -> Generation:
    """`max_n` is the most choices that one request may ask for.

    Raises InvalidRequest. Unknown fields are ignored: clients send newer ones.
    """
    fields = Fields(body)
    model = fields.required_string("model")
    messages = read_messages(fields)
    refuse_unsupported_chat(fields)
    stream, include_usage = read_stream(fields)
    use = read_tools(fields)
    request = GenerateRequest(
        id="",
        model=model,
        reply_to="",
        messages=messages,
        n=read_choices(fields, max_n),
        logprobs=read_chat_logprobs(fields),
        grammar=read_grammar(fields),
        tools=use.tools,
        tool_choice=use.choice,
        tool_name=use.name,
        parallel_tool_calls=use.parallel,
        template_kwargs=read_template_kwargs(fields),
        sampling=read_sampling(fields),
        max_tokens=read_max_tokens(fields),
        stop=read_stop(fields),
    )
    return Generation(request, stream, include_usage)


def read_template_kwargs(fields: Fields) -> dict[str, Any]:
    """`chat_template_kwargs`, as llama-server has it: variables for the model's chat template.

    `reasoning_effort` is one of them, and `none` turns thinking off; what the variables themselves say wins.
    """
    given = fields.mapping("chat_template_kwargs") or {}
    for name in given:
        if name in RESERVED_TEMPLATE_NAMES or not name.isidentifier():
            raise InvalidRequest(f"'chat_template_kwargs' may not set '{name}'.", "chat_template_kwargs")
    check_plain(given, "chat_template_kwargs")
    effort = fields.string("reasoning_effort")
    if effort is None:
        return given
    if effort not in EFFORTS:
        expected = ", ".join(f'"{name}"' for name in EFFORTS)
        raise InvalidRequest(f"'reasoning_effort' must be one of: {expected}.", "reasoning_effort")
    thinking = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **thinking, **given}


class ChatAnswer(AnswerFormat):
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def whole_choice(self, index: int, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls and not choice.text:
            message["content"] = None
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in choice.calls
            ]
        logprobs = None if self.request.logprobs is None else chat_logprobs(choice.logprobs)
        reason = choice.finish_reason.value
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def whole(self, answer: Answer, queue_ms: float) -> Json:
        return super().whole(answer, queue_ms) | {"service_tier": tier_of(self.request.lane)}

    def closing(self, finished: Finished, queue_ms: float) -> list[Json]:
        chunks = super().closing(finished, queue_ms)
        chunks[-1]["service_tier"] = tier_of(self.request.lane)
        return chunks

    def opened(self, index: int) -> list[Json]:
        """The role, named once. Where calls may come the content is null, which it stays when nothing else comes."""
        content = None if self.request.tools else ""
        return [_choice(index, {"role": "assistant", "content": content})]

    def said(self, part: Delta | ToolCall) -> list[Json]:
        if isinstance(part, ToolCall):
            return [_choice(part.choice, {"tool_calls": [call]}) for call in _call_deltas(part)]
        if part.is_reasoning:
            return [_choice(part.choice, {"reasoning_content": part.text})]
        logprobs = chat_logprobs(part.logprobs) if part.logprobs else None
        return [_choice(part.choice, {"content": part.text}, logprobs)]

    def silent(self, index: int, finish_reason: str | None = None) -> Json:
        return _choice(index, {}, None, finish_reason)


def _choice(index: int, delta: Json, logprobs: Json | None = None, finish_reason: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _call_deltas(part: ToolCall) -> list[Json]:
    """A call's id and name come once, in a delta without arguments."""
    deltas: list[Json] = []
    if part.call_id:
        function = {"name": part.name, "arguments": ""}
        deltas.append({"index": part.index, "id": part.call_id, "type": "function", "function": function})
    if part.arguments:
        deltas.append({"index": part.index, "function": {"arguments": part.arguments}})
    return deltas

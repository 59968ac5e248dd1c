"""POST /v1/completions: JSON -> Generation, and its answers."""

from typing import Any

from api.protocol.answers import AnswerFormat, Generation
from api.protocol.fields import Fields, InvalidRequest, kind, unsupported
from api.protocol.sampling import read_max_tokens, read_sampling, read_stop, read_stream
from api.protocol.unsupported import refuse_unsupported_completions
from tasks.contracts import GenerateRequest


def parse_completion(body: dict[str, Any]) -> Generation:
    """Raises InvalidRequest."""
    fields = Fields(body)
    model = fields.required_string("model")
    prompt = _read_prompt(fields)
    refuse_unsupported_completions(fields)
    stream, include_usage = read_stream(fields)
    request = GenerateRequest(
        id="",
        model=model,
        reply_to="",
        prompts=[prompt],
        sampling=read_sampling(fields),
        max_tokens=read_max_tokens(fields),
        stop=read_stop(fields),
    )
    return Generation(request, stream, include_usage, echo=fields.boolean("echo") or False)


def _read_prompt(fields: Fields) -> str:
    """A string, or a list of one. An empty prompt is served: the model starts from its BOS token."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequest(
            f"'prompt' must be a string, not {'an empty list' if prompt == [] else kind(prompt)}.", "prompt"
        )
    if any(isinstance(item, int | list) for item in prompt):
        raise unsupported("prompt", "'prompt' holds token ids, which belong to another tokenizer; send text.")
    if len(prompt) > 1:
        raise unsupported("prompt", f"'prompt' is a list of {len(prompt)}; one prompt per request is supported.")
    if not isinstance(prompt[0], str):
        raise InvalidRequest(f"'prompt[0]' must be a string, not {kind(prompt[0])}.", "prompt")
    return prompt[0]


class CompletionAnswer(AnswerFormat):
    """`echo` puts the prompt before the text, as its own first chunk when streaming."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, request: GenerateRequest, include_usage: bool = False, echo: bool = False) -> None:
        super().__init__(request, include_usage)
        self.echoed = request.prompts[0] if echo else ""

    def whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        return self.chunk_choice(self.echoed + text, finish_reason)

    def chunk_choice(self, text: str | None, finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish_reason}

    def opening(self) -> dict[str, Any] | None:
        return self.delta(self.echoed) if self.echoed else None

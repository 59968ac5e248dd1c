"""POST /v1/completions: JSON -> Generation, and its answers."""

from typing import Any

from api.protocol.answers import AnswerFormat, Generation, Json
from api.protocol.choices import Choice
from api.protocol.fields import Fields, InvalidRequest, kind, unsupported
from api.protocol.logprobs import LegacyLogprobs, mean_logprob, read_completion_logprobs
from api.protocol.response_format import read_grammar
from api.protocol.sampling import read_choices, read_max_tokens, read_sampling, read_stop, read_stream
from tasks.contracts import Delta, GenerateRequest, TokenLogprob, ToolCall

MAX_PROMPTS = 128


def parse_completion(body: dict[str, Any], max_n: int) -> Generation:
    """`max_n` is the most choices that one prompt may have. Raises InvalidRequest."""
    fields = Fields(body)
    model = fields.required_string("model")
    prompts = _read_prompts(fields)
    stream, include_usage = read_stream(fields)
    n = read_choices(fields, max_n)
    best_of = _read_best_of(fields, n, max_n, stream)
    logprobs = read_completion_logprobs(fields)
    echo = fields.boolean("echo") or False
    if echo and logprobs is not None:
        raise unsupported("logprobs", "'logprobs' with 'echo' is not supported: the prompt's tokens have none here.")
    is_ranked = best_of > n
    request = GenerateRequest(
        id="",
        model=model,
        reply_to="",
        prompts=prompts,
        suffix=fields.string("suffix") or None,
        n=best_of,
        logprobs=(logprobs or 0) if is_ranked else logprobs,
        grammar=read_grammar(fields),
        sampling=read_sampling(fields),
        max_tokens=read_max_tokens(fields),
        stop=read_stop(fields),
    )
    keep = n if is_ranked else None
    return Generation(request, stream, include_usage, echo, keep, shows_logprobs=logprobs is not None)


def _read_prompts(fields: Fields) -> list[str]:
    """A string, or a list of some. An empty prompt is served: the model starts from its BOS token."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        what = "an empty list" if prompt == [] else kind(prompt)
        raise InvalidRequest(f"'prompt' must be a string or a list of strings, not {what}.", "prompt")
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"'prompt' is a list of {len(prompt)}; at most {MAX_PROMPTS} are taken.", "prompt")
    if all(isinstance(item, int | list) and not isinstance(item, bool) for item in prompt):
        raise unsupported("prompt", "'prompt' holds token ids, which belong to another tokenizer; send text.")
    for index, item in enumerate(prompt):
        if not isinstance(item, str):
            raise InvalidRequest(f"'prompt[{index}]' must be a string, not {kind(item)}.", "prompt")
    return prompt


def _read_best_of(fields: Fields, n: int, max_n: int, stream: bool) -> int:
    """How many choices are generated for each prompt, of which the answer has the `n` best."""
    if fields.get("best_of") is None:
        return n
    best_of = read_choices(fields, max_n, "best_of")
    if best_of < n:
        raise InvalidRequest(f"'best_of' is {best_of}; it must be at least 'n' ({n}).", "best_of")
    if stream and best_of > n:
        raise InvalidRequest("'best_of' above 'n' cannot stream: which choice is best is known at the end.", "best_of")
    return best_of


class CompletionAnswer(AnswerFormat):
    """`echo` puts the prompt before the text, as its own first chunk when streaming."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, generation: Generation) -> None:
        super().__init__(generation)
        self._logprobs = [LegacyLogprobs() for _ in range(len(self.request.prompts) * self.request.n)]

    def selected(self, choices: list[Choice]) -> list[Choice]:
        """Of each prompt's choices the ones with the highest mean log probability, best first."""
        n, keep = self.request.n, self.generation.keep
        if keep is None:
            return choices
        by_prompt = [choices[at : at + n] for at in range(0, len(choices), n)]
        ranked = [sorted(group, key=lambda choice: mean_logprob(choice.logprobs), reverse=True) for group in by_prompt]
        return [choice for group in ranked for choice in group[:keep]]

    def whole_choice(self, index: int, choice: Choice) -> Json:
        text = self._echoed(index, self.generation.keep or self.request.n) + choice.text
        return self._text_choice(index, text, choice.logprobs, choice.finish_reason.value)

    def opened(self, index: int) -> list[Json]:
        echoed = self._echoed(index, self.request.n)
        return [self._text_choice(index, echoed)] if echoed else []

    def said(self, part: Delta | ToolCall) -> list[Json]:
        if isinstance(part, ToolCall):
            return []
        return [self._text_choice(part.choice, part.text, part.logprobs or None)]

    def silent(self, index: int, finish_reason: str | None = None) -> Json:
        return self._text_choice(index, "", finish_reason=finish_reason)

    def _echoed(self, index: int, per_prompt: int) -> str:
        return self.request.prompts[index // per_prompt] if self.generation.echo else ""

    def _text_choice(
        self,
        index: int,
        text: str,
        logprobs: list[TokenLogprob] | None = None,
        finish_reason: str | None = None,
    ) -> Json:
        is_shown = self.request.logprobs is not None and self.generation.shows_logprobs and logprobs is not None
        block = self._logprobs[index].block(logprobs or []) if is_shown else None
        return {"index": index, "text": text, "logprobs": block, "finish_reason": finish_reason}

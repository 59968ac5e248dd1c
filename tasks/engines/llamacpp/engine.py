"""The chat engine: requests in, prompts out to the decode loop."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.answer_parts import AnswerPlan
from tasks.contracts import GenerateRequest, GrammarKind, ToolChoice
from tasks.engines.base import ContextLengthExceeded, FrameSink, InvalidRequest, ModelLoadError
from tasks.engines.llamacpp.answer_planner import AnswerPlanner
from tasks.engines.llamacpp.chat_template import ChatTemplate
from tasks.engines.llamacpp.decoder import Decoder
from tasks.engines.llamacpp.gate import Gate
from tasks.engines.llamacpp.generation import Generation
from tasks.engines.llamacpp.model import ChatModel
from tasks.engines.llamacpp.prompt import Prompt
from tasks.engines.llamacpp.prompt_text import Guard, SpecialTexts
from tasks.engines.llamacpp.sampling import token_biases
from tasks.settings import Settings
from tasks.tool_formats.parsers import PlainParser

log = logging.getLogger(__name__)


class ChatPrompt(NamedTuple):
    text: str
    tokens: list[int]


class LlamaChatEngine:
    """See ChatEngine. Rendering and tokenizing happen on the caller's thread, decoding on the decoder's."""

    def __init__(self, decoder: Decoder, settings: Settings) -> None:
        """Takes over the decoder. Raises ModelLoadError when there is no usable chat template."""
        self._decoder = decoder
        self._vocab_gate = Gate()  # callers' threads tokenize with what `close` frees
        model = decoder.model
        self.n_slots = model.n_slots
        self.n_ctx = model.n_ctx
        self._model = model
        self._vocab = model.vocab
        self._special = SpecialTexts(model.vocab.special_tokens)
        self._template = load_template(model, settings)
        self._planner = AnswerPlanner(self._template, model.vocab.special_id)
        self._max_model_length = settings.max_model_length

    def submit(self, request: GenerateRequest, sink: FrameSink) -> Generation:
        """See ChatEngine. The result is the ticket."""
        wanted = self._max_model_length if request.max_tokens is None else request.max_tokens
        if wanted < 1:
            raise InvalidRequest("max_tokens must be at least 1.", "max_tokens")
        with self._vocab_gate.use():
            return self._decoder.submit(self._prompt(request, min(wanted, self._max_model_length)), sink)

    def tokenize(self, request: GenerateRequest) -> list[int]:
        """The request's whole prompt, the first of several, however long. From any thread. Raises InvalidRequest."""
        with self._vocab_gate.use():
            return self._chat_tokens(request) if request.messages is not None else self._text_prompts(request)[0]

    def tokenize_text(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        with self._vocab_gate.use():
            return self._vocab.tokenize(well_formed(text), parse_special, add_special)

    def token_pieces(self, tokens: Sequence[int]) -> list[bytes]:
        with self._vocab_gate.use():
            for index, token in enumerate(tokens):
                if not 0 <= token < self._vocab.n_tokens:
                    name = f"tokens[{index}]"
                    raise InvalidRequest(f"{name} is {token}; this model has {self._vocab.n_tokens} tokens.", name)
            return [self._vocab.spelled(token) for token in tokens]

    def render_prompt(self, request: GenerateRequest) -> str:
        with self._vocab_gate.use():
            return self._chat_prompt(request).text

    def count_tokens(self, request: GenerateRequest) -> int:
        with self._vocab_gate.use():
            if request.messages is not None:
                return len(self._chat_tokens(request))
            return sum(map(len, self._text_prompts(request)))

    def close(self) -> None:
        self._vocab_gate.close()
        self._decoder.close()

    def plan_for(self, request: GenerateRequest, prompt_text: str) -> AnswerPlan:
        """How the request's choices are to be read and restricted. `prompt_text`: as rendered; empty for a text prompt.

        From any thread. Raises InvalidRequest: a tool's `parameters` or the grammar cannot be enforced.
        """
        return self._planner.plan(request, prompt_text)

    def _prompt(self, request: GenerateRequest, max_tokens: int) -> Prompt:
        plan: AnswerPlan | None = None
        if request.messages is not None:
            chat = self._chat_prompt(request)
            prompts = [chat.tokens]
            plan = self.plan_for(request, chat.text)
        else:
            prompts = self._text_prompts(request)
            if request.grammar:
                plan = self.plan_for(request, "")
        for index, tokens in enumerate(prompts):
            if len(tokens) >= self.n_ctx:
                name = f"prompt[{index}]" if len(prompts) > 1 else "prompt"
                raise ContextLengthExceeded(len(tokens), self.n_ctx, name if request.messages is None else "messages")
        prompt = Prompt(
            id=request.id,
            prompts=prompts,
            max_tokens=[min(max_tokens, self.n_ctx - len(tokens)) for tokens in prompts],
            stop=[] if request.tool_choice is ToolChoice.REQUIRED else request.stop,  # no text comes, only calls
            sampling=request.sampling,
            is_chat=request.messages is not None,
            n=max(request.n, 1),
            logprobs=request.logprobs,
            biases=token_biases(request.sampling, self._vocab),
        )
        return with_plan(prompt, plan, self._model, grammar_field(request)) if plan else prompt

    def _chat_tokens(self, request: GenerateRequest) -> list[int]:
        return self._chat_prompt(request).tokens

    def _chat_prompt(self, request: GenerateRequest) -> ChatPrompt:
        """The rendered messages. Raises InvalidRequest."""
        messages, rendering = self._planner.rendering_of(request)
        sent = well_formed([messages, rendering.tools, rendering.template_kwargs])
        guard = Guard(self._special, sent)
        messages, tools, template_kwargs = guard.hide(sent)
        try:
            text = self._template.render(messages, rendering._replace(tools=tools, template_kwargs=template_kwargs))
        except InvalidRequest as exc:
            raise InvalidRequest(guard.reveal(exc.message), exc.param) from exc
        tokens = [token for piece in guard.split(text) for token in self._vocab.tokenize(*piece)]
        if self._vocab.adds_bos and tokens[:1] != [self._vocab.bos]:
            tokens.insert(0, self._vocab.bos)
        if not tokens:
            raise InvalidRequest("The model's chat template renders these messages as an empty prompt.", "messages")
        return ChatPrompt(guard.reveal(text), tokens)

    def _text_prompts(self, request: GenerateRequest) -> list[list[int]]:
        if not request.suffix:
            return [self._text_tokens(text) for text in request.prompts or [""]]
        vocab, marks = self._vocab, self._vocab.fill_in
        if not marks:
            raise InvalidRequest(
                "This model has no fill-in-the-middle tokens: 'suffix' cannot be used with it.",
                "suffix",
            )
        start = [vocab.bos] if vocab.adds_bos else []
        suffix = vocab.tokenize(well_formed(request.suffix))
        return [
            [*start, marks.prefix, *vocab.tokenize(well_formed(text)), marks.suffix, *suffix, marks.middle]
            for text in request.prompts or [""]
        ]

    def _text_tokens(self, text: str) -> list[int]:
        """A text to continue. What looks like a control token in it is text."""
        vocab = self._vocab
        tokens = vocab.tokenize(well_formed(text))
        if vocab.adds_bos:
            tokens.insert(0, vocab.bos)
        if not tokens:
            start = next((token for token in (vocab.bos, vocab.eos, vocab.eot) if token >= 0), None)
            if start is None:
                raise InvalidRequest("This model cannot begin with an empty prompt.", "prompt")
            tokens = [start]
        return tokens


def with_plan(prompt: Prompt, plan: AnswerPlan, model: ChatModel, field: str) -> Prompt:
    """The prompt whose answers are read and restricted by `plan`. Raises InvalidRequest, which names `field`."""
    if plan.grammar is None and isinstance(plan.new_parser(), PlainParser):
        return prompt
    vocab = model.vocab
    return prompt._replace(
        plan=plan,
        grammar=model.grammar_tokens.compile(plan.grammar, field) if plan.grammar is not None else None,
        preserved={token: text.encode() for text in plan.preserved if (token := vocab.single_token(text)) is not None},
        opening=vocab.single_token(plan.opening) if plan.opening else None,
    )


def grammar_field(request: GenerateRequest) -> str:
    """Which field of the request its grammar comes from."""
    if request.grammar:
        return "grammar" if request.grammar.kind is GrammarKind.GBNF else "response_format"
    return "tools"


def load_template(model: ChatModel, settings: Settings) -> ChatTemplate:
    """LIS_CHAT_TEMPLATE_PATH, or the GGUF's own. Raises ModelLoadError."""
    if settings.chat_template_path:
        try:
            source = Path(settings.chat_template_path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ModelLoadError(f"LIS_CHAT_TEMPLATE_PATH cannot be read: {exc}") from exc
    else:
        name = Path(settings.gguf_path).name
        source = model.chat_template() or ""
        if not source.strip():
            raise ModelLoadError(
                f"'{name}' has no chat template: set LIS_CHAT_TEMPLATE_PATH to a file with the model's own (jinja2)"
            )
    template = ChatTemplate(source, model.vocab.named_texts())
    log.info("chat template ready", extra=template.traits._asdict())
    return template


def well_formed(value: Any) -> Any:
    """Halves of surrogate pairs joined where both are there, else replaced: they have no UTF-8."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {well_formed(key): well_formed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [well_formed(item) for item in value]
    return value

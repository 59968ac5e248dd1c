"""The chat engine: requests in, prompts out to the decode loop."""

import logging
from pathlib import Path
from typing import Any

from tasks.contracts import GenerateRequest
from tasks.engines.base import ContextLengthExceeded, FrameSink, InvalidRequest, ModelLoadError
from tasks.engines.llamacpp.chat_template import ChatTemplate, Rendering
from tasks.engines.llamacpp.decoder import Decoder
from tasks.engines.llamacpp.gate import Gate
from tasks.engines.llamacpp.generation import Generation, Prompt
from tasks.engines.llamacpp.model import ChatModel
from tasks.engines.llamacpp.prompt_text import Guard, SpecialTexts
from tasks.settings import Settings

log = logging.getLogger(__name__)


class LlamaChatEngine:
    """See ChatEngine. Rendering and tokenizing happen on the caller's thread, decoding on the decoder's."""

    def __init__(self, decoder: Decoder, settings: Settings) -> None:
        """Takes over the decoder. Raises ModelLoadError when there is no usable chat template."""
        self._decoder = decoder
        self._vocab_gate = Gate()  # callers' threads tokenize with what `close` frees
        model = decoder.model
        self.n_slots = model.n_slots
        self.n_ctx = model.n_ctx
        self._vocab = model.vocab
        self._special = SpecialTexts(model.vocab.special_tokens)
        self._template = load_template(model, settings)
        self._max_model_length = settings.max_model_length

    def submit(self, request: GenerateRequest, sink: FrameSink) -> Generation:
        """See ChatEngine. The result is the ticket."""
        tokens = self.tokenize(request)
        is_chat = request.messages is not None
        if len(tokens) >= self.n_ctx:
            raise ContextLengthExceeded(len(tokens), self.n_ctx, "messages" if is_chat else "prompt")
        wanted = self._max_model_length if request.max_tokens is None else request.max_tokens
        if wanted < 1:
            raise InvalidRequest("max_tokens must be at least 1.", "max_tokens")
        prompt = Prompt(
            id=request.id,
            tokens=tokens,
            max_tokens=min(wanted, self._max_model_length, self.n_ctx - len(tokens)),
            stop=request.stop,
            sampling=request.sampling,
            is_chat=is_chat,
        )
        return self._decoder.submit(prompt, sink)

    def tokenize(self, request: GenerateRequest) -> list[int]:
        """The request's whole prompt, however long. From any thread. Raises InvalidRequest."""
        with self._vocab_gate.use():
            return (
                self._text_tokens("".join(request.prompts)) if request.messages is None else self._chat_tokens(request)
            )

    def close(self) -> None:
        self._vocab_gate.close()
        self._decoder.close()

    def _chat_tokens(self, request: GenerateRequest) -> list[int]:
        sent = well_formed([request.messages, request.tools, request.template_kwargs])
        guard = Guard(self._special, sent)
        messages, tools, template_kwargs = guard.hide(sent)
        try:
            text = self._template.render(messages, Rendering(tools, template_kwargs))
        except InvalidRequest as exc:
            raise InvalidRequest(guard.reveal(exc.message), exc.param) from exc
        tokens = [token for piece in guard.split(text) for token in self._vocab.tokenize(*piece)]
        if self._vocab.adds_bos and tokens[:1] != [self._vocab.bos]:
            tokens.insert(0, self._vocab.bos)
        if not tokens:
            raise InvalidRequest("The model's chat template renders these messages as an empty prompt.", "messages")
        return tokens

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

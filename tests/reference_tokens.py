"""How long a prompt is, by llama-cpp-python's own template renderer and tokenizer: a second opinion on the engine's."""

from functools import cache
from typing import Any


def reference_prompt_tokens(path: str, messages: list[dict[str, Any]]) -> int:
    """Of these messages under the GGUF's own chat template, tokenized once."""
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    model = _reference_model(path)
    template = model.metadata["tokenizer.chat_template"]
    bos, eos = (model._model.token_get_text(token) for token in (model.token_bos(), model.token_eos()))
    formatter: Any = Jinja2ChatFormatter(template, eos, bos)
    formatted = formatter(messages=messages)
    # as llama.cpp's server: the first token the vocabulary wants, unless the template has written it
    add_bos = not formatted.prompt.startswith(bos)
    return len(model.tokenize(formatted.prompt.encode(), add_bos=add_bos, special=True))


@cache
def _reference_model(path: str) -> Any:
    from llama_cpp import Llama

    return Llama(path, vocab_only=True, verbose=False)

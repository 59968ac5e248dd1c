"""Messages to prompt: compiles a chat template, finds out what it accepts, renders."""

import logging
from typing import Any, NamedTuple

from jinja2 import TemplateError, TemplateSyntaxError

from tasks.engines.base import InvalidRequest, ModelLoadError
from tasks.engines.llamacpp.message_forms import Traits, candidates, in_parts
from tasks.engines.llamacpp.template_env import (
    ChatEnvironment,
    TemplateRaised,
    TemplateTooBusy,
    allow_operations,
    chat_environment,
)
from tasks.tool_formats.base import Evidence

log = logging.getLogger(__name__)

MAX_GROWTH = 8  #: characters of prompt per character the user sent: roles, marks and indented JSON are all it adds
MAX_FIXED = 1_000_000  #: and what the template says by itself
ASKING = ("system", "developer", "user")  #: templates may cut an assistant's reasoning, but never these
MAX_SHOWN = 300  #: characters of the template's own message that a client sees

Messages = list[dict[str, Any]]

PROBE_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "probe0001", "type": "function", "function": {"name": "probe_f", "arguments": {"probe_k": "probe-v"}}}
    ],
}
PROBE_RESULT = {"role": "tool", "content": "probe-r", "tool_call_id": "probe0001", "name": "probe_f"}
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_k": {"type": "string", "description": "probe"}}},
    },
}


class Rendering(NamedTuple):
    """What a template is given beside the messages."""

    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] | None = None
    calls_as_text: bool = False  #: earlier calls in the form that a model without tools is told to write


class ChatTemplate:
    """A compiled template. Any thread may render."""

    def __init__(self, source: str, token_texts: dict[str, str], environment: ChatEnvironment | None = None) -> None:
        """`token_texts`: `bos_token` and the like.

        Raises ModelLoadError: the template does not compile, or does not show what a user says.
        """
        try:
            self._template = (environment or chat_environment()).from_string(source)
        except TemplateSyntaxError as exc:
            raise ModelLoadError(
                f"the chat template has an error in line {exc.lineno}: {exc.message}; "
                f"set LIS_CHAT_TEMPLATE_PATH to a file with a right one"
            ) from exc
        self._token_texts = token_texts
        self.traits = self._find_traits()
        self.evidence = self._find_evidence(source)

    def render(self, messages: Messages, rendering: Rendering = Rendering()) -> str:  # noqa: B008 - immutable
        """The prompt, ready for the assistant's turn.

        Messages go in as they are when the template takes them so and shows what was asked; else in the nearest form
        with which it does (message_forms.py). Raises InvalidRequest, with the template's own message when that was
        raised on purpose.
        """
        refusal: Exception | None = None
        incomplete: str | None = None
        said = [message["content"].strip() for message in messages if message["role"] in ASKING and message["content"]]
        for form in candidates(messages, self.traits, rendering.calls_as_text):
            try:
                prompt = self._render_once(form, rendering)
                if all(text in prompt for text in said):
                    return prompt
                incomplete = incomplete or prompt
            except TemplateTooBusy as exc:
                raise InvalidRequest(str(exc), "messages") from exc
            except Exception as exc:
                log.debug("the chat template refused a form of the messages", exc_info=exc)
                refusal = refusal or exc
        if incomplete is not None:  # the template rewrites texts, or has no place for some in any form
            return incomplete
        raise InvalidRequest(_explain(refusal), "messages") from refusal

    def _render_once(self, messages: Messages, rendering: Rendering) -> str:
        allow_operations()
        variables = {
            "tools": rendering.tools or None,
            "documents": None,
            **self._token_texts,
            **(rendering.template_kwargs or {}),
            "messages": messages,
            "add_generation_prompt": True,
        }
        limit = MAX_FIXED + MAX_GROWTH * len(repr((messages, rendering)))
        parts: list[str] = []
        for part in self._template.generate(variables):
            limit -= len(part)
            if limit < 0:
                raise TemplateTooBusy("the chat template makes too long a prompt of these messages")
            parts.append(part)
        return "".join(parts)

    def _find_traits(self) -> Traits:
        """Render small conversations and see what arrives."""
        with_parts = not self._shows(["probe-u"], [_turn("user", "probe-u")])
        if with_parts and not self._shows(["probe-u"], [_turn("user", [{"type": "text", "text": "probe-u"}])]):
            raise ModelLoadError(
                "the chat template does not render a user's message; "
                "set LIS_CHAT_TEMPLATE_PATH to a file with a right one"
            )

        def shows(texts: list[str], *turns: dict[str, Any]) -> bool:
            wrapped = [turn | {"content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
            return self._shows(texts, wrapped if with_parts else list(turns))

        user, greeting = _turn("user", "probe-u"), _turn("assistant", "probe-a")
        calling, result = PROBE_CALL, PROBE_RESULT
        takes_any_role = shows(["probe-x"], _turn("probe-role", "probe-x"), user)
        return Traits(
            with_parts=with_parts,
            system=shows(["probe-s", "probe-u"], _turn("system", "probe-s"), user),
            developer=not takes_any_role and shows(["probe-s", "probe-u"], _turn("developer", "probe-s"), user),
            assistant_first=shows(["probe-a", "probe-u"], greeting, user),
            tool_calls=shows(["probe_f", "probe-v"], user, calling, result),
            tool_results=shows(["probe-r"], user, calling, result),
        )

    def _find_evidence(self, source: str) -> Evidence:
        """What it does with tools, and how it shows a call: that is how its model writes them."""
        rendering = Rendering(tools=[PROBE_TOOL])
        user = _turn("user", "probe-u")
        asked = [[user], [_turn("system", "probe-s"), user]]
        shows_tools = any("probe_tool" in self._try([*messages], rendering) for messages in asked)
        _, _, call = self._try([user, PROBE_CALL, PROBE_RESULT], rendering).partition("probe-u")
        return Evidence(source, shows_tools, call if "probe_f" in call else "")

    def _try(self, messages: Messages, rendering: Rendering) -> str:
        """The prompt; empty: the template refuses."""
        if self.traits.with_parts:
            messages = in_parts(messages)
        try:
            return self._render_once(messages, rendering)
        except Exception as exc:
            log.debug("the chat template refuses a probe", exc_info=exc)
            return ""

    def _shows(self, texts: list[str], messages: Messages) -> bool:
        try:
            prompt = self._render_once(messages, Rendering())
        except Exception as exc:
            log.debug("the chat template refuses a probe", exc_info=exc)
            return False
        return all(text in prompt for text in texts)


def _turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _explain(refusal: Exception | None) -> str:
    """For the client. Only what the template's author meant to be read: other errors quote the template."""
    if isinstance(refusal, TemplateRaised):
        return f"The model's chat template refuses these messages: {str(refusal)[:MAX_SHOWN]}"
    if isinstance(refusal, TemplateError | TypeError | KeyError | AttributeError | ValueError):
        return "The model's chat template cannot render these messages."
    return "The model's chat template fails on these messages."

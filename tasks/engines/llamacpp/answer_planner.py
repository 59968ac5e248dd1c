"""How one model's answers are planned, by its template and its vocabulary."""

import logging
from typing import Any

from tasks.answer_parts import AnswerPlan
from tasks.contracts import GenerateRequest, ToolChoice
from tasks.engines.llamacpp.chat_template import ChatTemplate, Rendering
from tasks.tool_formats.base import SpecialId
from tasks.tool_formats.generic import instructions, with_instructions
from tasks.tool_formats.plan import AnswerWays, plan_answer
from tasks.tool_formats.reasoning import find_marks
from tasks.tool_formats.registry import GENERIC, choose_format

log = logging.getLogger(__name__)


class AnswerPlanner:
    """Any thread may use it, also when the vocabulary is gone."""

    def __init__(self, template: ChatTemplate, special: SpecialId) -> None:
        """`special` is asked here only."""
        tool_format = choose_format(template.evidence)
        reasoning = find_marks(template.evidence.source)
        ids = {mark: special(mark) for mark in (*tool_format.marks, *(reasoning or ()))}
        self._ways = AnswerWays(tool_format, reasoning, ids.get)
        log.info(
            "answers are read",
            extra={"tool_format": tool_format.name, "reasoning": reasoning.opening if reasoning else None},
        )

    @property
    def ways(self) -> AnswerWays:
        return self._ways

    def rendering_of(self, request: GenerateRequest) -> tuple[list[dict[str, Any]], Rendering]:
        """What the template is given. Where it knows no tools, they are described in the system's message."""
        messages = request.messages or []
        if not request.tools or self._ways.tool_format is not GENERIC:
            return messages, Rendering(request.tools, request.template_kwargs)
        text = instructions(
            request.tools,
            request.tool_choice is ToolChoice.REQUIRED,
            request.tool_name,
            request.parallel_tool_calls and request.tool_name is None,
        )
        return with_instructions(messages, text), Rendering(None, request.template_kwargs, calls_as_text=True)

    def plan(self, request: GenerateRequest, prompt_text: str) -> AnswerPlan:
        """See plan_answer. Raises InvalidRequest."""
        return plan_answer(request, self._ways, prompt_text)

"""A whole answer, put together from its frames: the choices, and what they cost."""

from dataclasses import dataclass, field
from typing import NamedTuple

from tasks.contracts import (
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    Timings,
    TokenLogprob,
    ToolCall,
    Usage,
)

Part = Delta | ToolCall | ChoiceFinished


@dataclass
class Call:
    """A call of a tool."""

    id: str
    name: str
    arguments: str  #: JSON text, as the model wrote it


@dataclass
class Choice:
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  #: of the tokens of `text`
    finish_reason: FinishReason = FinishReason.STOP


class Answer(NamedTuple):
    choices: list[Choice]  #: number `prompt * n + i` of the request is at that place
    usage: Usage
    timings: Timings


class AnswerBuilder:
    """Takes the parts of an answer in order."""

    def __init__(self) -> None:
        self._choices = [Choice()]

    def add(self, part: Part) -> None:
        choice = self._choice(part.choice)
        match part:
            case ChoiceFinished():
                choice.finish_reason = part.finish_reason
                self._choice(part.choice + 1)
            case ToolCall():
                if part.index == len(choice.calls):
                    choice.calls.append(Call(part.call_id, part.name, part.arguments))
                else:
                    choice.calls[part.index].arguments += part.arguments
            case Delta() if part.is_reasoning:
                choice.reasoning += part.text
            case Delta():
                choice.text += part.text
                choice.logprobs += part.logprobs

    def end(self, finished: Finished) -> Answer:
        """`finished` ends the last choice, which may have said nothing."""
        self._choices[-1].finish_reason = finished.finish_reason
        return Answer(self._choices, finished.usage, finished.timings)

    def _choice(self, number: int) -> Choice:
        while len(self._choices) <= number:
            self._choices.append(Choice())
        return self._choices[number]

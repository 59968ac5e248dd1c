"""The one error of grammars and schemas (tasks/grammars.py)."""


class GrammarError(Exception):
    """A grammar or schema that cannot be enforced. The message is for the person who wrote it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

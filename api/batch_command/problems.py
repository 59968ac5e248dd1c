"""What ends the command with one line on stderr."""


class CommandError(Exception):
    """`str()` is for the person at the terminal."""


class UsageError(CommandError):
    """The command line asks for something that cannot be; exit status 2."""


class ServerError(CommandError):
    """The server refused, or did not answer for long. `status` 0: no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_full(self) -> bool:
        """It has no room for more files or batches now; when others have ended it may."""
        return self.status in (413, 507)

"""Why a file or a batch cannot be had, kept or changed. `str()` is for the client."""

MAX_SHOWN = 100  #: characters of a client's own text in a message


class FileMissing(Exception):
    """No such file, or another key's, or it has expired."""

    def __init__(self, file_id: str) -> None:
        super().__init__(f"There is no file '{file_id[:MAX_SHOWN]}' here.")


class BatchMissing(Exception):
    """No such batch, or another key's."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"There is no batch '{batch_id[:MAX_SHOWN]}' here.")


class FileTooLarge(Exception):
    """It is larger than any file may be: it never fits."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The file is larger than the limit of {limit_bytes} bytes.")


class StorageFull(Exception):
    """No room for this now: it fits once files are deleted or expire."""

    def __init__(self, limit_bytes: int = 0) -> None:
        bound = f": LIS_FILES_MAX_BYTES is {limit_bytes}" if limit_bytes else ""
        super().__init__(
            f"The storage for files is full{bound}. Delete files that are no longer needed, or wait until some expire."
        )


class FileInUse(Exception):
    """The input of a batch that has not ended."""

    def __init__(self, file_id: str, batch_id: str) -> None:
        super().__init__(f"The file '{file_id}' is the input of the batch '{batch_id}'. Cancel that one first.")


class NotCancellable(Exception):
    """It has ended, or is about to."""

    def __init__(self, batch_id: str, status: str) -> None:
        super().__init__(f"The batch '{batch_id}' is {status} and cannot be cancelled any more.")

"""Log lines: time, level, part, text, and the fields of `extra` as key=value."""

import logging
import re
import sys
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data", "color_message"}


_FOLDERS = re.compile(r"""(?<=['"])(?:~|\.{1,2})?/[^'"]*/(?=[^'"])|(?<![\w.:/'"])(?:~|\.{1,2})?/(?:[^\s/'"]+/)*""")


def without_paths(text: str) -> str:
    """`text` with each file's folders left out: what may leave this host."""
    return _FOLDERS.sub("", text)


class FieldsFormatter(logging.Formatter):
    """Appends the fields given by `extra=`; a prompt or an answer is never one of them."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields: dict[str, Any] = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return line + "".join(f" {key}={value}" for key, value in fields.items())


def configure_logging(level: str, part: str) -> None:
    """Root logger to stderr. `part` (api, worker, engine) names the process in each line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldsFormatter(f"%(asctime)s %(levelname)s {part}: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)

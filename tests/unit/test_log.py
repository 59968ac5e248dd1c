"""Log lines: fields, no prompts; and what of a message may leave the host."""

import logging

import pytest

from tasks.log import FieldsFormatter, without_paths


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot read /home/joe/models/a.gguf", "cannot read a.gguf"),
        ("cannot read '/home/joe/my models/a.gguf': no", "cannot read 'a.gguf': no"),
        ("cannot read ~/models/a.gguf", "cannot read a.gguf"),
        ("cannot read ./models/a.gguf", "cannot read a.gguf"),
        ("cannot read ../models/a.gguf.", "cannot read a.gguf."),
        ("see https://huggingface.co/owner/repo", "see https://huggingface.co/owner/repo"),
        ("downloading owner/repo: 3/7 files", "downloading owner/repo: 3/7 files"),
        ("loading the models", "loading the models"),
        ("", ""),
    ],
)
def test_folders_are_left_out(text: str, shown: str) -> None:
    assert without_paths(text) == shown


def _record(**extra: object) -> logging.LogRecord:
    return logging.getLogger("test").makeRecord(
        "test", logging.INFO, "file", 1, "request %s", ("done",), None, "", extra
    )


def test_fields_follow_the_text() -> None:
    line = FieldsFormatter("%(levelname)s %(message)s").format(_record(request_id="chatcmpl-1", completion_tokens=3))
    assert line == "INFO request done request_id=chatcmpl-1 completion_tokens=3"


def test_arguments_of_a_celery_task_are_no_field() -> None:
    """Celery's log records carry the task's arguments, and so the prompt, as `data`."""
    line = FieldsFormatter("%(message)s").format(_record(data={"args": ["secret prompt"]}, request_id="x"))
    assert line == "request done request_id=x"

"""Parts of the command `local-inference-batch`: inputs, answers, vectors, and how soon it is there."""

import base64
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from api.batch_command.answers import lines_of, parse_answer
from api.batch_command.http_client import base_url
from api.batch_command.inputs import Source
from api.batch_command.problems import CommandError
from api.batch_command.vectors import VectorFile


def items(path: Path, data: bytes, **options: object) -> list[tuple[int, str, str]]:
    """Line, text, error."""
    path.write_bytes(data)
    source = Source(path=path, **options)  # type: ignore[arg-type]
    assert source.measure() == source.measure()
    found = list(source.items())
    assert [item.row for item in found] == list(range(len(found)))
    return [(item.line, item.text, item.error) for item in found]


def test_help_imports_neither_the_server_nor_numpy() -> None:
    code = "import sys, api.batch_command.cli; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"quart", "celery", "redis", "tasks", "numpy", "pyarrow", "httpx2"} & set(done.stdout.split())


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_of_a_text_file(tmp_path: Path, end: bytes) -> None:
    data = b"\xef\xbb\xbffirst" + end + "zwei \u2028 halbe".encode() + end + end + b"\xff" + end + b"last"
    assert items(tmp_path / "in.txt", data) == [
        (1, "first", ""),
        (2, "zwei \u2028 halbe", ""),
        (3, "", "the text is blank"),
        (4, "", "it is not UTF-8 text"),
        (5, "last", ""),
    ]
    assert [line for line, _, _ in items(tmp_path / "in.txt", data, skip_empty=True)] == [1, 2, 4, 5]


def test_a_csv_has_texts_of_several_lines_and_rows_that_are_short(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbfid,text\n1,"two\nlines"\n\n2\n3,"a ""quote"""\n4,\xff\n'
    assert items(tmp_path / "in.csv", data) == [
        (3, "two\nlines", ""),
        (5, "", "it has too few columns"),
        (6, 'a "quote"', ""),
        (7, "", "it is not UTF-8 text"),
    ]


def test_a_csv_cell_may_be_a_whole_document(tmp_path: Path) -> None:
    long = "word " * 100_000
    assert items(tmp_path / "in.csv", f"words\n{long}\n".encode()) == [(2, long, "")]


def test_a_broken_csv_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="line 2: field larger"):
        items(tmp_path / "in.csv", b"text\n" + b"x" * (64 * 1024 * 1024 + 1))


def test_blank_lines_of_a_jsonl_are_no_texts(tmp_path: Path) -> None:
    assert items(tmp_path / "in.jsonl", b'\n{"text": "a"}\n  \n{"text": ""}') == [
        (2, "a", ""),
        (4, "", "the text is blank"),
    ]


def test_an_input_that_changes_has_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    prints = set()
    for data in (b"ab\nc", b"a\nbc", b"a\nb\nc", b"a\n\nc"):
        path.write_bytes(data)
        prints.add(Source(path=path).measure())
    assert len(prints) == 4


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_only_a_line_feed_ends_a_line_of_an_answer(size: int) -> None:
    data = '{"a": "\u2028"}\n\n{"b": 1}\r\n{"c": 2}'.encode()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert [line.strip() for line in lines_of(chunks)] == ['{"a": "\u2028"}'.encode(), b'{"b": 1}', b'{"c": 2}']


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"custom_id": "3", "error": {"code": "batch_expired", "message": "too late"}}', "too late"),
        ('{"custom_id": "3", "response": {"status_code": 400, "body": {"error": {"message": "bad"}}}}', "bad"),
        ('{"custom_id": "3", "response": {"status_code": 500, "body": {}}}', "the server gives no reason"),
        (
            '{"custom_id": "3", "response": {"status_code": 200, "body": {"data": []}}}',
            "the server's answer has no vector",
        ),
    ],
)
def test_a_line_that_failed_says_why(line: str, error: str) -> None:
    answer = parse_answer(line.encode())
    assert answer is not None
    assert (answer.row, answer.embedding, answer.error) == (3, None, error)


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"custom_id": "mine"}', '{"custom_id": null}'])
def test_a_line_of_somebody_else_is_passed_over(line: str) -> None:
    assert parse_answer(line.encode()) is None


def test_vectors_may_come_in_any_order_and_are_there_after_a_restart(tmp_path: Path) -> None:
    vectors = VectorFile(tmp_path / "v", 3)
    assert (vectors.has(0), vectors.count(), vectors.width) == (False, 0, 0)
    assert vectors.put(2, [0.5, 1.0]) == ""
    assert vectors.put(0, base64.b64encode(np.array([1, 2], "<f4").tobytes()).decode()) == ""
    vectors.close()
    again = VectorFile(tmp_path / "v", 3)
    assert [again.has(row) for row in range(3)] == [True, False, True]
    assert (again.count(), again.width) == (2, 2)
    assert again.get(0).tolist() == [1.0, 2.0]
    assert again.get(1) is None


@pytest.mark.parametrize("wrong", ["!", "AAA=", "", [], [[1.0]], ["a"], [float("nan")], {"a": 1}, None, [1.0]])
def test_what_is_not_a_vector_is_refused(tmp_path: Path, wrong: object) -> None:
    vectors = VectorFile(tmp_path / "v", 2)
    assert vectors.put(0, [1.0, 2.0]) == ""
    assert vectors.put(1, wrong) != ""
    assert not vectors.has(1)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host:8000/v1/", "http://host:8000/v1"),
        ("host:8000", "http://host:8000/v1"),
        ("https://api.example.com/proxy/v1", "https://api.example.com/proxy/v1"),
    ],
)
def test_the_server_may_be_named_with_or_without_v1(given: str, url: str) -> None:
    assert base_url(given) == url

"""Reading of single fields: types, ranges, null."""

from collections.abc import Callable
from typing import Any

import pytest

from api.protocol.fields import Fields, InvalidRequest, check_plain
from api.protocol.sampling import MAX_STOPS, read_max_tokens, read_sampling, read_stop, read_stream
from tasks.contracts import Sampling
from tests.unit.cases import anything


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", bad) for bad in anything(-1, 5, 2.01, "hot", "1", True, [], {}, 1e30, 10**25)],
        *[("top_p", bad) for bad in (2, -0.5, "0.5", False)],
        *[("min_p", bad) for bad in (1.5, -0.1, "x")],
        *[("top_k", bad) for bad in (-2, 1.5, "40", True)],
        *[("presence_penalty", bad) for bad in (9, -2.5, "0")],
        *[("frequency_penalty", bad) for bad in (9, -2.5, "none")],
        *[("repeat_penalty", bad) for bad in (0, -1, 11, "1")],
        *[("seed", bad) for bad in ("7", 1.5, True, [7])],
        *[("repeat_last_n", bad) for bad in (-2, "64")],
        *[("typical_p", bad) for bad in (-0.1, 1.1, "1")],
        *[("xtc_probability", bad) for bad in (-0.1, 1.1, True)],
        *[("xtc_threshold", bad) for bad in (-0.1, 1.1, "x")],
        *[("dry_multiplier", bad) for bad in (-1, 101, "x")],
        *[("dry_base", bad) for bad in anything(0.5, 101, [])],
        *[("dry_allowed_length", bad) for bad in (-1, 1.5)],
        *[("dry_penalty_last_n", bad) for bad in (-2, "x")],
        *[("dry_sequence_breakers", bad) for bad in anything("x", {}, [""], [5], ["x" * 41], ["x"] * 33)],
        *[("mirostat", bad) for bad in (-1, 3, 1.5, True, "2")],
        *[("mirostat_tau", bad) for bad in (-1, 101, "x")],
        *[("mirostat_eta", bad) for bad in (-1, 1.1, "x")],
        *[("logit_bias", bad) for bad in anything("x", {"5": 200})],
        *[("ignore_eos", bad) for bad in anything(1, "true")],
        *[("min_tokens", bad) for bad in (-1, 1.5, "5")],
    ],
)
def test_wrong_sampling_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_sampling(Fields({field: value}))
    assert caught.value.param == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, Sampling()),
        (dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty")), Sampling()),
        ({"temperature": 0}, Sampling(temperature=0.0)),
        ({"temperature": 2, "top_p": 0, "min_p": 1}, Sampling(temperature=2.0, top_p=0.0, min_p=1.0)),
        ({"top_k": -1}, Sampling(top_k=0)),
        ({"top_k": 64.0}, Sampling(top_k=64)),
        ({"top_k": 1e30}, Sampling(top_k=2**31 - 1)),
        ({"repeat_penalty": 1.1, "repeat_last_n": -1}, Sampling(repeat_penalty=1.1, repeat_last_n=-1)),
        ({"presence_penalty": -2, "frequency_penalty": 2}, Sampling(presence_penalty=-2.0, frequency_penalty=2.0)),
        ({"typical_p": 0.5}, Sampling(typical_p=0.5)),
        ({"xtc_probability": 1, "xtc_threshold": 0}, Sampling(xtc_probability=1.0, xtc_threshold=0.0)),
        (
            {"dry_multiplier": 0.8, "dry_base": 1, "dry_allowed_length": 0, "dry_penalty_last_n": -1},
            Sampling(dry_multiplier=0.8, dry_base=1.0, dry_allowed_length=0, dry_penalty_last_n=-1),
        ),
        ({"dry_sequence_breakers": ["\n", "END"]}, Sampling(dry_sequence_breakers=("\n", "END"))),
        ({"dry_sequence_breakers": []}, Sampling(dry_sequence_breakers=())),
        (
            {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2},
            Sampling(mirostat=2, mirostat_tau=4.0, mirostat_eta=0.2),
        ),
        ({"ignore_eos": True, "min_tokens": 5}, Sampling(ignore_eos=True, min_tokens=5)),
        ({"min_tokens": 5, "max_tokens": 5}, Sampling(min_tokens=5)),
        ({"logit_bias": {"7": -1, "x": False}}, Sampling(logit_bias=[(7, -1.0), ("x", -1e9)])),
    ],
)
def test_right_sampling_values(body: dict[str, Any], expected: Sampling) -> None:
    assert read_sampling(Fields(body)) == expected


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_at_least_than_at_most_are_refused(limit: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_sampling(Fields({"min_tokens": 5, limit: 4}))
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 2, 2**32 - 1, 2**32, 2**63 - 1, -1, -(2**63), 10**25, 5.0])
def test_every_seed_becomes_one_that_repeats(seed: int) -> None:
    read = read_sampling(Fields({"seed": seed})).seed
    assert read is not None
    assert 0 <= read < 2**32 - 1  # 2**32 - 1 asks llama.cpp for a random seed
    assert read == read_sampling(Fields({"seed": seed})).seed
    if 0 <= seed < 2**32 - 1:
        assert read == seed


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, "10", 1.5, True, [], -1e30])
def test_wrong_max_tokens_names_its_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_max_tokens(Fields({name: value}))
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5.0}, 5),
        ({"max_tokens": 50, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 15821}, 15821),
        *[({"max_tokens": huge}, 2**31 - 1) for huge in (2**31, 2**63, 10**25, 1e30)],
    ],
)
def test_max_tokens(body: dict[str, Any], expected: int | None) -> None:
    assert read_max_tokens(Fields(body)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, []),
        ("", []),
        ([], []),
        (["", "zzz", ""], ["zzz"]),
        ("END", ["END"]),
        (["b", "a", "b"], ["b", "a"]),
        ([str(n) for n in range(MAX_STOPS)], [str(n) for n in range(MAX_STOPS)]),
    ],
)
def test_stop(value: Any, expected: list[str]) -> None:
    assert read_stop(Fields({"stop": value})) == expected


@pytest.mark.parametrize("value", [5, {}, True, [5], [None], [["x"]], [str(n) for n in range(65)], "x" * 1001])
def test_wrong_stop_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_stop(Fields({"stop": value}))
    assert caught.value.param == "stop"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (False, False)),
        ({"stream": None, "stream_options": None}, (False, False)),
        ({"stream": True}, (True, False)),
        ({"stream": True, "stream_options": {}}, (True, False)),
        ({"stream": True, "stream_options": {"include_usage": True}}, (True, True)),
        ({"stream": False, "stream_options": {"include_usage": True}}, (False, False)),
    ],
)
def test_stream(body: dict[str, Any], expected: tuple[bool, bool]) -> None:
    assert read_stream(Fields(body)) == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *[({"stream": bad}, "stream") for bad in anything("yes", "true", 1, 0, [])],
        *[({"stream": True, "stream_options": bad}, "stream_options") for bad in anything("x", True, [])],
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ],
)
def test_wrong_stream_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_stream(Fields(body))
    assert caught.value.param == param


@pytest.mark.parametrize("read", [Fields.string, Fields.boolean, Fields.mapping, Fields.items, Fields.number])
def test_null_is_absent(read: Callable[[Fields, str], Any]) -> None:
    assert read(Fields({"x": None}), "x") is None
    assert read(Fields({}), "x") is None


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("value", [nested(65), nested(500), {"a": [2**64]}, -(2**63) - 1])
def test_what_cannot_travel_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_plain(value, "tools[0]")
    assert caught.value.param == "tools[0]"


@pytest.mark.parametrize("value", [nested(64), [2**63 - 1, -(2**63), 1.5, None, True, "x"]])
def test_what_can_travel_passes(value: Any) -> None:
    check_plain(value, "tools[0]")

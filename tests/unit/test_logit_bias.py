"""`logit_bias`, in OpenAI's form and in llama.cpp's."""

from typing import Any

import pytest

from api.protocol.fields import Fields, InvalidRequest
from api.protocol.logit_bias import BANNED, MAX_BIASES, read_logit_bias
from tests.unit.cases import anything


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ({}, []),
        ([], []),
        ({"50256": -100}, [(50256, -100.0)]),
        ({"0": 100, "Hello": 0.5}, [(0, 100.0), ("Hello", 0.5)]),
        ({"15": False}, [(15, BANNED)]),
        ([[15043, 1.0], ["Hello", -0.5], [7, False]], [(15043, 1.0), ("Hello", -0.5), (7, BANNED)]),
        ({" 5": 1}, [(" 5", 1.0)]),
        ({"-5": 1, "1.5": 1, "٣": 1}, [("-5", 1.0), ("1.5", 1.0), ("٣", 1.0)]),
        ([["5", 1]], [("5", 1.0)]),
    ],
)
def test_right_forms(given: Any, expected: list[tuple[int | str, float]]) -> None:
    assert read_logit_bias(Fields({"logit_bias": given})) == expected


@pytest.mark.parametrize(
    "given",
    anything(
        "x",
        5,
        True,
        {"5": 101},
        {"5": -100.5},
        {"5": "1"},
        {"5": None},
        {"5": True},
        {"": 1},
        {"x" * 1001: 1},
        {str(2**31): 1},
        {"9" * 40: 1},
        [5],
        [[5]],
        [[5, 1, 2]],
        [[-1, 1]],
        [[1.5, 1]],
        [[True, 1]],
        [[None, 1]],
        [{"5": 1}],
        {str(index): 1 for index in range(MAX_BIASES + 1)},
    ),
)
def test_wrong_forms_are_named(given: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_logit_bias(Fields({"logit_bias": given}))
    assert caught.value.param == "logit_bias"
    assert "logit_bias" in caught.value.message

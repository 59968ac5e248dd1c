"""A short run of the fuzz (benchmarks/fuzz_http.py): bad requests of every kind, and a service that is as it was."""

import pytest

from benchmarks.fuzz import http1
from benchmarks.fuzz.requests import BODIES_KINDS
from benchmarks.fuzz_http import fuzz
from tests.stack import Stack

N = 300
SEED = 7


@pytest.mark.timeout(120)
def test_bad_requests_of_every_kind_leave_the_service_as_it_was(fake_live: Stack) -> None:
    report = fuzz(fake_live, N, SEED, with_described=False)

    assert report.breaches == []
    assert set(report.statuses) == {*BODIES_KINDS, *http1.KINDS, "http: 2"} - {"http: stalled"}
    seen = {status for statuses in report.statuses.values() for status in statuses}
    assert {"200", "400", "404", "405", "413", "415"} <= seen

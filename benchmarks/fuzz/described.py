"""Requests that schemathesis makes from the OpenAPI description: such as it allows, and such as it excludes."""

import random
import warnings
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from benchmarks.fuzz.requests import CHAT, EMBED, Case

POSITIVE_SHARE = 0.5
KEPT_MODEL = 0.85  #: of the bodies that name a model get one that is served; else nearly all would be 404s


def cases(document: dict[str, Any], n: int, seed: int) -> list[Case]:
    """`n` of them, in a random order; the same for the same seed. Takes 50 to 100 ms each."""
    import schemathesis

    rng = random.Random(seed)
    schema = schemathesis.openapi.from_dict(document)
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr,unused-ignore]
    # an operation with a body has most to be got wrong
    weights = [6 if operation.body else 1 for operation in operations]
    made: list[Case] = []
    for operation, weight in zip(operations, weights, strict=True):
        n_here = max(2, round(n * weight / sum(weights)))
        for mode, share in (("positive", POSITIVE_SHARE), ("negative", 1 - POSITIVE_SHARE)):
            made += [_case(case, rng) for case in _examples(operation, mode, max(1, round(n_here * share)), seed)]
    rng.shuffle(made)
    return made[:n]


def _examples(operation: Any, mode: str, n: int, seed: int) -> list[Any]:
    import hypothesis
    from schemathesis import GenerationMode

    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=n,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=GenerationMode(mode)))
    def collect(case: Any) -> None:
        found.append(case)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            collect()
        except hypothesis.errors.Unsatisfiable:  # nothing can be wrong with an operation that takes nothing
            return []
    return found


def _case(case: Any, rng: random.Random) -> Case:
    path = case.path
    for name, value in (case.path_parameters or {}).items():
        path = path.replace("{" + name + "}", quote(str(value), safe=""))
    if case.query:
        path += "?" + urlencode(dict(case.query.items()), doseq=True, errors="replace")
    headers = tuple((name, _one_line(value)) for name, value in (case.headers or {}).items())
    kept = tuple((name, value) for name, value in headers if name.lower() not in ("content-type", "authorization"))
    return Case(case.method, "/v1" * rng.randint(0, 1) + path, _body(case.body, path, rng), kept)


def _one_line(value: Any) -> str:
    return str(value).replace("\r", " ").replace("\n", " ")


def _body(body: Any, path: str, rng: random.Random) -> bytes:
    if isinstance(body, bytes):
        return body
    if not isinstance(body, str | int | float | list | dict | bool | None):
        return b""  # schemathesis' mark for no body at all
    if isinstance(body, dict) and "model" in body and rng.random() < KEPT_MODEL:
        body = body | {"model": EMBED if path.endswith("embeddings") else CHAT}
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
        import json

        return json.dumps(body, default=str).encode("utf-8", "surrogatepass")

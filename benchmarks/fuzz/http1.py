"""What can be wrong with HTTP/1 itself: kinds of scripts, each made by a seeded hand."""

import random
from collections.abc import Callable

from benchmarks.fuzz.requests import GETS, Case, either, look, reshaped, sample
from benchmarks.fuzz.wire import Script

STALL_S = 120.0  #: the server's limits for a body, and for a head, are shorter


def head(case: Case, key: str, extra: tuple[str, ...] = (), version: str = "1.1", target: str = "") -> bytes:
    lines = [f"{case.method} {target or case.path} HTTP/{version}", "Host: x", f"Authorization: Bearer {key}"]
    lines += ["Content-Type: application/json"] if case.method == "POST" else []
    lines += [f"{name}: {value}" for name, value in case.headers] + list(extra)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


def length(case: Case) -> tuple[str, ...]:
    return (f"Content-Length: {len(case.body)}",) if case.method == "POST" or case.body else ()


def whole(case: Case, key: str, extra: tuple[str, ...] = (), version: str = "1.1", target: str = "") -> bytes:
    return head(case, key, (*length(case), *extra), version, target) + case.body


def asked(*cases: Case) -> tuple[tuple[str, str], ...]:
    return tuple((case.method, case.path) for case in cases)


def plain(case: Case, key: str) -> Script:
    return Script((whole(case, key),), asked(case))


# -- kinds ---------------------------------------------------------------------------------------


def cut(rng: random.Random, key: str) -> Script:
    """Ends at any byte, orderly or by a reset."""
    case = either(rng)
    data = whole(case, key)
    data = data[: rng.randrange(len(data))]
    return Script((data,), asked(case), 0, rng.choice(["eof", "abort"]))


def left(rng: random.Random, key: str) -> Script:
    """Whole, and nobody waits for the answer, or for all of it."""
    case = sample(rng)
    return Script((whole(case, key),), asked(case), 0, rng.choice(["abort", "glance"]))


def slow(rng: random.Random, key: str) -> Script:
    """In small pieces with pauses between them; whole in the end, or cut."""
    case = either(rng)
    data = whole(case, key)
    is_whole = rng.random() < 0.6
    data = data if is_whole else data[: rng.randrange(1, len(data))]
    size = max(1, len(data) // rng.randint(5, 40))
    pieces = tuple(data[at : at + size] for at in range(0, len(data), size))
    return Script(pieces, asked(case), int(is_whole), "stay" if is_whole else "eof", pause_s=rng.uniform(0, 0.02))


def stalled(rng: random.Random, key: str) -> Script:
    """Stops in the head or in the body, and stays: the server must end it."""
    case = sample(rng)
    is_in_body = rng.random() < 0.7
    data = head(case, key, length(case))
    data = data + case.body[: rng.randrange(len(case.body))] if is_in_body else data[: rng.randrange(1, len(data) - 4)]
    return Script((data,), asked(case), int(is_in_body), patience_s=STALL_S)


def headers(rng: random.Random, key: str) -> Script:
    case = either(rng)
    odd: list[tuple[str, ...]] = [
        tuple(f"X-{index}: {'v' * rng.randint(0, 30)}" for index in range(rng.choice([10, 100, 2000]))),
        (f"X-Big: {'v' * rng.choice([1000, 10_000, 20_000, 200_000])}",),
        (f"{'N' * rng.choice([100, 30_000])}: v",),
        ("X-A: \x00",),
        ("X-A: \udcff\udcfe",),
        ("X-A : spaced",),
        (" folded",),
        ("no colon",),
        (": nameless",),
        ("Host: y", "Host: z"),
        ("Authorization: Basic eDp5", "Authorization: Bearer"),
        (f"Content-Type: {rng.choice(['text/plain', 'application/json; charset=' + 'x' * 999, '*/*', ';;;', 'é'])}",),
        (f"x-stainless-read-timeout: {rng.choice(['0', '-1', 'nan', 'inf', '1e999', 'x', '0.0001', '9' * 99])}",),
        (f"service-tier: {rng.choice(['flex', 'FLEX', 'none', '', 'x' * 999])}",),
        (f"Idempotency-Key: {rng.choice(['', 'k' * 10_000, 'a b', 'é', str(rng.random())])}",),
        (f"Expect: {rng.choice(['100-continue', '200-ok', ''])}",),
        (f"Connection: {rng.choice(['close', 'upgrade', 'keep-alive, Upgrade', 'x,' * 500])}", "Upgrade: tea/1.0"),
        (f"Origin: {rng.choice(['null', 'http://x', 'é', 'x' * 5000])}",),
        ("Access-Control-Request-Headers: " + "x," * rng.choice([1, 3000]), "Access-Control-Request-Method: POST"),
        ("Cookie: " + "a=b; " * 500, "Range: bytes=5-1", "If-None-Match: *", "X-Forwarded-For: 1,,;;"),
    ]
    data = whole(case, key, rng.choice(odd))
    if rng.random() < 0.1:
        data = data.replace(b"\r\n", b"\n")
    if rng.random() < 0.1:
        data = data.replace(b"Host: x\r\n", b"")
    if rng.random() < 0.1:
        data = data.replace(b"Bearer ", rng.choice([b"Bearer x", b"bearer\t", b"", b"Bearer \xff"]), 1)
    return Script((data,), asked(case), 0, "eof")


def lengths(rng: random.Random, key: str) -> Script:
    """Content lengths that are wrong, senseless, or not alone."""
    case = sample(rng)
    n = len(case.body)
    told = rng.choice(
        [
            (f"Content-Length: {rng.randint(0, n)}",),
            (f"Content-Length: {n + rng.randint(1, 1000)}",),
            (f"Content-Length: {rng.choice(['-1', '+5', '0x10', '9' * 30, '', '1e3', '5,5', '٣'])}",),
            (f"Content-Length: {n}", f"Content-Length: {n + 1}"),
            (f"Content-Length: {n}", f"Content-Length: {n}"),
            (f"Content-Length: {n}", "Transfer-Encoding: chunked"),
            (f"Content-Length: {33 * 2**20}",),
            (f"Content-Length: {2**31 - 1}",),
            (),
        ]
    )
    return Script((head(case, key, told) + case.body,), asked(case), 0, "eof")


def chunked(rng: random.Random, key: str) -> Script:
    """Whole, with odd chunk sizes, extensions and trailers; or faulty."""
    case = sample(rng)
    start = head(case, key, ("Transfer-Encoding: chunked",))
    size = rng.choice([1, 2, 7, 100, 10_000])
    pieces = [case.body[at : at + size] for at in range(0, len(case.body), size)]
    extension = rng.choice([b"", b"", b";a=b", b";" + b"x" * 300])
    chunks = [f"{len(piece):{rng.choice('xX')}}".encode() + extension + b"\r\n" + piece + b"\r\n" for piece in pieces]
    trailers = rng.choice([b"", b"", b"X-T: 1\r\n"])
    good = start + b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"
    if rng.random() < 0.5:
        return Script((good,), asked(case))
    bad = rng.choice(
        [
            start + b"xyz\r\n" + case.body,
            start + b"-5\r\nhello\r\n0\r\n\r\n",
            start + b"F" * 40 + b"\r\n" + case.body,
            start + b"5\r\nhelloworld\r\n0\r\n\r\n",
            start + b"5" + b";" * 20_000,
            start + b"".join(chunks),
            good.replace(b"chunked", rng.choice([b"gzip", b"chunked, chunked", b"gzip, chunked", b"\x0bchunked"]), 1),
            good[:-2] + b"X-T: " + b"x" * 30_000 + b"\r\n\r\n",
        ]
    )
    return Script((bad,), asked(case), 0, "eof")


def pipelined(rng: random.Random, key: str) -> Script:
    """Several at once on one connection, all answered, in order."""
    cases = [either(rng) for _ in range(rng.randint(2, 6))]
    data = b"".join(whole(case, key) for case in cases)
    pieces = (data,) if rng.random() < 0.5 else (data[: len(data) // 2], data[len(data) // 2 :])
    return Script(pieces, asked(*cases), len(cases))


def older(rng: random.Random, key: str) -> Script:
    """HTTP/1.0 and versions that there never were."""
    case = either(rng)
    version = rng.choice(["1.0", "1.0", "1.0", "0.9", "1.2", "2.0", "3.0", "x", "11", "1.1 "])
    extra = rng.choice([(), ("Connection: keep-alive",)])
    is_known = version == "1.0"
    return Script((whole(case, key, extra, version),), asked(case), int(is_known), "stay" if is_known else "eof")


def targets(rng: random.Random, key: str) -> Script:
    case = look(rng) if rng.random() < 0.7 else sample(rng)
    path = case.path
    target = rng.choice(
        [
            f"http://x{path}",
            f"http://user:pw@[::1]:80{path}?a=b",
            f"//x{path}",
            "*",
            f"{path}/",
            f"//{path}//",
            f"{path}?{'a=b&' * rng.choice([1, 1000])}",
            f"{path}?id={'%00%ff' * 20}&id=&id[]=x",
            f"/v1/queue?{'&'.join(f'id=q{index}' for index in range(200))}",
            f"{path}%00",
            f"{path}%2F..%2f..%2fetc/passwd",
            "/v1/../../etc/passwd",
            f"/v1/models/{'%C3%28' * 10}",
            f"/v1/models/{'a/' * rng.choice([10, 4000])}",
            f"/v1/responses/{'%F0%9F%98%80' * 30}",
            f"{path}%zz%",
            f"/{rng.randbytes(10).hex()}",
            f"{path}#frag",
            f"{path} x",
            f"{path}\udcff",
            f"{path}\x7f",
            "x:80",
            "",
            "/" * 9000,
        ]
    )
    return Script((whole(case, key, target=target or " "),), ((case.method, target),), 0, "eof")


def methods(rng: random.Random, key: str) -> Script:
    method = rng.choice(
        [
            "HEAD",
            "OPTIONS",
            "PUT",
            "PATCH",
            "DELETE",
            "TRACE",
            "CONNECT",
            "GET",
            "POST",
            "get",
            "PRI",
            "X" * 300,
            "M-SEARCH",
        ]
    )
    path = rng.choice([*GETS, sample(rng).path, "/nowhere"])
    case = Case(method, path, rng.choice([b"", b"{}"]))
    return Script((whole(case, key),), asked(case), int(method not in ("PRI",)), "stay" if method != "PRI" else "eof")


def upgrades(rng: random.Random, key: str) -> Script:
    """Wishes for WebSocket and HTTP/2, which are not followed; well formed or not."""
    case = look(rng)
    wish = rng.choice(
        [
            ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: YWJj"),
            ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 8"),
            (
                "Upgrade: h2c",
                "Connection: Upgrade, HTTP2-Settings",
                f"HTTP2-Settings: {rng.choice(['', '!!', 'AAM', 'é'])}",
            ),
            ("Upgrade: h2c", "Connection: Upgrade"),
        ]
    )
    return Script((whole(case, key, wish),), asked(case), 0, "eof")


def garbage(rng: random.Random, key: str) -> Script:
    data = rng.choice(
        [
            rng.randbytes(rng.randint(1, 3000)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(400),  # TLS
            b"\r\n" * rng.randint(1, 5000),
            b"\x00" * 20_000,
            b"GET",
            b"GET / HTTP/1.1\r\n" * 50,
            b"*1\r\n$4\r\nPING\r\n",  # Redis
        ]
    )
    return Script((data,), (("GET", "/"),), 0, "eof")


def restored(rng: random.Random, key: str) -> Script:
    """A bad body, and on the same connection a good request."""
    first, second = reshaped(rng), look(rng)
    return Script((whole(first, key), whole(second, key)), asked(first, second), 2)


KINDS: dict[str, tuple[Callable[[random.Random, str], Script], int]] = {
    "http: cut": (cut, 10),
    "http: left": (left, 6),
    "http: slow": (slow, 6),
    "http: stalled": (stalled, 0),  # their number is a constant: each takes a minute
    "http: headers": (headers, 10),
    "http: lengths": (lengths, 7),
    "http: chunked": (chunked, 8),
    "http: pipelined": (pipelined, 3),
    "http: older": (older, 3),
    "http: targets": (targets, 8),
    "http: methods": (methods, 5),
    "http: upgrades": (upgrades, 3),
    "http: garbage": (garbage, 4),
    "http: restored": (restored, 4),
}

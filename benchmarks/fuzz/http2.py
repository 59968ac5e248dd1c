"""HTTP/2 by prior knowledge: several requests on one connection, and frames that should not be."""

import asyncio
import contextlib
import random

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from benchmarks.fuzz.requests import Case, either, sample
from benchmarks.fuzz.wire import Answer, Talk, connected

PATIENCE_S = 30.0
NOISE_S = 1.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_DATA_BYTES = 16_384


class Client:
    """One connection. `answers` are those that came whole, `n_reset` the streams that the server ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        # what the client library would refuse to send is part of what is sent here
        config = h2.config.H2Configuration(
            validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding="utf-8"
        )
        self.h2 = h2.connection.H2Connection(config)
        self.answers: list[Answer] = []
        self.n_reset = 0
        self.has_ended = False
        self._reader = reader
        self._writer = writer
        self._key = key
        self._cases: dict[int, Case] = {}
        self._heads: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytes] = {}

    async def flush(self, more: bytes = b"") -> None:
        self._writer.write(self.h2.data_to_send() + more)
        await self._writer.drain()

    def ask(self, case: Case, extra: tuple[tuple[str, str], ...] = (), is_ended: bool = True) -> int:
        number = self.h2.get_next_available_stream_id()
        self._cases[number] = case
        pseudo = [(":method", case.method), (":path", case.path), (":scheme", "http"), (":authority", "x")]
        own = [("authorization", f"Bearer {self._key}"), ("content-type", "application/json"), *case.headers, *extra]
        headers = [*pseudo, *((name.lower(), value) for name, value in own)]
        self.h2.send_headers(number, headers, end_stream=is_ended and not case.body)
        if case.body:
            body = case.body[:MAX_DATA_BYTES]
            self.h2.send_data(number, body, end_stream=is_ended)
        return number

    @property
    def n_open(self) -> int:
        return len(self._cases) - len(self.answers) - self.n_reset

    async def read(self, n_open: int = 0) -> None:
        """Until no more than `n_open` requests are without an end, or the connection has ended."""
        while self.n_open > n_open and not self.has_ended:
            data = await self._reader.read(65_536)
            if not data:
                self.has_ended = True
                return
            for event in self.h2.receive_data(data):
                self._take(event)
            await self.flush()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self._heads[event.stream_id] = {str(name): str(value) for name, value in event.headers}
            case h2.events.DataReceived():
                self._bodies[event.stream_id] = self._bodies.get(event.stream_id, b"") + event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                case, headers = self._cases[event.stream_id], self._heads[event.stream_id]
                body = self._bodies.get(event.stream_id, b"")
                self.answers.append(Answer(case.method, case.path, int(headers[":status"]), headers, body))
            case h2.events.StreamReset():
                self.n_reset += 1
            case h2.events.ConnectionTerminated():
                self.has_ended = True


async def talk(port: int, rng: random.Random, key: str) -> tuple[Talk, int]:
    """And how many answers there had to be."""
    client: Client | None = None
    least = 0
    try:
        async with asyncio.timeout(PATIENCE_S), connected(port) as (reader, writer):
            client = Client(reader, writer, key)
            client.h2.initiate_connection()
            least = await _play(client, rng)
    except TimeoutError:
        return Talk(client.answers if client else [], has_hung=True), least
    except (OSError, h2.exceptions.ProtocolError):
        pass
    return Talk(client.answers if client else []), least


async def _play(client: Client, rng: random.Random) -> int:
    """Returns how many answers had to come by now."""
    cases = [either(rng) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.4:
        for case in cases:
            client.ask(case)
        await client.flush()
        await client.read()
        return len(cases)
    for case in cases:
        client.ask(case)
    least = 0
    match rng.randrange(8):
        case 0:  # a stream that is reset, in the middle of its body or of its answer
            number = client.ask(sample(rng), is_ended=rng.random() < 0.5)
            await client.flush()
            client.h2.reset_stream(number)
            client.n_reset += 1
            await client.flush()
            least = len(cases)
        case 1:  # odd headers
            odd = [("x-a", "v" * 5000), ("x-\x00", "v"), ("te", "gzip"), ("connection", "close"), (":path", "/")]
            odd += [("X-Upper", "v"), ("content-length", "5"), ("x" * 70_000, "v"), ("host", "y"), ("", "")]
            client.ask(either(rng), (rng.choice(odd),))
            await client.flush()
        case 2:  # odd methods and paths
            method = rng.choice(["CONNECT", "get", "HEAD", "", "TRACE", "é", "X" * 300])
            client.ask(Case(method, rng.choice(["/health", "", "*", "http://x/health", "/é", "x", "/\x00"])))
            await client.flush()
        case 3:  # frames out of nowhere
            frames = [
                b"\x00\x00\x05\x02\x00\x00\x00\x00\x63\x00\x00\x00\x63\x10",  # PRIORITY of a stream on itself
                b"\x00\x00\x05\x02\x00\x00\x00\x00\x63\x00\x00\x00\x00\x10" * 1500,  # of idle streams
                b"\x00\x00\x04\x08\x00\x00\x00\x00\x01\x7f\xff\xff\xff",  # a window that overflows
                b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",  # by nothing
                b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8),  # PING
                b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff",  # SETTINGS
                b"\x00\x00\x01\x09\x04\x00\x00\x00\x01\x00",  # CONTINUATION of nothing
                b"\x00\x00\x01\x00\x01\x00\x00\x00\x01\x00",  # more of a body that has ended
                b"\x00\x00\x04\x03\x00\x00\x00\x00\x99" + bytes(4),  # RST_STREAM of an idle stream
            ]
            await client.flush(rng.choice(frames))
        case 4:  # noise, which may be the beginning of a frame: what the client says from then on is inside it
            too_large = b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"
            await client.flush(rng.choice([too_large, rng.randbytes(rng.randint(1, 200))]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NOISE_S):
                    await client.read()
            return 0
        case 5:  # the connection ends
            await client.flush()
            client.h2.close_connection()
            await client.flush()
            return 0
        case 6:  # a reset, or just gone
            await client.flush(PREFACE if rng.random() < 0.3 else b"")
            return 0
        case _:  # no room for the answers, and then some
            client.h2.update_settings({4: 0})
            await client.flush()
            await asyncio.sleep(0.05)
            client.h2.update_settings({4: 65_535})
            await client.flush()
            least = len(cases)
    with contextlib.suppress(h2.exceptions.ProtocolError):
        await client.read()
    return least

"""From token bytes to the text that may leave: whole characters, and nothing of a stop text. Pure."""

import codecs
from collections.abc import Iterable
from typing import NamedTuple


class TextStep(NamedTuple):
    text: str  #: may leave now; often empty
    stopped: bool = False  #: a stop text is complete: the answer ends here


class StopFinder:
    """Finds the stop text that begins earliest, in text that arrives in pieces.

    Text is held back from the first place where a stop text may still turn out to begin. A complete match waits, too,
    while one that began before it is undecided, so that the answer is the same however the text was cut into pieces.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Empty stop texts are ignored."""
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._held = ""

    @property
    def held(self) -> str:
        return self._held

    def feed(self, text: str) -> TextStep:
        if not self._stops:
            return TextStep(text)
        self._held += text
        match = self._match()
        undecided = self._undecided()
        if match < len(self._held) and match <= undecided:
            return TextStep(self._take(match), stopped=True)
        return TextStep(self._take(min(match, undecided)))

    def finish(self) -> TextStep:
        """No more text comes: what was held back leaves, up to a complete match."""
        match = self._match()
        stopped = match < len(self._held)
        return TextStep(self._take(match), stopped)

    def _take(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text

    def _match(self) -> int:
        """Where the earliest complete stop text begins; the end of the held text when there is none."""
        found = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        return min(found, default=len(self._held))

    def _undecided(self) -> int:
        """Where the earliest beginning of a stop text at the end of the held text is; its end when there is none."""
        held = self._held
        earliest = len(held)
        for stop in self._stops:
            for start in range(max(0, len(held) - len(stop) + 1), earliest):
                if stop.startswith(held[start:]):
                    earliest = start
                    break
        return earliest


class AnswerText:
    """One answer's text. Bytes of tokens go in, text that may leave comes out.

    Bytes that can never be UTF-8 become U+FFFD. A character that is not whole when the answer ends is dropped.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopFinder(stops)
        self.decoded = ""  #: what the last piece completed, whether it may leave or not

    @property
    def held(self) -> bytes:
        """What did not leave yet."""
        return self._stops.held.encode() + self._decoder.getstate()[0]

    def feed(self, piece: bytes) -> TextStep:
        self.decoded = self._decoder.decode(piece)
        return self._stops.feed(self.decoded)

    def finish(self) -> TextStep:
        return self._stops.finish()

"""How long answers become, from a sample of which some were cut short. Pure."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

GUESS_TOKENS = 256  #: of an answer, as long as none has been seen


class AnswerLengths:
    """The Kaplan-Meier estimate of how many tokens answers have when nothing cuts them.

    An answer that was cut (`max_tokens`, a client that left) says that it would have been longer, not how long: the
    mean of such a sample is too small for every request with a higher limit. Beyond the longest answer seen, where the
    estimate ends, answers are taken to end at the rate at which all of them did.
    """

    def __init__(self, ended: Sequence[int], cut: Sequence[int]) -> None:
        self.count = len(ended) + len(cut)
        n_ended, n_cut = Counter(ended), Counter(cut)
        exposure = sum(ended) + sum(cut)
        self._rate = (len(ended) + 0.5) / exposure if exposure else 1.0 / GUESS_TOKENS
        self._times = [0.0]
        self._survival = [1.0]  #: share of the answers that are longer than `_times`
        self._areas = [0.0]  #: mean of min(length, `_times`)
        at_risk = self.count
        for tokens in sorted(n_ended | n_cut):
            self._areas.append(self._areas[-1] + self._survival[-1] * (tokens - self._times[-1]))
            self._times.append(float(tokens))
            self._survival.append(self._survival[-1] * (1 - n_ended[tokens] / at_risk))
            at_risk -= n_ended[tokens] + n_cut[tokens]

    def expected(self, limit: float, done: float = 0.0) -> float:
        """Tokens still to come of an answer that has `done` of them and is cut at `limit`."""
        left = max(0.0, limit - done)
        surviving = self._survival[bisect_right(self._times, done) - 1]
        if not self.count:
            return min(left, max(1.0, GUESS_TOKENS - done))
        if done >= self._times[-1] or surviving <= 0:  # longer than all that were seen
            return min(left, (1 - math.exp(-self._rate * left)) / self._rate)
        return min(left, max(0.0, self._area(limit) - self._area(done)) / surviving)

    def _area(self, limit: float) -> float:
        """The mean of min(length, `limit`)."""
        at = bisect_right(self._times, limit) - 1
        beyond = limit - self._times[at]
        if at == len(self._times) - 1:
            beyond = (1 - math.exp(-self._rate * beyond)) / self._rate
        return self._areas[at] + self._survival[at] * beyond

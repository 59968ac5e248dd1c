"""Turns the bytes of several downloads into one status line and one fraction."""

import time
from collections.abc import Callable, Sequence

from tasks.download import MEGABYTE, Job, Tell

Report = Callable[[str, float], None]  #: a status line for people, and the fraction (0..1) of all downloads

REPORT_INTERVAL_S = 1.0  #: a heartbeat


class DownloadProgress:
    """Progress over all files that one start downloads. Used by one thread."""

    def __init__(self, report: Report, jobs: Sequence[Job], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._total_bytes = sum(job.file.size for job in jobs) or 1
        self._before_bytes = 0  # of the files that are done
        self._last_report_s = float("-inf")

    def file_started(self, job: Job) -> Tell:
        """What `download` calls for this file, as often as it likes: one report a second comes of it."""
        size, name = job.file.size, job.file.name
        began_s, began_bytes = self._clock(), size - job.missing_bytes()

        def tell(doing: str, done_bytes: int) -> None:
            now_s = self._clock()
            if now_s - self._last_report_s < REPORT_INTERVAL_S:
                return
            self._last_report_s = now_s
            line = f"{doing} {name}: {100 * done_bytes // size} % of {size / MEGABYTE:,.0f} MB"
            if doing == "downloading" and now_s > began_s and done_bytes > began_bytes:
                line += f", {(done_bytes - began_bytes) / MEGABYTE / (now_s - began_s):,.1f} MB/s"
            fetched_bytes = size if doing == "verifying" else done_bytes
            self._report(line, min(1.0, (self._before_bytes + fetched_bytes) / self._total_bytes))

        tell("downloading", began_bytes)
        return tell

    def file_done(self, job: Job) -> None:
        self._before_bytes += job.file.size
        fraction = self._before_bytes / self._total_bytes
        self._report(f"downloaded {job.file.name}: {job.file.size / MEGABYTE:,.0f} MB", min(1.0, fraction))

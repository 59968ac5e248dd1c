"""One run of `embed`: sends the texts as batches, waits, collects their vectors, writes OUTPUT."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from api.batch_command.answers import lines_of, parse_answer
from api.batch_command.http_client import FINAL, TRY_AGAIN, BatchApi, Json
from api.batch_command.inputs import Item
from api.batch_command.job import Job, why_it_ended
from api.batch_command.ledger import Ledger, Sent
from api.batch_command.outputs import Row, write_output
from api.batch_command.problems import CommandError, ServerError, UsageError
from api.batch_command.progress import Bar
from api.batch_command.request_files import RequestFile, RequestFiles
from api.batch_command.vectors import CHUNK_ROWS, VectorFile

IN_FLIGHT = 4  #: batches on the server at a time, so that a long input does not fill its disk
MAX_SHOWN = 20  #: failed texts that are listed
MAX_TRIES = 5  #: of a download that breaks
POLL_S = 0.5
MAX_POLL_S = 5.0
NO_ANSWER = "the batch has no answer for it"


class Run:
    """Holds none of the texts and none of the vectors in memory. `close` comes last."""

    def __init__(self, job: Job, api: BatchApi, resume: bool) -> None:
        self._job = job
        self._api = api
        self._count, fingerprint = job.source.measure()
        if not self._count:
            raise UsageError(f"there are no texts in {job.source.path}")
        if job.state_path.exists() and not resume:
            raise UsageError(
                f"{job.state_path} is of a run that has not ended; --resume goes on with it, deleting it begins anew"
            )
        if not job.state_path.exists():
            job.vectors_path.unlink(missing_ok=True)
        self._ledger = Ledger(job.state_path)
        self._keep_what_fits(fingerprint)
        self._vectors = VectorFile(job.vectors_path, self._count)
        self._in_flight: dict[int, Sent] = {batch.number: batch for batch in self._ledger.open_batches()}
        self._done_of: dict[int, int] = {}  #: by batch number: texts that the server has done
        self._had = self._vectors.count()
        self._tries: Counter[int] = Counter()  #: by batch number: times that collecting it has failed
        self._problems: list[str] = []
        self._failures = 0
        self._limit = None if job.detach else IN_FLIGHT
        self._waiting: RequestFile | None = None  #: written, and refused by a server that was full
        self.bar = Bar(self._count, self._had)

    def close(self) -> None:
        self._vectors.close()
        self._ledger.close()
        self._requests_path.unlink(missing_ok=True)

    def _keep_what_fits(self, fingerprint: str) -> None:
        job = self._job
        facts = {
            "input": fingerprint,
            "model": job.model,
            "dimensions": str(job.dimensions),
            "server": self._api.server,
        }
        for name, value in facts.items():
            before = self._ledger.fact(name)
            if before is None:
                self._ledger.set_fact(name, value)
            elif before != value:
                self._ledger.close()
                raise UsageError(
                    f"--resume: the {name} is not that of the run in {job.state_path}; delete it to begin anew"
                )
        self._ledger.forget_failures()

    # -- the run -----------------------------------------------------------------------------------

    def send_all(self) -> None:
        """Without waiting for any answer."""
        self._settle()
        self._limit = None
        files = self._request_files()
        while self._send_next(files):
            pass
        if self._waiting is not None:
            raise ServerError("the server has no room for the rest; --resume sends it when batches have ended")

    def finish(self) -> int:
        """Send, wait, collect, write. How many texts have failed. Raises CommandError."""
        self._settle()
        files = self._request_files()
        pause_s = POLL_S
        while True:
            while self._may_send() and self._send_next(files):
                pause_s = POLL_S
            if not self._in_flight:
                break
            if self._poll():
                pause_s = POLL_S
            else:
                time.sleep(pause_s)
                pause_s = min(MAX_POLL_S, pause_s * 1.3)
        if self._problems:
            raise CommandError("\n".join([*self._problems, "run it again with --resume to go on"]))
        return self._write()

    def cancel(self) -> int:
        """Cancel what runs on the server. How many batches."""
        cancelled = 0
        for batch in self._in_flight.values():
            if batch.batch_id is not None:
                try:
                    self._api.cancel(batch.batch_id)
                    cancelled += 1
                except ServerError as exc:
                    self.bar.say(f"{batch.batch_id} was not cancelled: {exc}")
        return cancelled

    def batch_ids(self) -> list[str]:
        return [batch.batch_id for batch in self._in_flight.values() if batch.batch_id is not None]

    # -- sending -----------------------------------------------------------------------------------

    @property
    def _requests_path(self) -> Path:
        return self._job.output.with_name(self._job.output.name + ".requests.jsonl")

    def _request_files(self) -> RequestFiles:
        job = self._job
        return RequestFiles(self._unanswered(), self._requests_path, job.model, job.dimensions, job.limits)

    def _unanswered(self) -> Iterator[Item | None]:
        """What is to be asked for; None where the range of a batch that was sent before lies between."""
        sent = list(self._in_flight.values())
        for item in self._job.source.items():
            if any(batch.first <= item.row <= batch.last for batch in sent):
                yield None
            elif not item.error and not self._vectors.has(item.row):
                yield item

    def _may_send(self) -> bool:
        return not self._problems and (self._limit is None or len(self._in_flight) < self._limit)

    def _send_next(self, files: RequestFiles) -> bool:
        """False: there is nothing more to send, or the server takes nothing more now."""
        file = self._waiting or files.write_next()
        self._waiting = None
        if file is None:
            return False
        try:
            file_id = self._api.upload(file.path)
            number = self._ledger.add(file.first, file.last, file.texts, file_id)
            self._in_flight[number] = Sent(number, file.first, file.last, file.texts, file_id, None)
            self._start(number)
        except ServerError as exc:
            if not exc.is_full or not self.batch_ids():
                raise
            self._waiting = file
            self._limit = len(self._in_flight)
            return False
        return True

    def _start(self, number: int) -> None:
        batch = self._in_flight[number]
        try:
            batch_id = self._api.create(batch.file_id)["id"]
        except ServerError:
            self._forget(number)
            self._api.delete_file(batch.file_id)
            raise
        self._ledger.started(number, batch_id)
        self._in_flight[number] = batch._replace(batch_id=batch_id)

    # -- collecting --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Look what became of the batches that an earlier run sent. What they lack is asked for anew."""
        for number, batch in list(self._in_flight.items()):
            state = self._state_of(batch)
            while state is not None and state["status"] == "cancelling":
                self.bar.update(self._had, "cancelling")
                time.sleep(POLL_S)
                state = self._state_of(batch)
            if state is None:
                self._forget(number)
                continue
            self._ledger.started(number, state["id"])
            self._in_flight[number] = batch._replace(batch_id=state["id"])
            if state["status"] in FINAL:
                self._collect(number, state)
        self._problems = []
        self._had = self._vectors.count()
        self.bar.begin_at(self._had)

    def _state_of(self, batch: Sent) -> Json | None:
        """None: the server does not know it."""
        try:
            if batch.batch_id is None:  # a crash came between the upload and the answer
                return self._api.batch_of_file(batch.file_id)
            return self._api.batch(batch.batch_id)
        except ServerError as exc:
            if exc.status == 404:
                return None
            raise

    def _forget(self, number: int) -> None:
        del self._in_flight[number]
        self._ledger.collected(number, [])

    def _poll(self) -> bool:
        """True: a batch was collected."""
        has_collected = False
        states = set()
        for number, batch in list(self._in_flight.items()):
            assert batch.batch_id is not None
            state = self._api.batch(batch.batch_id)
            counts = state.get("request_counts") or {}
            self._done_of[number] = int(counts.get("completed") or 0) + int(counts.get("failed") or 0)
            states.add(state["status"])
            if state["status"] in FINAL:
                has_collected |= self._try_to_collect(number, state)
        word = next((word for word in ("in_progress", "finalizing", "validating") if word in states), "embedding")
        self.bar.update(self._had + sum(self._done_of.values()), word)
        return has_collected

    def _try_to_collect(self, number: int, state: Json) -> bool:
        try:
            self._collect(number, state)
        except ServerError as exc:
            self._tries[number] += 1
            if exc.status not in TRY_AGAIN or self._tries[number] == MAX_TRIES:
                raise
            self.bar.say(f"{exc}; trying again")
            return False
        return True

    def _collect(self, number: int, state: Json) -> None:
        """Its vectors and failures; may be repeated."""
        batch = self._in_flight[number]
        files = [state.get("output_file_id"), state.get("error_file_id")]
        failed = {}
        for file_id in filter(None, files):
            with self._api.content(file_id) as chunks:
                for answer in map(parse_answer, lines_of(chunks)):
                    if answer is not None and batch.first <= answer.row <= batch.last:
                        reason = answer.error or self._vectors.put(answer.row, answer.embedding)
                        if reason:
                            failed[answer.row] = reason
        self._vectors.flush()
        if state["status"] != "completed":
            self._problems.append(why_it_ended(state))
        self._ledger.collected(number, failed.items())
        del self._in_flight[number]
        for file_id in filter(None, [batch.file_id, *files]):
            self._api.delete_file(file_id)

    # -- writing -----------------------------------------------------------------------------------

    def _write(self) -> int:
        """How many texts have failed; the state is kept when there are any, so that --resume tries those again."""
        write_output(self._job.output, self._rows(), self._vectors, self._count)
        if not self._failures:
            self._vectors.close()
            self._ledger.close()
            self._job.state_path.unlink()
            self._job.vectors_path.unlink(missing_ok=True)
        return self._failures

    def _rows(self) -> Iterator[Row]:
        for item in self._job.source.items():
            if item.row % CHUNK_ROWS == 0:
                self._vectors.flush()
            vector = self._vectors.get(item.row)
            if vector is not None:
                yield Row(item, vector, "")
                continue
            reason = item.error or self._ledger.failure(item.row) or NO_ANSWER
            self._failures += 1
            if self._failures <= MAX_SHOWN:
                self.bar.say(f"{item.place}: {reason}")
            yield Row(item, None, reason)

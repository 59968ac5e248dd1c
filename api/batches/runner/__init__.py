"""What executes batches, in each API process.

    run.py           Runner and BatchRun: one batch from its first window to its output files
    windows.py       the input cut into windows; the answers of one window
    embeddings.py    lines of /v1/embeddings: texts sorted by length, packed into slices
    packing.py       how much fits into a slice that ends within a second
    generations.py   lines of the chat and completions endpoints
    lane.py          requests on the batch lane: nobody waits at a socket, so a refusal is waited out
    answer_lines.py  lines of the output and error files
    parts.py         what is kept of a window that is done

Windows are cut by the file alone, so a process that takes a batch over cuts them alike and leaves out those that are
done. A window is done once its record is there, which is created exclusively: whoever else did it too is too late.
"""

from typing import TYPE_CHECKING

from api.batches.runner.lane import BatchLane
from api.batches.runner.run import Runner

if TYPE_CHECKING:
    from api.batches.service import Batches


def make_runner(batches: "Batches") -> Runner:
    """Of one process. Its jobs must be a JobClient."""
    lane = BatchLane(batches.jobs, batches.live)  # type: ignore[arg-type]
    return Runner(batches.settings, batches.files, batches.store, batches.live, lane)

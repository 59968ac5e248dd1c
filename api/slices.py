"""The slices of an embeddings request, put together into one answer."""

from contextlib import aclosing

from api.job import JobState
from api.job_types import EmbeddingAnswer, RequestFailed
from tasks.contracts import Finished, Vectors


async def with_slice(answer: EmbeddingAnswer, state: JobState, first_index: int) -> EmbeddingAnswer:
    """`answer` with one slice's vectors added; indexes are counted from the whole input."""
    vectors: list[Vectors] = []
    prompt_tokens = 0
    async with aclosing(state.events()) as events:
        async for event in events:
            if isinstance(event, Vectors):
                vectors.append(event)
            elif isinstance(event, Finished):
                prompt_tokens = event.usage.prompt_tokens
    (got,) = vectors
    row = got.width * 4
    return EmbeddingAnswer(
        width=got.width,
        vectors=answer.vectors + [got.data[at : at + row] for at in range(0, len(got.data), row)],
        prompt_tokens=answer.prompt_tokens + prompt_tokens,
        truncated=answer.truncated + [first_index + position for position in got.truncated],
        queue_ms=answer.queue_ms if first_index else state.queue_ms(),
    )


def reindexed(exc: RequestFailed, first_index: int) -> RequestFailed:
    """Its `input[i]` counted from the whole input."""
    if exc.param is None or not exc.param.startswith("input["):
        return exc
    param = f"input[{first_index + int(exc.param[len('input[') : -1])}]"
    return exc.reworded(exc.message.replace(exc.param, param), param)

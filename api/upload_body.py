"""The body of an upload: it holds little, and lets the client wait while that is not read."""

import asyncio
from typing import Any, cast

from api.batches.upload import MAX_FILE_BYTES
from api.body import BoundedBody, BoundedRequest

MAX_UPLOAD_BYTES = MAX_FILE_BYTES + 1024 * 1024  #: of the whole body: a file, and the form around it
HELD_BYTES = 1024 * 1024  #: from here on nothing more is taken from the connection
UPLOAD_PATHS = frozenset({"/files", "/v1/files"})
BODY = "lis.upload"  #: scope key of an upload's UploadBody


class UploadBody(BoundedBody):
    """api.edge.Exchange asks it for room before it takes more from the connection."""

    def __init__(self, expected_content_length: int | None, max_content_length: int) -> None:
        super().__init__(expected_content_length, max_content_length)
        self._is_free = False
        self._room = asyncio.Event()
        self._room.set()

    def append(self, data: bytes) -> None:
        super().append(data)
        if len(self._data) >= HELD_BYTES and not self._is_free:
            self._room.clear()

    async def __anext__(self) -> bytes:
        data = await super().__anext__()
        self._room.set()
        return data

    async def wait_for_room(self) -> None:
        await self._room.wait()

    def let_go(self) -> None:
        """Nobody reads it any more."""
        self._is_free = True
        self._data.clear()
        self._room.set()


class ApiRequest(BoundedRequest):
    """Uploads have a bound of their own, above LIS_MAX_BODY_BYTES."""

    def __init__(self, method: str, scheme: str, path: str, *rest: Any, **options: Any) -> None:
        super().__init__(method, scheme, path, *rest, **options)
        if method == "POST" and path in UPLOAD_PATHS:
            self.body = UploadBody(self.content_length, MAX_UPLOAD_BYTES)
            cast(dict[str, Any], self.scope)[BODY] = self.body

"""`service_tier`, in the body or as a header: whether a request may wait behind the others."""

from typing import Any

from api.protocol.fields import Fields, InvalidRequest
from tasks.contracts import Lane

FLEX = "flex"
TIERS = {FLEX: Lane.BATCH, "auto": Lane.INTERACTIVE, "default": Lane.INTERACTIVE, "priority": Lane.INTERACTIVE}
HEADERS = ("service-tier", "x-service-tier")


def read_lane(body: dict[str, Any], header: str | None) -> Lane:
    """The lane that the request asks for; the body goes before the header. Raises InvalidRequest."""
    tier = Fields(body).string("service_tier")
    if tier is None:
        tier = header.strip().lower() if header and header.strip() else "default"
    if tier not in TIERS:
        expected = ", ".join(f"'{name}'" for name in TIERS)
        raise InvalidRequest(f"'service_tier' must be one of: {expected}.", "service_tier")
    return TIERS[tier]


def tier_of(lane: Lane) -> str:
    """What the answer says: the tier that served it, by OpenAI's names."""
    return FLEX if lane is Lane.BATCH else "default"

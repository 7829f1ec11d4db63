"""What a call can end with other than success."""

from __future__ import annotations

import re
from typing import Any, Optional, Type

import grpc

_FIELD = re.compile(r"([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z][a-z0-9_]*(?:\[\d+\])?)*): ")
# Milliseconds, told by the server.
_RETRY_AFTER = "retry-after-ms"
# What proxies tell (gRFC A6); below 0, or no number: do not try again.
_PUSHBACK = "grpc-retry-pushback-ms"
_DAY = 24 * 60 * 60 * 1000


class EteError(Exception):
    """`field` is the request's field that was refused, or None; `retry_delay` what the server asks to wait, in seconds,
    below 0 when it asks not to try again, or None."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        field: Optional[str] = None,
        retry_delay: Optional[float] = None,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.field = field
        self.retry_delay = retry_delay


class InvalidArgument(EteError):
    pass


class ResourceExhausted(EteError):
    pass


class Unavailable(EteError):
    pass


class DeadlineExceeded(EteError):
    pass


class Cancelled(EteError):
    pass


class Unauthenticated(EteError):
    pass


_CLASSES: dict[grpc.StatusCode, Type[EteError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
}


def make_error(code: grpc.StatusCode, message: str, retry_delay: Optional[float] = None) -> EteError:
    match = _FIELD.match(message) if code == grpc.StatusCode.INVALID_ARGUMENT else None
    return _CLASSES.get(code, EteError)(code, message, match.group(1) if match else None, retry_delay)


def from_rpc_error(error: Any) -> EteError:
    """Of a grpc.RpcError as calls raise it."""
    return make_error(error.code(), error.details() or "", _retry_delay(error.trailing_metadata()))


def _retry_delay(metadata: Any) -> Optional[float]:
    # Not dict(): grpc.aio's Metadata looks like a mapping to it, and its keys() are pairs.
    told = {key: value for key, value in metadata or ()}
    if _PUSHBACK in told:
        value = _milliseconds(told[_PUSHBACK])
        return -1.0 if value is None else value / 1000
    value = _milliseconds(told.get(_RETRY_AFTER, ""))
    return value / 1000 if value is not None and value >= 0 else None


def _milliseconds(text: str) -> Optional[int]:
    """None: no number, or of more than a day."""
    try:
        value = int(text)
    except ValueError:
        return None
    return value if value <= _DAY else None

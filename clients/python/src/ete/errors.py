"""What a call can end with other than success."""

from __future__ import annotations

import re
from typing import Any, Optional, Type

import grpc

_FIELD = re.compile(r"([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z][a-z0-9_]*(?:\[\d+\])?)*): ")
# gRPC's own name for it (gRFC A6). Milliseconds; below 0: do not try again.
_PUSHBACK = "grpc-retry-pushback-ms"


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
    return make_error(error.code(), error.details() or "", _pushback(error.trailing_metadata()))


def _pushback(metadata: Any) -> Optional[float]:
    for key, value in metadata or ():
        if key == _PUSHBACK:
            try:
                return int(value) / 1000
            except ValueError:
                return -1.0  # as gRFC A6 has it
    return None

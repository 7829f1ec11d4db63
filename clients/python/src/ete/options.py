"""How a client connects and when it tries again."""

from __future__ import annotations

import dataclasses
import ipaddress
import random
import urllib.parse
from typing import Any, Optional

import grpc

from ete.errors import EteError


@dataclasses.dataclass(frozen=True)
class Tls:
    """PEM. Without root certificates those of the system that gRPC knows; certificate and key for servers that ask who
    calls; server_name when the server's certificate has another name than the address."""

    root_certificates: Optional[bytes] = None
    certificate: Optional[bytes] = None
    private_key: Optional[bytes] = None
    server_name: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Retry:
    """Tries again, while nothing has been handed out, when the server is not available, and whenever it says after
    which delay to come back. Without that the delay doubles from `initial` to `maximum` seconds, each a fifth more or
    less."""

    attempts: int = 5
    initial: float = 0.2
    maximum: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 0 <= self.initial <= self.maximum:
            raise ValueError(f"{self}: at least 1 attempt, and 0 <= initial <= maximum")

    def delay(self, error: EteError, attempt: int) -> Optional[float]:
        """Seconds to wait after attempt 1, 2, ... ended with `error`; None: it stands."""
        if attempt >= self.attempts:
            return None
        if error.retry_delay is not None:
            return error.retry_delay if error.retry_delay >= 0 else None
        if error.code != grpc.StatusCode.UNAVAILABLE:
            return None
        # Past 2^30 the maximum has long been reached.
        return min(self.maximum, self.initial * 2.0 ** min(attempt - 1, 30)) * random.uniform(0.8, 1.2)


def target(address: str) -> str:
    """gRPC's name for host:port or unix:PATH."""
    if not isinstance(address, str):
        raise TypeError(f"address {address!r}: a str, host:port or unix:PATH, is expected")
    if address.startswith("unix:"):
        path = address[len("unix:") :]
        if not path:
            raise ValueError(f"address {address!r}: unix: and the path of a socket are expected")
        return "unix:" + urllib.parse.quote(path)
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"address {address!r}: host:port or unix:PATH is expected")
    return address


def channel_options(tls: Optional[Tls]) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    if (tls.certificate is None) != (tls.private_key is None):
        raise ValueError("tls: certificate and private_key belong together")
    return grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate)


def check_types(tls: object, token: object, retry: object) -> None:
    for name, value, kind in (("tls", tls, Tls), ("token", token, str)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} {value!r}: None or {kind.__name__} is expected")
    if not isinstance(retry, Retry):
        raise TypeError(f"retry {retry!r}: Retry is expected; Retry(attempts=1) never tries again")


def metadata(address: str, tls: Optional[Tls], token: Optional[str]) -> tuple[tuple[str, str], ...]:
    """Throws ValueError rather than send a token in the clear to another machine."""
    if token is None:
        return ()
    if tls is None and not _is_local(address):
        raise ValueError(f"token: {address} is another machine and the connection is not encrypted; give tls")
    return (("authorization", f"Bearer {token}"),)


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

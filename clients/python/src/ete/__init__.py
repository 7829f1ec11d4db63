"""Text generation by an `ete serve`: ete.Client for threads, ete.aio.Client for asyncio."""

from ete.client import Client, Stream
from ete.errors import (
    Cancelled,
    DeadlineExceeded,
    EteError,
    InvalidArgument,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from ete.options import Retry, Tls
from ete.piece import Piece
from ete.v1.generation_pb2 import (
    Finish,
    FinishReason,
    GenerateRequest,
    Logprobs,
    PromptInfo,
    PromptProgress,
    Sampling,
    Stopping,
    TokenIds,
    TokenLogprobs,
)

__all__ = [
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "EteError",
    "Finish",
    "FinishReason",
    "GenerateRequest",
    "InvalidArgument",
    "Logprobs",
    "Piece",
    "PromptInfo",
    "PromptProgress",
    "ResourceExhausted",
    "Retry",
    "Sampling",
    "Stopping",
    "Stream",
    "Tls",
    "TokenIds",
    "TokenLogprobs",
    "Unauthenticated",
    "Unavailable",
]

"""A part of the generated text."""

from __future__ import annotations

import dataclasses

from ete.v1 import generation_pb2


@dataclasses.dataclass(frozen=True)
class Piece:
    """Whole characters, "" while one is incomplete or may begin a stop string; the ids behind them; one of logprobs for
    each id when the request asked."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[generation_pb2.TokenLogprobs, ...]


def from_message(message: generation_pb2.Piece) -> Piece:
    return Piece(message.text.decode(), tuple(message.ids), tuple(message.logprobs))

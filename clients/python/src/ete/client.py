"""The client for threads."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Type

import grpc

from ete import errors, options, piece
from ete.v1 import generation_pb2, generation_pb2_grpc

# Told of each new attempt: the error that the last one ended with, its number from 1 on, the seconds until the next.
OnRetry = Callable[[errors.EteError, int, float], None]
# Told how much of the prompt is processed, before the first piece.
OnProgress = Callable[[generation_pb2.PromptProgress], None]


def asked(
    request: generation_pb2.GenerateRequest, on_progress: Optional[OnProgress]
) -> generation_pb2.GenerateRequest:
    """The request; a copy that asks for progress when somebody is to be told."""
    if on_progress is None:
        return request
    asking = generation_pb2.GenerateRequest()
    asking.CopyFrom(request)
    asking.prompt_progress = True
    return asking


class Client:
    """One connection, for any number of threads.

    `address` is host:port or unix:PATH. Raises ValueError for options that contradict each
    other, TypeError for those of other types.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: Optional[options.Tls] = None,
        token: Optional[str] = None,
        retry: options.Retry = options.Retry(),
        on_retry: Optional[OnRetry] = None,
    ) -> None:
        options.check_types(tls, token, retry)
        target, arguments = options.target(address), options.channel_options(tls)
        self._metadata = options.metadata(address, tls, token)
        self._retry = retry
        self._on_retry = on_retry
        if tls is None:
            self._channel = grpc.insecure_channel(target, arguments)
        else:
            self._channel = grpc.secure_channel(target, options.credentials(tls), arguments)
        self._stub = generation_pb2_grpc.GenerationStub(self._channel)

    def generate(
        self,
        request: generation_pb2.GenerateRequest,
        *,
        timeout: Optional[float] = None,
        on_progress: Optional[OnProgress] = None,
    ) -> Stream:
        """Starts a generation. `timeout`: seconds until DeadlineExceeded, all attempts together. `on_progress` is called
        by whoever waits for the first piece."""
        request = asked(request, on_progress)

        def call(remaining: Optional[float]) -> Any:
            return self._stub.Generate(request, timeout=remaining, metadata=self._metadata)

        return Stream(call, self._retry, self._on_retry, timeout, on_progress)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class Stream:
    """The pieces of one generation, for one thread; cancel() may be called by any. Leaving its `with` cancels what
    still runs. Raises EteError; pieces that came before stand."""

    def __init__(
        self,
        call: Callable[[Optional[float]], Any],
        retry: options.Retry,
        on_retry: Optional[OnRetry],
        timeout: Optional[float],
        on_progress: Optional[OnProgress],
    ) -> None:
        self.prompt: Optional[generation_pb2.PromptInfo] = None
        self.finish: Optional[generation_pb2.Finish] = None
        self._start = call
        self._retry = retry
        self._on_retry = on_retry
        self._on_progress = on_progress
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._attempt = 1
        self._handed_out = False
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._call = call(timeout)

    def cancel(self) -> None:
        """Ends the generation on the server too; the next piece raises Cancelled."""
        with self._lock:
            self._cancelled.set()
            self._call.cancel()

    def __iter__(self) -> Iterator[piece.Piece]:
        return self

    def __next__(self) -> piece.Piece:
        while True:
            try:
                for reply in self._call:
                    kind = reply.WhichOneof("reply")
                    if kind == "prompt":
                        self.prompt = reply.prompt
                    elif kind == "finish":
                        self.finish = reply.finish
                    elif kind == "progress" and self._on_progress is not None:
                        self._on_progress(reply.progress)
                    elif kind == "piece":
                        self._handed_out = True
                        return piece.from_message(reply.piece)
                raise StopIteration
            except grpc.RpcError as error:
                self._try_again(errors.from_rpc_error(error))

    def _try_again(self, error: errors.EteError) -> None:
        """Raises `error` unless the generation was started once more."""
        delay = None if self._handed_out or self._cancelled.is_set() else self._retry.delay(error, self._attempt)
        if delay is None or (self._deadline is not None and time.monotonic() + delay >= self._deadline):
            raise error from None
        if self._on_retry is not None:
            self._on_retry(error, self._attempt, delay)
        self._cancelled.wait(delay)
        with self._lock:
            if self._cancelled.is_set():
                raise errors.make_error(grpc.StatusCode.CANCELLED, "cancelled while waiting to try again")
            self._attempt += 1
            self._call = self._start(None if self._deadline is None else self._deadline - time.monotonic())

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self.finish is None:
            self.cancel()

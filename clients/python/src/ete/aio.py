"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Optional, Type

import grpc
import grpc.aio

from ete import errors, options, piece
from ete.client import OnProgress, OnRetry, asked
from ete.v1 import generation_pb2, generation_pb2_grpc


class Client:
    """As ete.Client, for the tasks of one event loop; made inside it."""

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
            self._channel = grpc.aio.insecure_channel(target, arguments)
        else:
            self._channel = grpc.aio.secure_channel(target, options.credentials(tls), arguments)
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

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()


class Stream:
    """The pieces of one generation, for one task. cancel() ends it; so does cancelling that task, or leaving
    `async with`. Raises EteError; pieces that came before stand."""

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
        self._cancelled = asyncio.Event()
        self._call = call(timeout)

    def cancel(self) -> None:
        """Ends the generation on the server too; the next piece raises Cancelled."""
        self._cancelled.set()
        self._call.cancel()

    def __aiter__(self) -> AsyncIterator[piece.Piece]:
        return self

    async def __anext__(self) -> piece.Piece:
        while True:
            try:
                while (reply := await self._read()) is not grpc.aio.EOF:
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
                raise StopAsyncIteration
            except grpc.aio.AioRpcError as error:
                await self._try_again(errors.from_rpc_error(error))

    async def _read(self) -> Any:
        try:
            return await self._call.read()
        except asyncio.CancelledError:
            # grpc.aio raises this for its own cancel() too, where nobody cancelled the task.
            if self._cancelled.is_set():
                raise self._cancelled_error() from None
            raise

    async def _try_again(self, error: errors.EteError) -> None:
        """Raises `error` unless the generation was started once more."""
        delay = None if self._handed_out or self._cancelled.is_set() else self._retry.delay(error, self._attempt)
        if delay is None or (self._deadline is not None and time.monotonic() + delay >= self._deadline):
            raise error from None
        if self._on_retry is not None:
            self._on_retry(error, self._attempt, delay)
        try:
            await asyncio.wait_for(self._cancelled.wait(), delay)
        except asyncio.TimeoutError:
            self._attempt += 1
            self._call = self._start(None if self._deadline is None else self._deadline - time.monotonic())
        else:
            raise self._cancelled_error()

    @staticmethod
    def _cancelled_error() -> errors.EteError:
        return errors.make_error(grpc.StatusCode.CANCELLED, "cancelled by this client")

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self.finish is None:
            self.cancel()

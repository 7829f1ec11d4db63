#!/usr/bin/python3
"""Streams the continuation of a prompt to stdout; everything else is said on stderr."""

import argparse
import asyncio
import pathlib
import sys
import time

import ete
import ete.aio


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="host:port or unix:PATH")
    parser.add_argument("prompt")
    parser.add_argument("--asyncio", action="store_true", help="by ete.aio instead of ete.Client")
    parser.add_argument("--max-tokens", type=int, metavar="N")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--temperature", type=float, metavar="X")
    parser.add_argument("--top-p", type=float, metavar="X")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="may be repeated")
    parser.add_argument("--logprobs", type=int, metavar="N", help="a line for each token, with N others")
    parser.add_argument("--progress", action="store_true", help="tell how much of the prompt is processed")
    parser.add_argument("--deadline", type=float, metavar="SECONDS")
    parser.add_argument("--cancel-after", type=int, metavar="N", help="cancel after N pieces")
    parser.add_argument("--attempts", type=int, default=5, metavar="N", help="1: do not try again [5]")
    parser.add_argument("--tls", action="store_true", help="with the system's root certificates")
    parser.add_argument("--root-cert", type=pathlib.Path, metavar="FILE", help="TLS with these root certificates")
    parser.add_argument("--cert", type=pathlib.Path, metavar="FILE", help="the client's own certificate")
    parser.add_argument("--key", type=pathlib.Path, metavar="FILE", help="and its key")
    parser.add_argument("--server-name", metavar="NAME", help="of the server's certificate [that of the address]")
    parser.add_argument("--token-file", type=pathlib.Path, metavar="FILE", help="holds the bearer token")
    parser.add_argument(
        "--linger", type=float, default=0, metavar="SECONDS", help="stay connected this long afterwards"
    )
    return parser.parse_args()


def request_of(args):
    request = ete.GenerateRequest(
        text=args.prompt,
        sampling=ete.Sampling(seed=args.seed, temperature=args.temperature, top_p=args.top_p),
        stopping=ete.Stopping(max_tokens=args.max_tokens, stop=[text.encode() for text in args.stop]),
    )
    if args.logprobs is not None:
        request.logprobs.top = args.logprobs
    return request


def connection_of(args):
    def read(path):
        return None if path is None else path.read_bytes()

    with_tls = args.tls or any((args.root_cert, args.cert, args.key, args.server_name))
    return {
        "tls": ete.Tls(read(args.root_cert), read(args.cert), read(args.key), args.server_name) if with_tls else None,
        "token": args.token_file.read_text().strip() if args.token_file else None,
        "retry": ete.Retry(attempts=args.attempts),
        "on_retry": lambda error, attempt, delay: say(f"retry attempt={attempt} delay={delay:.3f} {error}"),
    }


def say(line):
    print(line, file=sys.stderr, flush=True)


def call_of(args):
    return {"timeout": args.deadline, "on_progress": show_progress if args.progress else None}


def show_progress(progress):
    say(f"progress {progress.processed_tokens} of {progress.prompt_tokens}")


def show(piece):
    sys.stdout.buffer.write(piece.text.encode())
    sys.stdout.buffer.flush()
    for token in piece.logprobs:
        others = (f"{id}:{value:.4f}" for id, value in zip(token.top_ids, token.top_logprobs))
        say(" ".join([f"logprob {token.id} {token.logprob:.4f}", *others]))


def show_finish(finish, pieces):
    reason = ete.FinishReason.Name(finish.reason).removeprefix("FINISH_REASON_")
    say(
        f"finish reason={reason} pieces={pieces} prompt_tokens={finish.prompt_tokens}"
        f" generated_tokens={finish.generated_tokens}"
    )


def show_error(error):
    say(f"error code={error.code.name} field={error.field or '-'} {error.message}")
    return 1


def generate(args):
    with ete.Client(args.address, **connection_of(args)) as client:
        try:
            with client.generate(request_of(args), **call_of(args)) as stream:
                pieces = 0
                for piece in stream:
                    show(piece)
                    pieces += 1
                    if pieces == args.cancel_after:
                        stream.cancel()
                show_finish(stream.finish, pieces)
            return 0
        except ete.EteError as error:
            return show_error(error)
        finally:
            time.sleep(args.linger)


async def generate_async(args):
    async with ete.aio.Client(args.address, **connection_of(args)) as client:
        try:
            async with client.generate(request_of(args), **call_of(args)) as stream:
                pieces = 0
                async for piece in stream:
                    show(piece)
                    pieces += 1
                    if pieces == args.cancel_after:
                        stream.cancel()
                show_finish(stream.finish, pieces)
            return 0
        except ete.EteError as error:
            return show_error(error)
        finally:
            await asyncio.sleep(args.linger)


def main():
    args = arguments()
    try:
        return asyncio.run(generate_async(args)) if args.asyncio else generate(args)
    except (OSError, ValueError) as error:
        say(f"generate: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())

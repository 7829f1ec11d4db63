"""Bytes that no client of good will sends, to both doors of a front. Standard library only."""

import socket
import struct

GENERATE = "/ete.v1.Generation/Generate"
SECONDS = 15  # within which a server answers or hangs up


def until_end(connection, mark=None):
    """What comes until the other side closes, or until `mark` is among it. Raises TimeoutError where neither happens."""
    received = b""
    while mark is None or mark not in received:
        try:
            part = connection.recv(65536)
        except ConnectionError:
            break
        if not part:
            break
        received += part
    return received


def say(port, data, mark=None, finish=True):
    """What a server answers to these bytes; finish: the client says that no more will come."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        try:
            connection.sendall(data)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise
        except OSError:
            pass  # it has hung up already; what it said may still be there
        return until_end(connection, mark)


def post(body, *headers):
    head = ["POST /v1/completions HTTP/1.1", "Host: x", *(headers or [f"Content-Length: {len(body)}"])]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def malformed_http(random):
    """(name, bytes): requests that are none. A well-formed one of them has a body that is not accepted."""
    noise = random.randbytes(random.randint(1, 4096))
    whole = post(b'{"prompt": "x"}')
    return random.choice([
        ("noise", b"\xff" + noise),
        ("half a request", whole[: random.randint(1, len(whole) - 1)]),
        ("unknown version", b"GET / HTTP/9.9\r\n\r\n"),
        ("no version", b"GET /\r\n\r\n"),
        ("long header", post(b"", "X: " + "y" * 300_000)),
        ("many headers", post(b"", *(f"X{i}: y" for i in range(20_000)))),
        ("header without a colon", b"GET /health HTTP/1.1\r\nHost x\r\n\r\n"),
        ("NUL in the path", b"GET /\0health HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("negative length", post(b"{}", "Content-Length: -1")),
        ("huge length", post(b"{}", "Content-Length: 99999999999999999999")),
        ("length that is no number", post(b"{}", "Content-Length: two")),
        ("two lengths", post(b"{}", "Content-Length: 2", "Content-Length: 3")),
        ("length and chunks", post(b"0\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked")),
        ("chunk that is no number", post(b"zz\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked")),
        ("huge chunk", post(b"ffffffffffffffffff\r\n", "Transfer-Encoding: chunked")),
        ("body that is no JSON", post(noise)),
        ("deep JSON", post(b'{"prompt":' + b"[" * 200_000)),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise),
        ("HTTP/2", PREFACE + frame(4, 0, 0, b"")),
    ])  # fmt: skip


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind, flags, stream, payload):
    """A frame of HTTP/2 (RFC 9113)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A field of HPACK (RFC 7541), neither indexed nor compressed; both shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def grpc_headers(path=GENERATE, **others):
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "content-type": "application/grpc",
              "te": "trailers", **others}  # fmt: skip
    return b"".join(literal(name, value) for name, value in fields.items())


def message(payload, length=None, compressed=0):
    return struct.pack(">BI", compressed, len(payload) if length is None else length) + payload


def grpc_call(data, headers=None, flags=END_STREAM):
    # A table of headers of size 0: names and values of the answer come as they are.
    settings = frame(SETTINGS, 0, 0, struct.pack(">HI", 1, 0))
    return (PREFACE + settings + frame(HEADERS, END_HEADERS, 1, grpc_headers() if headers is None else headers)
            + frame(DATA, flags, 1, data))  # fmt: skip


def malformed_message(random):
    """(name, bytes): calls of Generate, well-formed as HTTP/2, whose message is not one."""
    noise = random.randbytes(random.randint(1, 2000))
    return random.choice([
        ("wire type 7", grpc_call(message(b"\x07" + noise))),
        ("field 0", grpc_call(message(b"\x00" + noise))),
        ("text beyond its message", grpc_call(message(b"\x1a\xff\xff\x03" + noise[:100]))),
        ("text that is not UTF-8", grpc_call(message(b"\x1a\x02\xff\xfe"))),
        ("number without an end", grpc_call(message(b"\x60" + b"\xff" * 11))),
        ("lists in lists", grpc_call(message(b"\x0b" * 1000))),
        ("half a message", grpc_call(message(b"\x1a\x01x", length=100))),
        ("half a prefix", grpc_call(b"\0\0\0")),
        ("four gigabytes", grpc_call(message(noise, length=0xFFFFFFFF))),
        ("compressed by nobody knows what", grpc_call(message(noise, compressed=1))),
        ("flag that is none", grpc_call(message(noise, compressed=99))),
        ("unknown method", grpc_call(message(b""), grpc_headers("/ete.v1.Generation/Destroy"))),
    ])  # fmt: skip


def malformed_http2(random):
    """(name, bytes): what is not HTTP/2, or breaks its rules."""
    noise = random.randbytes(random.randint(9, 2000))
    call = grpc_call(message(b"\x1a\x01x"))
    return random.choice([
        ("noise", b"\xff" + noise),
        ("noise behind the preface", PREFACE + noise),
        ("data of no stream", PREFACE + frame(SETTINGS, 0, 0, b"") + frame(DATA, 0, 0, noise)),
        ("data of a stream that was not opened", PREFACE + frame(SETTINGS, 0, 0, b"") + frame(DATA, 0, 7, noise)),
        ("even stream", PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 5, 2, grpc_headers())),
        ("headers that HPACK does not know", PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 5, 1, b"\xff" * 50)),
        ("headers without an end", PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 0, 1, grpc_headers())),
        ("settings of 5 bytes", PREFACE + frame(SETTINGS, 0, 0, b"\0" * 5)),
        ("window of 0", PREFACE + frame(SETTINGS, 0, 0, b"") + frame(WINDOW_UPDATE, 0, 0, b"\0" * 4)),
        ("many pings", PREFACE + frame(SETTINGS, 0, 0, b"") + frame(PING, 0, 0, b"\0" * 8) * 2000),
        ("many streams, each reset", PREFACE + frame(SETTINGS, 0, 0, b"") + b"".join(
            frame(HEADERS, END_HEADERS, 2 * i + 1, grpc_headers()) + frame(RST_STREAM, 0, 2 * i + 1, b"\0" * 4)
            for i in range(500))),
        ("half a call", call[: random.randint(1, len(call) - 1)]),
        ("HTTP/1.1", post(b"{}")),
    ])  # fmt: skip

"""What stands between clients and the live server: TLS, certificates and tokens, and failures on request.

Prompts that begin with "!" are answered here: "!echo TEXT" by TEXT, a piece a character; "!fail TIMES CODE METADATA
NAME" TIMES times by CODE with that trailing metadata, KEY=VALUE ("-": none), then by "recovered"; "!break" by pieces and
UNAVAILABLE.
"""

import collections
import concurrent.futures
import subprocess
import threading

import grpc
from ete.v1 import generation_pb2, generation_pb2_grpc

TOKEN = "correct-horse"


def piece(text):
    return generation_pb2.GenerateReply(piece=generation_pb2.Piece(text=text.encode(), ids=[1]))


class Service(generation_pb2_grpc.GenerationServicer):
    def __init__(self, live_address, token):
        self._stub = generation_pb2_grpc.GenerationStub(grpc.insecure_channel(live_address))
        self._authorization = f"Bearer {token}" if token else None
        self._lock = threading.Lock()
        self._failed = collections.Counter()

    def Generate(self, request, context):
        given = dict(context.invocation_metadata()).get("authorization")
        if given != self._authorization:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"authorization: {given} is not that of anybody here")
        if request.text.startswith("!"):
            yield from self._scripted(request.text, context)
            return
        call = self._stub.Generate(request)
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def _scripted(self, text, context):
        yield generation_pb2.GenerateReply(prompt=generation_pb2.PromptInfo(prompt_ids=[1], seed=1))
        verb, _, rest = text.partition(" ")
        answer = rest
        if verb == "!fail":
            self._fail(rest, context)
            answer = "recovered"
        for character in "so far" if verb == "!break" else answer:
            yield piece(character)
        if verb == "!break":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is gone")
        finish = generation_pb2.Finish(reason=generation_pb2.FINISH_REASON_LENGTH, prompt_tokens=1)
        yield generation_pb2.GenerateReply(finish=finish)

    def _fail(self, arguments, context):
        times, code, metadata, _ = arguments.split()
        with self._lock:
            self._failed[arguments] += 1
            if self._failed[arguments] > int(times):
                return
        if metadata != "-":
            context.set_trailing_metadata((tuple(metadata.split("=")),))
        context.abort(grpc.StatusCode[code], "as you asked")


class Certificates:
    """An authority of one's own, a server named ete.test and a client, in files of `folder`."""

    def __init__(self, folder):
        self._folder = folder
        self.authority = self._make("authority", ["-x509", "-days", "2"], "authority")
        self.other_authority = self._make("other", ["-x509", "-days", "2"], "other")
        self.server = self._signed("server", "ete.test")
        self.client = self._signed("client", "client.test")

    def path(self, name):
        return self._folder / name

    def _openssl(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=self._folder, timeout=60)

    def _make(self, name, more, subject):
        self._openssl("req", *more, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                      "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={subject}")  # fmt: skip
        return self.path(f"{name}.pem"), self.path(f"{name}.key")

    def _signed(self, name, subject):
        self._make(f"{name}-request", [], subject)
        self.path(f"{name}.ext").write_text(f"subjectAltName=DNS:{subject}\n")
        self._openssl("x509", "-req", "-in", f"{name}-request.pem", "-CA", "authority.pem", "-CAkey", "authority.key",
                      "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
        return self.path(f"{name}.pem"), self.path(f"{name}-request.key")


class Gateway:
    """Addresses: plain (host:port), unix, tls, and mutual, which asks for a certificate and the token."""

    def __init__(self, live_address, folder):
        self.certificates = Certificates(folder)
        certificate, key = (path.read_bytes() for path in self.certificates.server)
        authority = self.certificates.authority[0].read_bytes()
        tls = grpc.ssl_server_credentials([(key, certificate)])
        mutual = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        self.unix = f"unix:{folder}/gate way.sock"
        self._servers = []
        open_server = self._serve(Service(live_address, None))
        self.plain = f"127.0.0.1:{open_server.add_insecure_port('127.0.0.1:0')}"
        open_server.add_insecure_port(f"unix:{folder}/gate%20way.sock")
        self.tls = f"127.0.0.1:{open_server.add_secure_port('127.0.0.1:0', tls)}"
        closed_server = self._serve(Service(live_address, TOKEN))
        self.mutual = f"127.0.0.1:{closed_server.add_secure_port('127.0.0.1:0', mutual)}"
        for server in self._servers:
            server.start()

    def _serve(self, service):
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=8))
        generation_pb2_grpc.add_GenerationServicer_to_server(service, server)
        self._servers.append(server)
        return server

    def stop(self):
        for server in self._servers:
            server.stop(None).wait()

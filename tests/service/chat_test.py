"""`ete chat` and `ete run --chat` over real processes, through pipes and through a pseudo-terminal. Standard library only.

Arguments: the paths of ete, ete-front and toy_worker, and the root of the sources.
"""

import codecs
import contextlib
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

from http_servers import Servers, child_of

ETE, FRONT, TOY_WORKER, SOURCE = sys.argv[1:5]
STORY = str(pathlib.Path(SOURCE) / "models" / "story-8m")
TIMEOUT = 120
SEEDED = ["--temperature", "1", "--seed", "7", "--max-tokens", "12"]
PASTE = "\x1b[200~%s\x1b[201~"


def turn(role, content):
    return {"role": role, "content": content}


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers(FRONT, TOY_WORKER)
        cls.addClassCleanup(cls.servers.close)

    def setUp(self):
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.tmp = pathlib.Path(directory.name)

    @property
    def address(self):
        return f"unix:{self.servers.directory.name}/front"

    def reply_to(self, messages):
        """What the same conversation gets over HTTP."""
        body = {"messages": messages, "temperature": 1, "seed": 7, "max_tokens": 12}
        status, reply = self.servers.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, reply)
        return reply["choices"][0]["message"]["content"]

    def saved(self, name="saved"):
        return json.loads((self.tmp / name).read_text())["messages"]


class Pipe(ChatTest):
    def chat(self, text, *arguments, code=0):
        command = [ETE, "chat", "--address", self.address, *SEEDED, *arguments]
        data = text if isinstance(text, bytes) else text.encode()
        result = subprocess.run(command, input=data, capture_output=True, cwd=self.tmp, timeout=TIMEOUT)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.decode(), result.stderr.decode()

    def refused(self, text, *mentions, code=2):
        _, error = self.chat(text, code=code)
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith("ete chat: "), error)
        for mention in mentions:
            self.assertIn(mention, error)

    def test_each_line_is_a_turn_of_one_conversation(self):
        out, error = self.chat("hello\nagain\n/save saved\n")
        first = self.reply_to([turn("user", "hello")])
        messages = [turn("user", "hello"), turn("assistant", first), turn("user", "again")]
        second = self.reply_to(messages)
        self.assertEqual((out, error), (f"{first}\n{second}\n", ""))
        self.assertEqual(self.saved(), [*messages, turn("assistant", second)])
        self.assertEqual(os.listdir(self.tmp), ["saved"])

    def test_messages_of_several_lines(self):
        self.chat('one\\\ntwo\n"""\n/three\n\nfour\n"""\n"""five"""\n//six\n\n/save saved\n')
        said = [message["content"] for message in self.saved() if message["role"] == "user"]
        self.assertEqual(said, ["one\ntwo", "/three\n\nfour", "five", "/six"])

    def test_system_prompt(self):
        out, _ = self.chat("/system be brief\nhello\n/system\n/system none\n/new\nhello\n")
        brief = self.reply_to([turn("system", "be brief"), turn("user", "hello")])
        self.assertEqual(out, f"{brief}\nbe brief\n{self.reply_to([turn('user', 'hello')])}\n")
        self.assertEqual(self.chat("hello\n", "--system", "be brief")[0], brief + "\n")

    def test_retry_and_set(self):
        out, error = self.chat("hello\n/set seed 8\n/retry\n/set seed 7\n/retry\n/show\n")
        first, other, again = out.split("\n")[:3]
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertEqual(out.split("\n")[3:], ["user: hello", f"assistant: {first}", ""])
        self.assertEqual(error, "")
        out, _ = self.chat("/set max-tokens 3\n/set top-p 0.5\n/set seed random\n/set\n")
        for line in ("temperature     1", "max-tokens      3", "top-p           0.5", "seed            random"):
            self.assertIn(line, out.split("\n"))

    def test_load_goes_on(self):
        messages = [turn("system", "be brief"), turn("user", "a"), turn("assistant", "b")]
        (self.tmp / "kept").write_text(json.dumps({"messages": messages}))
        expected = self.reply_to([*messages, turn("user", "c")]) + "\n"
        self.assertEqual(self.chat("/load kept\nc\n")[0], expected)
        self.assertEqual(self.chat("c\n", "--load", "kept")[0], expected)

    def test_what_save_replaces(self):
        (self.tmp / "kept").write_text("old")
        (self.tmp / "link").symlink_to("kept")
        self.chat("hello\n/save link\n")
        self.assertEqual(len(self.saved("kept")), 2)
        self.assertTrue((self.tmp / "link").is_symlink())
        # As a device would be.
        os.mkfifo(self.tmp / "pipe")
        self.refused("/save pipe\n", "/save pipe: not a regular file")
        self.assertTrue((self.tmp / "pipe").is_fifo())
        self.assertEqual(sorted(os.listdir(self.tmp)), ["kept", "link", "pipe"])

    def test_figures(self):
        _, error = self.chat("/set stats on\nhello\n")
        self.assertRegex(error, r"^\[12 tokens, [\d.]+ tokens/s; prompt \d+ tokens, \d+ tokens/s; cut at max-tokens\]\n$")

    def test_refusals(self):
        self.refused("/sing\n", "/sing is no command", "//sing")
        self.refused("/set temperature -1\n", "/set temperature", '"-1"', "a number from 0")
        self.refused("/set volume 3\n", "/set volume is not known", "top-p")
        self.refused("/set stats maybe\n", '"maybe"', "on or off")
        self.refused("/new now\n", "/new", '"now"')
        self.refused("/retry\n", "/retry")
        self.refused("/save\n", "/save: expected the path")
        self.refused("/save no/where\n", "no/where", code=1)
        self.refused("/load nowhere\n", "/load nowhere: cannot be read", code=1)
        self.refused("/load /dev/zero\n", "/load /dev/zero: ", "a regular file of at most 67108864 bytes (64 MiB)")
        self.refused('"""\nhello\n', 'closing """')
        self.refused(b"fine\n\xff\n", "line 2 of stdin is not UTF-8")
        for text, mention in (
            ("{", "not JSON"),
            ("[]", "messages: expected a list"),
            ('{"messages": [{"role": "user"}]}', "messages[0].content"),
            ('{"messages": [{"role": "cook", "content": "x"}]}', '"cook" is not accepted'),
        ):
            (self.tmp / "kept").write_text(text)
            self.refused("/load kept\n", "kept", mention)
        self.refused("x" * 5000 + "\n", "the conversation")

    def test_a_model_without_template(self):
        servers = Servers(FRONT, TOY_WORKER, template="")
        try:
            command = [ETE, "chat", "--address", f"unix:{servers.directory.name}/front"]
            result = subprocess.run(command, input=b"", capture_output=True, timeout=TIMEOUT)
            self.assertEqual(result.returncode, 1)
            self.assertIn(b"no chat template", result.stderr)
        finally:
            servers.close()

    def test_signals_end_it(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            command = [ETE, "chat", "--address", self.address, "--max-tokens", "4000"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            process.stdin.write(b"hello\n")
            process.stdin.flush()
            process.stdout.read(8)
            process.send_signal(number)
            self.assertEqual(process.wait(20), 128 + number)
            process.communicate()

    def test_run_chat(self):
        command = [ETE, "run", "--address", self.address, *SEEDED, "--chat", "hello"]
        result = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
        self.assertEqual(result.stdout.decode(), self.reply_to([turn("user", "hello")]) + "\n", result.stderr)
        both = subprocess.run([ETE, "run", "--chat", "--tokens", "1,2"], capture_output=True, timeout=TIMEOUT)
        self.assertEqual(both.returncode, 2)
        self.assertIn(b"--chat cannot be given with --tokens", both.stderr)


class Terminal(ChatTest):
    def setUp(self):
        super().setUp()
        self.seen = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def start(self, *arguments):
        command = [ETE, "chat", *(arguments or ("--address", self.address, *SEEDED))]
        pid, self.terminal = pty.fork()
        if pid == 0:
            try:
                os.chdir(self.tmp)
                os.execve(ETE, command, {**os.environ, "TERM": "xterm", "LC_ALL": "C"})
            finally:
                os._exit(127)
        self.pid = pid
        self.addCleanup(self.end)
        self.read_prompt()

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.terminal)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, mark):
        """What was shown up to the mark, without the marks of pasting."""
        end = time.monotonic() + TIMEOUT
        while mark not in self.seen:
            self.assertLess(time.monotonic(), end, repr(self.seen))
            if not select.select([self.terminal], [], [], 0.2)[0]:
                continue
            data = self.seen + self.decoder.decode(os.read(self.terminal, 4096))
            self.seen = data.replace("\x1b[?2004h", "").replace("\x1b[?2004l", "").replace("\r", "")
        at = self.seen.index(mark) + len(mark)
        before, self.seen = self.seen[:at], self.seen[at:]
        return before

    def read_prompt(self):
        before = self.read_until("\n> ")
        modes = termios.tcgetattr(self.terminal)[3]
        self.assertFalse(modes & termios.ICANON, "what is typed at the prompt would be the kernel's to edit")
        return before

    def wait(self):
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            if select.select([self.terminal], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self.seen += self.decoder.decode(os.read(self.terminal, 4096))
        self.fail("it does not end")

    def said(self):
        self.type("/save saved\r")
        self.read_prompt()
        return [message["content"] for message in self.saved() if message["role"] == "user"]

    def test_a_reply_its_figures_and_the_end(self):
        self.start()
        self.type("hello\r")
        shown = self.read_prompt()
        self.assertIn(self.reply_to([turn("user", "hello")]) + "\n", shown)
        self.assertRegex(shown, r"\[12 tokens, [\d.]+ tokens/s; prompt")
        self.type("\x04")
        self.assertEqual(self.wait(), 0)

    def test_how_much_of_a_long_prompt_is_processed(self):
        text = "hello " * 40 + "end"
        reply = re.escape(self.reply_to([turn("user", text)]))
        told = r"(\x1b\[K\[[#.]{30}\] (?:0|49|50)% of a prompt of \d+ tokens){1,2}\x1b\[K"
        self.start()
        self.type(text + "\r")
        self.assertRegex(self.read_prompt(), told + reply)
        controller, terminal = pty.openpty()
        run = [ETE, "run", "--address", self.address, *SEEDED, "--chat", text]
        result = subprocess.run(run, stdout=subprocess.PIPE, stderr=terminal, timeout=TIMEOUT)
        os.close(terminal)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout.decode(), f"^{reply}\n$")
        self.assertRegex(os.read(controller, 4096).decode().replace("\r", ""), f"^{told}$")
        os.close(controller)

    def test_ctrl_c_stops_the_reply_only(self):
        self.start("--address", self.address, "--temperature", "1", "--seed", "7", "--max-tokens", "4000")
        self.type("hello\r")
        self.read_until("hello\n")
        time.sleep(0.3)
        self.type("\x03")
        self.assertRegex(self.read_prompt(), r"\[stopped after \d+ tokens\]")
        self.type("/set max-tokens 5\r")
        self.read_prompt()
        self.type("more\r")
        self.assertIn("[5 tokens", self.read_prompt())
        self.assertEqual(self.said(), ["hello", "more"])

    def test_ctrl_c_drops_the_line(self):
        self.start()
        self.type("not this\x03")
        self.read_prompt()
        self.type("this\r")
        self.read_prompt()
        self.assertEqual(self.said(), ["this"])

    def test_editing_and_lines_before(self):
        self.start()
        self.type("helo\x1b[Dl\r")
        self.read_prompt()
        self.type("\x1b[A!\r")
        self.read_prompt()
        self.type("gr\u00fc\u00dfe \u4f60\u597d\x7f\r")
        self.read_prompt()
        self.assertEqual(self.said(), ["hello", "hello!", "gr\u00fc\u00dfe \u4f60"])

    def test_pasted_lines_are_one_message(self):
        self.start()
        self.type(PASTE % "def f():\r\treturn 1\r" + "?\r")
        self.read_prompt()
        self.type("a\x1b\rb\r")
        self.read_prompt()
        self.assertEqual(self.said(), ["def f():\n return 1\n?", "a\nb"])

    def test_errors_leave_it_running(self):
        self.start()
        self.type("/sing\r")
        self.assertIn("/sing is no command", self.read_prompt())
        self.type("/load nowhere\r")
        self.assertIn("nowhere: cannot be read", self.read_prompt())
        self.type("/help\r")
        self.assertIn("/retry", self.read_prompt())
        self.type("/quit\r")
        self.assertEqual(self.wait(), 0)

    def lose_the_server(self):
        """In the middle of the reply to hello."""
        servers = Servers(FRONT, TOY_WORKER, step_ms=20)
        self.addCleanup(servers.close)
        self.start("--address", f"unix:{servers.directory.name}/front", "--temperature", "1", "--seed", "7")
        self.type("hello\r")
        self.read_until("hello\n")
        time.sleep(0.5)
        servers.kill_front()
        self.assertRegex(self.read_prompt(), r"UNAVAILABLE.*; what you said is kept: /retry sends it again")
        return servers

    def test_a_turn_that_was_lost_is_sent_again(self):
        servers = self.lose_the_server()
        servers.start_front()
        time.sleep(1)
        self.type("/set max-tokens 3\r")
        self.read_prompt()
        self.type("/retry\r")
        self.assertIn("[3 tokens", self.read_prompt())
        self.type("more\r")
        self.assertIn("[3 tokens", self.read_prompt())
        self.assertEqual(self.said(), ["hello", "more"])

    def test_a_server_that_is_gone_and_comes_back(self):
        servers = self.lose_the_server()
        # Long enough for pauses between attempts that grow without end to have grown.
        end = time.monotonic() + 5
        while time.monotonic() < end:
            self.type("hello?\r")
            self.assertIn("UNAVAILABLE", self.read_prompt())
            time.sleep(0.2)
        servers.start_front()
        time.sleep(1)
        self.type("/set max-tokens 3\r")
        self.read_prompt()
        self.type("here\r")
        self.assertIn("[3 tokens", self.read_prompt())
        # As one turn: templates want an answer between two.
        self.assertEqual(self.said(), ["hello\nhello?\nhere"])

    def test_a_turn_that_was_kept_outlasts_the_next(self):
        servers = self.lose_the_server()
        servers.start_front()
        time.sleep(1)
        self.type("/set max-tokens 3\r")
        self.read_prompt()
        self.type(PASTE % ("x" * 5000) + "\r")
        self.assertIn("the conversation", self.read_prompt())
        self.assertEqual(self.said(), ["hello"])
        servers.worker.send_signal(signal.SIGSTOP)  # so that no text comes
        try:
            for text in ("more", "/retry"):
                self.type(text + "\r")
                self.read_until(text + "\n")
                time.sleep(0.5)
                self.type("\x03")
                self.assertIn("[stopped after 0 tokens]", self.read_prompt())
                self.assertEqual(self.said(), ["hello"])
        finally:
            servers.worker.send_signal(signal.SIGCONT)
        self.type("/retry\r")
        self.assertIn("[3 tokens", self.read_prompt())
        self.assertEqual(self.said(), ["hello"])

    def test_text_cannot_command_the_terminal(self):
        (self.tmp / "kept").write_text(json.dumps({"messages": [turn("user", "a\x1b]0;title\x07b\x9bc\td")]}))
        self.start()
        self.type("/load kept\r")
        self.read_prompt()
        self.type("/show\r")
        self.assertIn("a\ufffd]0;title\ufffdb\ufffdc", self.read_prompt())

    def test_its_own_servers_and_what_they_reuse(self):
        self.start("--model", STORY, "--device", "cpu", "--temperature", "0", "--max-tokens", "20", "--ignore-eos")
        self.type("Tell me a story about a dog.\r")
        self.assertNotIn("reused", self.read_prompt())
        self.type("And a cat.\r")
        self.assertRegex(self.read_prompt(), r"prompt \d+ tokens, [1-9]\d* reused")
        self.type("\x04")
        self.assertEqual(self.wait(), 0)

    def test_its_own_servers_are_lost(self):
        self.start("--model", STORY, "--device", "cpu", "--max-tokens", "900", "--ignore-eos", "--link-limit", "200M",
                   "--resident-layers", "2")  # fmt: skip
        self.type("Tell me a story.\r")
        self.read_until("story.\n")
        time.sleep(0.5)
        os.kill(child_of(self.pid, "ete-worker"), signal.SIGKILL)
        shown = self.read_until("signal 9")
        self.assertIn("ete chat: ete-worker ended with", shown)
        self.assertEqual(self.wait(), 1)
        self.assertNotIn("is kept", self.seen)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])

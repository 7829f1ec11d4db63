"""The page that a front serves.

Arguments: the path of ete, the root of the sources and, to keep pictures of the page, a folder for them.
"""

import json
import pathlib
import sys
import time
import unittest

from page_case import SOURCE, BrowserTest, By, Keys, PageTest

HOSTILE = """# Title <b>x</b>

<img src=x onerror="document.title='owned'"> and **bold**, *em*, ~~gone~~, `a<b>`,
[good](https://example.org/a) and [bad](javascript:document.title='owned').

- one
- two
  - inner

1. first

```html
<script>document.title = 'owned'</script>
```

| a | b |
|---|---|
| 1 | **2** |

> quoted
"""
WIDE = f"""
|{" column |" * 12}
|{"---|" * 12}
|{" value |" * 12}

"""

# What WCAG 2 AA calls too faint: text below 4.5 to 1, the edge of a field or of an empty cell below 3 to 1.
TOO_FAINT = """
const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + 0.05) / (low + 0.05); };
const behind = (node) => {
  for (let one = node; one; one = one.parentElement) {
    const back = rgba(getComputedStyle(one).backgroundColor);
    if (back.length < 4 || back[3] > 0) return back;
  }
  return [255, 255, 255];
};
const bad = [];
const check = (node, colour, around, least) => {
  const found = ratio(rgba(colour), behind(around));
  if (found < least) bad.push(`${node.tagName} ${node.id || node.className} ${found.toFixed(2)}`);
};
for (const node of document.querySelectorAll('body *')) {
  if (!node.checkVisibility()) continue;
  const style = getComputedStyle(node);
  if ([...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim())) check(node, style.color, node, 4.5);
  if (node.matches('input, select, textarea, .cells .off')) check(node, style.borderTopColor, node.parentElement, 3);
  if (node.matches('.track > *, .stack li i')) check(node, style.backgroundColor, node.parentElement, 3);
}
return bad;
"""


class Files(PageTest):
    def test_the_page_and_what_it_loads(self):
        response, text = self.ask("GET", "/")
        self.assertEqual((response.status, response.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        policy = response.headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"):
            self.assertIn(part, policy)
        self.assertNotIn("unsafe", policy)
        folder = pathlib.Path(SOURCE, "services", "front", "page")
        self.assertEqual(text, (folder / "index.html").read_bytes())
        for name, kind in (("page.js", "text/javascript"), ("page.css", "text/css"), ("icon.svg", "image/svg+xml")):
            response, text = self.ask("GET", f"/page/{name}")
            self.assertTrue(response.headers["Content-Type"].startswith(kind))
            self.assertEqual(text, (folder / name).read_bytes())
        for path in ("/page/", "/page/nothing.js", "/page/../page_reply.cc", "/page/page_reply.cc"):
            self.assertEqual(self.ask("GET", path)[0].status, 404, path)
        self.assertEqual(self.ask("HEAD", "/")[1], b"")
        self.assertEqual(self.ask("POST", "/", b"{}")[0].status, 404)

    def test_nothing_comes_from_elsewhere(self):
        for file in pathlib.Path(SOURCE, "services", "front", "page").glob("*.*"):
            if file.suffix in (".html", ".css"):
                self.assertNotIn("//", file.read_text().replace("http://www.w3.org/", ""), file)
            if file.suffix == ".js":
                for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
                    self.assertNotIn(word, file.read_text(), file)

    def test_status(self):
        response, text = self.ask("GET", "/status")
        self.assertEqual(response.status, 200)
        status = json.loads(text)
        self.assertEqual(status["state"], "serving")
        self.assertEqual(status["plan"]["max_sessions"], 8)
        passes = status["passes"]
        self.ask("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 3}))
        end = time.monotonic() + 10
        while True:  # the session ends a moment after its reply
            status = json.loads(self.ask("GET", "/status")[1])
            if status["sessions"] == 0 or time.monotonic() > end:
                break
            time.sleep(0.02)
        self.assertGreater(status["passes"], passes)
        self.assertEqual((status["sessions"], status["queued"]), (0, 0))

    def test_its_own_address_is_no_foreign_page(self):
        def status_of(host, origin):
            return self.ask("GET", "/v1/models", headers={"Host": host, "Origin": origin})[0].status

        self.assertEqual(status_of("10.1.2.3:8080", "http://10.1.2.3:8080"), 200)
        self.assertEqual(status_of("[fd00::1]:8080", "http://[fd00::1]:8080"), 200)
        self.assertEqual(status_of("10.1.2.3:8080", "http://10.1.2.4:8080"), 403)
        # A name may lead here without being ours.
        self.assertEqual(status_of("evil.example:8080", "http://evil.example:8080"), 403)


class Browser(BrowserTest):
    def test_send_stream_and_keep(self):
        # However slow the browser is, each part of a stream changes the page for itself.
        self.script("""window.lengths = new Set();
            new MutationObserver(() => {
              const body = document.querySelector('#log > .assistant .body');
              if (body) window.lengths.add(body.textContent.length);
            }).observe(document.querySelector('#log'), {childList: true, subtree: true, characterData: true})""")
        self.settle(max_tokens="40", temperature="0")
        self.say("Tell me a story about a dog.")
        self.until(lambda: self.replies() and self.replies()[0] != "" and self.idle())
        whole = self.replies()[0]
        self.assertGreater(self.script("return window.lengths.size"), 5, "the reply came at once instead of bit by bit")
        self.assertIn("tokens/s", self.get("#log > .assistant .note").text)
        self.say("And a cat?")
        self.until(lambda: len(self.replies()) == 2 and self.idle())
        self.assertIn("reused", self.all("#log > .assistant .note")[1].text)
        self.assertEqual([one["role"] for one in self.kept()], ["user", "assistant"] * 2)
        self.reload()
        self.assertEqual(self.replies()[0], whole)
        self.get("#new").click()
        self.assertEqual((self.replies(), self.kept()), ([], []))

    def test_how_much_of_a_long_prompt_is_read(self):
        self.settle(max_tokens="1")
        self.script("""window.seen = [];
            new MutationObserver(() => {
              const line = document.querySelector('.reading');
              if (line) window.seen.push(line.textContent);
            }).observe(document.querySelector('#log'), {childList: true, subtree: true})""")
        self.script("document.getElementById('prompt').value = arguments[0]", "word " * 300)
        self.say("")
        self.until(lambda: self.replies() and self.idle())
        self.assertIn("Reading the prompt: 0 %", self.script("return window.seen"))
        self.assertEqual(self.all(".reading"), [])
        self.assertRegex(self.get("#log > .assistant .note").text, "^1 token · .* · cut at the most tokens$")
        self.get("#new").click()
        self.script("window.seen = []")
        self.say("hello")
        self.until(lambda: self.replies() and self.idle())
        self.assertEqual(self.script("return window.seen"), [], "of a prompt that takes no time")

    def test_the_line_about_a_long_prompt(self):
        self.script("""const real = window.fetch;
            window.fetch = (where, what) => String(where).endsWith('completions')
              ? Promise.resolve(new Response(new ReadableStream({start(stream) { window.stream = stream; }}).pipeThrough(new TextEncoderStream())))
              : real(where, what);
            window.tell = (event) => window.stream.enqueue(`data: ${JSON.stringify(event)}\\n\\n`);""")
        self.say("hello")
        height = lambda: self.get("#log > .assistant").size["height"]  # noqa: E731
        before = height()

        def tell(processed, ms):
            self.script("window.tell({prompt_progress: arguments[0], choices: [{delta: {}}]})",
                        {"total": 10000, "cache": 1000, "processed": processed, "time_ms": ms})  # fmt: skip

        for processed, ms, text in ((1000, 0, "Reading the prompt: 10 %"), (4000, 6000, "Reading the prompt: 40 %, about 12 s left"),
                                    (4001, 600000, "Reading the prompt: 40 %, about 20 min left")):  # fmt: skip
            tell(processed, ms)
            self.until(lambda: [one.text for one in self.all(".reading")] == [text], text)  # noqa: B023
            line = self.get(".reading")
            told = [line.get_attribute(name) for name in ("role", "aria-valuenow", "aria-valuetext")]
            self.assertEqual(told, ["progressbar", str(processed // 100), text])
            self.assertEqual(height(), before)
        self.picture("reading")
        self.script("window.tell({choices: [{delta: {content: 'Hello'}}]})")
        self.until(lambda: self.replies() == ["Hello"])
        self.assertEqual(self.all(".reading"), [])
        self.assertEqual(height(), before)
        self.get("#stop").click()

    def test_stop_by_button_and_by_key(self):
        self.settle(max_tokens="900", temperature="1")
        for stop in (lambda: self.get("#stop").click(), lambda: self.keys(Keys.ESCAPE)):
            count = len(self.replies())
            self.say("Tell me a long story.")
            self.until(lambda: len(self.replies()) > count and self.replies()[-1] != "")
            stop()
            self.until(self.idle)
            self.assertEqual(self.all("#log > .assistant .note")[-1].text, "stopped")
            self.assertEqual(self.focused(), "prompt")
        # The engine is told, too.
        self.until(lambda: json.loads(self.ask("GET", "/status")[1])["sessions"] == 0)

    def test_settings_reach_the_server(self):
        self.settle(temperature="0.5", top_p="0.9", max_tokens="7", seed="3", system="Be brief.", token="secret")
        self.script("""const real = window.fetch; window.sent = [];
            window.fetch = (where, what) => { window.sent.push([where, what]); return real(where, what); };""")
        self.say("hello")
        self.until(lambda: self.replies() and self.idle())
        sent = self.script("return window.sent.filter((one) => one[0].endsWith('completions')).map((one) => one[1])")[0]
        self.assertEqual(sent["headers"]["Authorization"], "Bearer secret")
        body = json.loads(sent["body"])
        self.assertEqual(body.pop("messages"), [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}])
        self.assertEqual(body, {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3, "stream": True,
                                "stream_options": {"include_usage": True}, "return_progress": True})  # fmt: skip
        self.assertRegex(self.get("#log > .assistant .note").text, r"^[1-7] tokens?")
        self.assertNotIn("secret", self.script("return JSON.stringify(localStorage)"))
        first = self.replies()
        self.get(".again button").click()
        self.until(lambda: len(self.replies()) == 1 and self.idle())
        self.assertEqual(self.replies(), first)
        # A value that is not accepted is told, and nothing is saved.
        self.settle(top_p="7", seed="x")
        self.assertIn("7 is not accepted", self.get("#top_p-note").text)
        self.assertIn("x is not accepted", self.get("#seed-note").text)
        self.assertEqual(self.focused(), "top_p")
        self.picture("settings-refused")
        self.keys(Keys.ESCAPE)
        self.get("#open-settings").click()
        self.assertEqual(self.get("#top_p").get_property("value"), "0.9")
        self.keys(Keys.ESCAPE)
        # As is a token that no header can carry, which would seem to be a server that is gone.
        hint = self.get("#token-note").get_attribute("textContent")
        for token in ("ete-\u2026", "ete-\u00e9", "two words"):
            self.settle(token=token)
            self.assertIn("expected printable ASCII without blanks", self.get("#token-note").text)
            self.assertEqual((self.focused(), self.get("#token").get_attribute("aria-invalid")), ("token", "true"))
            self.keys(Keys.ESCAPE)
            self.get("#open-settings").click()
            self.assertEqual((self.get("#token").get_property("value"), self.get("#token-note").text), ("secret", hint))
            self.keys(Keys.ESCAPE)

    def test_a_refusal_can_be_tried_again(self):
        self.script("document.getElementById('prompt').value = arguments[0]", "word " * 2000)
        self.say("")
        self.until(lambda: self.all(".failure"))
        self.assertIn("1024", self.get(".failure").text)
        self.assertEqual(self.get(".failure").get_attribute("role"), "alert")
        self.assertEqual(self.replies(), [])
        self.picture("refused")
        self.script("[...document.querySelectorAll('.failure button')].find((one) => one.textContent.startsWith('Edit')).click()")
        self.assertEqual((self.all(".failure"), self.kept(), self.focused()), ([], [], "prompt"))
        self.assertTrue(self.get("#prompt").get_property("value").startswith("word word"))

    def test_markdown_is_text(self):
        self.put([{"role": "user", "content": "<b>x</b>"}, {"role": "assistant", "content": HOSTILE}])
        body = "#log > .assistant .body "
        self.assertEqual(self.get(body + "h3").text, "Title <b>x</b>")
        self.assertIn("<img src=x", self.get(body + "p").text)
        self.assertEqual([one.text for one in self.all(body + "strong")], ["bold", "2"])
        self.assertEqual(self.get(body + "p code").text, "a<b>")
        self.assertEqual([one.get_attribute("href") for one in self.all(body + "a")], ["https://example.org/a"])
        self.assertEqual(self.get(body + "pre code").text, "<script>document.title = 'owned'</script>")
        self.assertEqual(len(self.all(body + "li")), 4)
        self.assertEqual([one.text for one in self.all(body + "td")], ["1", "2"])
        self.assertEqual((self.all("#log img"), self.all("#log script")), ([], []))
        self.assertNotEqual(self.driver.title, "owned")
        self.assertEqual(self.get("#log > .user .body").text, "<b>x</b>")
        # Scripts of others are not run, and text is not made markup, whatever a reply could bring about.
        self.assertTrue(self.script("try { document.body.innerHTML = '<p>'; return false } catch { return true }"))
        self.driver.get_log("browser")  # which tells of that

    def test_markdown_of_one_long_run_takes_no_quadratic_time(self):
        runs = {"heading": "'# ' + '#'.repeat(n) + 'x'", "table": "'|a\\n' + ' '.repeat(n) + 'x'",
                "end of a table": "'|a\\n-' + ' '.repeat(n) + 'x'", "brackets": "'['.repeat(n)"}
        for name, text in runs.items():
            with self.subTest(name):
                # Quadratic ones took over 6 s at this length.
                took = self.driver.execute_async_script(f"""
                    const done = arguments[0], n = 100000, text = {text};
                    import("/page/markdown.js").then(({{ renderMarkdown }}) => {{
                        const start = performance.now();
                        renderMarkdown(document.createElement("div"), text);
                        done(performance.now() - start);
                    }}, (error) => done(String(error)));""")
                self.assertLess(took, 3000)

    def test_engine_picture(self):
        self.settle(max_tokens="900", temperature="1", seed="1")
        self.say("Tell me a long story.")
        sessions = lambda: self.all("#engine .cells")[2]  # noqa: E731
        self.until(lambda: len(sessions().find_elements(By.CSS_SELECTOR, ".on")) == 1)
        self.until(lambda: "passes/s" in self.get("#engine").text)
        text = self.get("#engine").text
        self.assertIn("2 resident", text)
        self.assertRegex(text, r"Link\s*[\d.]+ [KM]iB/s, most")
        self.assertEqual(len(sessions().find_elements(By.CSS_SELECTOR, "i")), 8)
        for meter in self.all("#engine [role=meter]"):
            if meter.is_displayed():
                self.assertIn(" of ", meter.get_attribute("aria-valuetext"))
        self.get("#stop").click()
        self.until(self.idle)

    def test_keyboard_alone(self):
        self.assertEqual(self.focused(), "prompt")
        self.script("document.querySelector('.skip').focus()")
        order = []
        for _ in range(6):
            self.driver.switch_to.active_element.send_keys(Keys.TAB)
            order.append(self.focused())
        self.assertEqual(order, ["new", "open-settings", "toggle-engine", "scroller", "prompt", "send"])
        self.get("#open-settings").send_keys(Keys.ENTER)
        self.assertEqual(self.focused(), "system")
        self.keys(Keys.ESCAPE)
        self.assertEqual(self.focused(), "open-settings")
        self.get("#prompt").send_keys("one", Keys.SHIFT + Keys.ENTER, Keys.NULL, "two")
        self.assertEqual(self.get("#prompt").get_property("value"), "one\ntwo")
        self.settle(max_tokens="5")
        self.get("#prompt").send_keys(Keys.ENTER)
        self.until(lambda: self.replies() and self.idle())
        self.assertEqual(self.kept()[0]["content"], "one\ntwo")
        self.assertIn(self.kept()[1]["content"].strip(), self.get("#announce").get_property("textContent"))
        self.assertEqual(self.focused(), "prompt")
        self.get("#prompt").send_keys("three")
        self.get("#send").send_keys(Keys.ENTER)
        self.assertEqual(self.focused(), "prompt")
        self.until(lambda: len(self.replies()) == 2 and self.idle())

    def test_everything_has_a_name(self):
        nameless = self.script("""return [...document.querySelectorAll('button, input, select, textarea')]
            .filter((one) => !(one.textContent.trim() || one.labels?.length || one.ariaLabel)).map((one) => one.id)""")
        self.assertEqual(nameless, [])

    def test_a_scrollbar_moves_nothing(self):
        edges = lambda: self.script("""return ['#log', '#composer'].map((one) => {
            const box = document.querySelector(one).getBoundingClientRect(); return (box.left + box.right) / 2; })""")  # noqa: E731
        self.put([{"role": "user", "content": "short"}])
        before = edges()
        self.assertEqual(before[0], before[1])
        self.put([{"role": "user", "content": "long\n" * 100}])
        self.assertGreater(self.script("return scroller.scrollHeight - scroller.clientHeight"), 0)
        self.assertEqual(edges(), before)
        # What is there for readers of the screen only takes no room below, either.
        self.put([{"role": "user", "content": "long\n" * 100}, {"role": "user", "content": "last"}])
        self.assertEqual(self.script("return document.documentElement.scrollHeight - innerHeight"), 0)

    def test_contrast(self):
        self.put([{"role": "user", "content": "Show."}, {"role": "assistant", "content": "<think>why</think>" + HOSTILE}])
        self.script("document.querySelector('details').open = true")
        self.settle(top_p="7")  # a refusal
        for name in ("light", "dark"):
            self.scheme(name)
            time.sleep(0.6)  # of transitions
            self.assertEqual(self.script(TOO_FAINT), [], name)

    def test_narrow(self):
        self.size(360, 740)
        self.put([{"role": "user", "content": "Show me code."}, {"role": "assistant", "content": HOSTILE + WIDE + "x" * 300}])
        self.assertLess(self.all("#log table")[-1].size["height"], 100, "words of a table are torn apart")
        for part in ("html", "#scroller", "#composer"):
            over = self.script("const one = document.querySelector(arguments[0]); return one.scrollWidth - one.clientWidth", part)
            self.assertLessEqual(over, 0, part)
        self.assertEqual(self.small(), [])
        self.assertFalse(self.get("#engine").is_displayed())
        self.picture("narrow")
        self.get("#toggle-engine").click()
        self.assertTrue(self.get("#engine").is_displayed())
        time.sleep(1.5)
        self.picture("narrow-engine")
        self.get("#toggle-engine").click()
        self.settle(max_tokens="30", temperature="0")
        self.get("#open-settings").click()
        self.picture("narrow-settings")
        self.assertEqual(self.small(), [])
        edges = self.script("""const edge = (one) => one.getBoundingClientRect();
            return [edge(document.querySelector('#settings-title')).top - edge(document.querySelector('#settings')).top,
                    edge(document.querySelector('#settings')).bottom - edge(document.querySelector('#settings .primary')).bottom]""")
        self.assertTrue(all(edge > 0 for edge in edges), edges)
        self.keys(Keys.ESCAPE)
        self.say("Hello.")
        self.until(lambda: len(self.replies()) == 2 and self.idle())

    def test_light_and_dark(self):
        self.put([{"role": "user", "content": "Show me what you can write."}, {"role": "assistant", "content": HOSTILE}])
        self.settle(max_tokens="60", temperature="1", seed="5")
        self.say("Now tell me a story about a cat.")
        time.sleep(4)
        colour = lambda: self.script("return getComputedStyle(document.body).backgroundColor")  # noqa: E731
        light = colour()
        self.picture("light")
        self.scheme("dark")
        self.assertNotEqual(colour(), light)
        self.picture("dark")
        self.get("#open-settings").click()
        self.picture("dark-settings")
        self.script("document.getElementById('theme').value = 'light'")
        self.get("#settings .primary").click()
        self.assertEqual(colour(), light)
        self.get("#stop").click() if not self.idle() else None
        self.until(self.idle)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])

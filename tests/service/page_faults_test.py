"""What the page makes of faults: servers that go, reloads, several tabs.

Arguments: the path of ete, the root of the sources and, to keep pictures of the page, a folder for them.
"""

import os
import signal
import sys
import unittest

from http_servers import child_of
from page_case import BrowserTest


class Faults(BrowserTest):
    def server(self, name):
        """The process id of ete-front or ete-worker."""
        return child_of(self.process.pid, name)

    def answer_of(self, button):
        return next(one for one in self.all(".failure button") if one.text == button)

    def test_a_reply_that_fails_on_its_way(self):
        self.settle(max_tokens="900")
        self.say("Tell me a story.")
        self.until(lambda: self.replies() and len(self.replies()[0]) > 20)
        self.get("#prompt").send_keys("A new one.")
        os.kill(self.server("ete-worker"), signal.SIGKILL)
        self.until(lambda: self.all(".failure"))
        self.assertIn("worker", self.get(".failure").text)
        self.assertEqual(self.get("#log > .assistant .note").text, "cut off")
        self.picture("failed")
        self.answer_of("Edit the message").click()
        self.assertEqual((self.all(".failure"), self.kept(), self.replies()), ([], [], []))
        self.assertEqual(self.get("#prompt").get_property("value"), "Tell me a story.\n\nA new one.")
        self.until(lambda: self.get("#state").get_attribute("data-state") == "serving")
        self.driver.get_log("browser")  # it says that the status was refused meanwhile

    def test_a_server_that_says_nothing(self):
        front = self.server("ete-front")
        os.kill(front, signal.SIGSTOP)
        try:
            self.until(lambda: self.get("#state").get_attribute("data-state") == "away")
            self.assertIn("the server does not answer", self.get("#engine").text)
        finally:
            os.kill(front, signal.SIGCONT)
        self.until(lambda: self.get("#state").get_attribute("data-state") == "serving")
        self.assertNotIn("does not answer", self.get("#engine").text)

    def test_a_server_that_is_gone(self):
        self.driver.execute_cdp_cmd("Network.enable", {})
        network = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", network)
        self.settle(max_tokens="5")
        self.say("one")
        self.until(lambda: self.all(".failure"))
        self.assertIn("the server does not answer", self.get(".failure").text)
        self.until(lambda: self.get("#state").get_attribute("data-state") == "away")
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**network, "offline": False})
        # What has no answer can be sent again also after the page was closed.
        self.reload()
        self.assertEqual([one.text for one in self.all(".again button")], ["Try again", "Edit the message"])
        self.assertEqual(self.all(".failure"), [])
        self.picture("unanswered")
        self.script("""const real = window.fetch;
            window.asked = [];
            window.fetch = (path, what) => { if (what.body) window.asked.push(JSON.parse(what.body)); return real(path, what); }""")
        self.say("two")
        self.until(lambda: self.replies() and self.idle())
        self.assertEqual([one["role"] for one in self.kept()], ["user", "user", "assistant"])
        (asked,) = self.script("return window.asked")
        self.assertEqual(asked["messages"], [{"role": "user", "content": "one\n\ntwo"}])
        self.driver.get_log("browser")

    def test_a_reload_in_the_middle(self):
        self.settle(max_tokens="900")
        self.say("Tell me a story.")
        self.until(lambda: self.replies() and len(self.replies()[0]) > 20)
        before = self.replies()[0]
        self.reload()
        self.assertTrue(self.replies()[0].startswith(before[:20]))
        self.assertEqual((self.get("#log > .assistant .note").text, self.idle()), ("stopped", True))
        self.assertTrue(self.get(".again button").is_displayed())

    def test_a_tab_that_ends_without_a_word(self):
        self.settle(max_tokens="900")
        self.say("Tell me a story.")
        self.until(lambda: self.replies() and len(self.replies()[0]) > 20)
        self.script("""Object.defineProperty(document, 'hidden', {value: true});
            document.dispatchEvent(new Event('visibilitychange'))""")
        kept = self.kept()[1]
        self.assertEqual((kept["note"], len(kept["content"]) > 20), ("cut off", True))
        self.assertEqual(self.get("#log > .assistant .note").text, "")

    def test_back_to_the_page_as_it_was(self):
        self.settle(max_tokens="5")
        self.say("one")
        self.until(lambda: self.replies() and self.idle())
        self.driver.get(f"http://127.0.0.1:{self.port}/?again")
        self.until(lambda: self.get("#state").get_attribute("data-state") == "serving")
        self.say("two")
        self.until(lambda: len(self.replies()) == 2 and self.idle())
        self.driver.back()
        self.until(lambda: [one.text for one in self.all("#log > .user .body")] == ["one", "two"])
        self.say("three")
        self.until(lambda: len(self.replies()) == 3 and self.idle())
        self.assertEqual([one["content"] for one in self.kept()[::2]], ["one", "two", "three"])

    def test_back_before_the_reply_has_ended(self):
        self.settle(max_tokens="900")
        self.say("Tell me a story.")
        self.until(lambda: self.replies() and len(self.replies()[0]) > 20)
        self.script("""for (const name of ['pagehide', 'pageshow'])
            window.dispatchEvent(new PageTransitionEvent(name, {persisted: true}))""")
        self.until(self.idle)
        self.assertEqual([one.text for one in self.all(".again button")], ["Reply again"])

    def test_a_tab_without_room(self):
        self.settle(max_tokens="5")
        self.say("one")
        self.until(lambda: self.replies() and self.idle())
        self.script("""const real = Storage.prototype.setItem;
            Storage.prototype.setItem = function (key, value) {
              if (this === sessionStorage) throw new DOMException('full', 'QuotaExceededError');
              real.call(this, key, value);
            }""")
        self.say("two")
        self.until(lambda: len(self.replies()) == 2 and self.idle())
        self.reload()
        said = [one.text for one in self.all("#log > .user .body")]
        self.assertEqual((said, len(self.replies())), (["one", "two"], 2))

    def test_a_browser_that_keeps_nothing(self):
        forbid = """for (const name of ['localStorage', 'sessionStorage'])
            Object.defineProperty(window, name, {get() { throw new DOMException('denied', 'SecurityError'); }})"""
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": forbid})
        try:
            self.reload()
            self.settle(max_tokens="5", token="secret")
            self.get("#open-settings").click()
            self.assertEqual(self.get("#token").get_property("value"), "secret")
            self.get("#settings-cancel").click()
            self.say("hello")
            self.until(lambda: self.replies() and self.idle())
            self.assertIn("does not keep the conversation", self.get(".again").text)
            self.assertRegex(self.get("#log > .assistant .note").text, "^[1-5] tokens?")
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def test_tabs_keep_their_own_conversations(self):
        self.settle(max_tokens="5")
        self.say("first")
        self.until(lambda: self.replies() and self.idle())
        first = self.driver.current_window_handle
        self.driver.switch_to.new_window("tab")
        try:
            self.driver.get(f"http://127.0.0.1:{self.port}/")
            self.until(lambda: self.get("#state").get_attribute("data-state") == "serving")
            self.say("second")
            self.until(lambda: len(self.replies()) == 2 and self.idle())
            self.driver.switch_to.window(first)
            self.get("#new").click()
            self.driver.switch_to.window(self.driver.window_handles[-1])
            self.reload()
            said = [one.text for one in self.all("#log > .user .body")]
            self.assertEqual((said, len(self.replies())), (["first", "second"], 2))
            # Settings are those of the browser.
            self.settle(max_tokens="6")
            self.driver.switch_to.window(first)
            self.get("#open-settings").click()
            self.assertEqual(self.get("#max_tokens").get_property("value"), "6")
            self.driver.switch_to.window(self.driver.window_handles[-1])
        finally:
            self.driver.close()
            self.driver.switch_to.window(first)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

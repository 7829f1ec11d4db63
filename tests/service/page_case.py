"""A test case with `ete serve` of its own and a browser at its page: headless Chromium, where it is installed. Needs
python3-selenium and chromium-driver.

The program's arguments begin with the path of ete and the root of the sources; a third is a folder for pictures.
"""

import http.client
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from http_servers import free_port

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = By = Keys = None

ETE, SOURCE = sys.argv[1:3]
PICTURES = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
STORY = str(pathlib.Path(SOURCE) / "models" / "story-8m")
# Paced, so that a reply can be stopped, and streamed, so that the link has work.
ENGINE = ["--device=cpu", "--resident-layers=2", "--link-limit=200M", "--max-sessions=8", "--context=1024"]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
TIMEOUT = 60


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(dir="/tmp")
        cls.addClassCleanup(cls.directory.cleanup)
        cls.port = free_port()
        log = open(pathlib.Path(cls.directory.name, "log"), "w+")
        cls.addClassCleanup(log.close)
        command = [ETE, "serve", f"--model={STORY}", f"--listen=unix:{cls.directory.name}/front",
                   f"--http=127.0.0.1:{cls.port}", "--drain-grace=1", *ENGINE]  # fmt: skip
        cls.process = subprocess.Popen(command, stderr=log)
        cls.addClassCleanup(cls.end_servers)
        end = time.monotonic() + TIMEOUT
        while "ready at" not in pathlib.Path(log.name).read_text():
            if time.monotonic() > end or cls.process.poll() is not None:
                raise RuntimeError(pathlib.Path(log.name).read_text())
            time.sleep(0.05)

    @classmethod
    def end_servers(cls):
        cls.process.send_signal(signal.SIGTERM)
        try:
            cls.process.wait(30)
        except subprocess.TimeoutExpired:
            cls.process.kill()
            cls.process.wait()

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response, text


@unittest.skipUnless(webdriver and CHROMIUM and DRIVER, "chromium, chromium-driver or python3-selenium is not installed")
class BrowserTest(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                         f"--user-data-dir={cls.directory.name}/profile"):  # fmt: skip
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.driver = webdriver.Chrome(service=webdriver.chrome.service.Service(DRIVER), options=options)
        cls.addClassCleanup(cls.driver.quit)

    def setUp(self):
        self.size(1280, 860)
        self.scheme("light")
        self.driver.get(f"http://127.0.0.1:{self.port}/")
        self.script("localStorage.clear(); sessionStorage.clear()")
        self.reload()

    def tearDown(self):
        # A refusal that a test asks for is not the page's fault.
        bad = [entry["message"] for entry in self.driver.get_log("browser") if "status of 4" not in entry["message"]]
        self.assertEqual(bad, [])

    def reload(self):
        self.driver.refresh()
        self.until(lambda: self.get("#state").get_attribute("data-state") == "serving")

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name):
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, name):
        if PICTURES is not None:
            self.driver.save_screenshot(str(PICTURES / f"{name}.png"))

    def get(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def keys(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def focused(self):
        return self.driver.switch_to.active_element.get_attribute("id")

    def until(self, condition, what="the page does not get there"):
        end = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    def idle(self):
        return self.get("#send").is_displayed()

    def say(self, text):
        self.get("#prompt").send_keys(text + Keys.ENTER)

    def settle(self, **values):
        self.get("#open-settings").click()
        for name, value in values.items():
            self.get(f"#{name}").clear()
            self.get(f"#{name}").send_keys(value)
        self.get("#settings .primary").click()

    def small(self):
        """What a finger would miss."""
        shown = [one for one in self.all("button, input, select, textarea, summary") if one.is_displayed()]
        return [one.get_attribute("id") or one.text for one in shown if one.size["height"] < 40]

    def replies(self):
        return [one.text for one in self.all("#log > .assistant .body")]

    def kept(self):
        return json.loads(self.script("return localStorage.getItem('ete.conversation')"))["messages"]

    def put(self, messages):
        self.script("localStorage.setItem('ete.conversation', arguments[0])", json.dumps({"messages": messages}))
        self.reload()

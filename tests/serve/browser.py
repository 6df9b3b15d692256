"""Chromium without a window, driven over the DevTools protocol on a pair of pipes.

    with Browser(find_browser()) as browser:
        tab = browser.open("http://127.0.0.1:8080/", width=390, height=844)
        tab.click("#send")
        tab.wait("document.querySelector('.note').textContent !== ''")
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

WAIT_S = 60  # for a reply, and for a condition to become true


def find_browser():
    """Path of Chromium or Chrome; None if there is none."""
    names = ["chromium", "chromium-browser", "google-chrome", "chrome"]
    return next(filter(None, map(shutil.which, names)), None)


class BrowserError(Exception):
    pass


class Browser:
    def __init__(self, program):
        self.directory = tempfile.mkdtemp(prefix="lowkey-browser-")
        self.next_id, self.rest = 0, b""
        self.tabs = {}
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        options = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
                   "--no-first-run", "--disable-dev-shm-usage", "--disable-extensions",
                   "--disable-background-networking", "--disable-component-update",
                   "--force-color-profile=srgb", f"--user-data-dir={self.directory}/profile"]
        # The browser expects the pipes as descriptors 3 and 4.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        with open(os.path.join(self.directory, "stderr"), "wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", shell, program, *options], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=(to_browser, from_browser))
        os.close(to_browser)
        os.close(from_browser)
        self.downloads = os.path.join(self.directory, "downloads")
        self.call("Browser.setDownloadBehavior",
                  {"behavior": "allow", "downloadPath": self.downloads})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        for _ in range(20):  # its helpers may still write
            shutil.rmtree(self.directory, ignore_errors=True)
            if not os.path.exists(self.directory):
                break
            time.sleep(0.1)

    def _read(self, end):
        """The next message; events go to their tab."""
        while b"\0" not in self.rest:
            ready = select.select([self.read_end], [], [], max(0, end - time.monotonic()))[0]
            part = os.read(self.read_end, 1 << 20) if ready else b""
            if not part:
                raise BrowserError("no answer from the browser")
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(line)
        if "method" in message and message.get("sessionId") in self.tabs:
            self.tabs[message["sessionId"]].on_event(message["method"], message["params"])
        return message

    def call(self, method, params=None, session=None):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + WAIT_S
        while True:
            reply = self._read(end)
            if reply.get("id") != message["id"]:
                continue
            if "error" in reply:
                raise BrowserError(f"{method}: {reply['error']}")
            return reply["result"]

    def open(self, url, width=1280, height=860, dark=False, script="", touch=False):
        """A new tab. `script` runs in each of its pages before the page's own."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        tab = Tab(self, session["sessionId"], target)
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            tab.call(domain + ".enable")
        tab.resize(width, height, touch)
        scheme = "dark" if dark else "light"
        tab.call("Emulation.setEmulatedMedia",
                 {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        if script:
            tab.call("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        tab.call("Page.navigate", {"url": url})
        tab.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        return tab


class Tab:
    def __init__(self, browser, session, target):
        self.browser, self.session, self.target = browser, session, target
        self.errors, self.requests = [], []
        browser.tabs[session] = self

    def call(self, method, params=None):
        return self.browser.call(method, params, self.session)

    def on_event(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            self.errors.append(f"exception: {text}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append("console: " + str([a.get("value") for a in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            self.errors.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def run(self, code):
        """The value of an expression, which may be a promise."""
        result = self.call("Runtime.evaluate", {"expression": code, "awaitPromise": True,
                                                "returnByValue": True, "userGesture": True})
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def wait(self, condition):
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            value = self.run(f"(() => {{ try {{ return {condition} }} catch {{ return null }} }})()")
            if value:
                return value
            time.sleep(0.03)
        raise BrowserError(f"still not true after {WAIT_S} s: {condition}")

    def click(self, selector):
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector, text):
        """Set a field's value as if it was typed."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.run(f"(() => {{ const field = document.querySelector({json.dumps(selector)});"
                 f"field.value = {json.dumps(text)};"
                 "field.dispatchEvent(new Event('input', {bubbles: true}));"
                 "field.dispatchEvent(new Event('change', {bubbles: true})); })()")

    def press(self, key, code, modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {
                "type": kind, "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers,
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {})})

    def set_files(self, selector, paths):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
        self.call("DOM.setFileInputFiles", {"files": paths, "nodeId": node})

    def resize(self, width, height, touch=False):
        self.call("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch})
        self.call("Emulation.setTouchEmulationEnabled", {"enabled": touch})

    def reload(self):
        self.run("window.is_old_page = true")
        self.call("Page.reload")
        self.wait("!window.is_old_page && document.readyState === 'complete'")

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", {"format": "png"})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.closeTarget", {"targetId": self.target})

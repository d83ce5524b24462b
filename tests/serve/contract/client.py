"""A plain HTTP client, and the readings of answers that all checks share."""

import json
import os
import random
import socket
import subprocess
import tempfile
import time
import unittest
from http.client import HTTPConnection

from server_process import MODEL, Server

STORY = "Once upon a time there was a little girl named Mia. She had a red ball."


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def text(self):
        return self.body.decode()

    @property
    def events(self):
        """The JSON of each server-sent event."""
        lines = [line[6:] for line in self.text.split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def lines(self):
        """The JSON of each line."""
        return [json.loads(line) for line in self.text.splitlines() if line]

    def __repr__(self):
        return f"{self.status} {self.body[:300]!r}"


def events_text(events):
    """Returns the text of a streamed chat or completion."""
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def fresh_prompt(sentences=12):
    """Returns a story that no test sent before."""
    names = ["Mia", "Otto", "Nina", "Tess", "Ivy", "Max", "Leo", "Ada"]
    things = ["a red ball", "a green kite", "a brown doll", "a small boat", "a blue hat", "a big drum"]
    picks = random.SystemRandom()
    return " ".join(f"{picks.choice(names)} had {picks.choice(things)}." for _ in range(sentences))


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **more}


def raw_exchange(port, data, seconds=20, end=None, shut=False):
    """Sends bytes; returns what comes until the end of the connection, until `end` returns true, or in time."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
            if shut:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused while it was sent; the answer may be there
        limit = time.monotonic() + seconds
        try:
            while time.monotonic() < limit and not (end and end(got)):
                connection.settimeout(max(0.01, limit - time.monotonic()))
                part = connection.recv(65536)
                if not part:
                    break
                got += part
        except OSError:
            pass
    return got


class Contract(unittest.TestCase):
    """One server for the checks of a class."""

    MODELS = (MODEL,)
    FLAGS = ("--ctx", "1024")
    STORE = True  # a fresh directory

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="kvcache-contract-")
        cls.addClassCleanup(cls.folder.cleanup)
        store = cls.folder.name + "/store" if cls.STORE else "none"
        environment = {"KVCACHE_MODELS": cls.folder.name + "/models"}
        cls.server = Server("--store", store, *cls.FLAGS, models=cls.MODELS, environment=environment)
        cls.addClassCleanup(cls.server.stop)  # also if the rest of setUpClass fails
        cls.port = cls.server.port

    @classmethod
    def call(cls, method, path, body=None, headers=None, seconds=60):
        connection = HTTPConnection("127.0.0.1", cls.port, timeout=seconds)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        result = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return result

    def get(self, path, **how):
        return self.call("GET", path, **how)

    def post(self, path, body, **how):
        return self.call("POST", path, body, **how)

    def ok(self, path, body, **how):
        answer = self.post(path, body, **how)
        self.assertEqual(answer.status, 200, (path, body, answer))
        return answer.json

    def raw(self, data, **how):
        return raw_exchange(self.port, data, **how)

    def metrics(self):
        lines = [line.rsplit(" ", 1) for line in self.get("/metrics").text.splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, value in lines}

    def wait(self, check, seconds=10):
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if check():
                return True
            time.sleep(0.02)
        return bool(check())

    def assert_idle(self):
        self.assertTrue(self.wait(lambda: self.metrics()["kvcache_requests_running"] == 0))


@unittest.skipUnless("KVCACHE_SCRIPTED_MODEL" in os.environ, "needs the program that writes the scripted model")
class ScriptedContract(Contract):
    """A server with the model that calls get_weather when it may; `name` is the model's."""

    STORE = False
    FLAGS = ("--ctx", "512")

    @classmethod
    def setUpClass(cls):
        handle, model = tempfile.mkstemp(suffix=".gguf")
        os.close(handle)
        cls.addClassCleanup(os.unlink, model)
        subprocess.run([os.environ["KVCACHE_SCRIPTED_MODEL"], model], check=True)
        cls.MODELS = (MODEL, model)
        super().setUpClass()
        models = cls.call("GET", "/v1/models").json["data"]
        cls.name = next(m["id"] for m in models if m["id"] != "story")

"""Embeddings, with the model that ships: a model that generates embeds too, with the last token's state."""

import base64
import math
import socket
import struct
import time

from contract.client import STORY, Contract, chat


def length(vector):
    return math.sqrt(sum(value * value for value in vector))


class Embeddings(Contract):
    def vectors(self, given, **more):
        return [row["embedding"] for row in self.ok("/v1/embeddings", {"model": "story", "input": given, **more})["data"]]

    def test_every_form_of_an_input(self):
        answer = self.ok("/v1/embeddings", {"model": "story", "input": [STORY, "A dog."]})
        self.assertEqual(answer["object"], "list")
        self.assertEqual(answer["model"], "story")
        self.assertEqual([row["index"] for row in answer["data"]], [0, 1])
        self.assertEqual({row["object"] for row in answer["data"]}, {"embedding"})
        self.assertEqual(answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"])
        for row in answer["data"]:
            self.assertAlmostEqual(length(row["embedding"]), 1, places=5)
        # An input has the same values alone and among others.
        self.assertEqual(self.vectors(STORY), [answer["data"][0]["embedding"]])
        self.assertEqual(self.vectors([STORY] * 40), [answer["data"][0]["embedding"]] * 40)
        tokens = self.ok("/tokenize", {"content": "A dog.", "add_special": True})["tokens"]
        self.assertEqual(self.vectors(tokens), self.vectors([tokens]))

    def test_base64_and_dimensions(self):
        [plain] = self.vectors("A dog.")
        [text] = self.vectors("A dog.", encoding_format="base64")
        data = base64.b64decode(text)
        self.assertEqual(list(struct.unpack(f"<{len(data) // 4}f", data)),
                         [struct.unpack("<f", struct.pack("<f", value))[0] for value in plain])
        [cut] = self.vectors("A dog.", dimensions=8)
        self.assertEqual(len(cut), 8)
        self.assertAlmostEqual(length(cut), 1, places=5)
        for i in range(8):
            self.assertAlmostEqual(cut[i], plain[i] / length(plain[:8]), places=5)

    def test_errors(self):
        for more, param in (({"input": ""}, "input"), ({"input": []}, "input"), ({}, "input"),
                            ({"input": ["a", 1]}, "input[1]"), ({"input": [-1]}, "input[0]"),
                            ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
                            ({"input": "a", "dimensions": 0}, "dimensions"),
                            ({"input": "a", "dimensions": 1 << 20}, "dimensions"),
                            ({"input": ["a"] * 2049}, "input")):
            answer = self.post("/v1/embeddings", {"model": "story", **more})
            self.assertEqual(answer.status, 400, more)
            error = answer.json["error"]
            self.assertEqual((error["type"], error["param"]), ("invalid_request_error", param), answer)
        long = self.post("/v1/embeddings", {"model": "story", "input": "word " * 20000})
        self.assertEqual((long.status, long.json["error"]["code"]), (400, "context_length_exceeded"))
        token = self.post("/v1/embeddings", {"model": "story", "input": [1 << 30]})
        self.assertEqual((token.status, token.json["error"]["param"]), (400, "input[0]"), token)
        other = self.post("/v1/embeddings", {"model": "none", "input": "a"})
        self.assertEqual((other.status, other.json["error"]["code"]), (404, "model_not_found"))
        ranks = self.post("/v1/rerank", {"model": "story", "query": "a", "documents": ["b"]})
        self.assertEqual((ranks.status, ranks.json["error"]["param"]), (400, "model"))

    def test_ollamas_routes(self):
        answer = self.ok("/api/embed", {"model": "story", "input": [STORY, "A dog."]})
        self.assertEqual(answer["embeddings"], self.vectors([STORY, "A dog."]))
        self.assertGreater(answer["prompt_eval_count"], 10)
        self.assertGreaterEqual(answer["total_duration"], answer["load_duration"])
        [one] = self.ok("/api/embed", {"model": "story", "input": STORY})["embeddings"]
        old = self.ok("/api/embeddings", {"model": "story", "prompt": STORY})["embedding"]
        self.assertGreater(abs(length(old) - 1), 1e-3)
        for ours, theirs in zip(one, old):
            self.assertAlmostEqual(ours, theirs / length(old), places=5)
        self.assertEqual(self.ok("/api/embed", {"model": "story"})["embeddings"], [])
        long = {"model": "story", "input": "word " * 20000}
        self.assertEqual(len(self.ok("/api/embed", long)["embeddings"]), 1)
        answer = self.post("/api/embed", {**long, "truncate": False})
        self.assertEqual(answer.status, 400)
        self.assertIn("the input length exceeds the context length", answer.json["error"])

    def test_a_model_is_loaded_for_each_use(self):
        self.ok("/api/embed", {"model": "story", "input": "a"})
        self.ok("/v1/chat/completions", chat("Hi"))
        self.assertEqual([model["name"] for model in self.get("/api/ps").json["models"]], ["story:latest"] * 2)
        self.ok("/api/embed", {"model": "story", "keep_alive": 0})
        end = time.monotonic() + 20
        while len(self.get("/api/ps").json["models"]) > 1:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.ok("/v1/chat/completions", chat("Hi"))
        self.assertEqual(len(self.get("/api/ps").json["models"]), 1)

    def test_a_chat_beside_a_large_batch(self):
        texts = [f"{i} {STORY}" for i in range(2000)]
        body = b'{"model": "story", "input": [' + b", ".join(b'"%s"' % text.encode() for text in texts) + b"]}"
        with socket.create_connection(("127.0.0.1", self.port)) as batch:
            batch.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(0.1)
            self.ok("/v1/chat/completions", chat("Hi"), seconds=30)
            self.assertEqual(len(self.vectors("A dog.")), 1)
        # The client has left: the work ends.
        end = time.monotonic() + 20
        while "kvcache_requests_running 0" not in self.get("/metrics").text:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

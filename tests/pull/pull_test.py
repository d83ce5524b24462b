"""Tests `kvcache pull` with servers on loopback.

usage: pull_test.py KVCACHE MAKE_MODEL SUITE  (paths of the two programs)
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from pull_case import PARTIAL, PullTest, servers

import gguf_split
import program
from program import run


class Registry(PullTest):
    def test_pull_and_run(self):
        registry, name = self.registry()
        self.assertEqual(self.pull(name), f"{name}:latest\n")
        self.assertEqual(self.tokens(name), self.tokens(self.model))
        self.assertEqual(self.names(), [f"{name}:latest"])
        self.assertEqual(self.partials(), [])
        self.succeeds("show", name, "--verify", env=self.env)
        asked = len(registry.asked)
        self.pull(name)  # asks for the manifest only
        self.assertEqual(len(registry.asked), asked + 1)

    def test_run_fetches(self):
        _, name = self.registry()
        self.assertEqual(self.tokens(name), self.tokens(self.model))

    def test_offline_never_asks(self):
        registry, name = self.registry()
        for env, flags in (({"KVCACHE_OFFLINE": "1"}, ()), ({"HF_HUB_OFFLINE": "1"}, ()), ({}, ("--offline",))):
            env = {**self.env, **env}
            self.fails(["run", name, "-p", "x", *flags], "no model", env=env)
            self.fails(["pull", name, *flags], "offline", env=env)
        self.assertEqual(registry.asked, [])

    def test_what_is_not_there(self):
        registry, name = self.registry()
        self.refuses(f"{name}:other", registry.host, "404", "/v2/me/tiny/manifests/other", "no model")
        code, _, err = run("run", f"{name}:other", "-p", "x", env=self.env)
        self.assertEqual(code, 1)
        self.assertIn("it was not fetched", err)
        registry.close()
        self.refuses(name, registry.host)

    def test_a_token_that_anyone_gets(self):
        registry, name = self.registry()
        registry.needs_token = True
        self.pull(name)
        self.assertIn("/token?service=stand-in&scope=repository%3Ax%3Apull", registry.paths())

    def test_blobs_that_lie_elsewhere(self):
        registry, name = self.registry()
        registry.needs_token = True
        other = self.stand_in(servers.Registry())
        other.blobs = registry.blobs
        registry.send_blob = lambda request, _: servers.send(
            request, 307, headers=[("Location", other.url + request.path + "?secret=1")])
        self.pull(name)
        self.assertEqual(len(other.asked), 2)
        for _, headers in other.asked:
            self.assertNotIn("Authorization", headers)

    def test_a_damaged_blob_is_fetched_again(self):
        _, name = self.registry()
        self.pull(name)
        blob = self.root / "models/blobs" / servers.digest_of(self.bytes).replace(":", "-")
        blob.write_bytes(self.bytes[:-1] + bytes([self.bytes[-1] ^ 1]))
        self.pull(name)
        self.succeeds("show", name, "--verify", env=self.env)

    def test_a_split_model(self):
        registry, _ = self.registry()
        registry.add("me/cut:q8", [(servers.MODEL, part) for part in gguf_split.split(self.bytes, 3)])
        self.pull(f"{registry.host}/me/cut:q8")
        self.assertEqual(self.tokens(f"{registry.host}/me/cut:q8"), self.tokens(self.model))

    def test_progress_in_lines(self):
        _, name = self.registry()
        _, _, err = run("pull", name, env=self.env)
        digest = servers.digest_of(self.bytes).removeprefix("sha256:")
        lines = err.splitlines()
        self.assertEqual(lines[0], "pulling manifest")
        self.assertTrue(any(line.startswith(f"pulling {digest[:12]}") for line in lines), err)
        self.assertEqual(lines[-2:], ["writing manifest", "success"])


class RealRegistry(PullTest):
    def test_pull_and_run(self):
        registry = self.stand_in(servers.RealRegistry(self.root))
        source = {**self.env, "KVCACHE_MODELS": str(self.root / "source")}
        text = f"FROM {self.model}\nDRAFT {self.model}\nSYSTEM Be brief.\nPARAMETER temperature 0.5\n"
        self.succeeds("create", "me/tiny", "-f", self.file("Modelfile", text.encode()), env=source)
        manifest = next((self.root / "source/manifests").glob("*/me/tiny/latest"))
        registry.push("me/tiny", "latest", self.root / "source", manifest.read_text())
        name = f"{registry.host}/me/tiny"
        self.pull(name)
        shown = [json.loads(self.succeeds("show", one, "--json", "--verify", env=env))["layers"]
                 for one, env in ((name, self.env), ("me/tiny", source))]
        self.assertEqual(shown[0], shown[1])
        self.assertEqual(self.tokens(name), self.tokens("me/tiny", KVCACHE_MODELS=str(self.root / "source")))
        # The rest of a blob, from where a pull before ended.
        self.succeeds("rm", name, env=self.env)
        hexes = servers.digest_of(self.bytes).removeprefix("sha256:")
        blobs = self.root / "models/blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        (blobs / f"{PARTIAL}{hexes}-{len(self.bytes)}.partial").write_bytes(self.bytes[:1000])
        self.pull(name)
        self.succeeds("show", name, "--verify", env=self.env)
        self.assertEqual(self.partials(), [])


class Hub(PullTest):
    def hub(self, **files):
        other = pathlib.Path(self.make("other.gguf", "--layers", "1", "--vocab", "512")).read_bytes()
        files = {"README.md": b"x", "tiny-Q4_K_M.gguf": self.bytes, "tiny-Q8_0.gguf": other, **files}
        hub = self.stand_in(servers.Hub(files))
        self.env["HF_ENDPOINT"] = hub.url
        return hub

    def layers(self, name):
        shown = json.loads(self.succeeds("show", name, "--json", "--verify", env=self.env))
        return [(layer["type"].rpartition(".")[2], layer["digest"]) for layer in shown["layers"]]

    def test_the_usual_quantization(self):
        hub = self.hub()
        self.assertEqual(self.tokens("hf.co/me/tiny"), self.tokens(self.model))
        self.assertEqual(self.layers("hf.co/me/tiny"), [("model", servers.digest_of(self.bytes))])
        self.assertIn(f"/me/tiny/resolve/{hub.revision}/tiny-Q4_K_M.gguf", hub.paths())

    def test_a_quantization(self):
        hub = self.hub()
        self.pull("hf.co/me/tiny:q8_0")
        self.assertEqual(self.layers("hf.co/me/tiny:q8_0"),
                         [("model", servers.digest_of(hub.files["tiny-Q8_0.gguf"]))])
        for tag in ("q4", "Q4_K", "Q3_K_M"):
            code, _, err = run("pull", f"hf.co/me/tiny:{tag}", env=self.env)
            self.assertEqual(code, 1, tag)
            self.assertIn("tiny-Q4_K_M", err)  # what there is

    def test_parts_projector_and_draft(self):
        parts = gguf_split.split(self.bytes, 3)
        files = {f"BF16/tiny-BF16-{i + 1:05}-of-00003.gguf": part for i, part in enumerate(parts)}
        files |= {"mmproj-F16.gguf": b"projector", "mmproj-BF16.gguf": b"other", "tiny-draft.gguf": self.bytes}
        hub = self.hub(**files)
        self.pull("hf.co/me/tiny:BF16")
        self.assertEqual(self.layers("hf.co/me/tiny:BF16"), [
            *(("model", servers.digest_of(part)) for part in parts),
            ("draft", servers.digest_of(self.bytes)), ("projector", servers.digest_of(b"projector"))])
        self.assertEqual(self.tokens("hf.co/me/tiny:BF16", "--draft", "none"), self.tokens(self.model))
        del hub.files["BF16/tiny-BF16-00002-of-00003.gguf"]
        _, _, err = run("pull", "hf.co/me/tiny:BF16", env=self.env)
        self.assertIn("part 2 of 3", err)

    def test_tokens(self):
        hub = self.hub()
        hub.token = "hf_secret"
        self.refuses("hf.co/me/tiny", "401", hub.host, "token")
        self.refuses("hf.co/me/tiny", "401", env={"HF_TOKEN": "hf_wrong"})
        self.pull("hf.co/me/tiny", HF_TOKEN="hf_secret")
        self.succeeds("rm", "hf.co/me/tiny", env=self.env)
        (self.root / "token").write_text("hf_secret\n")  # in HF_HOME
        self.pull("hf.co/me/tiny")

    def test_a_token_stays_with_its_host(self):
        hub = self.hub()
        hub.token = "hf_secret"
        other = self.stand_in(servers.Hub(hub.files))
        hub.send_file = lambda request, _: servers.send(
            request, 302, headers=[("Location", other.url + request.path)])
        self.pull("hf.co/me/tiny", HF_TOKEN="hf_secret")
        self.assertEqual([("Authorization" in headers) for _, headers in other.asked], [False])

    def test_a_token_does_not_follow_a_list(self):
        hub = self.hub()
        other = self.stand_in(servers.Hub(hub.files))
        hub.answer = lambda request: servers.send(request, 302, headers=[("Location", other.url + request.path)])
        self.pull("hf.co/me/tiny", HF_TOKEN="hf_secret")
        self.assertIn("Authorization", hub.asked[0][1])
        self.assertEqual({("Authorization" in headers) for _, headers in other.asked}, {False})

    def test_lists_that_are_none(self):
        hub = self.hub()
        digest = {"sha256": "0" * 64, "size": 3}
        many = {"siblings": [{"rfilename": f"a-{i:05}-of-04097.gguf", "lfs": digest} for i in range(1, 4098)]}
        for listing in ([], {}, {"siblings": 1}, {"siblings": [1]}, {"siblings": [{}]}, {"siblings": []},
                        {"siblings": [{"rfilename": "a.gguf", "size": 3}]},
                        {"siblings": [{"rfilename": "a.gguf", "lfs": {"sha256": "../../x", "size": 3}}]},
                        {"siblings": [{"rfilename": "../../x/a.gguf", "lfs": digest}]}, many):
            hub.listing = lambda: listing
            self.refuses("hf.co/me/tiny", hub.host, "/api/models/me/tiny")
        self.refuses("hf.co/me/nothing", hub.host, "404", "no repository")


class Hostile(PullTest):
    """Servers that break, stall, lie or redirect: an error names host, path and rule; no model appears."""

    def lies(self, send_blob, *words, flags=("--stall", "1")):
        registry, name = self.registry()
        registry.send_blob = send_blob
        return self.refuses(name, registry.host, "/v2/me/tiny/blobs/sha256:", *words, flags=flags)

    def test_wrong_bytes(self):
        self.lies(lambda request, data: servers.send(request, 200, bytes(len(data))), "digest")

    def test_wrong_sizes(self):
        self.lies(lambda request, data: servers.send(request, 200, data + b"x"), "manifest says")
        self.lies(lambda request, data: servers.send(request, 200, data[:-1]), "manifest says")

    def test_more_bytes_than_said(self):
        def endless(request, data):
            request.send_response(200)
            request.end_headers()
            request.close_connection = True
            request.wfile.write(data + b"more")
        self.lies(endless, "more bytes")

    def test_statuses(self):
        for status in (403, 404, 418):
            self.lies(lambda request, _: servers.send(request, status), str(status))
        self.lies(lambda request, _: servers.send(request, 204), "204")

    def test_a_silent_server(self):
        start = time.monotonic()
        self.lies(lambda request, _: time.sleep(60), "for 1 s")
        self.assertLess(time.monotonic() - start, 55)

    def test_a_slow_server(self):
        def trickle(request, data):
            begin = int(request.headers.get("Range", "bytes=0-")[6:-1])
            request.send_response(206 if begin else 200)
            request.send_header("Content-Length", str(len(data) - begin))
            if begin:
                request.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            request.end_headers()
            for at in range(begin, len(data), 10):
                request.wfile.write(data[at:at + 10])
                time.sleep(0.1)
        self.lies(trickle, "less than 1024 bytes a second")

    def test_answers_to_ranges(self):
        hexes = servers.digest_of(self.bytes).removeprefix("sha256:")
        blobs = self.root / "models/blobs"
        for ranges in ("bytes 5-9/100", "bytes x", ""):
            blobs.mkdir(parents=True, exist_ok=True)
            (blobs / f"{PARTIAL}{hexes}-{len(self.bytes)}.partial").write_bytes(self.bytes[:1000])
            self.lies(lambda request, data: servers.send(request, 206, data[1000:], [("Content-Range", ranges)]),
                      "asked for bytes from 1000")

    def test_redirects(self):
        def to(place):
            return lambda request, _: servers.send(request, 302, headers=[("Location", place)])
        self.lies(to("file:///etc/passwd"), "redirect", "file:///etc/passwd", "must begin with http")
        self.lies(to("gopher://127.0.0.1/x"), "must begin with http")
        self.lies(to("http://user@127.0.0.1/"), "must have none")
        self.lies(lambda request, _: servers.send(request, 302), "without a Location")
        self.lies(lambda request, _: servers.send(request, 302, headers=[("Location", request.path)]), "circle")
        count = iter(range(1000))
        registry, name = self.registry()
        registry.send_blob = lambda request, _: servers.send(
            request, 302, headers=[("Location", f"{request.path}?{next(count)}")])
        self.refuses(name, registry.host, "more than 10 redirects")

    def test_manifests(self):
        registry, name = self.registry()
        good = registry.manifests["me/tiny:latest"]
        for bad in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100000, b" " * (5 << 20),
                    json.dumps({**good, "schemaVersion": 1}).encode(),
                    json.dumps({**good, "layers": []}).encode(),
                    json.dumps({**good, "layers": [{**good["layers"][0], "digest": "sha256:../x"}]}).encode()):
            registry.manifests["me/tiny:latest"] = bad
            self.refuses(name, registry.host, "/v2/me/tiny/manifests/latest")

    def test_an_endless_body_of_an_error(self):
        def endless(request, _):
            request.send_response(404)
            request.end_headers()
            request.close_connection = True
            while True:
                request.wfile.write(bytes(1 << 16))
        start = time.monotonic()
        self.lies(endless, "404", flags=())
        self.assertLess(time.monotonic() - start, 30)

    def test_a_list_that_takes_too_long(self):
        registry, name = self.registry()

        def trickle(request):
            request.send_response(200)
            request.end_headers()
            request.close_connection = True
            while True:
                request.wfile.write(b" " * 2000)
                time.sleep(0.1)
        registry.answer = trickle
        start = time.monotonic()
        self.refuses(name, "manifests/latest", "not complete after 10 s", flags=("--stall", "1"))
        self.assertLess(time.monotonic() - start, 40)

    def test_what_is_no_model(self):
        registry, name = self.registry()
        registry.add("me/tiny:latest", [(servers.MODEL, b"#!/bin/sh\n")])
        self.refuses(name, "is no GGUF file")

    def test_sizes_that_no_disk_has(self):
        registry, name = self.registry()
        registry.manifests["me/tiny:latest"]["layers"][0]["size"] = 1 << 59
        self.refuses(name, "bytes free")
        registry.manifests["me/tiny:latest"]["layers"][0]["size"] = 1 << 63
        self.refuses(name, "impossible")
        hub = self.stand_in(servers.Hub({"a.gguf": self.bytes}))
        listing = hub.listing()
        hub.listing = lambda: listing
        for size, word in ((1 << 59, "bytes free"), (1 << 63, "at most")):
            listing["siblings"][0]["lfs"]["size"] = size
            self.refuses("hf.co/me/tiny", word, env={"HF_ENDPOINT": hub.url})
        self.assertEqual(self.partials(), [])

    def test_a_long_list_needs_little_memory(self):
        files = [{"rfilename": f"{i}.bin", "tags": [[], {}, i] * 4} for i in range(150_000)]
        hub = self.stand_in(servers.Hub({"a.gguf": self.bytes}))
        listing = json.dumps({**hub.listing(), "siblings": hub.listing()["siblings"] + files}).encode()
        answer = hub.answer
        hub.answer = lambda request: servers.send(request, 200, listing) if "/api/" in request.path else answer(request)
        self.assertGreater(len(listing), 10 << 20)
        used = subprocess.run(["/usr/bin/python3", "-c", "import resource, subprocess, sys; "
                               "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, "
                               "stderr=subprocess.DEVNULL); "
                               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)",
                               program.KVCACHE, "pull", "hf.co/me/tiny"],
                              env={**os.environ, **self.env, "HF_ENDPOINT": hub.url}, capture_output=True, text=True,
                              check=True).stdout
        self.assertLess(int(used), 150 << 10)  # KiB

    def test_headers_without_end(self):
        def flood(request, _):
            request.send_response(200)
            for i in range(2000):
                request.send_header(f"X-{i}", "x" * 100)
            request.end_headers()
        self.lies(flood, "headers")

    def test_a_realm_that_is_elsewhere(self):
        registry, name = self.registry()
        realm = 'Bearer realm="file:///etc/passwd"'
        registry.answer = lambda request: servers.send(request, 401, b"", [("WWW-Authenticate", realm)])
        self.refuses(name, registry.host, "realm", "must begin with http")


class Interrupted(PullTest):
    def slow(self):
        """Returns a registry that sends a large blob in pieces, the name, and the blob."""
        registry = self.stand_in(servers.Registry())
        data = self.bytes + os.urandom(3 << 20)
        registry.add("me/large:latest", [(servers.MODEL, data)])

        def trickle(request, whole):
            begin = int(request.headers.get("Range", "bytes=0-")[6:-1])
            request.send_response(206 if begin else 200)
            request.send_header("Content-Length", str(len(whole) - begin))
            if begin:
                request.send_header("Content-Range", f"bytes {begin}-{len(whole) - 1}/{len(whole)}")
            request.end_headers()
            for at in range(begin, len(whole), 1 << 16):
                request.wfile.write(whole[at:min(at + (1 << 16), len(whole))])
                time.sleep(0.02)
        registry.send_blob = trickle
        return registry, f"{registry.host}/me/large", data

    def start(self, name):
        return subprocess.Popen([program.KVCACHE, "pull", name], env={**os.environ, **self.env},
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def partial_size(self):
        return sum(path.stat().st_size for path in self.partials())

    def begins_at(self, registry):
        return [int(headers["Range"][6:-1]) for _, headers in registry.asked if "Range" in headers]

    def check_continues(self, end):
        registry, name, data = self.slow()
        process = self.start(name)
        program.wait_until(lambda: self.partial_size() > 200_000)
        end(process)
        process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(self.names(), [])
        had = self.partial_size()
        self.assertGreater(had, 200_000)
        registry.send_blob = servers.send_file
        self.pull(name)
        self.assertEqual(self.begins_at(registry), [had])
        self.succeeds("show", name, "--verify", env=self.env)
        self.assertEqual(self.partials(), [])

    def test_a_killed_pull_continues(self):
        self.check_continues(lambda process: process.kill())

    def test_ctrl_c(self):
        self.check_continues(lambda process: process.send_signal(signal.SIGINT))

    def test_a_break_is_mended(self):
        registry, name, data = self.slow()
        count = []

        def breaks(request, whole):
            count.append(1)
            if len(count) < 4:
                begin = int(request.headers.get("Range", "bytes=0-")[6:-1])
                request.send_response(206 if begin else 200)
                request.send_header("Content-Length", str(len(whole) - begin))
                if begin:
                    request.send_header("Content-Range", f"bytes {begin}-{len(whole) - 1}/{len(whole)}")
                request.end_headers()
                request.wfile.write(whole[begin:begin + 300_000])
                request.close_connection = True
            else:
                servers.send_file(request, whole)
        registry.send_blob = breaks
        self.pull(name)
        self.assertEqual(self.begins_at(registry), [300_000, 600_000, 900_000])
        self.succeeds("show", name, "--verify", env=self.env)

    def test_a_server_without_ranges(self):
        registry, name, data = self.slow()
        hexes = servers.digest_of(data).removeprefix("sha256:")
        blobs = self.root / "models/blobs"
        blobs.mkdir(parents=True)
        (blobs / f"{PARTIAL}{hexes}-{len(data)}.partial").write_bytes(data[:500_000])
        registry.send_blob = lambda request, whole: servers.send(request, 200, whole)
        self.pull(name)
        self.succeeds("show", name, "--verify", env=self.env)

    def test_a_server_that_refuses_the_range(self):
        registry, name, data = self.slow()
        hexes = servers.digest_of(data).removeprefix("sha256:")
        blobs = self.root / "models/blobs"
        blobs.mkdir(parents=True)
        (blobs / f"{PARTIAL}{hexes}-{len(data)}.partial").write_bytes(data[:500_000])
        registry.send_blob = lambda request, whole: (
            servers.send(request, 416) if "Range" in request.headers else servers.send(request, 200, whole))
        self.pull(name)
        self.succeeds("show", name, "--verify", env=self.env)

    def test_a_partial_file_with_other_bytes(self):
        registry, name, data = self.slow()
        registry.send_blob = servers.send_file
        hexes = servers.digest_of(data).removeprefix("sha256:")
        blobs = self.root / "models/blobs"
        blobs.mkdir(parents=True)
        (blobs / f"{PARTIAL}{hexes}-{len(data)}.partial").write_bytes(b"x" * 1000)
        self.refuses(name, "digest")  # and forgets the bytes
        self.pull(name)
        self.succeeds("show", name, "--verify", env=self.env)

    def test_two_at_once(self):
        registry, name, data = self.slow()
        processes = [self.start(name), self.start(name)]
        for process in processes:
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
        self.succeeds("show", name, "--verify", env=self.env)
        digest = servers.digest_of(data)
        self.assertEqual(sum(digest in path for path in registry.paths()), 1)
        self.assertEqual(self.partials(), [])

    def test_a_full_disk(self):
        registry, name, data = self.slow()
        registry.send_blob = servers.send_file
        import resource

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        code, _, err = run("pull", name, env=self.env, before=limit)
        self.assertEqual(code, 1)
        self.assertIn(PARTIAL, err.splitlines()[-1])
        self.assertEqual(self.names(), [])
        self.assertEqual(self.partial_size(), 1 << 20)
        self.pull(name)
        self.assertEqual(self.begins_at(registry), [1 << 20])
        self.succeeds("show", name, "--verify", env=self.env)


if __name__ == "__main__":
    if "RealRegistry" in sys.argv and not servers.RealRegistry.program:
        print("skipped: docker-registry is not installed")
        sys.exit(77)
    program.main()

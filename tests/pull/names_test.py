"""Tests names that commands fetch, what stays in the store, https and proxies, with servers on loopback.

usage: names_test.py KVCACHE MAKE_MODEL SUITE  (paths of the two programs)
"""

import json
import os
import pathlib
import socket
import sys

from pull_case import GREEDY, PullTest, servers

import program
from program import run


class Names(PullTest):
    """Names that commands fetch, and what stays in the store."""

    def test_a_path_that_is_not_there_asks_nobody(self):
        proxy = self.stand_in(servers.Proxy({}))
        env = {**self.env, "https_proxy": proxy.url, "no_proxy": ""}
        (self.root / "folder").mkdir()
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(self.root)
        for path in ("folder/model", "folder/deep/model", "other/deep/model"):
            self.fails(["run", path, "-p", "x"], "no model", env=env)
        self.assertEqual(proxy.asked, [])
        code, _, err = run("run", "example.test/deep/model", "-p", "x", env=env)
        self.assertEqual(code, 1)
        self.assertIn("it was not fetched", err)
        self.assertEqual(proxy.asked, ["example.test:443"])

    def test_offline_says_no(self):
        _, name = self.registry()
        for value in ("0", "false", "FALSE", "off", "no"):
            self.pull(name, HF_HUB_OFFLINE=value, KVCACHE_OFFLINE=value)
        for value in ("1", "true", "yes", "on"):
            self.fails(["pull", name], "offline", env={**self.env, "HF_HUB_OFFLINE": value})

    def test_a_draft_is_fetched(self):
        registry, name = self.registry()
        registry.add("me/draft:latest", [(servers.MODEL, self.bytes)])
        draft = f"{registry.host}/me/draft"
        self.assertEqual(self.tokens(name, "--draft", draft), self.tokens(self.model))
        self.assertEqual(sorted(self.names()), sorted([f"{name}:latest", f"{draft}:latest"]))
        code, _, err = run("run", name, "--draft", f"{draft}:none", *GREEDY, env=self.env)
        self.assertEqual(code, 1)
        self.assertIn("--draft", err)
        self.assertIn("404", err)

    def test_create_fetches(self):
        registry, name = self.registry()
        registry.add("me/draft:latest", [(servers.MODEL, self.bytes)])
        text = f"FROM {name}\nDRAFT {registry.host}/me/draft\nSYSTEM Be brief.\n"
        modelfile = self.file("Modelfile", text.encode())
        self.fails(["create", "mine", "-f", modelfile, "--offline"], "no model", env=self.env)
        self.assertEqual(registry.asked, [])
        self.succeeds("create", "mine", "-f", modelfile, env=self.env)
        self.assertIn("mine:latest", self.names())
        self.assertEqual(self.tokens("mine", "--raw"), self.tokens(self.model))

    def blobs(self):
        folder = self.root / "models/blobs"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def test_a_tag_that_moved(self):
        registry, name = self.registry()
        self.pull(name)
        other = pathlib.Path(self.make("other.gguf", "--layers", "1", "--vocab", "512")).read_bytes()
        registry.add("me/tiny:latest", [(servers.MODEL, other)])
        self.pull(name)
        digests = (servers.digest_of(other), servers.digest_of(b"{}"))
        self.assertEqual(self.blobs(), sorted(digest.replace(":", "-") for digest in digests))

    def stopped(self):
        """Returns the name of a model of which a pull has fetched one blob of two."""
        registry, _ = self.registry()
        shared = b"GGUF" + os.urandom(1000)
        registry.add("me/two:latest", [(servers.MODEL, shared), (servers.MODEL, self.bytes)])
        del registry.blobs[servers.digest_of(self.bytes)]
        name = f"{registry.host}/me/two"
        self.refuses(name, "404")
        blob = servers.digest_of(shared).replace(":", "-")
        self.assertIn(blob, self.blobs())
        return registry, name, shared, blob

    def test_a_stopped_pull_keeps_its_blobs(self):
        registry, name, shared, blob = self.stopped()
        registry.add("me/one:latest", [(servers.MODEL, shared)])
        self.pull(f"{registry.host}/me/one")
        self.succeeds("rm", f"{registry.host}/me/one", env=self.env)
        self.assertIn(blob, self.blobs())
        registry.blobs[servers.digest_of(self.bytes)] = self.bytes
        self.pull(name)
        asked = [path for path in registry.paths() if path.endswith(servers.digest_of(shared))]
        self.assertEqual(len(asked), 1)
        self.succeeds("show", name, "--verify", env=self.env)
        self.assertEqual([path.name for path in (self.root / "models").iterdir() if path.name.startswith(".")], [])

    def test_rm_ends_a_stopped_pull(self):
        _, name, _, _ = self.stopped()
        self.succeeds("rm", name, env=self.env)
        self.assertEqual(self.blobs(), [])
        self.assertEqual(run("rm", name, env=self.env)[0], 1)


class Tls(PullTest):
    """https with certificates of an authority that SSL_CERT_FILE names, and proxies."""

    def setUp(self):
        super().setUp()
        self.authority = servers.Authority(self.root)
        self.env["no_proxy"] = ""

    def tls_registry(self, name):
        registry = self.stand_in(servers.Registry(self.authority.context(f"DNS:{name}")))
        registry.add("me/tiny:latest", [(servers.MODEL, self.bytes)])
        return registry

    def test_a_hub_by_https(self):
        hub = self.stand_in(servers.Hub({"a.gguf": self.bytes}, self.authority.context("IP:127.0.0.1")))
        self.env["HF_ENDPOINT"] = hub.url
        self.refuses("hf.co/me/tiny", "certificate")
        self.assertEqual(hub.asked, [])
        self.pull("hf.co/me/tiny", SSL_CERT_FILE=self.authority.certificate)
        self.assertEqual(self.names(), ["hf.co/me/tiny:latest"])

    def test_through_a_proxy(self):
        registry = self.tls_registry("registry.test")
        other = self.tls_registry("blobs.test")
        registry.send_blob = lambda request, _: servers.send(
            request, 307, headers=[("Location", f"https://blobs.test{request.path}")])
        proxy = self.stand_in(servers.Proxy({"registry.test:443": registry.port, "blobs.test:443": other.port}))
        env = {"https_proxy": proxy.url, "SSL_CERT_FILE": self.authority.certificate}
        self.pull("registry.test/me/tiny", **env)
        self.assertEqual(set(proxy.asked), {"registry.test:443", "blobs.test:443"})
        self.succeeds("show", "registry.test/me/tiny", "--verify", env=self.env)
        self.assertEqual(len(other.asked), 2)
        self.succeeds("rm", "registry.test/me/tiny", env=self.env)
        # The certificate is one for another name.
        proxy.hosts["registry.test:443"] = other.port
        self.refuses("registry.test/me/tiny", "registry.test", "certificate", env=env)
        proxy.hosts.clear()
        self.refuses("registry.test/me/tiny", "registry.test", "403", env=env)

    def test_this_machine_is_asked_without_a_proxy(self):
        proxy = self.stand_in(servers.Proxy({}))
        _, name = self.registry()
        self.pull(name, http_proxy=proxy.url, all_proxy=proxy.url)
        self.assertEqual(proxy.asked, [])

    def test_a_server_elsewhere_does_not_lead_here(self):
        registry = self.tls_registry("registry.test")
        proxy = self.stand_in(servers.Proxy({"registry.test:443": registry.port}))
        env = {"https_proxy": proxy.url, "SSL_CERT_FILE": self.authority.certificate}
        for host in ("127.0.0.1", "LOCALHOST", "127.1", "0.0.0.0", "0x7f000001", "[::1]"):
            registry.send_blob = lambda request, _: servers.send(
                request, 307, headers=[("Location", f"https://{host}:{registry.port}/x")])
            self.refuses("registry.test/me/tiny", "this machine", env=env)
        # A name that resolves to this machine.
        registry.send_blob = lambda request, _: servers.send(
            request, 307, headers=[("Location", f"https://{socket.gethostname()}:{registry.port}/x")])
        self.refuses("registry.test/me/tiny", "this machine", env={**env, "no_proxy": socket.gethostname()})


if __name__ == "__main__":
    if "Tls" in sys.argv and not servers.Authority.program:
        print("skipped: openssl is not installed")
        sys.exit(77)
    program.main()

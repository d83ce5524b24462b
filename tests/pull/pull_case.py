"""What the tests of `kvcache pull` share: a store of their own, and servers on loopback."""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))

import servers
from program import CliTest, run

GREEDY = ("-p", "seven", "--temp", "0", "-n", "8", "--json")
PARTIAL = ".kvcache-"


class PullTest(CliTest):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        self.env = {"KVCACHE_MODELS": str(self.root / "models"), "KVCACHE_OFFLINE": "", "HF_TOKEN": "",
                    "HF_HUB_OFFLINE": "", "HF_HOME": str(self.root), "HF_ENDPOINT": "", "no_proxy": "*"}

    def pull(self, name, *flags, **env):
        return self.succeeds("pull", name, *flags, env={**self.env, **env})

    def refuses(self, name, *words, flags=(), env=None):
        """Checks that the pull fails with an error with these words, and that no model is there."""
        code, out, err = run("pull", name, *flags, env={**self.env, **(env or {})})
        self.assertEqual(code, 1, out + err)
        error = err.splitlines()[-1]
        for word in words:
            self.assertIn(word, error)
        self.assertEqual(self.names(), [])
        return error

    def names(self):
        rows = json.loads(self.succeeds("list", "--json", env=self.env))
        return [row["name"] for row in rows if str(self.root) in row["path"]]

    def tokens(self, model, *flags, **env):
        out = self.succeeds("run", model, *GREEDY, *flags, env={**self.env, **env})
        return json.loads(out)["tokens"]

    def partials(self):
        blobs = self.root / "models" / "blobs"
        return [path for path in blobs.iterdir() if path.name.startswith(PARTIAL)] if blobs.exists() else []

    def stand_in(self, server):
        self.addCleanup(server.close)
        return server

    def registry(self):
        """Returns a registry with the model me/tiny, and the name to pull."""
        registry = self.stand_in(servers.Registry())
        registry.add("me/tiny:latest", [(servers.MODEL, self.bytes)])
        return registry, f"{registry.host}/me/tiny"

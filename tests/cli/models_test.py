"""Tests the local store of models: create, list, show, cp, rm, and run by name.

usage: models_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import hashlib
import json
import pathlib
import random
import resource
import subprocess
import tempfile
import unittest

import program
from program import CliTest, run

GREEDY = ("--temp", "0", "-n", "12", "--json")


def listing(folder):
    """Returns the paths of everything in a folder, and the sizes of its files."""
    return sorted((str(path), path.stat().st_size if path.is_file() else 0) for path in folder.rglob("*"))


class StoreTest(CliTest):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        self.env = {"KVCACHE_MODELS": str(self.root)}

    def modelfile(self, text, name="Modelfile"):
        return self.file(name, text.encode())

    def create(self, name, text, *flags):
        return self.succeeds("create", name, "-f", self.modelfile(text), *flags, env=self.env)

    def run_json(self, *args):
        return json.loads(self.succeeds("run", *args, env=self.env))

    def blobs(self):
        folder = self.root / "blobs"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class Store(StoreTest):
    def test_create_run_list_copy_remove(self):
        self.create("tiny", f"FROM {self.model}\n")
        plain = self.run_json(self.model, "-p", "seven", *GREEDY)
        for name in ("tiny", "tiny:latest", "library/tiny", "registry.ollama.ai/library/tiny"):
            named = self.run_json(name, "-p", "seven", *GREEDY)
            self.assertEqual(named["tokens"], plain["tokens"])
        self.succeeds("cp", "tiny", "me/copy:x", env=self.env)
        blobs = self.blobs()
        names = [row["name"] for row in json.loads(self.succeeds("list", "--json", env=self.env))]
        self.assertEqual(names[:2], ["tiny:latest", "me/copy:x"])
        self.succeeds("rm", "tiny", env=self.env)
        self.assertEqual(self.blobs(), blobs)  # the copy has them
        self.fails(["run", "tiny", "-p", "x"], "no model 'tiny'", env=self.env)
        self.assertEqual(self.run_json("me/copy:x", "-p", "seven", *GREEDY)["tokens"],
                         plain["tokens"])
        self.succeeds("rm", "me/copy:x", env=self.env)
        self.assertEqual(self.blobs(), [])
        self.fails(["rm", "me/copy:x"], "no model", env=self.env)

    def test_layout_is_ollamas(self):
        self.create("me/tiny:q", f"FROM {self.model}\nSYSTEM hello\nPARAMETER stop a\n")
        path = self.root / "manifests/registry.ollama.ai/me/tiny/q"
        manifest = json.loads(path.read_text())
        self.assertEqual(manifest["schemaVersion"], 2)
        kinds = [layer["mediaType"].rsplit(".", 1)[-1] for layer in manifest["layers"]]
        self.assertEqual(kinds, ["model", "system", "params"])
        for layer in [manifest["config"], *manifest["layers"]]:
            data = (self.root / "blobs" / layer["digest"].replace(":", "-")).read_bytes()
            self.assertEqual("sha256:" + hashlib.sha256(data).hexdigest(), layer["digest"])
            self.assertEqual(len(data), layer["size"])

    def write_as_ollama(self, root, projector=None):
        """Writes a store as Ollama does, without the program."""
        (root / "blobs").mkdir(parents=True)

        def blob(kind, data):
            digest = hashlib.sha256(data).hexdigest()
            (root / "blobs" / ("sha256-" + digest)).write_bytes(data)
            return {"mediaType": kind, "digest": "sha256:" + digest, "size": len(data)}

        image = "application/vnd.ollama.image."
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": blob("application/vnd.docker.container.image.v1+json", b"{}"),
            "layers": [blob(image + "model", self.bytes),
                       blob(image + "template", b"{{ .Prompt }}"),
                       blob(image + "params", b'{"temperature":0,"num_predict":5,"stop":["zz"]}')]}
        if projector is not None:
            manifest["layers"].append(blob(image + "projector", projector))
        tag = root / "manifests/registry.ollama.ai/library/tiny/latest"
        tag.parent.mkdir(parents=True)
        tag.write_text(json.dumps(manifest))
        return manifest

    def test_reads_a_store_of_ollama(self):
        root = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        self.write_as_ollama(root)
        env = {"OLLAMA_MODELS": str(root), "KVCACHE_MODELS": ""}
        code, out, err = run("run", "tiny", "-p", "seven", "--json", env=env)
        self.assertEqual(code, 0, err)
        self.assertIn("Go's template language", err)
        plain = self.run_json(self.model, "-p", "seven", "--temp", "0", "-n", "5", "--json")
        self.assertEqual(json.loads(out)["tokens"], plain["tokens"])
        self.assertIn("PARAMETER num_predict 5", self.succeeds("show", "tiny", env=env))

    def test_a_projector_is_read_for_pictures_only(self):
        root = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        self.write_as_ollama(root, projector=b"no projector")
        env = {"OLLAMA_MODELS": str(root), "KVCACHE_MODELS": ""}
        self.succeeds("run", "tiny", "-p", "seven", "-n", "2", env=env)
        picture = self.file("a.png", b"no picture")
        blob = "sha256-" + hashlib.sha256(b"no projector").hexdigest()
        code, _, err = run("run", "tiny", "-p", "seven", "--image", picture, env=env)
        self.assertEqual(code, 1)
        self.assertIn(blob, err)
        code, _, err = run("run", "tiny", "-p", "seven", "--image", picture, "--mmproj", "none", env=env)
        self.assertEqual(code, 1)
        self.assertIn("takes no pictures", err)

    def test_damage(self):
        self.create("tiny", f"FROM {self.model}\n")
        manifest = json.loads((self.root /
                               "manifests/registry.ollama.ai/library/tiny/latest").read_text())
        blob = self.root / "blobs" / manifest["layers"][0]["digest"].replace(":", "-")
        self.succeeds("show", "tiny", "--verify", env=self.env)
        blob.write_bytes(self.bytes[:-1] + bytes([self.bytes[-1] ^ 1]))
        self.fails(["show", "tiny", "--verify"], "damaged", env=self.env)
        blob.write_bytes(self.bytes[:-1])
        self.fails(["run", "tiny", "-p", "x"], "its manifest says", env=self.env)
        self.assertIn("not readable", self.succeeds("list", env=self.env))
        blob.unlink()
        self.fails(["run", "tiny", "-p", "x"], "is missing", env=self.env)
        self.create("tiny", f"FROM {self.model}\n")  # repairs it
        self.succeeds("show", "tiny", "--verify", env=self.env)

    def test_a_killed_create_is_started_again(self):
        path = self.modelfile(f"FROM {self.model}\n")
        for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
            with subprocess.Popen([program.KVCACHE, "create", "tiny", "-f", path],
                                  env={"KVCACHE_MODELS": str(self.root)}) as process:
                try:
                    process.wait(delay)
                except subprocess.TimeoutExpired:
                    process.kill()
            for name in self.blobs():
                data = (self.root / "blobs" / name).read_bytes()
                self.assertEqual(name, "sha256-" + hashlib.sha256(data).hexdigest())
        self.succeeds("create", "tiny", "-f", path, env=self.env)
        self.succeeds("show", "tiny", "--verify", env=self.env)

    def check_store(self, kept):
        """The blobs are what their names say, and the model `kept` answers as before."""
        for name in self.blobs():
            data = (self.root / "blobs" / name).read_bytes()
            self.assertEqual(name, "sha256-" + hashlib.sha256(data).hexdigest())
        self.succeeds("show", kept, "--verify", env=self.env)
        names = [row["name"] for row in json.loads(self.succeeds("list", "--json", env=self.env))]
        self.assertIn(kept + ":latest", names)

    def test_killed_at_random_moments(self):
        plain = self.make("killed.gguf", "--type", "f32")
        self.create("kept", f"FROM {self.model}\nSYSTEM kept\n")
        path = self.modelfile(f"FROM {plain}\nDRAFT {plain}\nSYSTEM new\n")
        command = [program.KVCACHE, "create", "kept", "-f", path, "--quantize", "q8_0",
                   "--quantize-draft", "q4_0"]
        moments = random.Random(3)
        for _ in range(12):
            with subprocess.Popen(command, env={"KVCACHE_MODELS": str(self.root)},
                                  stderr=subprocess.DEVNULL) as process:
                try:
                    process.wait(moments.uniform(0.0, 0.15))
                except subprocess.TimeoutExpired:
                    process.kill()
            self.check_store("kept")
        self.succeeds(*command[1:], env=self.env)
        self.assertIn("SYSTEM new", self.succeeds("show", "kept", env=self.env))
        self.succeeds("show", "kept", "--verify", env=self.env)
        self.assertEqual([path.name for path in self.root.iterdir()
                          if path.name.endswith(".gguf")], [])

    def test_a_disk_that_is_full(self):
        """A limit of the size of files: writing fails after so many bytes, as on a full disk."""
        plain = self.make("full.gguf", "--type", "f32")
        size = pathlib.Path(plain).stat().st_size
        self.create("kept", f"FROM {self.model}\nSYSTEM kept\n")
        path = self.modelfile(f"FROM {plain}\nSYSTEM new\n")
        before = self.blobs()
        for flags in ((), ("--quantize", "q8_0")):
            for limit in (0, 1, 4096, size // 8):
                def set_limit(limit=limit):
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                ended = subprocess.run([program.KVCACHE, "create", "kept", "-f", path, *flags],
                                       env={"KVCACHE_MODELS": str(self.root)}, text=True,
                                       capture_output=True, preexec_fn=set_limit,
                                       restore_signals=False, check=False)
                self.assertEqual(ended.returncode, 1, ended.stderr)
                self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)
                self.assertIn("too large", ended.stderr)
                self.assertEqual(self.blobs(), before)
                self.check_store("kept")
        self.succeeds("create", "kept", "-f", path, env=self.env)
        self.succeeds("show", "kept", "--verify", env=self.env)

    def test_a_failed_create_leaves_nothing(self):
        """Nothing is left of weights, a draft or texts, in a store that is there and in one that is not."""
        text = self.file("text.gguf", b"no model")
        folder = self.dir / "no-model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        good = f"FROM {self.model}\nSYSTEM new\n"
        cases = ((good + f"DRAFT {text}\n", "DRAFT"), (good + "DRAFT nonesuch\n", "DRAFT nonesuch"),
                 (good + f"DRAFT {folder}\n", "architectures"), (good + "DRAFT /nonexistent.gguf\n", "DRAFT"),
                 (f"FROM {text}\n", "not a GGUF file"), (f"FROM {folder}\n", "architectures"),
                 ("FROM nonesuch\n", "no model 'nonesuch'"), (good + "ADAPTER x\n", "ADAPTER"),
                 (good + "TEMPLATE {{ .Prompt }}\n", "Go's"), (good + "TEMPLATE {% if %}\n", "TEMPLATE"),
                 (good + "PARAMETER temperature hot\n", "temperature"), (good + "REQUIRES 99.1\n", "99.1"),
                 (good + "PARAMETER temperature -1\n", "temperature is -1"),
                 (good + "PARAMETER top_p 7\n", "top-p is 7"), (good + "PARAMETER num_ctx 0\n", "num_ctx"),
                 (good + "PARAMETER num_predict 99999999999\n", "num_predict"),
                 (good + "PARAMETER seed 99999999999999999999\n", "seed"),
                 (good + "PARAMETER colour red\n", "'colour'"), (good + "MESSAGE robot hi\n", "'robot'"))
        for has_store in (False, True):
            if has_store:
                self.create("kept", f"FROM {self.model}\nSYSTEM kept\n")
                env = self.env
            else:
                env = {"KVCACHE_MODELS": str(self.root / "new" / "store")}
            before = listing(self.root)
            for modelfile, word in cases:
                self.fails(["create", "kept", "-f", self.modelfile(modelfile)], word, env=env)
                self.assertEqual(listing(self.root), before, modelfile)
            self.fails(["create", "kept", "-f", self.modelfile(good), "--quantize-draft", "q4_0"],
                       "--quantize-draft", env=env)
            self.fails(["rm", "nonesuch"], "nonesuch", env=env)
            self.fails(["cp", "nonesuch", "x"], "nonesuch", env=env)
            self.assertEqual(listing(self.root), before)

    def test_what_a_killed_create_left_goes_with_the_next(self):
        plain = self.make("left.gguf", "--type", "f32")
        self.create("kept", f"FROM {self.model}\nSYSTEM kept\n")
        before = listing(self.root)
        path = self.modelfile(f"FROM {plain}\nDRAFT {plain}\nSYSTEM new\n")
        command = [program.KVCACHE, "create", "new", "-f", path, "--quantize-draft", "q4_0"]
        left = False
        moments = random.Random(5)
        for _ in range(40):
            with subprocess.Popen(command, env={"KVCACHE_MODELS": str(self.root)},
                                  stderr=subprocess.DEVNULL) as process:
                try:
                    process.wait(moments.uniform(0.0, 0.1))
                except subprocess.TimeoutExpired:
                    process.kill()
                process.wait()
            left = left or listing(self.root) != before
            self.fails(["rm", "nonesuch"], "nonesuch", env=self.env)
            # Killed behind its last write, a create has stored the model, whole.
            stored = any(path.name == "latest" for path in self.root.glob("manifests/*/*/new/*"))
            self.assertTrue(stored or process.returncode != 0)
            if stored:
                self.succeeds("show", "new", "--verify", env=self.env)
                self.succeeds("rm", "new", env=self.env)
            self.assertEqual(listing(self.root), before)
        self.assertTrue(left, "no moment was within the writing")

    def test_names_that_leave_the_store(self):
        for name in ("..", "../x", "a/../../x", "a:../x", "/etc/passwd", "a b", ""):
            code, _, err = run("create", name, "-f", self.modelfile(f"FROM {self.model}\n"),
                               env=self.env)
            self.assertNotEqual(code, 0, name)
            self.assertEqual(err.count("\n"), 1, err)
        self.assertFalse((self.root / "manifests").exists())


class Modelfiles(StoreTest):
    def test_parameters_are_defaults(self):
        self.create("tiny", f"FROM {self.model}\nPARAMETER temperature 0\n"
                            "PARAMETER num_predict 7\nPARAMETER num_ctx 64\n")
        plain = self.run_json(self.model, "-p", "seven", "--temp", "0", "-n", "7", "--json")
        named = self.run_json("tiny", "-p", "seven", "--json")
        self.assertEqual(named["tokens"], plain["tokens"])
        self.assertEqual(len(self.run_json("tiny", "-p", "seven", "-n", "3", "--json")["tokens"]),
                         3)
        self.create("base", "FROM tiny\nPARAMETER num_predict 2\n")
        self.assertEqual(len(self.run_json("base", "-p", "seven", "--json")["tokens"]), 2)
        shown = self.succeeds("show", "base", env=self.env)
        self.assertIn("PARAMETER temperature 0", shown)
        self.assertIn("PARAMETER num_ctx 64", shown)

    def test_template_system_and_messages(self):
        template = ('{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}'
                    '{% if add_generation_prompt %}[assistant]{% endif %}')
        self.create("tiny", f'FROM {self.model}\nTEMPLATE """{template}"""\nSYSTEM be brief\n'
                            'MESSAGE user hi\nMESSAGE assistant hello\n')
        named = self.run_json("tiny", "-p", "seven", *GREEDY)
        text = "[system] be brief\n[user] hi\n[assistant] hello\n[user] seven\n[assistant]"
        raw = self.run_json(self.model, "--raw", "-p", text, *GREEDY)
        self.assertEqual(named["tokens"], raw["tokens"])
        other = self.run_json("tiny", "--system", "", "-p", "seven", *GREEDY)
        text = text.replace("be brief", "")
        raw = self.run_json(self.model, "--raw", "-p", text, *GREEDY)
        self.assertEqual(other["tokens"], raw["tokens"])

    def test_draft(self):
        self.create("tiny", f"FROM {self.model}\nDRAFT {self.model}\n")
        drafted = self.run_json("tiny", "-p", "seven", "--draft-tokens", "4", *GREEDY)
        plain = self.run_json("tiny", "-p", "seven", "--draft", "none", *GREEDY)
        self.assertGreater(drafted["speculation"]["drafted"], 0)
        self.assertEqual(plain["speculation"]["drafted"], 0)
        self.assertEqual(drafted["tokens"], plain["tokens"])

    def test_requires(self):
        self.create("tiny", f"FROM {self.model}\nREQUIRES 0.0.1\n")
        self.fails(["create", "tiny", "-f",
                    self.modelfile(f"FROM {self.model}\nREQUIRES 99.0\n")],
                   "REQUIRES is 99.0, this program is", env=self.env)

    def test_penalties(self):
        for last, flags in (("0", ()), ("-1", ("--repeat-penalty", "0.5"))):
            self.create("tiny", f"FROM {self.model}\nPARAMETER repeat_last_n {last}\n"
                                "PARAMETER repeat_penalty 0.5\nPARAMETER seed -1\n")
            plain = self.run_json(self.model, "-p", "seven", *flags, *GREEDY)
            self.assertEqual(self.run_json("tiny", "-p", "seven", *GREEDY)["tokens"],
                             plain["tokens"])

    def test_quantize(self):
        plain = self.make("plain.gguf", "--type", "f32")
        made = self.make("made.gguf", "--type", "q8_0")
        self.create("tiny", f"FROM {plain}\nDRAFT {plain}\n", "--quantize", "q8_0",
                    "--quantize-draft", "Q4_0")
        expected = self.run_json(made, "-p", "seven", *GREEDY)["tokens"]
        self.assertEqual(self.run_json("tiny", "-p", "seven", *GREEDY)["tokens"], expected)
        shown = json.loads(self.succeeds("show", "tiny", "--json", env=self.env))
        sizes = {layer["type"].rsplit(".", 1)[-1]: layer["bytes"] for layer in shown["layers"]}
        self.assertLess(sizes["draft"], sizes["model"])
        self.assertLess(sizes["model"], pathlib.Path(plain).stat().st_size)
        self.fails(["create", "x", "-f", self.modelfile("FROM tiny\n"), "--quantize", "q4_0"],
                   "q8_0 already", env=self.env)
        self.fails(["create", "x", "-f", self.modelfile("FROM tiny\n"), "--quantize", "q3"],
                   "--quantize", "q6_k", status=2, env=self.env)
        self.assertEqual([path.name for path in self.root.iterdir() if path.is_file()], [])

    def test_paths_begin_at_the_modelfile(self):
        pathlib.Path(self.dir, "sub").mkdir(exist_ok=True)
        self.file("sub/here.gguf", self.bytes)
        path = self.file("sub/Modelfile", b"FROM ./here.gguf\n")
        self.succeeds("create", "tiny", "-f", path, env=self.env)

    def test_errors(self):
        def fails(text, *words):
            self.fails(["create", "x", "-f", self.modelfile(text)], *words, env=self.env)
            self.assertFalse((self.root / "manifests").exists())
        fails("FROM missing\n", "no model 'missing'")
        fails("FROM ./missing.gguf\n", "missing.gguf")
        fails(f"FROM {self.model}\nADAPTER x\n", "ADAPTER x")
        fails(f"FROM {self.model}\nTEMPLATE {{{{ .Prompt }}}}\n", "Go's template language")
        fails(f"FROM {self.model}\nTEMPLATE {{% for %}}\n", "TEMPLATE")
        fails(f"FROM {self.model}\nPARAMETER colour red\n", "line 2", "colour")
        fails(f"FROM {self.file('not.gguf', b'no model')}\n", "not.gguf")


if __name__ == "__main__":
    program.main()

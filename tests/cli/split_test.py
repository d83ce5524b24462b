"""Tests models that are split into several files: each command takes them, with the same results.

usage: split_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import json
import pathlib
import tempfile

import gguf_split
import program
from program import CliTest

GREEDY = ("-p", "seven", "--temp", "0", "-n", "12", "--json")


class Split(CliTest):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        self.env = {"KVCACHE_MODELS": str(self.root)}
        self.parts = gguf_split.write(self.root, "cut", gguf_split.split(self.bytes, 3))

    def logits(self, model):
        out = self.dir / "logits.npy"
        self.succeeds("eval", str(model), "--tokens", "1,7,9,30", "--logits", str(out), env=self.env)
        return out.read_bytes()

    def refuses(self, *words, model=None):
        for command in (["inspect"], ["eval", "--tokens", "1"], ["run", "-p", "one"]):
            self.fails([command[0], str(model or self.parts[0]), *command[1:]], *words)

    def test_any_part_is_the_model(self):
        whole = self.logits(self.model)
        for part in self.parts:
            self.assertEqual(self.logits(part), whole)
        self.assertEqual(self.logits("cut"), whole)  # a name of the folder

    def test_the_first_part_may_have_no_tensors(self):
        parts = gguf_split.write(self.root, "bare", gguf_split.split(self.bytes, 3, empty_first=True))
        self.assertEqual(self.logits(parts[2]), self.logits(self.model))

    def test_inspect_and_list(self):
        report = json.loads(self.succeeds("inspect", str(self.parts[1]), "--json"))
        whole = json.loads(self.succeeds("inspect", self.model, "--json"))
        self.assertEqual(report["files"], 3)
        self.assertEqual(report["bytes"], sum(part.stat().st_size for part in self.parts))
        self.assertEqual(report["parameters"], whole["parameters"])
        self.assertEqual([tensor["name"] for tensor in report["tensors"]],
                         [tensor["name"] for tensor in whole["tensors"]])
        self.assertEqual({tensor["part"] for tensor in report["tensors"]}, {1, 2, 3})
        rows = json.loads(self.succeeds("list", "--json", env=self.env))
        cut = [row for row in rows if row["path"].startswith(str(self.root))]
        self.assertEqual([row["name"] for row in cut], ["cut"])
        self.assertEqual(cut[0]["bytes"], report["bytes"])

    def test_create_keeps_the_parts(self):
        text = f"FROM {self.parts[2]}\nDRAFT {self.parts[0]}\n"
        self.succeeds("create", "tiny", "-f", self.file("Modelfile", text.encode()), env=self.env)
        plain = json.loads(self.succeeds("run", self.model, *GREEDY, env=self.env))
        named = json.loads(self.succeeds("run", "tiny", *GREEDY, env=self.env))
        self.assertEqual(named["tokens"], plain["tokens"])
        shown = json.loads(self.succeeds("show", "tiny", "--json", "--verify", env=self.env))
        kinds = [layer["type"].rpartition(".")[2] for layer in shown["layers"]]
        self.assertEqual(kinds.count("model"), 3)
        self.assertEqual(kinds.count("draft"), 3)
        # What show prints makes the model again.
        self.succeeds("create", "again", "-f", self.file("Modelfile", shown["modelfile"].encode()),
                      env=self.env)
        self.assertEqual(self.logits("again"), self.logits(self.model))

    def test_quantize_makes_one_file(self):
        for model, name in ((self.parts[0], "a"), (self.model, "b")):
            text = f"FROM {model}\n".encode()
            self.succeeds("create", name, "--quantize", "q8_0", "-f", self.file("Modelfile", text),
                          env=self.env)
        shown = [json.loads(self.succeeds("show", name, "--json", env=self.env)) for name in "ab"]
        self.assertEqual(shown[0]["path"], shown[1]["path"])

    def test_a_missing_part(self):
        self.parts[1].unlink()
        self.refuses(str(self.parts[1]), "part 2 of 3", "needs all parts")

    def test_parts_without_their_name(self):
        other = self.root / "other.gguf"
        self.parts[0].rename(other)
        self.refuses(str(other), "part 1 of 3", "NAME-00001-of-00003.gguf", model=other)

    def test_a_part_of_another_model(self):
        other = pathlib.Path(self.make("other.gguf", "--layers", "3")).read_bytes()
        self.parts[2].write_bytes(gguf_split.split(other, 3)[2])
        self.refuses(str(self.parts[2]), "split.tensors.count", "another model")

    def test_a_part_twice(self):
        self.parts[2].write_bytes(self.parts[1].read_bytes())
        self.refuses(str(self.parts[2]), "split.no is 1; must be 2")

    def test_wrong_counts(self):
        whole = gguf_split.Whole(self.bytes)
        third = gguf_split.split(self.bytes, 3)[2]
        self.parts[2].write_bytes(gguf_split.part(whole, whole.tensors[:1], 2, 3, len(whole.tensors), False))
        self.refuses("tensor", "occurs twice", str(self.parts[0]), str(self.parts[2]))
        self.parts[2].write_bytes(gguf_split.part(whole, [], 2, 3, len(whole.tensors), False))
        self.refuses(str(self.parts[0]), "split.tensors.count")
        self.parts[2].write_bytes(third)
        self.parts[1].write_bytes(gguf_split.split(self.bytes, 4)[1])
        self.refuses(str(self.parts[1]), "split.count is 4; must be 3")
        self.parts[1].write_bytes(self.parts[0].read_bytes()[:100])
        self.refuses(str(self.parts[1]), "needs")


if __name__ == "__main__":
    program.main()

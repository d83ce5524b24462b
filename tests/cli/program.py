"""Runs the program as people and scripts do. The tests of the command line share it."""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import unittest

COMMANDS = ("run", "serve", "eval", "embed", "rerank", "tokenize", "inspect", "list", "create", "show", "cp", "rm", "pull", "bench", "store")
KVCACHE = ""
MAKE_MODEL = ""


def run(*args, text_in=None, env=None, before=None):
    """Runs kvcache; returns (status, stdout, stderr). The new process calls `before` first."""
    done = subprocess.run([KVCACHE, *args], input=text_in, capture_output=True, text=True,
                          stdin=None if text_in is not None else subprocess.DEVNULL,
                          timeout=120, env={**os.environ, **(env or {})}, preexec_fn=before)
    return done.returncode, done.stdout, done.stderr


def has_server():
    """Returns whether the program was built with the server."""
    return "without the server" not in run("serve", "/nonexistent.gguf")[2]


def limited_to(name, value):
    """Returns what a new process calls to limit itself."""
    return lambda: resource.setrlimit(name, (value, value))


def starts_within(address_space):
    """Returns whether the program starts with so many bytes of address space. A sanitized one needs terabytes."""
    return run("--version", before=limited_to(resource.RLIMIT_AS, address_space))[0] == 0


def wait_until(holds, seconds=60):
    """Returns what `holds` returns once that is true."""
    end = time.monotonic() + seconds
    while not (result := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"the condition does not hold after {seconds} s")
        time.sleep(0.01)
    return result


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.model = cls.make("random.gguf", "--vocab", "512", "--context", "256")
        cls.bytes = pathlib.Path(cls.model).read_bytes()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def require_address_space(self, size):
        if not starts_within(size):
            self.skipTest("this build needs more address space (a sanitizer)")

    @classmethod
    def make(cls, name, *flags):
        """Makes a model with random weights and returns its path. Later flags replace earlier
        ones."""
        shape = {"--type": "f16", "--layers": "2", "--width": "64", "--heads": "4",
                 "--kv-heads": "2", "--ffn": "128", "--vocab": "700", "--context": "1024",
                 "--seed": "1"}
        extra = list(flags)
        for flag in list(shape):
            if flag in extra:
                del shape[flag]
        path = str(cls.dir / name)
        subprocess.run([MAKE_MODEL, "--out", path, *sum(shape.items(), ()), *extra], check=True,
                       capture_output=True)
        return path

    def tensor_data(self):
        """Returns the offset of the data of the tensors in the test's model, which is its last part."""
        report = json.loads(self.succeeds("inspect", self.model, "--json"))
        sizes = sum(tensor["bytes"] for tensor in report["tensors"])
        padded = sum((tensor["bytes"] + 31) // 32 * 32 for tensor in report["tensors"])
        self.assertIn(len(self.bytes) - padded, range(len(self.bytes) - sizes + 1))
        return len(self.bytes) - padded

    def file(self, name, data):
        path = self.dir / name
        path.write_bytes(data)
        return str(path)

    def fails(self, args, *words, status=1, **kwargs):
        """Checks that the command fails with one line on stderr that contains all the words."""
        code, out, err = run(*args, **kwargs)
        self.assertEqual(code, status, f"{args}: {out}{err}")
        self.assertEqual(err.count("\n"), 1, f"not one line: {err}")
        for word in words:
            self.assertIn(word, err)

    def succeeds(self, *args, **kwargs):
        code, out, err = run(*args, **kwargs)
        self.assertEqual(code, 0, err)
        return out


def main():
    """Takes the paths of the two programs from the command line, then runs the tests."""
    global KVCACHE, MAKE_MODEL
    KVCACHE, MAKE_MODEL = sys.argv[1:3]
    os.environ["KVCACHE_STORE"] = "none"  # tests of the store name a directory
    os.environ["KVCACHE_OFFLINE"] = "1"  # tests of pulls have servers of their own
    unittest.main(module="__main__", argv=[sys.argv[0], *sys.argv[3:]])

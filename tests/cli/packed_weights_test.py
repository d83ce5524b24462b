"""Tests packed weights: the second start, damage, removal, and a server with several models."""

import json
import os
import pathlib
import signal
import shutil
import subprocess
import time
import unittest
import urllib.request

import program
from program import CliTest, run, wait_until

SETTLED_SECONDS = 2.1  # a model that has just changed is not kept


class PackedTest(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Just large enough to be kept.
        cls.large = cls.make_large("large.gguf", 1)
        time.sleep(SETTLED_SECONDS)

    @classmethod
    def make_large(cls, name, seed):
        return cls.make(name, "--type", "q4_k_m", "--width", "1024", "--heads", "16", "--kv-heads", "4",
                        "--ffn", "2048", "--vocab", "90000", "--context", "256", "--seed", str(seed))

    def setUp(self):
        self.store = self.dir / self.id()
        self.packed = self.store / "packed"
        self.addCleanup(shutil.rmtree, self.store, ignore_errors=True)

    def files(self):
        return sorted(self.packed.iterdir()) if self.packed.exists() else []

    def answer(self, *flags, model=None, env=None):
        """Returns the tokens of an answer, and standard error."""
        code, out, err = run("run", model or self.large, "-p", "Hello", "--raw", "-n", "5", "--seed", "3",
                             "--json", "--threads", "2", *flags,
                             env={"KVCACHE_STORE": str(self.store), **(env or {})})
        self.assertEqual(code, 0, err)
        return json.loads(out)["tokens"], err


class Packed(PackedTest):
    def test_the_second_start_has_the_same_answer(self):
        without, err = self.answer("--packed-weights", "off")
        self.assertEqual(err, "")
        self.assertEqual(self.files(), [])
        first, err = self.answer()
        self.assertIn(f"kvcache: packed weights are kept in {self.packed}/", err)
        self.assertEqual(first, without)
        [file] = self.files()
        self.assertEqual(self.packed.stat().st_mode & 0o777, 0o700)
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        second, err = self.answer()
        self.assertEqual((second, err), (without, ""))
        elsewhere = self.dir / "elsewhere"
        moved, err = self.answer("--packed-weights", str(elsewhere))
        self.assertIn(f"{elsewhere}/{file.name}", err)
        self.assertEqual(moved, without)
        code, out, err = run("store", "rm", "--all", "--store", str(self.store))
        self.assertEqual(code, 0, err)
        self.assertIn("1 files of packed weights removed", out)
        self.assertEqual(self.files(), [])

    def test_damaged_weights_are_packed_again(self):
        first, _ = self.answer()
        [file] = self.files()
        whole = file.read_bytes()
        for at, reason in ((len(whole) // 2, "are damaged"), (20, "its header is damaged")):
            spoiled = bytearray(whole)
            spoiled[at] ^= 1
            file.write_bytes(spoiled)
            again, err = self.answer()
            self.assertIn(reason, err)
            self.assertEqual(again, first)
            again, err = self.answer()
            self.assertEqual(again, first)
        self.assertEqual(len(self.files()), 1)

    def test_a_budget_and_no_store(self):
        _, err = self.answer("--packed-budget", "1M")
        self.assertEqual((err, self.files()), ("", []))
        _, err = self.answer("--packed-budget", "1M", "--verbose")
        self.assertIn("packed weights are not kept: they take", err)
        _, err = self.answer("--store", "none")
        self.assertEqual((err, self.files()), ("", []))
        self.assertEqual(run("run", self.large, "-p", "x", "--packed-budget", "5")[0], 2)

    def has_nameless_files(self):
        """Returns whether a file that is being written has no name, as NewFile asks for."""
        try:
            os.close(os.open(self.dir, os.O_TMPFILE | os.O_WRONLY))
            return True
        except OSError:
            return False

    def writes(self, child):
        """Returns whether the program has begun to write, or has ended."""
        if child.poll() is not None or self.files():
            return True
        try:
            for link in pathlib.Path(f"/proc/{child.pid}/fd").iterdir():
                if os.readlink(link).startswith(os.path.realpath(self.packed) + "/"):
                    return True
        except FileNotFoundError:
            pass  # a descriptor, or the program, is gone meanwhile
        return False

    def test_killed_programs_leave_nothing(self):
        if not self.has_nameless_files():
            self.skipTest("files that are being written have names here")
        for _ in range(3):
            child = subprocess.Popen([program.KVCACHE, "run", self.large, "-p", "x", "--raw", "-n", "1",
                                      "--store", str(self.store)], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            wait_until(lambda: self.writes(child))
            child.send_signal(signal.SIGKILL)
            child.wait()
            for file in self.files():
                self.assertEqual(file.suffix, ".kvpanels")
        first, _ = self.answer()
        second, err = self.answer()
        self.assertEqual((second, err), (first, ""))

    def test_a_removed_model_takes_them_along(self):
        models = {"KVCACHE_MODELS": str(self.dir / "models"), "KVCACHE_STORE": str(self.store)}
        file = self.dir / "Modelfile"
        file.write_text(f"FROM {self.large}\n")
        for name in ("one", "two"):
            self.assertEqual(run("create", name, "-f", str(file), env=models)[0], 0)
        time.sleep(SETTLED_SECONDS)
        self.answer(model="one", env=models)
        self.assertEqual(len(self.files()), 1)
        self.assertEqual(run("rm", "one", env=models)[0], 0)
        self.assertEqual(len(self.files()), 1)
        self.assertEqual(run("rm", "two", env=models)[0], 0)
        self.assertEqual(self.files(), [])


class Served(PackedTest):
    def serve(self, *models):
        """Asks a new server for an answer of each model. Returns the texts and the log's events."""
        child = subprocess.Popen([program.KVCACHE, "serve", *models, "--port", "0", "--store", str(self.store),
                                  "--log-form", "json", "--ctx", "256", "--threads", "2"],
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(child.stderr.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        lines = []
        while "http://" not in (lines or [""])[-1]:
            lines.append(child.stderr.readline())
            self.assertNotEqual(lines[-1], "", "".join(lines))
        url = lines[-1].split(" at ")[1].strip()
        texts = []
        for model in models:
            body = {"model": pathlib.Path(model).stem, "prompt": "Hello", "max_tokens": 5, "temperature": 0}
            request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=100) as answer:
                texts.append(json.load(answer)["choices"][0]["text"])
        wait_until(lambda: len(self.files()) == len(models))
        child.send_signal(signal.SIGTERM)
        lines += child.stderr.readlines()
        self.assertEqual(child.wait(60), 0)
        return texts, [line for line in lines if "packed weights" in line]

    def test_several_models(self):
        other = self.make_large("other.gguf", 2)
        time.sleep(SETTLED_SECONDS)
        first, events = self.serve(self.large, other)
        self.assertEqual(len(events), 2, events)
        for event in events:
            self.assertIn("are kept in", event)
        second, events = self.serve(self.large, other)
        self.assertEqual((second, events), (first, []))


if __name__ == "__main__":
    program.main()

"""Tests prefixes that survive the process: `kvcache run` started again, and killed."""

import json
import os
import shutil
import signal
import stat
import subprocess
import time
import unittest

import program
from chat import ChatTest
from program import CliTest, run

PROMPT = "The quick brown fox jumps over the lazy dog. " * 12


class StoreTest(CliTest):
    def setUp(self):
        self.store = self.dir / self.id()
        self.addCleanup(shutil.rmtree, self.store, ignore_errors=True)

    def answer(self, *flags, prompt=PROMPT, model=None, **kwargs):
        """Returns the JSON object of a prompt, and standard error."""
        code, out, err = run("run", model or self.long, "-p", prompt, "--raw", "-n", "5", "--seed",
                             "3", "--json", "--store", str(self.store), *flags, **kwargs)
        self.assertEqual(code, 0, err)
        return json.loads(out), err

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.long = cls.make("long.gguf", "--context", "2048")


class Prompts(StoreTest):
    def test_the_second_process_computes_the_end_only(self):
        cold, err = self.answer()
        self.assertEqual(err, "")
        self.assertEqual(cold["reuse"]["tiers"]["disk"], 0)
        warm, err = self.answer()
        self.assertEqual(err, "")
        tokens = warm["prompt_tokens"]
        self.assertEqual(tokens, cold["prompt_tokens"])
        disk = warm["reuse"]["tiers"]["disk"]
        self.assertGreaterEqual(disk, tokens - 16)
        self.assertEqual(warm["reuse"]["tiers"]["live"], 0)
        self.assertEqual(warm["reuse"]["restored"], disk)
        self.assertEqual(warm["reuse"]["computed"], tokens - disk)
        self.assertGreater(warm["timing"]["restore_ms"], 0)
        self.assertEqual((warm["text"], warm["tokens"]), (cold["text"], cold["tokens"]))

    def test_other_settings_compute(self):
        cold, _ = self.answer()
        other, _ = self.answer("--kv-type", "f32")
        self.assertEqual(other["reuse"]["tiers"]["disk"], 0)
        model = self.make("other.gguf", "--context", "2048", "--seed", "2")
        other, _ = self.answer(model=model)
        self.assertEqual(other["reuse"]["tiers"]["disk"], 0)
        for flags in (["--threads", "1"], ["--prefill-chunk", "33"], ["--ctx", "1000"]):
            warm, _ = self.answer(*flags)
            self.assertGreater(warm["reuse"]["tiers"]["disk"], 0, flags)
            self.assertEqual(warm["tokens"], cold["tokens"])

    def start(self):
        child = subprocess.Popen(
            [program.KVCACHE, "run", self.long, "-p", PROMPT, "--raw", "-n", "100000", "--seed", "3",
             "--store", str(self.store)], stdout=subprocess.DEVNULL)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def objects(self):
        code, out, _ = run("store", "stat", "--json", "--store", str(self.store))
        return json.loads(out)["objects"] if code == 0 else 0

    def test_a_killed_process_leaves_whole_objects(self):
        cold, _ = self.answer()
        for attempt in range(8):
            shutil.rmtree(self.store)
            child = self.start()
            time.sleep(0.03 * attempt)
            child.send_signal(signal.SIGKILL)
            child.wait()
            warm, err = self.answer()
            self.assertEqual((err, warm["tokens"]), ("", cold["tokens"]))

    def test_a_killed_process_leaves_its_prompt(self):
        child = self.start()
        while child.poll() is None and self.objects() == 0:
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        child.wait()
        warm, err = self.answer()
        self.assertEqual(err, "")
        self.assertGreater(warm["reuse"]["tiers"]["disk"], 0)

    def test_windows_and_states(self):
        for arch, extra in (("gemma3", ["--window", "75"]), ("granitehybrid", []),
                            ("llama", ["--window", "75"])):
            model = self.make(f"{arch}.gguf", "--arch", arch, "--context", "2048", *extra)
            cold, _ = self.answer(model=model)
            warm, _ = self.answer(model=model)
            self.assertEqual(warm["reuse"]["computed"], 1, arch)
            self.assertEqual(warm["tokens"], cold["tokens"], arch)


class Chats(ChatTest):
    def test_a_chat_goes_on_in_another_process(self):
        store = str(self.dir / "chat_store")

        def chat(text):
            done = self.run_chat(self.chat, text, "--json", "--store", store)
            return [json.loads(line) for line in done[0].splitlines()]

        first = chat("hello there\nhow are you\n")
        again = chat("hello there\nhow are you\n")
        self.assertEqual([turn["text"] for turn in first], [turn["text"] for turn in again])
        self.assertEqual(first[0]["reuse"]["tiers"]["disk"], 0)
        self.assertGreater(again[0]["reuse"]["tiers"]["disk"], 0)


class Directories(StoreTest):
    def test_none_writes_nothing(self):
        home = self.dir / "home"
        home.mkdir(exist_ok=True)
        env = {"HOME": str(home), "XDG_CACHE_HOME": ""}
        code, _, err = run("run", self.long, "-p", PROMPT, "--raw", "-n", "1", "--store", "none",
                           env=env)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(list(home.iterdir()), [])

    def test_the_default_is_the_users_cache(self):
        home = self.dir / "own_home"
        home.mkdir(exist_ok=True)
        for env, path in (({"HOME": str(home), "XDG_CACHE_HOME": ""}, home / ".cache" / "kvcache"),
                          ({"XDG_CACHE_HOME": str(home / "x")}, home / "x" / "kvcache")):
            code, _, err = run("run", self.long, "-p", PROMPT, "--raw", "-n", "1",
                               env={**env, "KVCACHE_STORE": ""})
            self.assertEqual((code, err), (0, ""))
            self.assertTrue((path / "objects.mdb").exists())
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o700)

    def test_what_cannot_be_stored_is_one_line(self):
        self.store.write_text("a file")
        answer, err = self.answer()
        self.assertEqual(len(answer["tokens"]), 5)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("prefixes are not stored", err)
        self.assertIn("not a directory", err)

    def test_a_damaged_file_is_a_miss(self):
        cold, _ = self.answer()
        path = self.store / "objects.mdb"
        data = bytearray(path.read_bytes())
        for at in range(100, len(data), 997):
            data[at] ^= 4
        path.write_bytes(bytes(data))
        answer, err = self.answer()
        self.assertEqual(err, "")
        self.assertEqual(answer["tokens"], cold["tokens"])
        self.assertEqual(answer["reuse"]["tiers"]["disk"], 0)
        warm, _ = self.answer()
        self.assertGreater(warm["reuse"]["tiers"]["disk"], 0)

    def test_commands(self):
        self.answer()
        self.answer(prompt="Another prompt. " * 40)
        store = ["--store", str(self.store)]
        objects = json.loads(self.succeeds("store", "ls", "--json", *store))
        self.assertGreater(len(objects), 3)
        stat = json.loads(self.succeeds("store", "stat", "--json", *store))
        self.assertEqual(stat["objects"], len(objects))
        self.assertEqual(stat["payload_bytes"], sum(each["bytes"] for each in objects))
        self.assertLessEqual(stat["held_bytes"], stat["budget_bytes"])
        self.assertIn(f"{len(objects)} objects are whole, 0 were",
                      self.succeeds("store", "verify", *store))
        self.assertIn("1 objects removed", self.succeeds("store", "rm", objects[0]["key"], *store))
        small = json.loads(self.succeeds("store", "gc", "--disk-budget", "1M", "--json", *store))
        self.assertLessEqual(small["held_bytes"], 1 << 20)
        self.assertEqual(small["objects"] + small["evicted"], len(objects) - 1)
        self.fails(["store", "rm", "zz", *store], "no object's key")
        self.fails(["store", "rm", *store], "--all")
        self.succeeds("store", "rm", "--all", *store)
        self.assertEqual(json.loads(self.succeeds("store", "stat", "--json", *store))["objects"], 0)
        self.fails(["store", "burn", *store], "stat, ls, verify, gc or rm", status=2)

    def test_wrong_flags(self):
        self.fails(["run", "--store", "redis://localhost:1", "-p", "x"], "--store", status=2)
        self.fails(["run", "--disk-budget", "5", "-p", "x"], "--disk-budget", "1M", status=2)
        self.fails(["run", "--disk-budget", "1X", "-p", "x"], "--disk-budget", status=2)


if __name__ == "__main__":
    program.main()

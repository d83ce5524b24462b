"""Tests prefixes that survive the process: `kvcache run` started again, and killed."""

import json
import os
import pathlib
import resource
import shutil
import signal
import stat
import subprocess
import time
import unittest

import program
import redis_process
from chat import ChatTest
from program import CliTest, run

PROMPT = "The quick brown fox jumps over the lazy dog. " * 12


class StoreTest(CliTest):
    def setUp(self):
        self.store = self.dir / self.id()
        self.addCleanup(shutil.rmtree, self.store, ignore_errors=True)

    def answer(self, *flags, prompt=PROMPT, model=None, store=None, **kwargs):
        """Returns the JSON object of a prompt, and standard error."""
        code, out, err = run("run", model or self.long, "-p", prompt, "--raw", "-n", "5", "--seed",
                             "3", "--json", "--store", str(store or self.store), *flags, **kwargs)
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

    def states(self):
        """Returns the number of stored states; hashes and lists are small."""
        code, out, _ = run("store", "ls", "--json", "--store", str(self.store))
        return sum(each["bytes"] > 10000 for each in json.loads(out)) if code == 0 else 0

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
        while child.poll() is None and self.states() == 0:
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

    def test_a_text_that_an_encoder_has_read(self):
        model = self.make("t5.gguf", "--arch", "t5", "--context", "2048")
        cold, err = self.answer(model=model)
        self.assertEqual(err, "")
        tokens = cold["prompt_tokens"]
        self.assertEqual((cold["reuse"]["restored"], cold["reuse"]["computed"]), (0, tokens))
        warm, err = self.answer(model=model)
        self.assertEqual(err, "")
        self.assertEqual(warm["prompt_tokens"], tokens)
        self.assertEqual((warm["reuse"]["matched"], warm["reuse"]["restored"]), (tokens, tokens))
        self.assertEqual((warm["reuse"]["tiers"]["disk"], warm["reuse"]["tiers"]["live"]), (tokens, 0))
        self.assertEqual(warm["reuse"]["computed"], 0)
        self.assertGreater(warm["timing"]["restore_ms"], 0)
        self.assertEqual((warm["text"], warm["tokens"]), (cold["text"], cold["tokens"]))
        longer, _ = self.answer(model=model, prompt=PROMPT + "again")
        self.assertEqual(longer["reuse"]["restored"], 0)
        none, _ = self.answer(model=model, store="none")
        self.assertEqual((none["reuse"]["restored"], none["tokens"]), (0, cold["tokens"]))


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


@unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
class Redis(StoreTest):
    def setUp(self):
        super().setUp()
        self.server, self.port = redis_process.start(self, self.dir)
        self.url = f"redis://127.0.0.1:{self.port}"

    def ask(self, *stores):
        flags = [word for store in stores for word in ("--store", store)]
        code, out, err = run("run", self.long, "-p", PROMPT, "--raw", "-n", "5", "--seed", "3",
                             "--json", *flags)
        self.assertEqual(code, 0, err)
        return json.loads(out), err

    def test_two_processes_share_prompts(self):
        cold, err = self.ask(self.url)
        self.assertEqual(err, "")
        warm, err = self.ask(self.url)
        self.assertEqual(err, "")
        self.assertGreaterEqual(warm["reuse"]["tiers"]["remote"], warm["prompt_tokens"] - 16)
        self.assertEqual(warm["tokens"], cold["tokens"])
        stat = json.loads(self.succeeds("store", "stat", "--json", "--store", self.url))
        self.assertGreater(stat["objects"], 0)
        self.assertIn("are whole, 0 were", self.succeeds("store", "verify", "--store", self.url))
        self.fails(["store", "gc", "--store", self.url], "a Redis server removes objects itself")

    def test_the_first_store_that_has_it_gives_it(self):
        self.ask(str(self.store), self.url)
        warm, _ = self.ask(str(self.store), self.url)
        self.assertGreater(warm["reuse"]["tiers"]["disk"], 0)
        self.assertEqual(warm["reuse"]["tiers"]["remote"], 0)
        shutil.rmtree(self.store)
        warm, _ = self.ask(str(self.store), self.url)
        self.assertGreater(warm["reuse"]["tiers"]["remote"], 0)

    def test_a_server_that_is_away_costs_a_line(self):
        cold, _ = self.ask(self.url)
        self.server.kill()
        self.server.wait()
        start = time.monotonic()
        answer, err = self.ask(self.url)
        self.assertLess(time.monotonic() - start, 10)
        self.assertEqual(answer["tokens"], cold["tokens"])
        self.assertEqual(answer["reuse"]["restored"], 0)
        self.assertIn(f"127.0.0.1:{self.port}", answer["reuse"]["store_problem"])
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("prefixes are not stored", err)


class Failures(StoreTest):
    """A store that cannot store costs one line, and the answer is that of a run without a store."""

    def setUp(self):
        super().setUp()
        self.cold, _ = self.answer(store="none")

    def check(self, answer, err, *words):
        self.assertEqual((answer["text"], answer["tokens"]),
                         (self.cold["text"], self.cold["tokens"]))
        self.assertEqual(err.count("\n"), 1, err)
        for word in ("prefixes are not stored", *words):
            self.assertIn(word, err)

    def test_a_budget_below_one_object(self):
        wide = self.make("wide.gguf", "--context", "2048", "--width", "512", "--heads", "8",
                         "--kv-heads", "8", "--layers", "4")
        self.cold, _ = self.answer(store="none", model=wide)
        for _ in range(2):
            answer, err = self.answer("--disk-budget", "1M", model=wide)
            self.check(answer, err, "does not fit into the store's budget of 1048576")
        self.assertLessEqual((self.store / "objects.mdb").stat().st_size, 1 << 20)

    def test_a_full_disk(self):
        def full():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        answer, err = self.answer(before=full)
        self.check(answer, err, "cannot write", str(self.store))
        answer, err = self.answer()
        self.assertEqual((err, answer["tokens"]), ("", self.cold["tokens"]))
        warm, _ = self.answer()
        self.assertGreater(warm["reuse"]["tiers"]["disk"], 0)
        answer, err = self.answer(before=full)
        self.assertEqual((err, answer["tokens"]), ("", self.cold["tokens"]))
        self.assertGreater(answer["reuse"]["tiers"]["disk"], 0)

    def test_a_directory_that_nobody_may_write_to(self):
        self.store = pathlib.Path("/proc/kvcache")
        answer, err = self.answer()
        self.check(answer, err, "/proc/kvcache")


class RemovedDirectory(ChatTest):
    def test_it_is_removed_between_two_answers(self):
        store = self.dir / "removed"
        texts = [answer["text"] for answer in self.answers(self.chat, "hello there\nhow are you\n",
                                                           "--store", "none")]
        chat = subprocess.Popen(
            [program.KVCACHE, "run", self.chat, "--chat", "-n", "8", "--seed", "3", "--json",
             "--store", str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(chat.kill)
        chat.stdin.write("hello there\n")
        chat.stdin.flush()
        first = json.loads(chat.stdout.readline())
        self.assertTrue((store / "objects.mdb").exists())
        shutil.rmtree(store)
        out, err = chat.communicate("how are you\n", timeout=120)
        self.assertEqual(chat.returncode, 0, err)
        self.assertEqual([first["text"], json.loads(out)["text"]], texts)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("the store's file was removed", err)
        self.assertIn(str(store), err)


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

    def test_damage_in_an_object_costs_that_object(self):
        self.answer()
        store = ["--store", str(self.store)]
        path = self.store / "objects.mdb"
        count = len(json.loads(self.succeeds("store", "ls", "--json", *store)))
        whole = path.read_bytes()
        # Pages of an object begin with a header of 16 bytes; the object begins with its format's name.
        pages = [at for at in range(0, len(whole), 4096) if whole[at + 16:at + 24] == b"kvobj001"]
        self.assertGreater(len(pages), 1)

        def flip(*places):
            data = bytearray(whole)
            for at in places:
                data[at] ^= 4
            path.write_bytes(bytes(data))

        for page in pages:
            for damaged, places in ((0, [page + 12]), (1, [page + 500]), (1, [page + 12, page + 500]),
                                    (1, [page + 12, page + 60])):
                flip(*places)
                code, out, err = run("store", "verify", "--json", *store)
                found = json.loads(out)
                self.assertEqual((code, found["whole"], found["damaged"], found["unreadable"], found["gone"]),
                                 (0, count - damaged, damaged, 0, 0), err)
                self.assertEqual("were corrected" in err, places == [page + 12], err)
                left = json.loads(self.succeeds("store", "ls", "--json", *store))
                self.assertEqual(len(left), count - damaged)
                flip(*places)
                found = json.loads(self.succeeds("store", "gc", "--json", *store))
                self.assertEqual((found["objects"], found["damaged"]), (count - damaged, damaged))
        flip(*[page + 12 for page in pages])
        for removed, each in enumerate(json.loads(self.succeeds("store", "ls", "--json", *store)), 1):
            self.assertIn("1 objects removed", self.succeeds("store", "rm", each["key"], *store))
            left = json.loads(self.succeeds("store", "ls", "--json", *store))
            self.assertEqual(len(left), count - removed)

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
        self.fails(["store", "burn", *store], "stat, ls, show, verify, gc, rm", status=2)

    def test_an_export_is_of_use_elsewhere(self):
        cold, _ = self.answer()
        export = self.dir / "export"
        store = ["--store", str(self.store)]
        counts = json.loads(self.succeeds("store", "export", str(export), "--json", *store))
        objects = json.loads(self.succeeds("store", "ls", "--json", *store))
        self.assertEqual((counts["objects"], counts["skipped"]), (len(objects), 0))
        shutil.rmtree(self.store)
        counts = json.loads(self.succeeds("store", "import", str(export), "--json", *store))
        self.assertEqual(counts["objects"], len(objects))
        warm, _ = self.answer()
        self.assertGreaterEqual(warm["reuse"]["tiers"]["disk"], warm["prompt_tokens"] - 16)
        self.assertEqual(warm["tokens"], cold["tokens"])
        export.write_bytes(export.read_bytes()[:-10])
        self.fails(["store", "import", str(export), *store], "is cut")
        self.fails(["store", "import", *store], "name the file")

    def test_show(self):
        self.answer()
        store = ["--store", str(self.store)]
        objects = json.loads(self.succeeds("store", "ls", "--json", *store))
        shown = [json.loads(self.succeeds("store", "show", each["key"], "--json", *store))[0]
                 for each in objects]
        self.assertTrue(all(each["state"] == "whole" for each in shown))
        ranges = sorted(each["tokens"] for each in shown if "tokens" in each)
        self.assertEqual(ranges[0][0], 0)
        for before, after in zip(ranges, ranges[1:]):
            self.assertLessEqual(after[0], before[1])
        self.assertIn("causal", self.succeeds("store", "show", shown[-1]["key"], *store))
        self.fails(["store", "show", "zz", *store], "no object's key")

    def test_wrong_flags(self):
        self.fails(["run", "--store", "redis://localhost:x", "-p", "x"], "--store", status=2)
        self.fails(["run", "--store", "rediss://localhost", "-p", "x"], "--store", "TLS", status=2)
        self.fails(["run", "--store", "http://localhost", "-p", "x"], "--store", status=2)
        code, _, err = run("run", "--store", "redis://:secret@host:x", "-p", "x")
        self.assertEqual(code, 2)
        self.assertNotIn("secret", err)
        self.fails(["run", "--disk-budget", "5", "-p", "x"], "--disk-budget", "1M", status=2)
        self.fails(["run", "--disk-budget", "1X", "-p", "x"], "--disk-budget", status=2)


if __name__ == "__main__":
    program.main()

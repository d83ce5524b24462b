"""Tests the command line as people and scripts use it: output, errors, exit status.

usage: cli_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import time
import unittest

import program
from program import CliTest, run

# The random model ends its text early by chance. This repeat penalty, below 1, makes it repeat
# itself without end.
ENDLESS = ("-p", "seven", "--temp", "0", "--repeat-penalty", "0.5")


class Usage(CliTest):
    def test_help_and_version(self):
        self.assertIn("run", self.succeeds("--help"))
        self.assertEqual(self.succeeds(), self.succeeds("--help"))
        self.assertEqual(self.succeeds("help"), self.succeeds("--help"))
        for command in program.COMMANDS:
            self.assertIn("--help", self.succeeds(command, "--help"))
            self.assertEqual(self.succeeds("help", command), self.succeeds(command, "--help"))
        self.assertRegex(self.succeeds("--version"), r"kvcache \d+\.\d+\.\d+")

    def test_wrong_command_lines(self):
        self.fails(["walk"], "walk", status=2)
        self.fails(["help", "walk"], "walk", status=2)
        self.fails(["run", "--colour", "red"], "--colour", "kvcache run --help", status=2)
        self.fails(["run", "-n", "many"], "many", status=2)
        for flag, value in (("--colour", "red"), ("--port", "65536"), ("--models", "0"), ("--log", "loud"),
                            ("--log-form", "xml"), ("--ctx", "0x10"), ("--kv-type", "f8"),
                            ("--memory-budget", "1"), ("--store", "redis://x:y:z")):
            self.fails(["serve", flag, value], f"kvcache serve: {flag}" if flag != "--colour" else flag,
                       "see 'kvcache serve --help'", status=2)
        # A key file whose name is an unset variable leaves the server open to everyone.
        for flag in ("--api-keys", "--tls-cert", "--tls-key", "--cors", "--draft", "--host", "--store"):
            self.fails(["serve", flag, ""], flag, status=2)
        self.fails(["run", "-n", "-3"], "-3 not in range 0 to 2147483647", status=2)
        self.fails(["run", "-n", "99999999999"], "99999999999", status=2)
        for seed in ("-1", "18446744073709551616", "1.5", "0x10", "seven"):
            self.fails(["run", "--seed", seed], "--seed", seed, "2^64 - 1", status=2)
        self.fails(["run", "--ctx", "0"], "--ctx", status=2)
        self.fails(["run", "--threads", "0"], "--threads", status=2)
        self.fails(["run", "-p", "a", "-f", "b"], "-f", status=2)
        self.fails(["eval"], "--tokens", status=2)
        self.fails(["eval", "--tokens", "1", "--text-file", "x"], "--text-file", status=2)
        self.fails(["tokenize"], "TEXT", status=2)
        self.fails(["tokenize", "a", "b", "c"], "c", status=2)
        self.fails(["bench"], "NAME is required", status=2)
        self.fails(["bench", "walk", "--trace", "x"], "'walk'", "reuse", status=2)
        self.fails(["bench", "reuse"], "--trace FILE is required", status=2)
        self.fails(["bench", "reuse", "--trace", "x", "--budget-tokens", "0"], "at least 1", status=2)
        self.fails(["bench", "reuse", "--trace", "x", "--budget", "9"], "--budget-tokens", status=2)
        self.fails(["bench", "reuse", "--trace", "x", "--budget", "9", "--budget-tokens", "9"],
                   "--budget", status=2)
        for flag in ("--slots", "--block-size"):
            self.fails(["bench", "reuse", "--trace", "x", flag, "0"], flag, status=2)


class BadModels(CliTest):
    def test_no_such_file(self):
        path = str(self.dir / "none.gguf")
        self.fails(["run", path, "-p", "x"], path, "No such file")

    def test_no_such_name(self):
        self.fails(["run", "nonesuch", "-p", "x"], "nonesuch", "kvcache list")

    def test_a_folder(self):
        self.fails(["run", str(self.dir) + "/", "-p", "x"], str(self.dir))

    def test_unreadable_file(self):
        path = self.file("unreadable.gguf", self.bytes)
        os.chmod(path, 0)
        nobody = {}
        if os.geteuid() == 0:  # root may read any file
            nobody = {"user": 65534}
            os.chmod(self.dir, 0o755)
            if not self.starts(**nobody):
                self.skipTest("only root can start the program")
        done = subprocess.run([program.KVCACHE, "run", path, "-p", "x"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120, **nobody)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, f"kvcache run: cannot open {path}: Permission denied\n")

    @staticmethod
    def starts(**kwargs):
        try:
            return subprocess.run([program.KVCACHE, "--version"], capture_output=True, timeout=120,
                                  **kwargs).returncode == 0
        except OSError:
            return False

    def test_empty_and_foreign_files(self):
        self.fails(["run", self.file("empty.gguf", b""), "-p", "x"], "empty.gguf")
        self.fails(["run", self.file("text.gguf", b"hello " * 99), "-p", "x"], "text.gguf",
                   "not a GGUF file")

    def test_truncated_anywhere(self):
        for size in (5, 30, 1000, len(self.bytes) // 2, len(self.bytes) - 1):
            path = self.file("short.gguf", self.bytes[:size])
            self.fails(["inspect", path], "short.gguf")

    def test_counts_that_cannot_be(self):
        data = bytearray(self.bytes)
        struct.pack_into("<Q", data, 8, 2**60)  # tensors
        self.fails(["run", self.file("counts.gguf", bytes(data)), "-p", "x"], "counts.gguf")

    def test_missing_tensor(self):
        data = self.bytes.replace(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight")
        self.fails(["run", self.file("missing.gguf", data), "-p", "x"], "missing.gguf",
                   "blk.0.attn_q.weight")

    def test_tensor_of_a_type_that_is_not_served(self):
        name = b"output_norm.weight"
        at = self.bytes.index(name) + len(name)
        rank = struct.unpack_from("<I", self.bytes, at)[0]
        data = bytearray(self.bytes)
        struct.pack_into("<I", data, at + 4 + 8 * rank, 28)  # F64
        path = self.file("type.gguf", bytes(data))
        self.fails(["run", path, "-p", "x"], "type.gguf")

    def test_foreign_bytes_stay_off_the_terminal(self):
        data = self.bytes.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0l\n\x1b[2", 1)
        self.assertNotEqual(data, self.bytes)
        store = self.dir / "store"
        store.mkdir(exist_ok=True)
        path = store / "escapes.gguf"
        path.write_bytes(data)
        self.fails(["run", str(path), "-p", "x"], "'l\\x0a\\x1b[2'")
        env = {"KVCACHE_MODELS": str(store)}
        for args in (["list"], ["inspect", str(path)]):
            out = self.succeeds(*args, env=env)
            self.assertIn("l\\x0a\\x1b[2", out)
            self.assertNotIn("\x1b", out)

    def test_architecture_that_is_not_known(self):
        data = self.bytes.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0xlama", 1)
        self.assertNotEqual(data, self.bytes)
        self.fails(["run", self.file("arch.gguf", data), "-p", "x"], "xlama", "llama")


class Run(CliTest):
    def test_bad_input(self):
        self.fails(["run", self.model, "-p", ""], "prompt is empty")
        self.fails(["run", self.model, "-f", "/nonexistent/prompt"], "/nonexistent/prompt",
                   "No such file")
        self.fails(["run", self.model, "--ctx", "16", "-p", "word " * 100], "prompt has",
                   "context holds 16", "--ctx, up to")
        _, _, err = run("run", self.model, "-p", "Hi", "-n", "1", "--ctx", "100000")
        self.assertIn("the model was made for 256 tokens", err)
        self.fails(["run", "Once upon a time"], "goes after -p", text_in="x")
        self.fails(["run", self.model, "-p", "x", "--kv-type", "q9"], "q9", "f16", "q8_0",
                   status=2)
        self.fails(["run", self.model, "-p", "x", "--temp", "-1"], "temperature", status=2)
        self.fails(["run", self.model, "-p", "x", "--top-p", "2"], "top-p", status=2)
        self.fails(["run", self.model, "-p", "x", "--stop", ""], "stop string", status=2)

    def test_a_cache_in_blocks(self):
        model = str(self.dir / "heads-of-32.gguf")
        subprocess.run([program.MAKE_MODEL, model, "--layers", "2", "--heads", "4", "--kv-heads", "2",
                        "--head-dim", "32", "--vocab", "512"], check=True, capture_output=True)
        args = ["-p", "one two", "-n", "4", "--temp", "0", "--k-type", "q8_0", "--v-type", "q4_0"]
        report = json.loads(self.succeeds("run", model, *args, "--json"))
        values = 2 * 2 * 32  # of a token's keys: layers, heads, head size
        self.assertEqual(report["memory"]["kv_bytes_per_token"], values // 32 * (34 + 18))
        self.fails(["run", self.model, *args], "layer 0 has heads of 16 values", "K in q8_0",
                   "K in f16, bf16 or f32 holds them")

    def test_a_final_newline_is_no_part_of_the_prompt(self):
        args = ["run", self.model, "-n", "1", "--temp", "0", "--json"]
        plain = json.loads(self.succeeds(*args, "-p", "one two"))["prompt_tokens"]
        self.assertEqual(json.loads(self.succeeds(*args, text_in="one two\n"))["prompt_tokens"],
                         plain)
        path = self.file("prompt.txt", b"one two\n")
        self.assertEqual(json.loads(self.succeeds(*args, "-f", path))["prompt_tokens"], plain)
        more = json.loads(self.succeeds(*args, text_in="one two\n\n"))["prompt_tokens"]
        self.assertGreater(more, plain)
        self.fails(["run", self.model, "-f", self.file("newline.txt", b"\n")], "prompt is empty")

    def test_logits_do_not_replace_what_is_read(self):
        text = self.file("scored.txt", b"one two")
        model = self.file("own.gguf", pathlib.Path(self.model).read_bytes())
        self.fails(["eval", self.model, "--text-file", text, "--logits", text], "would replace", text)
        self.fails(["eval", model, "--tokens", "1,2", "--logits", model], "would replace", model)
        self.fails(["eval", model, "--tokens", "1,2", "--logits", "-"], "/dev/stdout")
        self.assertEqual(pathlib.Path(text).read_bytes(), b"one two")
        self.assertEqual(pathlib.Path(model).read_bytes(), pathlib.Path(self.model).read_bytes())
        self.succeeds("eval", self.model, "--tokens", "1,2", "--logits", "/dev/null")

    def test_json_and_seed(self):
        args = ["run", self.model, "-p", "one two", "-n", "20", "--seed", "5", "--json"]
        first, second = (json.loads(self.succeeds(*args)) for _ in range(2))
        self.assertEqual(first["text"], second["text"])
        self.assertEqual(first["tokens"], second["tokens"])
        self.assertLessEqual(len(first["tokens"]), 20)
        self.assertEqual(first["reuse"]["computed"], first["prompt_tokens"])
        self.assertGreater(first["timing"]["ttft_ms"], 0)
        self.assertGreater(first["memory"]["kv_bytes"], 0)
        self.assertEqual(first["memory"]["kv_bytes_per_token"], 2 * 2 * 2 * 16 * 2)
        padded = json.loads(self.succeeds(*args[:-3], "--seed", "010", "--json"))
        self.assertEqual(padded["seed"], 10)
        other = json.loads(self.succeeds(*args[:-3], "--seed", "6", "--json"))
        self.assertNotEqual(first["tokens"], other["tokens"])

    def test_drafts_do_not_change_the_text(self):
        args = ["run", self.model, "-p", "one two", "-n", "30", "--seed", "5", "--json"]
        plain = json.loads(self.succeeds(*args))
        self.assertEqual(plain["speculation"],
                         {"drafted": 0, "accepted": 0, "rounds": 0, "mean_committed": 0.0})
        for draft in ("ngram", self.model):
            for tokens in ("auto", "3"):
                report = json.loads(
                    self.succeeds(*args, "--draft", draft, "--draft-tokens", tokens))
                self.assertEqual(report["tokens"], plain["tokens"])
                self.assertEqual(report["text"], plain["text"])
        greedy = json.loads(self.succeeds(*args, "--temp", "0", "--draft", self.model,
                                          "--draft-tokens", "4"))["speculation"]
        self.assertEqual(greedy["drafted"], greedy["accepted"])
        self.assertGreater(greedy["mean_committed"], 2)
        story = ["run", "story", "-p", "Once upon a time", "-n", "60", "--temp", "0", "--json"]
        head = json.loads(self.succeeds(*story, "--draft", "story-head"))
        self.assertEqual(head["tokens"], json.loads(self.succeeds(*story))["tokens"])
        self.assertGreater(head["speculation"]["accepted"], 5)
        self.fails(["run", "story-head", "-p", "x"], "story-head.gguf", "a draft head and no model")
        self.fails(["run", "story", "-p", "x", "--draft", "head"], "no draft head",
                   "llama.nextn_predict_layers")
        self.fails(["run", self.model, "-p", "x", "--draft", "story-head"], "story-head.gguf",
                   "layers")
        self.fails(["run", self.model, "-p", "x", "--draft-tokens", "17"],
                   "--draft-tokens is", "17", "0 to 16", status=2)
        self.fails(["run", self.model, "-p", "x", "--draft", "no-such-model"], "--draft",
                   "no-such-model")
        self.fails(["run", self.model, "-p", "x", "--draft", "story"], "--draft",
                   "both need the same vocabulary")

    def test_threads_that_the_system_refuses(self):
        def limit():  # the stacks of 1,024 threads need 8 GiB of address space
            resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

        def limited(*args):
            return subprocess.run([program.KVCACHE, *args], stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=120, preexec_fn=limit)

        self.require_address_space(1 << 30)
        done = limited("run", self.model, "-p", "one", "-n", "1", "--threads", "1024")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, "^kvcache run: the system allows [0-9]+ of 1024 "
                         "threads: ask for fewer\n$")

    def test_prompt_from_file_and_pipe_is_the_same(self):
        path = self.file("prompt.txt", b"one two three")
        args = ["run", self.model, "-n", "8", "--temp", "0"]
        text = self.succeeds(*args, "-p", "one two three")
        self.assertEqual(text, self.succeeds(*args, "-f", path))
        self.assertEqual(text, self.succeeds(*args, "-f", "-", text_in="one two three"))
        self.assertEqual(text, self.succeeds(*args, text_in="one two three"))

    def test_context_shift_goes_on(self):
        result = json.loads(self.succeeds("run", self.model, *ENDLESS, "--ctx", "32", "-n", "100",
                                          "--json"))
        self.assertEqual(result["stop"], "length")
        self.assertEqual(len(result["tokens"]), 100)
        self.assertGreater(result["shifts"], 3)

    def test_context_full_without_a_count_stops(self):
        result = json.loads(self.succeeds("run", self.model, "-p", "one two", "--ctx", "32",
                                          "--temp", "1.5", "--seed", "2", "--json"))
        self.assertLessEqual(result["prompt_tokens"] + len(result["tokens"]), 33)
        self.assertEqual(result["shifts"], 0)

    def test_stop_string_is_not_printed(self):
        whole = json.loads(self.succeeds("run", self.model, "-p", "one", "-n", "40", "--seed", "3",
                                         "--json"))["text"]
        stop = whole[5:8]
        cut = json.loads(self.succeeds("run", self.model, "-p", "one", "-n", "40", "--seed", "3",
                                       "--stop", stop, "--json"))
        self.assertEqual(cut["stop"], "stop")
        self.assertEqual(cut["text"], whole[:whole.index(stop)])

    def test_interrupt_keeps_what_was_made(self):
        process = subprocess.Popen([program.KVCACHE, "run", self.model, *ENDLESS, "-n", "100000000",
                                    "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, text=True)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, err)
        result = json.loads(out)
        self.assertEqual(result["stop"], "interrupted")
        self.assertGreater(len(result["tokens"]), 0)


class Eval(CliTest):
    def test_bad_input(self):
        self.fails(["eval", self.model, "--tokens", "1,x"], "'x'")
        self.fails(["eval", self.model, "--tokens", ""], "no tokens")
        self.fails(["eval", self.model, "--tokens", "1,512"], "512")
        self.fails(["eval", self.model, "--tokens", "1,-1"], "-1")
        self.fails(["eval", self.model, "--tokens", "1,2,3", "--ctx", "2"], "3 tokens", "2")
        self.fails(["eval", self.model, "--tokens-file", "/nonexistent"], "/nonexistent")
        self.fails(["eval", self.model, "--tokens", "1,2", "--logits", "/nonexistent/x.npy"],
                   "/nonexistent/x.npy", "No such file")

    def test_scores_and_writes_logits(self):
        out = self.dir / "logits.npy"
        result = json.loads(self.succeeds("eval", self.model, "--tokens", "1,5,9,300", "--logits",
                                          str(out), "--json"))
        self.assertEqual(result["tokens"], 4)
        self.assertGreater(result["perplexity"], 1)
        data = out.read_bytes()
        self.assertIn(b"'shape': (4, 512)", data[:128])
        self.assertEqual(len(data) % 64, 0)
        self.assertEqual([p.name for p in self.dir.glob("logits.npy*")], ["logits.npy"])

    def test_text_and_its_tokens_score_alike(self):
        text = self.file("text.txt", b"some words to score")
        ids = self.succeeds("tokenize", self.model, "some words to score").strip()
        self.assertEqual(json.loads(self.succeeds("eval", self.model, "--text-file", text,
                                                  "--json"))["nll"],
                         json.loads(self.succeeds("eval", self.model, "--tokens", ids,
                                                  "--json"))["nll"])


    def test_resumes_through_a_tier(self):
        tokens = ",".join(str(5 + 7 * i % 400) for i in range(40))
        plain = json.loads(self.succeeds("eval", self.model, "--tokens", tokens, "--json"))
        self.assertEqual(plain["reuse"]["computed"], 40)
        for tier in ("live", "memory", "disk"):
            result = json.loads(self.succeeds("eval", self.model, "--tokens", tokens, "--json", "--resume-at",
                                              "23", "--via", tier, "--store", str(self.dir / "st")))
            self.assertEqual(result["nll"], plain["nll"])
            self.assertEqual(result["reuse"]["tiers"][tier], 23)
            self.assertEqual(result["reuse"]["computed"], 17)
        self.assertIn("23 tokens restored from live", self.succeeds(
            "eval", self.model, "--tokens", tokens, "--resume-at", "23"))

    def test_bad_places_to_resume_at(self):
        command = ["eval", self.model, "--tokens", "1,2,3", "--resume-at"]
        self.fails([*command, "3"], "resuming after 3 tokens", "from 1 to 2")
        self.fails([*command, "0"], "--resume-at", status=2)
        self.fails([*command, "1", "--via", "remote", "--store", str(self.dir)], "redis://")
        self.fails([*command, "1", "--via", "disk", "--store", "none"], "--store DIR")
        self.fails([*command, "1", "--via", "tape"], "'tape'", "remote", status=2)
        self.fails(command[:-1] + ["--via", "live"], "--resume-at", status=2)


class Others(CliTest):
    def test_tokenize_round_trip(self):
        for text in ("hello world", "naïve café ☕", "日本語", "a\nb\t c"):
            ids = self.succeeds("tokenize", self.model, text).strip()
            self.assertEqual(self.succeeds("tokenize", self.model, "--detokenize", ids),
                             text + "\n")
        self.fails(["tokenize", self.model, "--detokenize", "9999"], "9999")

    def test_inspect(self):
        self.assertIn("llama", self.succeeds("inspect", self.model))
        json.loads(self.succeeds("inspect", self.model, "--json"))

    def test_inspect_the_machine(self):
        offered = json.loads(self.succeeds("inspect", "--machine", "--json"))["targets"]
        for name in offered:
            env = {"KVCACHE_CPU_TARGET": name}
            found = json.loads(self.succeeds("inspect", "--machine", "--json", env=env))
            self.assertEqual(found["target"], name)
            self.assertIn(name, self.succeeds("inspect", "--machine", env=env))
        for command in (["inspect", "--machine"], ["run", self.model, "-p", "x"]):
            self.fails(command, "'none'", *offered, env={"KVCACHE_CPU_TARGET": "none"})

    def test_inspect_memory_nodes(self):
        nodes = json.loads(self.succeeds("inspect", "--machine", "--json"))["memory_nodes"]
        for node in nodes:
            self.assertGreaterEqual(node["processors"], node["cores"])
            self.assertGreaterEqual(node["cores"], 1)
        text = self.succeeds("inspect", "--machine")
        self.assertEqual(f"{len(nodes)} memory nodes with " in text, len(nodes) > 1)

    def test_numa_changes_no_result(self):
        command = ["eval", self.model, "--tokens", "1,2,3,4", "--json"]
        results = [json.loads(self.succeeds(*command, *flags))["nll"]
                   for flags in ([], ["--numa", "auto"], ["--numa", "off"])]
        self.assertEqual(len(set(results)), 1)
        self.fails(["run", self.model, "-p", "x", "--numa", "on"], "--numa", "'on'", "auto or off", status=2)

    def test_verbose_says_what_runs_where(self):
        env = {"KVCACHE_GPU": "0"}
        line = r"kvcache: processor: \w+ with 1 thread; no GPU: KVCACHE_GPU is 0: GPUs are switched off\n"
        for command in (["run", self.model, "-p", "x", "-n", "1"],
                        ["eval", self.model, "--tokens", "1,2,3"],
                        ["embed", self.model, "-p", "x"]):
            code, _, quiet = run(*command, "--threads", "1", env=env)
            self.assertEqual((code, quiet), (0, ""), command)
            code, _, said = run(*command, "--threads", "1", "--verbose", env=env)
            self.assertEqual(code, 0, command)
            self.assertRegex(said, f"^{line}$", command)
            code, _, said = run(*command, "--threads", "1", "--verbose", "--gpu-layers", "0", env=env)
            self.assertRegex(said, r"^kvcache: processor: \w+ with 1 thread\n$", command)

    def test_list_shows_the_store(self):
        rows = json.loads(self.succeeds("list", "--json", env={"KVCACHE_MODELS": str(self.dir)}))
        self.assertIn("random", [row["name"] for row in rows])
        code, out, _ = run("run", "random", "-p", "x", "-n", "1",
                           env={"KVCACHE_MODELS": str(self.dir)})
        self.assertEqual(code, 0, out)


if __name__ == "__main__":
    program.main()

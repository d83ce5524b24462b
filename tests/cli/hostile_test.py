"""Tests that careless and hostile input never crashes, hangs, loses data or gives a wrong result.

usage: hostile_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import json
import os
import pathlib
import signal
import stat
import struct
import subprocess
import threading
import time
import unittest

import program
from program import CliTest, run, wait_until

DEEP = 300_000


def nested(depth):
    return "[" * depth + "]" * depth


class Json(CliTest):
    def chat(self, lines, status=0):
        code, _, err = run("run", self.model, "--chat", "-n", "1", text_in=lines)
        self.assertEqual(code, status, err)
        return err

    def test_deep_json_is_refused(self):
        deep = self.file("deep.json", nested(DEEP).encode())
        self.fails(["run", self.model, "-p", "x", "-n", "1", "--tools", deep], deep,
                   "deeper than 100 levels")
        self.assertIn("deeper than 100 levels", self.chat(f"/load {deep}\n", status=1))
        values = self.file("values.json", b"[" + b"[]," * 2_000_000 + b"[]]")
        self.fails(["run", self.model, "-p", "x", "--tools", values], values,
                   "more than 1,048,576 values")
        self.fails(["run", self.model, "-p", "x", "--var", "x=" + nested(30_000)], "--var 'x'",
                   "deeper than 100 levels")

    def test_many_keys_and_long_tokens(self):
        keys = self.file("keys.json", json.dumps([{"role": "user", "content": "x",
                                                   **{str(i): 0 for i in range(200_000)}}]).encode())
        begin = time.monotonic()
        self.assertIn("an object with more than 1,024 keys", self.chat(f"/load {keys}\n", status=1))
        self.assertLess(time.monotonic() - begin, 5)
        token = self.file("token.json", b'["' + b"x" * 3_000_000)
        err = self.chat(f"/load {token}\n", status=1)
        self.assertIn("not JSON: parse error at line 1", err)
        self.assertLess(len(err), 1000)

    def test_a_saved_conversation_is_as_large_as_the_loaded_one(self):
        inner = nested(90)
        text = json.dumps([{"role": "user", "content": "x", "more": 0}])
        text = text.replace(": 0}", ": [" + ",".join([inner] * 100) + "]}")
        before, after = self.dir / "before.json", self.dir / "after.json"
        before.write_text(text)
        self.chat(f"/load {before}\n/save {after}\n")
        self.assertLess(after.stat().st_size, 2 * len(text))
        self.assertEqual(json.loads(after.read_text())["messages"], json.loads(text))

    def test_errors_name_the_file_the_place_and_the_rule(self):
        cases = (("[", "not JSON", "line 1"), ('{"messages": 5}', "not an array but number"),
                 ('{"messages": [], "version": 2}', '"version" is 2', "reads 1"),
                 ('[{"role": 5}]', "message 1", '"role"'), ("[[]]", "message 1", "not an object"),
                 ('[{"role": "user", "content": {}}]', "message 1", "is object"),
                 ('{"messages": [], "tools": [1]}', "tool 1", "not an object"),
                 ('{"messages": [], "variables": []}', '"variables"', "not an object"),
                 ('[{"role": "user", "content": 1e999}]', "not JSON"), ('"\\ud800"', "not JSON"))
        for text, *words in cases:
            path = self.file("wrong.json", text.encode())
            err = self.chat(f"/load {path}\n", status=1)
            for word in (path, *words):
                self.assertIn(word, err)
        self.fails(["run", self.model, "-p", "x", "--tools", self.file("t.json", b"[5]")], "t.json",
                   "tool 1")


class OutputFiles(CliTest):
    """An output file is replaced completely or not at all, and keeps its type and permissions."""

    def save(self, path, status=0):
        code, _, err = run("run", self.model, "--chat", text_in=f"/system Be brief.\n/save {path}\n")
        self.assertEqual(code, status, err)
        return err

    def logits(self, path):
        self.succeeds("eval", self.model, "--tokens", "1,2,3", "--logits", str(path))

    def writers(self):
        return (self.save, lambda data: b"Be brief." in data), (
            self.logits, lambda data: data.startswith(b"\x93NUMPY"))

    def test_permissions_stay(self):
        for write, is_new in self.writers():
            path = self.dir / "private"
            path.write_bytes(b"before")
            path.chmod(0o600)
            write(path)
            self.assertTrue(is_new(path.read_bytes()))
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)

    def test_links_stay(self):
        for write, is_new in self.writers():
            target, link = self.dir / "target", self.dir / "link"
            for there in (True, False):  # False: a dangling link
                if there:
                    target.write_bytes(b"before")
                else:
                    target.unlink()
                link.unlink(missing_ok=True)
                link.symlink_to("target")
                write(link)
                self.assertTrue(link.is_symlink())
                self.assertTrue(is_new(target.read_bytes()))
        (self.dir / "circle").symlink_to("circle")
        self.assertIn("Too many levels", self.save(self.dir / "circle", status=1))

    def device(self, name, minor):
        """Returns a device; as root a private one, which a wrong program can replace safely."""
        if os.geteuid() != 0:
            return f"/dev/{name}"
        path = self.dir / name
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
            path.open("wb").close()
        except OSError as error:
            self.skipTest(f"cannot make a device: {error}")
        return str(path)

    def test_devices_and_pipes_are_written_to(self):
        null = self.device("null", 3)
        for write, is_new in self.writers():
            write(null)
            self.assertTrue(stat.S_ISCHR(os.stat(null).st_mode))
            pipe = self.dir / "pipe"
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe)
            read = []
            reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
            reader.start()
            write(pipe)
            reader.join(timeout=60)
            self.assertTrue(is_new(read[0]))
            self.assertTrue(stat.S_ISFIFO(pipe.stat().st_mode))

    def test_a_full_device_is_an_error(self):
        full = self.device("full", 7)
        self.fails(["eval", self.model, "--tokens", "1,2", "--logits", full], full,
                   "No space left")
        self.assertIn("No space left", self.save(full, status=1))

    def test_standard_output_is_a_file_too(self):
        done = subprocess.run([program.KVCACHE, "eval", self.model, "--tokens", "1,2", "--logits",
                               "/dev/stdout"], capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"\x93NUMPY", done.stdout)

    def test_a_reader_that_goes_ends_no_chat(self):
        pipe, after = self.dir / "reader", self.dir / "after.json"
        os.mkfifo(pipe)
        chat = subprocess.Popen([program.KVCACHE, "run", self.model, "--chat"], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)
        chat.stdin.write("/system " + "long " * 50_000 + f"\n/save {pipe}\n")
        chat.stdin.flush()
        with open(pipe, "rb") as reader:
            reader.read(1)
        _, err = chat.communicate(f"/save {after}\n", timeout=60)
        self.assertIn(f"{pipe}: Broken pipe", err)
        self.assertEqual(chat.returncode, 1)  # a piped chat ends with its first error

    def test_no_name_beside_the_output_is_touched(self):
        victim = self.dir / "victim"
        victim.write_bytes(b"untouched")
        for name in ("out.npy.partial", "out.npy.tmp"):
            (self.dir / name).symlink_to(victim)
        self.logits(self.dir / "out.npy")
        self.assertEqual(victim.read_bytes(), b"untouched")
        os.remove(self.dir / "out.npy.partial")
        os.mkfifo(self.dir / "out.npy.partial")
        self.logits(self.dir / "out.npy")

    def test_a_folder_and_a_missing_folder(self):
        self.assertIn("Is a directory", self.save(self.dir, status=1))
        self.assertIn("/nonexistent/x", self.save("/nonexistent/x", status=1))

    def start_long_eval(self, out):
        tokens = self.dir / "long.txt"
        if not tokens.exists():  # another run may be reading it
            tokens.write_bytes(b"1 2 3 4 " * 4000)
        return subprocess.Popen([program.KVCACHE, "eval", self.model, "--tokens-file", tokens,
                                 "--logits", str(out), "--prefill-chunk", "16", "--threads", "1"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, text=True)

    def test_a_terminated_run_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL):
            folder = self.dir / f"left.{number}"
            folder.mkdir()
            process = self.start_long_eval(folder / "out.npy")
            wait_until(lambda: writes_into(process.pid, folder) or process.poll() is not None)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            wanted = 1 if number == signal.SIGINT else -number
            self.assertEqual(process.returncode, wanted, err)
            self.assertEqual(list(folder.iterdir()), [])

    def test_two_runs_to_one_output(self):
        out = self.dir / "both.npy"
        runs = [self.start_long_eval(out) for _ in range(2)]
        errors = [process.communicate(timeout=600)[1] for process in runs]
        self.assertEqual([process.returncode for process in runs], [0, 0], errors)
        both = out.read_bytes()
        one = self.start_long_eval(out)
        one.communicate(timeout=600)
        self.assertEqual(out.read_bytes(), both)


def writes_into(pid, folder):
    """Returns whether the process has a file of the folder open, named or not."""
    try:
        fds = list(pathlib.Path(f"/proc/{pid}/fd").iterdir())
        return any(os.readlink(fd).startswith(str(folder)) for fd in fds)
    except OSError:
        return False


class Inputs(CliTest):
    def test_endless_files_are_refused(self):
        for args in (["run", self.model, "-f"], ["eval", self.model, "--text-file"],
                     ["eval", self.model, "--tokens-file"],
                     ["run", self.model, "-p", "x", "--tools"],
                     ["run", self.model, "-p", "x", "--chat-template"]):
            self.fails([*args, "/dev/zero"], "/dev/zero: more than ", "MiB", "the most that is read")
        code, _, err = run("run", self.model, "--chat", text_in="/load /dev/zero\n")
        self.assertEqual(code, 1)
        self.assertIn("/dev/zero: more than 16.0 MiB", err)

    def test_messages_that_cannot_fit(self):
        """Such messages are refused before they use many times their size of memory."""
        zeros = self.dir / "zeros"
        zeros.touch()
        os.truncate(zeros, 300_000_000)
        block = self.file("block", b'"""' + b"word\n" * 4_000_000 + b'"""\n')
        prompt = self.file("words", b"word " * 4_000_000)
        for args, stdin, words in (
                (["--chat"], zeros, ("the message has more than 256.0 MiB",)),
                (["--chat"], block, ("the message has 19,999,999 bytes", "context of 256 tokens")),
                (["-f", prompt], os.devnull, ("the prompt has 19,999,999 bytes", "--ctx"))):
            with open(stdin, "rb") as text:
                process = subprocess.Popen([program.KVCACHE, "run", self.model, *args],
                                           stdin=text, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE, text=True)
                err = process.stderr.read()
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                process.stderr.close()
            self.assertEqual(process.returncode, 1, err)
            for word in words:
                self.assertIn(word, err)
            if "zeros" not in str(stdin) and program.starts_within(1 << 40):  # a sanitizer takes memory of its own
                self.assertLess(usage.ru_maxrss, 250_000)  # KiB

    def test_a_model_cut_short_while_it_runs(self):
        path = self.file("cut.gguf", self.bytes)
        process = subprocess.Popen([program.KVCACHE, "run", path, "--chat", "-n", "2"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        process.stdin.write("hello\n")
        process.stdin.flush()
        process.stdout.readline()  # the model is loaded
        os.truncate(path, 4096)
        _, err = process.communicate("hello again\n", timeout=60)
        self.assertEqual(process.returncode, 1, err)
        self.assertEqual(err, f"kvcache: {path} was cut short while it was in use\n")

    def test_damaged_weights(self):
        """The last norm's weights hold NaN. eval and run refuse them and name the file."""
        data = bytearray(self.bytes)
        name = b"output_norm.weight"
        at = self.bytes.index(name) + len(name)
        rank = struct.unpack_from("<I", data, at)[0]
        offset = struct.unpack_from("<Q", data, at + 4 + 8 * rank + 4)[0]
        size = sum(4 * 64 if b"norm" in n else 0 for n in (name,))
        start = self.tensor_data() + offset
        data[start:start + size] = struct.pack("<f", float("nan")) * (size // 4)
        path = self.file("damaged.gguf", bytes(data))
        for args in (["run", path, "-p", "x"], ["eval", path, "--tokens", "1,2,3"],
                     ["eval", path, "--tokens", "1", "--json"]):
            self.fails(args, path, "not a number", "damaged")

    def test_a_template_that_is_no_text(self):
        zeros = self.file("zeros.jinja", bytes(4))
        path = self.make("typed.gguf", "--chat-template", zeros)
        data = bytearray(pathlib.Path(path).read_bytes())
        key = b"tokenizer.chat_template"
        at = data.index(key) + len(key)
        self.assertEqual(struct.unpack_from("<IQI", data, at), (8, 4, 0))  # a string of 4 bytes
        struct.pack_into("<I", data, at, 9)  # now an array of no values of type 4
        wrong = self.file("typed.gguf", bytes(data))
        self.fails(["run", wrong, "-p", "x"], wrong, "tokenizer.chat_template")

    def test_special_ids_out_of_range(self):
        data = bytearray(self.bytes)
        key = b"tokenizer.ggml.bos_token_id"
        at = self.bytes.index(key) + len(key)
        self.assertEqual(struct.unpack_from("<I", data, at)[0], 4)  # a u32
        struct.pack_into("<I", data, at + 4, 5000)
        path = self.file("bos.gguf", bytes(data))
        for args in (["run", path, "-p", "x", "-n", "1"], ["tokenize", path, "x"]):
            code, _, err = run(*args)
            self.assertEqual(code, 0, err)
            self.assertIn(f"{path}: tokenizer.ggml.bos_token_id is 5000", err)
            self.assertIn("512 tokens", err)

    def test_weights_that_no_kernel_serves(self):
        path = self.make("experts.gguf", "--arch", "gpt-oss", "--experts", "4", "--type", "f32")
        data = bytearray(pathlib.Path(path).read_bytes())
        name = b"blk.0.ffn_down_exps.bias"
        at = data.index(name) + len(name)
        rank = struct.unpack_from("<I", data, at)[0]
        struct.pack_into("<I", data, at + 4 + 8 * rank, 24)  # I8
        wrong = self.file("experts.gguf", bytes(data))
        self.fails(["eval", wrong, "--tokens", "1,2"], wrong, name.decode(), "i8")
        self.assertNotIn("can be run", self.succeeds("inspect", wrong))


class Flags(CliTest):
    def test_brackets_are_text(self):
        for text in ("[INST]", "[a,b]", "[]", "["):
            ids = self.succeeds("tokenize", self.model, text).strip()
            self.assertEqual(self.succeeds("tokenize", self.model, "--detokenize", ids), text + "\n")
            whole = json.loads(self.succeeds("run", self.model, "-p", text, "--raw", "-n", "1",
                                             "--json"))
            self.assertEqual(whole["prompt_tokens"], len(ids.split(",")))
            self.succeeds("run", self.model, "-p", "x", "-n", "1", "--stop", text)
            self.succeeds("run", self.model, "-p", "x", "-n", "1", "--var", f"x={text}")

    def test_an_empty_value_is_an_error(self):
        """An empty value, as from an unset variable of a shell, is not read as 0."""
        for flag in ("--temp", "--top-k", "--top-p", "--min-p", "--repeat-penalty", "--seed",
                     "--max-tokens", "--presence-penalty", "--frequency-penalty", "--ctx", "--prefill-chunk",
                     "--threads", "--checkpoint-spacing", "--kv-type", "--k-type", "--v-type",
                     "--tools", "--chat-template", "--var"):
            self.fails(["run", self.model, "-p", "x", flag, ""], flag, status=2)
        self.fails(["run", self.model, "-f", ""], "--file", "empty", status=2)
        self.fails(["run", "", "-p", "x"], "MODEL", "empty", status=2)
        self.fails(["tokenize", "", "hello"], "MODEL", "empty", status=2)
        self.fails(["tokenize", "", "--detokenize", "1"], "MODEL", "empty", status=2)
        self.assertEqual(self.succeeds("tokenize", self.model, ""), "1\n")  # TEXT may be empty
        for flag in ("--logits", "--encode", "--encode-tokens-file"):
            self.fails(["eval", self.model, "--tokens", "1", flag, ""], flag, "empty", status=2)
        for flag in ("--text-file", "--tokens-file"):
            self.fails(["eval", self.model, flag, ""], flag, "empty", status=2)

    def test_numbers_are_decimal(self):
        for flag, values in (("--ctx", ("010", "0x10", "1e3", "+5", " 5", "5 ", "5k")),
                             ("--top-k", ("010", "0x1", "1.5")),
                             ("--temp", ("nan", "inf", "-inf", "0x1p3", "1,5", "1e999", " 1"))):
            for value in values:
                self.fails(["run", self.model, "-p", "x", flag, value], flag, f"'{value}'",
                           "in decimal", status=2)

    def test_flags_that_would_be_ignored(self):
        self.fails(["run", self.model, "-p", "x", "--raw", "--system", "y"], "--raw", "--system",
                   status=2)
        self.fails(["run", self.model, "-p", "x", "--var", "x"], "'x'", "NAME=VALUE", status=2)

        self.fails(["eval", self.model, "--tokens", "1,2", "--special"], "--special",
                   "--text-file", status=2)

    def test_standard_input_is_read_once(self):
        run_with = ["run", self.model]
        for args, *words in (([*run_with, "-f", "-", "--tools", "-"], "--file", "--tools"),
                             ([*run_with, "--tools", "-"], "the prompt", "--tools"),
                             ([*run_with, "--chat", "--chat-template", "-"], "chat",
                              "--chat-template"),
                             ([*run_with, "-p", "x", "--tools", "-", "--chat-template", "-"],
                              "--tools", "--chat-template"),
                             (["eval", self.model, "--text-file", "-", "--encode-tokens-file", "-"],
                              "--text-file", "--encode-tokens-file")):
            self.fails(args, "standard input", *words, text_in="[]", status=2)
        self.succeeds("run", self.model, "-p", "x", "-n", "1", "--tools", "-", text_in="[]")

    def test_errors_suggest_the_right_command(self):
        self.fails(["tokenize", self.model], "text is missing", self.model, "MODEL TEXT")
        self.fails(["run", "tell me a story"], "no model 'tell me a story'", "goes after -p",
                   text_in="")

    def test_special_text_needs_a_flag(self):
        model = self.make("marks.gguf", "--control", "<|im_start|>")
        def tokens(*args):
            return json.loads(self.succeeds(*args, "--json"))
        plain = tokens("run", model, "-p", "<|im_start|>", "--raw", "-n", "0")["prompt_tokens"]
        special = tokens("run", model, "-p", "<|im_start|>", "--raw", "--special", "-n", "0")
        self.assertEqual(special["prompt_tokens"], 2)  # BOS and the special token
        self.assertGreater(plain, 5)
        text = self.file("special.txt", b"<|im_start|>")
        self.assertEqual(tokens("eval", model, "--text-file", text)["tokens"], plain)
        self.assertEqual(tokens("eval", model, "--text-file", text, "--special")["tokens"], 2)


class Terminals(CliTest):
    def test_json_has_no_control_characters(self):
        text = "a\x1b[31m\x07\x7f\u009b1m\u0085é\u00a0b"
        ids = self.succeeds("tokenize", self.model, text).strip()
        out = self.succeeds("tokenize", self.model, "--detokenize", ids, "--json")
        self.assertEqual(json.loads(out)["text"], text)
        self.assertNotRegex(out.rstrip("\n"), "[\x00-\x1f\x7f-\x9f]")


class Interrupts(CliTest):
    """Ctrl-C ends the pass of a long prompt of one chunk in the middle. The report counts the
    computed tokens."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slow = cls.make("slow.gguf", "--layers", "12", "--width", "256", "--ffn", "1024",
                            "--context", "65536")
        cls.prompt = str(cls.dir / "prompt.txt")
        pathlib.Path(cls.prompt).write_text("word " * 3200)

    def interrupted(self, *args):
        process = subprocess.Popen([program.KVCACHE, *args, "--threads", "1", "--ctx", "20000",
                                    "--prefill-chunk", "20000"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: catches_interrupts(process.pid) or process.poll() is not None)
        time.sleep(0.3)  # so that the pass has begun; the report is the same if it has not
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def test_run(self):
        code, out, err = self.interrupted("run", self.slow, "-f", self.prompt)
        self.assertEqual((code, out), (1, ""), err)
        self.assertRegex(err, r"^kvcache run: interrupted after 0 of [\d,]+ prompt tokens")

    def test_run_json(self):
        code, out, err = self.interrupted("run", self.slow, "-f", self.prompt, "--json")
        report = json.loads(out)
        self.assertEqual((code, report["stop"]), (1, "interrupted"), err)
        self.assertEqual(report["reuse"]["computed"], 0)
        self.assertGreater(report["prompt_tokens"], 3000)
        self.assertEqual(report["timing"]["prefill_tokens_per_s"], 0)
        self.assertEqual(report["timing"]["ttft_ms"], 0)

    def test_eval(self):
        code, out, err = self.interrupted("eval", self.slow, "--text-file", self.prompt)
        self.assertEqual((code, out), (1, ""), err)
        self.assertRegex(err, r"^kvcache eval: interrupted after 0 of [\d,]+ tokens")


def catches_interrupts(pid):
    try:
        with open(f"/proc/{pid}/status") as lines:
            caught = [line for line in lines if line.startswith("SigCgt")][0]
    except (OSError, IndexError):
        return False
    return int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1 == 1


if __name__ == "__main__":
    program.main()

"""Tests standard input, output and error that are full, gone or closed.

usage: streams_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import os
import signal
import subprocess
import unittest

import program
from program import CliTest, wait_until


class Output(CliTest):
    """Output that cannot be written is an error, so that no script takes it for complete."""

    COMMANDS = (["run", "MODEL", "-p", "one", "-n", "2"],
                ["run", "MODEL", "-p", "one", "-n", "2", "--json"],
                ["eval", "MODEL", "--tokens", "1,2,3"], ["eval", "MODEL", "--tokens", "1", "--json"],
                ["tokenize", "MODEL", "one"], ["tokenize", "MODEL", "one", "--json"],
                ["tokenize", "MODEL", "--detokenize", "1,5"], ["inspect", "MODEL"],
                ["inspect", "MODEL", "--json"], ["inspect", "--machine"], ["list"],
                ["list", "--json"], ["show", "tiny"], ["show", "tiny", "--json"],
                ["store", "stat", "--store", "DIR"], ["store", "ls", "--json", "--store", "DIR"],
                ["store", "verify", "--store", "DIR"], ["store", "gc", "--store", "DIR"],
                ["store", "rm", "--all", "--store", "DIR"], ["--help"], ["--version"], ["help"], [],
                *(["help", name] for name in program.COMMANDS),
                *([name, "--help"] for name in program.COMMANDS))

    def setUp(self):
        self.env = {**os.environ, "KVCACHE_MODELS": str(self.dir / "models")}
        modelfile = self.file("Modelfile", f"FROM {self.model}\n".encode())
        self.succeeds("create", "tiny", "-f", modelfile, env=self.env)

    def command_lines(self):
        places = {"MODEL": self.model, "DIR": str(self.dir / "store")}
        for args in self.COMMANDS:
            yield [program.KVCACHE, *(places.get(arg, arg) for arg in args)]
        yield [program.MAKE_MODEL, "--help"]

    def run_to(self, args, stdout, **kwargs):
        return subprocess.run(args, stdin=subprocess.DEVNULL, stdout=stdout, env=self.env,
                              stderr=subprocess.PIPE, text=True, timeout=120, **kwargs)

    def check(self, stdout, **kwargs):
        for args in self.command_lines():
            done = self.run_to(args, stdout, **kwargs)
            self.assertEqual(done.returncode, 1, args)
            self.assertRegex(done.stderr,
                             r"^kvcache[a-z -]*: cannot write to standard output[^\n]*\n$", args)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            self.check(full)

    def test_closed(self):
        self.check(None, preexec_fn=lambda: os.close(1))

    def test_a_reader_that_has_gone(self):
        """The process ends as `| head` ends others: by SIGPIPE and without a word."""
        for args in self.command_lines():
            reader, writer = os.pipe()
            os.close(reader)
            done = self.run_to(args, writer, restore_signals=True)
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, ""), args)


class Streams(CliTest):
    """A program that is started without descriptors 0 to 2 writes no line into a file of its own."""

    CLOSED = [(0,), (1,), (2,), (0, 1, 2)]

    def start(self, args, closed):
        def close():
            for fd in closed:
                os.close(fd)
        return subprocess.Popen(args, preexec_fn=close, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                env={**os.environ, "KVCACHE_MODELS": str(self.dir / "models")})

    def test_they_are_open_on_dev_null(self):
        pipe = self.dir / "waits"
        os.mkfifo(pipe)
        lines = ([program.KVCACHE, "run", self.model, "-f", str(pipe)],
                 [program.KVCACHE, "create", "x", "-f", str(pipe)],
                 [program.KVCACHE, "eval", self.model, "--text-file", str(pipe)],
                 [program.MAKE_MODEL, "--chat-template", str(pipe), "--out", str(self.dir / "x")])
        for args in lines:
            for closed in self.CLOSED:
                process = self.start(args, closed)
                writer = wait_until(lambda: open_beside_reader(pipe))
                links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in closed]
                process.kill()
                process.wait()
                os.close(writer)
                self.assertEqual(links, ["/dev/null"] * len(closed), (args, closed))

    def test_no_text_gets_into_files(self):
        store, models = str(self.dir / "store"), str(self.dir / "models")
        modelfile = self.file("Modelfile", f"FROM {self.model}\nSYSTEM hello\n".encode())
        prompt = "seven small animals " * 20
        for closed in self.CLOSED:
            for args, status in (
                    (["run", self.model, "-p", prompt, "-n", "9", "--ctx", "1024", "--store", store], 1 in closed),
                    (["eval", self.model, "--tokens", "1,2", "--logits", str(self.dir / "out.npy")],
                     1 in closed),
                    (["create", "tiny", "-f", modelfile, "--quantize", "q8_0"], 0),
                    (["eval", self.model, "--tokens", "1,9999"], 1)):
                process = self.start([program.KVCACHE, *args], closed)
                self.assertEqual(process.wait(timeout=120), int(status), (args, closed))
        self.assertRegex(self.succeeds("store", "verify", "--store", store), "[1-9].* 0 were damaged")
        self.succeeds("show", "tiny", "--verify", env={"KVCACHE_MODELS": models})
        out = (self.dir / "out.npy").read_bytes()
        self.assertEqual(len(out) % 64, 0)
        self.assertTrue(out.startswith(b"\x93NUMPY"))

    def test_closed_input_is_empty(self):
        process = subprocess.Popen([program.KVCACHE, "run", self.model], text=True,
                                   preexec_fn=lambda: os.close(0), stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, err), (1, "kvcache run: the prompt is empty\n"))


def open_beside_reader(pipe):
    """Returns a descriptor for writing into a pipe if a process reads it, else None."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


if __name__ == "__main__":
    program.main()

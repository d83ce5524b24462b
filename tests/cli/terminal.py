"""Runs the program on a terminal of its own. The tests of the chat share it."""

import os
import pty
import re
import select
import signal
import time

import program
from chat import ChatTest


class TerminalTest(ChatTest):
    def start(self, *arguments, stderr=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            if stderr:
                os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os.execv(program.KVCACHE, [program.KVCACHE, *arguments])
        os.set_blocking(self.fd, False)
        self.addCleanup(self.kill, self.pid)
        self.seen = ""
        self.all = ""  # all output so far

    @staticmethod
    def kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # the program has ended

    def open(self, model, *flags, **options):
        self.start("run", model, "-n", "6", "--seed", "3", *flags, **options)

    def expect(self, pattern, seconds=120):
        """Waits until the pattern appears in the output after the last match."""
        end = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.seen)
            if found:
                self.seen = self.seen[found.end():]
                return found
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            try:
                data = os.read(self.fd, 65536) if ready else b""
            except OSError:
                data = b""
            self.assertTrue(data, f"no {pattern!r} in {self.seen!r}")
            self.seen += data.decode(errors="replace")
            self.all += data.decode(errors="replace")

    def type(self, text):
        data = text.encode() if isinstance(text, str) else text
        while data:
            self.assertTrue(select.select([], [self.fd], [], 120)[1], "the chat reads nothing")
            try:
                data = data[os.write(self.fd, data[:4096]):]
            except BlockingIOError:
                pass

    def ends(self):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            while select.select([self.fd], [], [], 0 if pid else 0.05)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    break
                self.all += data.decode(errors="replace")
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return self.fail(f"the chat does not end: {self.all[-2000:]!r}")

"""`kvcache serve` as a process, for the tests of this folder."""

import os
import re
import signal
import subprocess
from pathlib import Path

MODEL = str(Path(__file__).resolve().parents[2] / "models" / "story.gguf")


class Server:
    """A server's process. `program`, the path of kvcache, is set by the test's main."""

    program = None

    def __init__(self, *flags, port=0, models=(MODEL,), environment=None):
        log = () if "--log" in flags else ("--log", "error")
        self.flags = [Server.program, "serve", *models, *log, "--port", str(port), *flags]
        self.environment = {**os.environ, **(environment or {})}
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.flags, stderr=subprocess.PIPE, text=True, env=self.environment)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"https?://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                return
        raise AssertionError("the server ended: " + "".join(self.lines))

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.rest = self.process.stderr.read()
        status = self.process.wait(60)
        self.process.stderr.close()
        assert status == 0, f"status {status}: {self.rest}"

    def resident(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

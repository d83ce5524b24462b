"""A Redis server of a test, on a free port of loopback."""

import socket
import subprocess
import time


def start(test, folder):
    """Starts redis-server, which ends with the test. Returns (process, port)."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL)
    test.addCleanup(server.wait)
    test.addCleanup(server.kill)
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server, port
        except OSError:
            time.sleep(0.02)
    test.fail("redis-server does not answer")

"""Describes the machine and the code for a file of results."""

import os
import pathlib
import platform
import subprocess

FORMAT = "kvcache-bench 1"
ROOT = pathlib.Path(__file__).resolve().parent.parent


def describe_machine():
    names = [line.split(":", 1)[1].strip()
             for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True, check=False).stdout.strip()
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(),
            "kernel": platform.release(), "commit": commit, "load_average": os.getloadavg()[0]}

"""Tests stores beside processes that are stopped or killed, and under limits. The answer comes, and one line says why
nothing is stored."""

import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import program
from program import run
from store_test import PROMPT, StoreTest

KEEP = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("x", flush=True)
time.sleep(1000)
"""


class Company(StoreTest):
    def start(self, *command):
        child = subprocess.Popen([program.KVCACHE, *command], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def start_run(self):
        return self.start("run", self.long, "-p", PROMPT * 3, "--raw", "-n", "100000", "--seed", "4",
                          "--store", str(self.store))


class Stopped(Company):
    def test_others_go_on_beside_a_process_that_is_stopped(self):
        cold, _ = self.answer(store="none")
        self.answer()
        for delay in (0.02, 0.1, 0.3):
            child = self.start_run()
            time.sleep(delay)
            child.send_signal(signal.SIGSTOP)
            answer, err = self.answer()
            self.assertEqual(answer["tokens"], cold["tokens"])
            self.assertLessEqual(err.count("\n"), 1, err)
            if err:
                self.assertIn("not stored", err)
                self.assertIn(f"process {child.pid}, which is stopped", err)
            for action in (["stat"], ["verify"], ["gc"], ["rm", "--all"]):
                code, _, err = run("store", *action, "--store", str(self.store))
                if code != 0:
                    self.assertIn(f"process {child.pid}", err)
                    self.assertEqual(err.count("\n"), 1, err)
            child.kill()
            child.wait()
        self.answer()
        warm, err = self.answer()
        self.assertEqual((err, warm["tokens"]), ("", cold["tokens"]))
        self.assertGreater(warm["reuse"]["tiers"]["disk"], 0)

    def keep(self, name):
        """Starts a process that has a lock of the store, and stops it."""
        self.store.mkdir(mode=0o700, exist_ok=True)
        keeper = subprocess.Popen([sys.executable, "-c", KEEP, str(self.store / name)],
                                  stdout=subprocess.PIPE)
        self.addCleanup(keeper.stdout.close)
        self.addCleanup(keeper.wait)
        self.addCleanup(keeper.kill)
        keeper.stdout.read(1)
        keeper.send_signal(signal.SIGSTOP)
        return keeper

    def test_each_lock_costs_a_line(self):
        cold, _ = self.answer(store="none")
        for name in ("lock", "write-lock", "read-lock"):
            shutil.rmtree(self.store, ignore_errors=True)
            self.keep(name)
            start = time.monotonic()
            answer, err = self.answer()
            self.assertLess(time.monotonic() - start, 40)
            self.assertEqual(answer["tokens"], cold["tokens"])
            self.assertEqual(err.count("\n"), 1, err)
            self.assertIn("not stored", err)
            self.assertIn(f"/{name} locked", err)


class Collected(Company):
    def test_the_copy_of_a_collection_that_was_killed_is_removed(self):
        self.answer()
        for attempt in range(10):
            child = self.start("store", "gc", "--store", str(self.store))
            time.sleep(0.004 * attempt)
            child.kill()
            child.wait()
            (self.store / "objects.mdb.new").write_bytes(b"x" * 100_000)
            warm, err = self.answer()
            self.assertEqual(err, "")
            self.assertGreater(warm["reuse"]["tiers"]["disk"], 0)
            self.assertFalse((self.store / "objects.mdb.new").exists())


class Limits(StoreTest):
    def test_little_address_space(self):
        self.require_address_space(2 << 30)
        cold, _ = self.answer(store="none")
        for gib in (4, 2):
            shutil.rmtree(self.store, ignore_errors=True)
            limit = program.limited_to(resource.RLIMIT_AS, gib << 30)
            answer, err = self.answer(before=limit)
            self.assertEqual((err, answer["tokens"]), ("", cold["tokens"]))
            warm, err = self.answer(before=limit)
            self.assertEqual((err, warm["tokens"]), ("", cold["tokens"]))
            self.assertGreater(warm["reuse"]["tiers"]["disk"], 0)


if __name__ == "__main__":
    program.main()

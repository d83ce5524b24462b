#!/usr/bin/env python3
"""Checks the server against its contract: contract_test.py KVCACHE [MODULE...]

Modules are those of the folder contract: http, openai, … KVCACHE_SLOW_TESTS=1 adds the checks that take
minutes, and repeats others more often. KVCACHE_SCRIPTED_MODEL names the program that writes a model that calls tools.
"""

import importlib
import sys
import unittest
from pathlib import Path

from server_process import Server


def main():
    Server.program = sys.argv[1]
    folder = Path(__file__).parent / "contract"
    names = sys.argv[2:] or [path.stem[:-7] for path in sorted(folder.glob("*_checks.py"))]
    loader = unittest.defaultTestLoader
    modules = [importlib.import_module(f"contract.{name}_checks") for name in names]
    suite = unittest.TestSuite(loader.loadTestsFromModule(module) for module in modules)
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Runs the tests of the project's own scripts (test_*.py beside this file); the last line is "N passed, N failed, N skipped"."""
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
result = unittest.TextTestRunner(stream=sys.stdout, buffer=True).run(unittest.defaultTestLoader.discover(str(HERE)))
for test, reason in result.skipped:
    print(f"skipped: {reason}")
failed = len({test.id().partition(" ")[0] for test, _ in result.failures + result.errors})
print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
sys.exit(0 if result.wasSuccessful() else 1)

#!/usr/bin/env python3
"""Fills the outputs that README.md and docs/replay.md show: regen_readme.py [--check] [--memest PATH] [FILE...]

A fenced block that follows a comment `<!-- output of: memest ... -->` holds what that command prints, standard output only unless it says 2>&1.
--check changes nothing and exits 1 where a block differs from what the command prints now.
"""
import argparse
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- output of: (?P<command>.+?) -->\n+```[^\n]*\n)(?P<content>.*?)(?=^```$)", re.S | re.M)
TIMEOUT = 60


def output_of(command, memest):
    environment = {**os.environ, "PATH": f"{memest.parent}:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode < 0 or done.returncode > 4 or not done.stdout.strip():
        raise RuntimeError(f"'{command}' ends with {done.returncode} and prints {'something' if done.stdout.strip() else 'nothing'}: {done.stderr.strip()[-300:]}")
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines()) + "\n"


def filled(text, memest):
    return BLOCK.sub(lambda m: m[1] + output_of(m["command"], memest), text)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "README.md", ROOT / "docs/replay.md"])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--memest", default=ROOT / "build/release/memest", type=Path)
    options = parser.parse_args(arguments)
    stale = False
    for path in options.files:
        old = path.read_text(encoding="utf-8")
        try:
            new = filled(old, options.memest.resolve())
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{path.name}: {error}")
            return 1
        if not BLOCK.search(old):
            print(f"{path.name}: shows no output; a fenced block needs '<!-- output of: memest ... -->' before it")
            return 1
        if new == old:
            continue
        stale = True
        if options.check:
            print(*difflib.unified_diff(old.splitlines(), new.splitlines(), f"{path.name} shows", f"{path.name}: memest prints", lineterm="", n=1), sep="\n")
            print("scripts/regen_readme.py fills it in")
        else:
            path.write_text(new, encoding="utf-8")
            print(f"filled {path.name}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

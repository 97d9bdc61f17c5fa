#!/usr/bin/env python3
"""Runs the golden cases: run.py [--memest PATH] [--update] [NAME...]

A case is a text file beside this script (see README.md): comments, one command, the files it reads, and what it must print. Names choose the cases
whose name contains one of them. --update rewrites what a case expects by what memest printed; read the diff like code.
The last line is "N passed, N failed, N skipped"; exits 1 where a case failed.
"""
import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HEADER = re.compile(r"^== (.+) ==$")
PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}")
NO_NEWLINE = "\\ no newline at the end"
EXPECTED = ("stdout", "stderr", "exit")
TIMEOUT = 60


class CaseError(Exception):
    """A case file that cannot be run."""


class Case:
    """A case file: `head` (comments and the command), then its sections in order, as (title, lines)."""

    def __init__(self, path):
        self.path, self.head, self.sections = path, [], []
        lines = self.head
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := HEADER.match(line):
                lines = []
                self.sections.append((match[1], lines))
            else:
                lines.append(line)
        commands = [line[2:] for line in self.head if line.startswith("$ ")]
        if len(commands) != 1:
            raise CaseError("needs exactly one line '$ memest ARGUMENTS' before its sections")
        words = shlex.split(commands[0])
        self.environment = {}
        while words and re.match(r"^[A-Z_][A-Z_0-9]*=", words[0]):
            name, _, value = words.pop(0).partition("=")
            self.environment[name] = value
        if not words or words[0] != "memest":
            raise CaseError("the command must be memest")
        self.arguments = [w.replace("<repository>", str(ROOT)) for w in words[1:]]
        for title, _ in self.sections:
            if title not in EXPECTED and title.split()[0] not in ("file", "folder", "made"):
                raise CaseError(f"unknown section '{title}': use file NAME, folder NAME, made NAME, stdout, stderr or exit")

    def expected(self, title):
        return next((lines for name, lines in self.sections if name == title), ["0"] if title == "exit" else [])

    def expectations(self):
        return [*EXPECTED, *(title for title, _ in self.sections if title.startswith("made "))]

    def lay_out(self, folder):
        """Writes the files and folders that the command finds."""
        for title, lines in self.sections:
            kind, _, rest = title.partition(" ")
            if kind == "folder":
                (folder / rest).mkdir(parents=True)
            elif kind == "file":
                name, _, times = rest.partition(" times ")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                text = "\n".join(lines)
                # A repeated text is joined without line breaks: "[" 1000000 times is one line.
                (folder / name).write_text(text * int(times) if times else text + "\n" if lines else "", encoding="utf-8")

    def run(self, memest):
        """What the command gave: {"stdout": lines, "stderr": lines, "exit": lines, "made NAME": lines}."""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder).resolve()
            self.lay_out(folder)
            kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR") or k.endswith("SAN_OPTIONS")}
            done = subprocess.run([memest, *self.arguments], cwd=folder, env={**kept, **self.environment}, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=TIMEOUT)

            def lines(data):
                text = data.decode("utf-8", "backslashreplace").replace(str(folder), "<cwd>").replace(str(ROOT), "<repository>")
                return text.splitlines() + ([NO_NEWLINE] if text and not text.endswith("\n") else [])
            result = {"stdout": lines(done.stdout), "stderr": lines(done.stderr), "exit": [str(done.returncode)]}
            for title in self.expectations()[len(EXPECTED):]:
                made = folder / title.partition(" ")[2]
                result[title] = lines(made.read_bytes()) if made.exists() else ["(no such file)"]
            return result

    def write(self, actual):
        """Rewrites the expectations; a line that a placeholder line still matches keeps it."""
        for title in self.expectations():
            old = self.expected(title)
            if same(old, actual[title]):
                new = old
            else:
                patterns = [line for line in old if PLACEHOLDER.search(line)]
                new = [next((p for p in patterns if line_matches(p, line)), line) for line in actual[title]]
            places = [i for i, (name, _) in enumerate(self.sections) if name == title]
            if places:
                self.sections[places[0]] = (title, new)
            else:
                self.sections.append((title, new))
        text = list(self.head)
        for title, lines in self.sections:
            text += [f"== {title} ==", *lines]
        self.path.write_text("\n".join(text) + "\n", encoding="utf-8")


def line_matches(expected, actual):
    if expected == actual:
        return True
    parts = PLACEHOLDER.split(expected)
    if len(parts) == 1:
        return False
    return re.fullmatch("".join(f"(?:{part})" if i % 2 else re.escape(part) for i, part in enumerate(parts)), actual) is not None


def same(expected, actual):
    return len(expected) == len(actual) and all(map(line_matches, expected, actual))


def differences(case, actual):
    """A readable diff of every section that differs."""
    out = []
    for title in case.expectations():
        expected = case.expected(title)
        if same(expected, actual[title]):
            continue
        # lines that a placeholder accepts are no difference
        patterns = [line for line in expected if PLACEHOLDER.search(line)]
        shown = [next((p for p in patterns if line_matches(p, line)), line) for line in actual[title]]
        out += difflib.unified_diff(expected, shown, f"{case.path.name}: expected {title}", f"{case.path.name}: actual {title}", lineterm="", n=3)
    return out


def judge(path, memest, update):
    """(passed, text to print) of one case."""
    try:
        case = Case(path)
        actual = case.run(memest)
    except CaseError as error:
        return False, f"{path.name}: {error}"
    except subprocess.TimeoutExpired:
        return False, f"{path.name}: no answer in {TIMEOUT} s"
    if update:
        before = path.read_text(encoding="utf-8")
        case.write(actual)
        return True, f"rewrote {path.name}" if path.read_text(encoding="utf-8") != before else ""
    out = differences(case, actual)
    return not out, "\n".join(out)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--memest", default=ROOT / "build/release/memest")
    parser.add_argument("--cases", default=HERE, type=Path, help="the folder of the cases")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args(arguments)
    memest = Path(options.memest).resolve()
    if not memest.exists():
        print(f"there is no {options.memest}: build it first\n0 passed, 1 failed, 0 skipped")
        return 1
    paths = sorted(p for p in options.cases.rglob("*.txt") if not options.names or any(n in p.relative_to(options.cases).as_posix() for n in options.names))
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda p: judge(p, memest, options.update), paths))
    for _, text in results:
        if text:
            print(text)
    passed = sum(good for good, _ in results)
    if not paths:
        print("no case" + (" has such a name" if options.names else ""))
    print(f"{passed} passed, {len(paths) - passed} failed, 0 skipped")
    return 0 if passed == len(paths) and paths else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

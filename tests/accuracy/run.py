#!/usr/bin/env python3
"""Compares memest with recorded truth, to the byte: run.py [--memest PATH] [--show] [TEXT...]

rows.jsonl holds runs of PyTorch's CUDA build: states, the end and the peak of each phase, the most reserved. allocations/*.txt hold every allocation
of some of them. TEXT chooses the rows whose id contains one of them; --show also prints their commands. A row that is known to differ stands in
known_differences.txt with its cause; one that stands there and no longer differs fails too, so that the list stays true.
The last line is "N passed, N failed, N skipped"; exits 1 where something failed.
"""
import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TIMEOUT = 120
CONTEXT = 4  # events shown before and after the first that differs


def lines_of_events(events):
    """The allocator's events in the form of allocations/*.txt, each with the event behind it."""
    live, count = {}, 0
    for event in events:
        action, size = event["action"], event["bytes"]
        if action == "alloc":
            live[event["address"]] = count
            yield f"+ {size}", event
            count += 1
        elif action in ("free_completed", "free"):
            yield f"- {live.pop(event['address'], '?')}", event
        elif action in ("segment_alloc", "segment_free", "segment_map", "segment_unmap"):
            yield f"{action} {size}", event


def without_cache_order(lines):
    """Under autocast PyTorch frees its cast cache in the order of a hash of addresses, which differs from run to run: frees that follow
    one another are put in the order of their allocations. Everything else stays."""
    out, run = [], []
    for line in [*lines, None]:
        if line is not None and line[0].startswith("- "):
            run.append(line)
            continue
        out += sorted(run, key=lambda free: int(free[0][2:]) if free[0][2:].isdigit() else -1)
        run = []
        out += [] if line is None else [line]
    return out


def first_difference(ours, theirs):
    """None, or the text that shows where two lists part. `ours` has events, `theirs` lines."""
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a[0] != b), min(len(ours), len(theirs)))
    if same == len(ours) == len(theirs):
        return None

    def row(mark, line, event=None):
        where = " ".join(str(event[k]) for k in ("step", "phase", "module", "op", "category") if event.get(k) not in (None, "")) if event else ""
        return f"    {mark} {line:<28} {where}".rstrip()
    out = [f"  equal for {same} of memest's {len(ours)} and PyTorch's {len(theirs)} events, then (m memest, p PyTorch):"]
    out += [row(" ", line, event) for line, event in ours[max(0, same - CONTEXT):same]]
    out += [row("m", line, event) for line, event in ours[same:same + CONTEXT]]
    out += [row("p", line) for line in theirs[same:same + CONTEXT]]
    return "\n".join(out)


def compare_answer(row, answer):
    """Every number in which memest's JSON differs from the row."""
    notes = [f"{name}: {answer['states'][name]:,} for {value:,}" for name, value in row["states"].items() if answer["states"][name] != value]
    ends, peaks = {}, {}
    for phase in answer["phases"]:
        key = phase["step"], phase["phase"]
        ends[key], peaks[key] = phase["end_bytes"], max(phase["peak_bytes"], peaks.get(key, 0))
    for phase in row["phases"]:
        key = phase["step"], phase["phase"]
        for what, found in (("end", ends), ("peak", peaks)):
            if what in phase and found.get(key) != phase[what]:
                value = f"{found[key]:,}" if key in found else "no such phase"
                notes.append(f"step {key[0]} {key[1]} {what}: {value} for {phase[what]:,}")
    reserved = answer["totals"]["reserved_peak_bytes"]
    if "reserved" in row and reserved != row["reserved"]:
        notes.append(f"reserved: {reserved:,} for {row['reserved']:,}")
    return notes


def command(memest, row):
    return [str(memest), "estimate", *row["arguments"]]


def run(words):
    """(exit code, stdout, last line of stderr)"""
    try:
        done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return None, "", f"no answer in {TIMEOUT} s"
    return done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1]


def check_row(memest, row, list_path):
    """The differences of a row, as lines of text."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        code, out, error = run([*command(memest, row), "--json", "-", *(["--trace", str(trace)] if list_path else [])])
        if code not in (0, 1):
            return [f"  exit {code}: {error}"]
        try:
            notes = ["  " + note for note in compare_answer(row, json.loads(out))]
        except (ValueError, KeyError, TypeError) as problem:
            return [f"  its JSON cannot be read: {type(problem).__name__} {problem}"]
        if list_path:
            document = json.loads(trace.read_text())
            ours = list(lines_of_events(dict(zip(document["fields"], event)) for event in document["events"]))
            theirs = list_path.read_text().splitlines()[1:]
            if " precision=amp-" in row["id"]:
                ours = without_cache_order(ours)
                theirs = [line for line, in without_cache_order([(line,) for line in theirs])]
            if different := first_difference(ours, theirs):
                notes.append(different)
    return notes


def known_differences(path):
    """{id: cause}"""
    known = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, separator, cause = line.partition(" :: ")
        if not separator or not cause.strip():
            raise ValueError(f"{path.name}:{number}: needs 'ID :: CAUSE'")
        known[key.strip()] = cause.strip()
    return known


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--memest", default=ROOT / "build/release/memest")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--data", default=HERE, type=Path, help="the folder of rows.jsonl, allocations/ and known_differences.txt")
    options = parser.parse_args(arguments)
    memest = Path(options.memest).resolve()
    if not memest.exists():
        print(f"there is no {options.memest}: build it first\n0 passed, 1 failed, 0 skipped")
        return 1
    rows = [json.loads(line) for line in (options.data / "rows.jsonl").read_text().splitlines()]
    known = known_differences(options.data / "known_differences.txt")
    lists = {path.read_text().partition("\n")[0][2:]: path for path in sorted((options.data / "allocations").glob("*.txt"))}
    every = {row["id"] for row in rows}
    failed = []
    for place, ids in (("known_differences.txt", known), ("allocations/", lists)):
        failed += [f"{key}\n  stands in {place} but not in rows.jsonl" for key in ids if key not in every]
    rows = [row for row in rows if not options.texts or any(text in row["id"] for text in options.texts)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda row: check_row(memest, row, lists.get(row["id"])), rows))
    differs = 0
    for row, notes in zip(rows, results):
        if options.show:
            print(row["id"] + "\n  " + shlex.join(command("memest", row)) + "".join("\n" + note for note in notes))
        if row["id"] in known:
            differs += 1
            if not notes:
                failed.append(f"{row['id']}\n  is exact now: remove it from known_differences.txt")
        elif notes:
            failed.append("\n".join([row["id"], "  memest " + shlex.join(command("memest", row)[1:]), *notes]))
    for text in failed:
        print(text)
    exact = sum(not notes for notes in results)
    print(f"{exact} of {len(rows)} rows exact to the byte, {differs} known to differ, {sum(row['id'] in lists for row in rows)} compared allocation by allocation")
    print(f"{max(0, len(rows) - len(failed))} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

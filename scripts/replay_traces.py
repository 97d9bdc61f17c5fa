#!/usr/bin/env python3
"""Replays the recorded PyTorch allocator traces of ../shared/truth/vgpu_traces through memest's caching allocator.

    scripts/replay_traces.py                                  # all traces; exit 1 when one differs
    scripts/replay_traces.py --only 'resnet18' --show         # those whose id matches, each with its result
    scripts/replay_traces.py --only '^hf:vit-base batch=8' --events 2000 --write FILE    # as text, cut, for tests/accuracy/traces

Unpacks each trace into the text of tests/accuracy/trace_text.h and pipes it to build/release/tests/replay_traces. Skips, saying so, where
the folder is absent. Needs Python 3.9 and nothing else.
"""
import argparse
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARKS = {"alloc": "+", "free_completed": "-", "segment_alloc": "S", "segment_free": "s", "segment_map": "M", "segment_unmap": "m"}
MIB = 1 << 20
MEMORY = {"NVIDIA A100-SXM4-80GB": 81154 * MIB, "NVIDIA H100 80GB HBM3": 81090 * MIB, "NVIDIA GeForce RTX 3060": 12622168064}


def file_name(row_id):
    return "".join(c if c.isalnum() or c in "-=." else "_" for c in row_id)[:120] + ".json.gz"


def as_text(row, events, most):
    lines = [f"trace {row['id']}", f"conf {row['run'].get('alloc_conf') or ''}".rstrip(), f"memory {MEMORY[row['env']['device']]}"]
    for action, address, size in events:
        if action == "free_requested":
            continue
        size = f" {size if action == 'alloc' else size // 512}" if action != "free_completed" else ""
        lines.append(f"{MARKS[action]} {address // 512}{size}")
        if most and len(lines) >= most + 3 and action in ("alloc", "free_completed"):
            break
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=HERE.parent.parent / "shared" / "truth", help="folder of vgpu.jsonl and vgpu_traces")
    parser.add_argument("--program", default=HERE.parent / "build" / "release" / "tests" / "replay_traces")
    parser.add_argument("--only", default="", help="only rows whose id matches this regular expression")
    parser.add_argument("--events", type=int, help="cut each trace after so many events")
    parser.add_argument("--show", action="store_true", help="also name the traces that are exact")
    parser.add_argument("--write", type=Path, help="write the text there instead of replaying it")
    options = parser.parse_args()
    if not (options.truth / "vgpu_traces").is_dir():
        print(f"skipped: no recorded traces at {options.truth}")
        return 0
    out = options.write.open("w") if options.write else None
    judge = None if out else subprocess.Popen([options.program, *([] if options.show else ["--quiet"]), "-"], stdin=subprocess.PIPE, text=True)
    with open(options.truth / "vgpu.jsonl") as rows:
        for row in map(json.loads, rows):
            path = options.truth / "vgpu_traces" / file_name(row["id"])
            if re.search(options.only, row["id"]) and path.exists():
                record = json.loads(gzip.decompress(path.read_bytes()))
                if record["id"] == row["id"]:  # long ids share a file's name: the file is then another row's
                    (out or judge.stdin).write(as_text(row, record["events"], options.events))
    if out:
        return 0
    judge.stdin.close()
    return judge.wait()


if __name__ == "__main__":
    sys.exit(main())

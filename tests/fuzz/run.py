#!/usr/bin/env python3
"""Damages specs, exported programs and command lines and watches memest: run.py [--memest PATH] [--cases N] [--seed N] [--keep FOLDER]

Whatever it is given, memest answers within a time limit with one of its exit codes, and says why where it refuses. The damage is drawn from a
seeded generator, so a finding comes up again; --keep writes the specs that failed into a folder.
The last line is "N passed, N failed, N skipped"; exits 1 where something failed.
"""
import argparse
import copy
import io
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT = 20
MEMORY = 2 << 30
SIGNS_OF_A_CRASH = ("AddressSanitizer", "LeakSanitizer", "runtime error:", "terminate called", "Assertion", "what():", "std::")
VALUES = [None, True, False, 0, 1, -1, 2, 7, 1.5, -0.0, 1e308, 2**31, 2**31 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, "", "x", "%", "%%", "%nothing", "$", "$batch",
          "$batch//0", "$batch*99999999999", "batch", "-1", "\u0000", "é", [], [[]], {}, [1, 2, 3], ["batch"], {"tuple": []}, {"slice": [None, None, None]}, {"type": "ReLU"},
          {"type": "Sequential", "layers": []}, "float32", "bfloat16", "complex64", "Linear", "cat", "output"]
OPTIONS = ["--batch", "--seq", "--image", "--mode", "--precision", "--amp", "--optimizer", "--grad-accum", "--zero-grad", "--loss", "--steps", "--gpu", "--gpu-memory", "--alloc-conf",
           "--torch-version", "--strict", "--zero-grad-at", "--inputs", "--keep-output", "--memory-format", "--env", "--semantics", "--input-grad", "--input", "--set", "--freeze", "--json", "--quiet"]
WORDS = ["", "0", "1", "2", "-1", "16", "1e9", "99999999999999999999", "9223372036854775807", "64x96", "x", "0x0", "train", "infer", "fp32", "amp-fp16", "bf16", "sgd", "adam:", "adamw:fused=true", "sgd:momentum=",
         "sgd:momentum=0.9,momentum=0.9", "sgd:momentum=abc", "none", "zero", "cross_entropy", "mse", "a100-80gb", "a100", "24GiB", "-3GiB", "GiB", "expandable_segments:True", "max_split_size_mb:1",
         "roundup_power2_divisions:[256:1,512:2,>:8]", "roundup_power2_divisions:[", ":", "2.15", "2.4", "1.0", "9.99", "end", "resident", "yes", "channels_last", "A=B", "=", "x=2,8", "x=2,8:int64", "x=", "*", "-", "--", "@", "%s%n"]


def places(node, path=()):
    """The paths of every value inside a document."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        yield from places(child, (*path, key))


def at(node, path):
    for key in path:
        node = node[key]
    return node


def damage(rng, document):
    """The document with a few values replaced, removed, doubled or exchanged, as text."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        path = rng.choice(list(places(document))[1:] or [()])
        if not path:
            break
        parent, key = at(document, path[:-1]), path[-1]
        what = rng.randrange(6)
        if what == 0:
            del parent[key]
        elif what == 1 and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif what == 2:
            parent[key] = copy.deepcopy(at(document, rng.choice(list(places(document))[1:])))
        elif what == 3 and isinstance(parent, dict):
            parent[rng.choice(["", "type", "name", "op", "args", "target", "layers", "nodes", "repeat", "in_features", "kernel_size", "x"])] = parent.pop(key)
        else:
            parent[key] = rng.choice(VALUES)
    text = json.dumps(document)
    if rng.random() < 0.15:  # no longer JSON
        cut = rng.randrange(len(text))
        text = rng.choice([text[:cut], text[:cut] + rng.choice('{}[]",:\\\x00') + text[cut:], text[cut:], text + text])
    return text


def damaged_archive(rng, data):
    """A .pt2 file with a changed program, or with changed bytes."""
    if rng.random() < 0.3:
        data = bytearray(data)
        for _ in range(rng.choice([1, 2, 8])):
            at = rng.randrange(len(data))
            data[at:at + rng.choice([0, 1, 1, 4])] = bytes(rng.choice([0, 1, 127, 255, rng.randrange(256)]) for _ in range(rng.choice([0, 1, 1, 4])))
        return bytes(data[:rng.randrange(len(data))] if rng.random() < 0.2 else data)
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            text = source.read(name)
            if name.endswith("model.json") or name.endswith("program.json"):
                text = damage(rng, json.loads(text)).encode("utf-8", "surrogatepass")
            target.writestr(zipfile.ZipInfo(name), text)  # without the time, so that a finding comes up again
    return out.getvalue()


def case(rng, specs, archives):
    """(the spec, further arguments)"""
    if rng.random() < 0.3:
        return damaged_archive(rng, rng.choice(archives)), ["--mode", rng.choice(["train", "infer"]), *rng.choice([[], ["--batch", "2"], ["--lifetimes", "graph"], ["--set", "s27=16", "--set", "u0=5"]])]
    name, document = rng.choice(specs)
    if rng.random() < 0.65:
        return damage(rng, document), ["--batch", str(rng.choice([1, 2, 7]))]
    words = []
    for _ in range(rng.randrange(1, 5)):
        words += [rng.choice(OPTIONS)] + ([rng.choice(WORDS)] if rng.random() < 0.8 else [])
    # results go to stdout only: a file name may not be written anywhere
    return json.dumps(document), [w for i, w in enumerate(words) if w != "--json"] + rng.choice([[], ["--json", "-"]])


def judge(memest, text, arguments, environment):
    """None, or what is wrong with memest's answer."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spec.json").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        try:
            done = subprocess.run([*memest, "estimate", "spec.json", *arguments], cwd=folder, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            return f"no answer in {TIMEOUT} s"
    errors = done.stderr.decode("utf-8", "replace")
    tail = " | ".join(errors.strip().splitlines()[:3])[:300]
    if done.returncode not in (0, 1, 2, 3):
        return f"exit {done.returncode}: {tail}"
    if done.returncode in (2, 3) and not errors.strip():
        return f"exit {done.returncode} without a word"
    if done.returncode in (2, 3) and done.stdout.strip() and b"diagnostics" not in done.stdout:
        return f"exit {done.returncode}, but stdout says {done.stdout[:100]!r}"
    sign = next((s for s in SIGNS_OF_A_CRASH if s in errors), None)
    return f"stderr has '{sign}': {tail}" if sign else None


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memest", default=ROOT / "build/release/memest", type=Path)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args(arguments)
    memest = options.memest.resolve()
    rng = random.Random(options.seed)
    paths = sorted([*(ROOT / "tests/accuracy/specs").glob("*.json"), *(ROOT / "model_specs").glob("*.json")])
    # small ones: a change in a large file mostly hits one of many equal layers
    specs = [(p.name, json.loads(p.read_text())) for p in paths if p.stat().st_size < 20000]
    archives = [p.read_bytes() for p in sorted((ROOT / "tests/pt2").glob("*.pt2"))]
    cases = [case(rng, specs, archives) for _ in range(options.cases)]
    # 1 is an answer of memest, so a finding of a sanitizer needs an exit code of its own. Memory is limited: what asks for much more has a bug.
    sanitized = b"__asan_init" in memest.read_bytes()
    limits = f"hard_rss_limit_mb={MEMORY >> 20}:allocator_may_return_null=0:" if sanitized else ""
    environment = {**os.environ, "ASAN_OPTIONS": limits + os.environ.get("ASAN_OPTIONS", "exitcode=99"), "UBSAN_OPTIONS": os.environ.get("UBSAN_OPTIONS", "exitcode=99")}
    command = [str(memest)] if sanitized else ["bash", "-c", f'ulimit -v {MEMORY >> 10}; exec "$@"', "-", str(memest)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda c: judge(command, *c, environment), cases))
    failed = [(number, *c, problem) for number, (c, problem) in enumerate(zip(cases, answers)) if problem]
    for number, text, words, problem in failed[:20]:
        print(f"case {number}: memest estimate spec.json {shlex.join(words)}\n  {problem}\n  spec: {text[:300]}")
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            kept = options.keep / f"{options.seed}-{number}.{'pt2' if isinstance(text, bytes) else 'json'}"
            kept.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if len(failed) > 20:
        print(f"... and {len(failed) - 20} more")
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

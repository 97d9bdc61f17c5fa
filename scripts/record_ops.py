#!/usr/bin/env python3
"""Records what single calls of PyTorch allocate and free, for tests/ops: the cases of FILE (tests/ops/*.json by default) are run on a CUDA device, real
or virtual, with PyTorch's CUDA build, and written to tests/ops/recorded/. tests/ops/README.md describes both files.

    record_ops.py [FILE...] [--only REGEX]     records; with --only the other lines stay as they are
    record_ops.py --check                      without PyTorch: every case has a recorded line, and every line a case
"""
import argparse
import itertools
import json
import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests" / "ops"
FIELDS = {"op", "ops", "args", "each", "kwargs", "init", "dtypes", "amp", "channels_last", "no_grad", "eval", "fresh"}
INTEGERS = {"int64", "int32", "int16", "int8", "uint8", "bool"}


def expand(entry):
    """The single cases of an entry: ops x argument lists x dtypes, each in the form that is recorded."""
    unknown = set(entry) - FIELDS
    if unknown:
        raise SystemExit(f"unknown fields {sorted(unknown)} in {json.dumps(entry)[:200]}")
    ops = entry.get("ops") or [entry["op"]]
    lists = entry.get("each") or [entry.get("args", [])]
    for op, args, dtype in itertools.product(ops, lists, entry.get("dtypes", ["float32", "bfloat16"])):
        case = {"op": op, "dtype": dtype, "args": args}
        for field in ("kwargs", "init", "amp", "channels_last", "no_grad", "eval", "fresh"):
            if field in entry:
                case[field] = entry[field]
        yield case


def cases_of(path):
    seen = set()
    for entry in json.loads(path.read_text()):
        for case in expand(entry):
            key = json.dumps(case)
            if key not in seen:
                seen.add(key)
                yield key, case


def recorded(path):
    target = TESTS / "recorded" / (path.stem + ".txt")
    if not target.exists():
        return {}
    return dict(line.split("\t", 1) for line in target.read_text().splitlines() if line)


def check(paths):
    problems = 0
    for path in paths:
        lines, keys = recorded(path), [key for key, _ in cases_of(path)]
        for key in keys:
            if key not in lines:
                print(f"{path.name}: not recorded: {key}")
                problems += 1
        for key in set(lines) - set(keys):
            print(f"{path.name}: recorded, but no case: {key}")
            problems += 1
    for target in sorted((TESTS / "recorded").glob("*.txt")):
        if not (TESTS / (target.stem + ".json")).exists():
            print(f"recorded/{target.name} has no {target.stem}.json")
            problems += 1
    print(f"{problems} problems" if problems else "every case is recorded")
    return 1 if problems else 0


class Recorder:
    """One case at a time: events of the allocator between points, blocks numbered as they are allocated."""

    def __init__(self, torch):
        self.torch = torch

    def start(self, known=()):
        """Blocks at the addresses `known` have the first numbers."""
        memory = self.torch.cuda.memory
        memory._record_memory_history(enabled=None)
        memory._record_memory_history(max_entries=100000, context=None, stacks="python", clear_history=True)
        self.position, self.count, self.parts = 0, len(known), []
        self.blocks = {address: number for number, address in enumerate(known, 1)}

    def point(self, keep):
        """Ends a part. With keep the events since the last point are written down, otherwise they are left out."""
        events = self.torch.cuda.memory._snapshot()["device_traces"][0]
        words = []
        for event in events[self.position:]:
            if event["action"] == "alloc" and keep:
                self.count += 1
                self.blocks[event["addr"]] = self.count
                words.append(f"+{event['size']}")
            elif event["action"] == "free_completed" and event["addr"] in self.blocks:
                words.append(f"-{self.blocks.pop(event['addr'])}")
        self.position = len(events)
        if keep:
            self.parts.append(" ".join(words))


class Maker:
    def __init__(self, torch, case):
        self.torch, self.case, self.inputs, self.fresh = torch, case, [], []
        self.in_place = re.search(r"[a-z0-9]_(\.|$)", case["op"]) is not None

    def dtype(self, name):
        return getattr(self.torch, name)

    def tensor(self, spec):
        torch = self.torch
        sizes, name = spec["tensor"], spec.get("dtype", self.case["dtype"])
        dtype = self.dtype(name)
        device = "cpu" if spec.get("host") else "cuda"
        if "strides" in spec:
            leaf = torch.empty_strided(sizes, spec["strides"], dtype=dtype, device=device)
        elif self.case.get("channels_last") and len(sizes) in (4, 5):
            leaf = torch.empty(sizes, dtype=dtype, device=device, memory_format=torch.channels_last if len(sizes) == 4 else torch.channels_last_3d)
        else:
            leaf = torch.empty(sizes, dtype=dtype, device=device)
        if name not in INTEGERS:
            leaf.fill_(0)
        grad = spec.get("grad", False) and (dtype.is_floating_point or dtype.is_complex)
        leaf.requires_grad_(grad)
        first = not self.inputs
        self.inputs.append(leaf)
        if self.case.get("fresh") and device == "cuda":
            copy = leaf.clone()
            self.fresh.append(copy.data_ptr())
            return copy.expand(spec["expand"]) if "expand" in spec else copy
        if "expand" in spec:
            return leaf.expand(spec["expand"])
        return leaf.clone() if grad and first and self.in_place else leaf

    def value(self, v):
        if isinstance(v, list):
            return [self.value(x) for x in v]
        if isinstance(v, dict):
            if "tensor" in v:
                return self.tensor(v)
            if "dtype" in v:
                return self.dtype(v["dtype"])
            if "float" in v:
                return float(v["float"])
            if "memory_format" in v:
                return getattr(self.torch, v["memory_format"])
            if "tuple" in v:
                return tuple(self.value(x) for x in v["tuple"])
            if "slice" in v:
                return slice(*v["slice"])
            if "ellipsis" in v:
                return ...
            if "same" in v:
                return self.inputs[v["same"]]
            if "type" in v:
                return getattr(self.torch.nn, v["type"])(**{k: self.value(x) for k, x in v.items() if k != "type"})
            raise SystemExit(f"no value: {v}")
        return v


def function_of(torch, case, maker):
    op = case["op"]
    if op.startswith("aten::"):
        found = torch.ops.aten
        for part in op[6:].split("."):
            found = getattr(found, part)
        return found
    if op.startswith("nn."):
        module = getattr(torch.nn, op[3:])(**{k: maker.value(v) for k, v in case.get("init", {}).items()})
        module = module.to("cuda", maker.dtype(case["dtype"]))
        module.train(not case.get("eval"))
        maker.inputs += list(module.parameters()) + list(module.buffers())
        return module
    if op.startswith("Tensor."):
        return lambda x, *args, **kwargs: getattr(x, op[7:])(*args, **kwargs)
    found = {"F": torch.nn.functional, "torch": torch, "operator": __import__("operator")}[op.split(".")[0]]
    for part in op.split(".")[1:]:
        found = getattr(found, part)
    return found


def flatten(out, into):
    if isinstance(out, (tuple, list)):
        for item in out:
            flatten(item, into)
    elif hasattr(out, "grad_fn"):
        into.append(out)


def run(torch, recorder, case):
    import contextlib
    import gc
    maker = Maker(torch, case)
    args = [maker.value(a) for a in case["args"]]
    kwargs = {k: maker.value(v) for k, v in case.get("kwargs", {}).items()}
    function = function_of(torch, case, maker)
    inputs = maker.inputs
    gc.collect()
    recorder.start(maker.fresh)
    with torch.no_grad() if case.get("no_grad") else contextlib.nullcontext():
        with torch.autocast("cuda", dtype=maker.dtype(case["amp"])) if "amp" in case else contextlib.nullcontext():
            out = function(*args, **kwargs)
    if not maker.fresh:
        recorder.point(True)
    results = []
    flatten(out, results)
    del out
    args.clear(), kwargs.clear()
    if maker.fresh:
        recorder.point(True)
    roots = [r for r in results if r.requires_grad]
    ones = [torch.ones_like(r) for r in roots]
    recorder.point(False)
    if roots:
        torch.autograd.backward(roots, ones)
    recorder.point(True)
    del roots
    while results:
        results.pop(0)
    ones.clear()
    for x in inputs:
        x.grad = None
    inputs.clear()
    recorder.point(True)
    return " | ".join(recorder.parts)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="*", type=Path)
    p.add_argument("--only", default="", help="a regular expression that a case's JSON must contain")
    p.add_argument("--new", action="store_true", help="cases that have no recorded line yet")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    paths = [f if f.exists() else TESTS / f"{f}.json" for f in a.files] or sorted(TESTS.glob("*.json"))
    if a.check:
        return check(paths)
    import gc
    import warnings
    import torch
    warnings.simplefilter("ignore")
    gc.disable()
    gc.freeze()  # so that collecting between cases is quick
    torch.backends.cuda.enable_cudnn_sdp(False)  # its workspaces are not modelled
    recorder = Recorder(torch)
    failed = 0
    for path in paths:
        old, lines = recorded(path), {}
        for key, case in cases_of(path):
            if key in old and (a.new or not re.search(a.only, key)):
                lines[key] = old[key]
                continue
            try:
                lines[key] = run(torch, recorder, case)
            except Exception as error:  # PyTorch refuses: the case is wrong
                print(f"{path.name}: {key}\n    {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}")
                failed += 1
        (TESTS / "recorded").mkdir(exist_ok=True)
        (TESTS / "recorded" / (path.stem + ".txt")).write_text("".join(f"{key}\t{line}\n" for key, line in lines.items()))
        print(f"{path.name}: {len(lines)} cases")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks which folder includes which: check_includes.py [ROOT]

The folders of estimator/ form an order, and a file may include its own folder and what lies to the left of it. Some libraries are kept behind
a door: only the folders named here may include them. Prints one line for each violation and exits 1 where there is one.
"""
import posixpath
import re
import sys
from pathlib import Path

ORDER = ["base", "device", "trace", "fake", "ops", "nn"]
CORE = ["base", "device", "trace"]
MAY = {folder: ORDER[:i] for i, folder in enumerate(ORDER)}
MAY |= {
    "models": ORDER,
    "optim": ORDER,
    "run": [*ORDER, "models", "optim"],
    "allocator": CORE,
    "spec": [*ORDER, "models"],
    "report": [*CORE, "allocator", "run"],
}
MAY["torch"] = list(MAY)  # the plugin: a shared object of its own
TIES = ("estimator/estimate.h", "estimator/estimate.cpp")  # with cli/: may include all

# library: (how its headers are included, folders or files that may include them)
DOORS = {
    "nlohmann/json": (r"nlohmann/", ["estimator/spec/", "estimator/trace/", "estimator/report/", "estimator/torch/"]),
    "CLI11": (r"CLI/", ["cli/"]),
    "LibTorch": (r"(torch|ATen|c10|caffe2)/", ["estimator/torch/"]),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SOURCES = {".h", ".hpp", ".cpp", ".cc", ".inc"}


def listed(names):
    return ", ".join(names) if names else "nothing else"


def inner_problem(path, target, root):
    """What is wrong with including `target` (quoted) in `path`, or None. Paths are relative to the root, with slashes."""
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    from_estimator = posixpath.normpath("estimator/" + target)
    found = next((p for p in (beside, from_estimator) if (root / p).exists()), from_estimator)
    if path.startswith("cli/") or path in TIES:
        return None
    parts = path.split("/")
    if len(parts) < 3:
        return "only estimate.h and estimate.cpp stand in estimator/ itself"
    folder = parts[1]
    if folder not in MAY:
        return f"the folder {folder}/ has no rule: add it to scripts/check_includes.py"
    goal = found.split("/")
    if goal[0] == "cli":
        return f"{folder}/ may include {listed([folder, *MAY[folder]])}"
    if goal[0] != "estimator":
        return None
    name = goal[1] if len(goal) > 2 else None
    if name == folder or name in MAY[folder]:
        return None
    return f"{folder}/ may include {listed([folder, *MAY[folder]])}"


def door_problem(path, target):
    for library, (pattern, allowed) in DOORS.items():
        if re.match(pattern, target) and not any(path.startswith(place) for place in allowed):
            return f"{library} is for {listed(allowed)} only"
    return None


def problems(root):
    """Every violation below the root, as (file, line, text of the include, reason)."""
    for source in sorted(p for top in ("estimator", "cli") for p in (root / top).rglob("*") if p.suffix in SOURCES):
        path = source.relative_to(root).as_posix()
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
            if not (match := INCLUDE.match(line)):
                continue
            quoted, angled = match.groups()
            reason = door_problem(path, quoted or angled) or (inner_problem(path, quoted, root) if quoted else None)
            if reason:
                yield path, number, quoted or angled, reason


def main(arguments):
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = list(problems(root))
    for path, line, target, reason in found:
        print(f"{path}:{line}: includes {target}; {reason}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

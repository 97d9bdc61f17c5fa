#!/usr/bin/env python3
"""Writes the class defaults of diffusers' models into estimator/spec/diffusers_defaults.inc (needs diffusers; you run it, users do not).

    export_diffusers_defaults.py [--memest build/release/memest]

One line a class that memest builds (memest list models): the parameters of its __init__ with their defaults.
"""
import argparse
import inspect
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--memest", default=str(ROOT / "build/release/memest"))
    p.add_argument("classes", nargs="*", help="instead of those that memest builds")
    a = p.parse_args()
    import diffusers
    listed = subprocess.run([a.memest, "list", "models"], capture_output=True, text=True, check=True).stdout if not a.classes else ""
    names = a.classes or [line.split()[0] for line in listed.split("\n") if "config.json of diffusers" in line]
    lines = [f"// Class defaults of diffusers {diffusers.__version__}, written by scripts/export_diffusers_defaults.py."]
    for name in sorted(names):
        parameters = inspect.signature(getattr(diffusers, name).__init__).parameters
        fields = {k: v.default for k, v in parameters.items() if k != "self" and v.default is not inspect.Parameter.empty}
        lines.append("{" + json.dumps(name) + ', R"json(' + json.dumps(fields, separators=(",", ":")) + ')json"},')
    (ROOT / "estimator/spec/diffusers_defaults.inc").write_text("\n".join(lines) + "\n")
    print(len(names), "classes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Validates what memest writes and reads against its JSON Schemas: validate_json.py [--memest PATH]

- `memest estimate ... --json -` of several commands: estimator/report/estimate.schema.json, and the sums that a schema cannot express.
- the specs in model_specs/, those beside this script, and the shared ones where present: estimator/spec/memest_spec.schema.json.
Needs the Debian package python3-jsonschema; exits 77 (skipped) without it. The last line is "N passed, N failed, N skipped".
"""
import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SHARED = ROOT.parent / "shared"
COMMANDS = [
    "resnet50 --batch 32 --amp",
    "resnet18 --batch 4 --mode infer",
    "resnet18 --batch 8 --grad-accum 2 --optimizer sgd:momentum=0.9 --gpu a100-80gb",
    "resnet50 --batch 512 --gpu-memory 1GiB",
    "mlp --batch 64 --optimizer adamw:fused=true --precision bf16",
    "lenet5 --batch 16 --optimizer none --mode train --loss sum",
    "unet --batch 1 --image 64 --precision amp-bf16 --zero-grad zero",
    "transformer_encoder --batch 2 --torch-version 2.6",
    "vgg16 --batch 2 --semantics fake-tensor",
    "mobilenet_v2 --batch 2 --alloc-conf expandable_segments:True",
]


def sums(document):
    """What must add up, as sentences about what does not."""
    totals, peak, overhead, states, model = (document[k] for k in ("totals", "peak", "overhead", "states", "model"))
    by_category = sum(peak["categories"].values())
    largest = max(phase["peak_bytes"] for phase in document["phases"])
    facts = [
        (by_category == totals["allocated_peak_bytes"], f"peak.categories add up to {by_category}, not to totals.allocated_peak_bytes {totals['allocated_peak_bytes']}"),
        (totals["reserved_peak_bytes"] >= totals["allocated_peak_bytes"], "totals.reserved_peak_bytes is less than totals.allocated_peak_bytes"),
        (overhead["cached_bytes"] == totals["reserved_peak_bytes"] - totals["allocated_peak_bytes"], "overhead.cached_bytes is not reserved - allocated"),
        (totals["device_peak_bytes"] == totals["reserved_peak_bytes"] + overhead["context_bytes"], "totals.device_peak_bytes is not reserved + context"),
        (largest <= totals["allocated_peak_bytes"], f"a phase peaks at {largest}, above totals.allocated_peak_bytes {totals['allocated_peak_bytes']}"),
        (peak["phase"] == "load" or any((p["step"], p["phase"], p["peak_bytes"]) == (peak["step"], peak["phase"], totals["allocated_peak_bytes"]) for p in document["phases"]),
         "no phase of peak's step peaks at totals.allocated_peak_bytes"),
        (all(p["end_bytes"] <= p["peak_bytes"] for p in document["phases"]), "a phase ends above its own peak"),
        (states["parameters_bytes"] == model["parameters"]["bytes"], "states.parameters_bytes is not model.parameters.bytes"),
        (states["buffers_bytes"] == model["buffers"]["bytes"], "states.buffers_bytes is not model.buffers.bytes"),
        (model["parameters"]["trainable_count"] <= model["parameters"]["count"], "more trainable parameters than parameters"),
        (states["gradients_bytes"] in (0, model["parameters"]["trainable_bytes"]), "states.gradients_bytes is neither 0 nor model.parameters.trainable_bytes"),
        ([p["step"] for p in document["phases"]] == sorted(p["step"] for p in document["phases"]), "phases are not in time order"),
    ]
    return [text for holds, text in facts if not holds]


def violations(validator, document):
    return [f"/{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in sorted(validator.iter_errors(document), key=lambda e: list(map(str, e.absolute_path)))][:10]


def check_output(memest, validator, arguments):
    done = subprocess.run([memest, "estimate", *shlex.split(arguments), "--json", "-"], capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 1):
        return [f"exit {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"]
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        return [f"is not JSON: {error}"]
    problems = violations(validator, document) or sums(document)
    named = "--gpu" in arguments
    if not problems and (document["fit"] is not None) != named:
        problems.append("fit is null, but a GPU was named" if named else "fit is there, but no GPU was named")
    if not problems and done.returncode != int(named and not document["fit"]["fits"]):
        problems.append(f"exit {done.returncode} does not say what fit.fits says")
    return problems


def check_spec(validator, path):
    try:
        return violations(validator, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        return [f"is not JSON: {error}"]


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memest", default=ROOT / "build/release/memest", type=Path)
    parser.add_argument("--specs-only", action="store_true")
    options = parser.parse_args(arguments)
    try:
        import jsonschema
    except ImportError:
        print("skipped: the Python module jsonschema is missing (Debian package python3-jsonschema)\n0 passed, 0 failed, 1 skipped")
        return 77

    def validator(path):
        schema = json.loads((ROOT / path).read_text())
        jsonschema.Draft7Validator.check_schema(schema)
        return jsonschema.Draft7Validator(schema)
    output, spec = validator("estimator/report/estimate.schema.json"), validator("estimator/spec/memest_spec.schema.json")
    folders = [ROOT / "model_specs", HERE / "specs", SHARED / "truth" / "specs"]
    results, skipped = [], 0
    for folder in folders:
        if folder == folders[-1] and not folder.exists():
            print("skipped: no shared specs beside this checkout")
            skipped += 1
        results += [(path.name, check_spec(spec, path)) for path in sorted(folder.glob("*.json"))]
    if not options.specs_only:
        results += [("memest estimate " + line, check_output(options.memest.resolve(), output, line)) for line in COMMANDS]
    for name, problems in results:
        for problem in problems:
            print(f"{name}: {problem}")
    failed = sum(bool(problems) for _, problems in results)
    print(f"{len(results) - failed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Reads .pt2 files, and files that are no programs, with memest: run.py [--memest PATH] [--shared FOLDER]

The files of this folder (scripts/record_pt2_fixtures.py) must give the counts and, to the byte, the peaks that index.json has from PyTorch's eager modules. The larger
collection of ../shared/fixtures must give its counts, in inference and in training, and each of its damaged files one clear message and exit code 2, or what its index allows; where it is absent that part is skipped, and said so.
Prints what differs; the last line is "N passed, N failed, N skipped". Exits 1 where something failed.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENCODER = ["--seq", "16"]
# What a file needs beside its name; the peaks are recorded for the example's batch.
OPTIONS = {"counted": ["--set", "u0=5"], "encoder": [*ENCODER, "--batch", "2"], "names": ["--batch", "8"], "names_strict": ["--batch", "8"], "names_2.6": ["--batch", "8"],
           "names_2.1": ["--batch", "8"], "convolutions": ["--batch", "4"]}
NOT_TRAINABLE = {"running", "counted"}
# An export in evaluation mode that is trained, and one in training mode whose layer takes another way in evaluation.
NOTED = {"exported-for-evaluation", "exported-for-training", "decomposed-program", "data-dependent", "assumed-cudnn", "unknown-op"}
TIMEOUT = 120


def estimate(memest, path, *options):
    run = subprocess.run([memest, "estimate", str(path), "--json", "-", *options], capture_output=True, text=True, errors="replace", timeout=TIMEOUT)
    return run.returncode, run.stderr.strip(), json.loads(run.stdout) if run.returncode == 0 else None


def crashed(code, message):
    return code < 0 or code > 4 or any(sign in message for sign in ("Sanitizer", "runtime error", "terminate called", "std::"))


def differences(one, other):
    """Of two estimates of one network: the states, and peaks that differ by more than 1 %."""
    found = [f"{name}: {a} and {other['states'][name]}" for name, a in one["states"].items() if other["states"][name] != a]
    for name in ("allocated_peak_bytes", "reserved_peak_bytes"):
        a, b = one["totals"][name], other["totals"][name]
        if abs(a - b) > 0.01 * b:
            found.append(f"{name}: {a} and {b}, {100 * (a / b - 1):+.2f} %")
    return found


def one_message(code, message):
    """What is wrong with a refusal, which is exit code 2 and one message with at most one hint."""
    lines = message.splitlines()
    wrong = crashed(code, message) or code != 2 or sum(line.startswith("memest: ") for line in lines) != 1 or not message.startswith("memest: ") or len(lines) > 3
    return [f"exit code {code}: {message[:300]}"] if wrong else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memest", default=ROOT / "build/release/memest")
    parser.add_argument("--shared", default=ROOT.parent / "shared/fixtures", type=Path)
    options = parser.parse_args()
    passed, failed, skipped = 0, 0, 0

    def check(name, problems):
        nonlocal passed, failed
        if problems:
            failed += 1
            print(f"{name}: {'; '.join(problems)}")
        else:
            passed += 1

    def counts(found, parameters, buffers, tensors):
        model = found["model"]
        return [f"{what}: {got}, PyTorch has {want}" for what, got, want in (("parameter bytes", model["parameters"]["bytes"], parameters), ("buffer bytes", model["buffers"]["bytes"], buffers),
                                                                             ("buffers", model["buffers"]["count"], tensors)) if got != want]

    for name, row in json.loads((HERE / "index.json").read_text()).items():
        for mode in ("infer", "train"):
            if mode == "train" and name in NOT_TRAINABLE:
                continue
            code, message, found = estimate(options.memest, HERE / f"{name}.pt2", "--mode", mode, *OPTIONS.get(name, []))
            if code != 0:
                check(f"{name} {mode}", [f"exit code {code}: {message}"])
                continue
            problems = counts(found, row["parameter_bytes"], row["buffer_bytes"], row["buffers"])
            peak = found["totals"]["allocated_peak_bytes"]
            if row.get(f"{mode}_peak_bytes", peak) != peak:
                problems.append(f"peak: {peak}, PyTorch has {row[f'{mode}_peak_bytes']}")
            check(f"{name} {mode}", problems)

    # Sizes that a program does not have, or not as one that can be set.
    for name, asked, said in (("encoder", ["--set", "zz=3"], "--set zz: the program has no such size"), ("encoder", ["--image", "64"], "--image: no input of the program has such a size"),
                              ("names", ["--seq", "8"], "--seq: no input of the program has such a size"), ("convolutions", ["--image", "8"], "--image 8: the program was exported for")):
        code, message, _ = estimate(options.memest, HERE / f"{name}.pt2", *asked)
        check(f"{name} {' '.join(asked)}", one_message(code, message) + ([] if said in message else [f"not said: {said}"]))

    if not (options.shared / "index.json").exists():
        print(f"skipped: {options.shared} is not there")
        skipped += 1
    else:
        for row in json.loads((options.shared / "index.json").read_text())["fixtures"]:
            if row["format"] in ("safetensors", "checkpoint"):
                code, message, found = estimate(options.memest, options.shared / row["file"], "--mode", "infer")
                check(row["file"], [f"exit code {code}: {message}"] if code != 0 else counts(found, row["param_bytes"], row["buffer_bytes"], row["buffer_tensors"]))
            if row["format"] in ("safetensors", "checkpoint", "onnx"):  # no model to train, or none that memest reads: said
                code, message, _ = estimate(options.memest, options.shared / row["file"])
                check(f"{row['file']} train", one_message(code, message))
            if row["format"] != "pt2":  # TorchScript: tests/plugin
                continue
            for mode in ("infer", "train"):
                code, message, found = estimate(options.memest, options.shared / row["file"], "--mode", mode)
                problems = [f"exit code {code}: {message}"] if code != 0 else counts(found, row["param_bytes"], row["buffer_bytes"], row["buffer_tensors"])
                check(f"{row['file']} {mode}", problems)
        for row in json.loads((options.shared / "bad/index.json").read_text()):
            for mode in ("infer", "train"):
                code, message, _ = estimate(options.memest, options.shared / "bad" / row["file"], "--mode", mode)
                if code == 0 and row["expect"] != "reject" and not crashed(code, message):  # accepted, as the index allows
                    check(f"bad/{row['file']} {mode}", [])
                else:
                    check(f"bad/{row['file']} {mode}", one_message(code, message))
        # The same network as a spec that ships with memest: the same states, and peaks within 1 %. The programs are of torch's own export, so what remains are lifetimes that
        # it does not hold.
        for network, spec in (("resnet18_train", "resnet18"), ("resnet50_train", "resnet50"), ("vgg16_train", "vgg16"), ("vit_b_16_train", "vit_b_16"),
                              ("mobilenet_v3_large_train", "mobilenet_v3_large"), ("convnext_tiny_train", "convnext_tiny")):
            row = next(r for r in json.loads((options.shared / "index.json").read_text())["fixtures"] if r["file"] == f"torch-2.15/pt2-weightless/{network}.pt2")
            batch = str(row["inputs"][0]["shape"][0])
            for mode in ("infer", "train"):
                asked = ("--mode", mode, "--batch", batch, *(("--loss", "sum") if mode == "train" else ()))
                (code, message, one), (_, _, other) = estimate(options.memest, options.shared / row["file"], *asked), estimate(options.memest, spec, *asked)
                check(f"{network} {mode} as a spec", [f"exit code {code}: {message}"] if code != 0 else differences(one, other))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

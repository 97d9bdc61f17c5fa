#!/usr/bin/env python3
"""Exports the classification models of torchvision and 50 popular ones of timm, runs each eagerly on the CUDA device, runs memest on its spec, and writes how far they are apart.

    compare_models.py --export-only                       # needs no device: which models export and read
    compare_models.py --report docs/models.md             # everything
    compare_models.py --only 'swin|vit_b' --show          # some, with each difference

Needs torch, torchvision and timm with a CUDA device. docs/models.md was written on a virtual device: PyTorch's CUDA build with its allocator, engine and temporaries, whose driver
and libraries do no work, and cuDNN asks for no workspace there. Not part of the tests: it takes an hour. Each run is a process that meets a fresh device.
"""
import argparse
import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import export_spec  # noqa: E402

TIMM = """vit_tiny_patch16_224 vit_base_patch16_224 vit_large_patch16_224 vit_base_patch32_224 deit_tiny_patch16_224 deit_small_patch16_224 deit3_small_patch16_224 beit_base_patch16_224
    eva02_tiny_patch14_224 swin_tiny_patch4_window7_224 swin_base_patch4_window7_224 swinv2_tiny_window8_256 convnext_tiny convnext_base convnextv2_tiny efficientnet_b0 efficientnet_b3
    efficientnetv2_rw_s tf_efficientnetv2_s mobilenetv2_100 mobilenetv3_large_100 mobilenetv4_conv_small mnasnet_100 ghostnet_100 regnetx_032 regnety_032 resnet50 resnet50d resnet101
    resnetv2_50 resnext50_32x4d seresnet50 ecaresnet50d resnest14d resnest50d res2net50_26w_4s densenet121 dla34 hrnet_w18 vgg16_bn coatnet_0_rw_224 maxvit_tiny_tf_224 mixer_b16_224
    gmlp_s16_224 resmlp_12_224 poolformer_s12 pvt_v2_b0 cait_xxs24_224 mobilevit_s repvgg_b0""".split()
RUNS = {  # precision, optimizer, mode, memest's options
    "fp32, SGD with momentum": ("fp32", "sgd-momentum", "train", ["--precision", "fp32", "--optimizer", "sgd:momentum=0.9"]),
    "AMP fp16, AdamW": ("amp-fp16", "adamw", "train", ["--precision", "amp-fp16", "--optimizer", "adamw"]),
    "bf16, inference": ("bf16", None, "eval", ["--precision", "bf16", "--mode", "infer"]),
}
BATCH = 4
DEVICES = {"NVIDIA A100-SXM4-80GB": "a100-80gb", "NVIDIA A100-SXM4-40GB": "a100-40gb", "NVIDIA H100 80GB HBM3": "h100-80gb", "Tesla T4": "t4"}


def models():
    import torchvision
    names = torchvision.models.list_models(module=torchvision.models)
    return [f"torchvision:{n}" for n in names if "quantized" not in n] + [f"timm:{n}" for n in TIMM]


def step_loop(source, precision, optimizer, mode, trace=None):
    """Three steps as memest's default loop does them; what the allocator counts at the end of each phase and at its peak."""
    memory, training = torch.cuda.memory, mode == "train"
    torch.backends.cuda.enable_cudnn_sdp(False)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    with export_spec.no_initialisation():
        model = source.make(1000).to(dtype).train(training)
    x_host, y_host = torch.empty(BATCH, 3, source.image, source.image, dtype=dtype), torch.zeros(BATCH, dtype=torch.int64)
    if trace:
        memory._record_memory_history(max_entries=1000000, context=None, stacks="python")
    model = model.to("cuda")
    gc.collect()
    rule = {"sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adamw": torch.optim.AdamW, None: None}[optimizer]
    stepper = rule(model.parameters()) if rule else None
    scaler = torch.amp.GradScaler("cuda") if precision == "amp-fp16" and training else None
    autocast = torch.autocast("cuda", dtype=torch.float16) if precision == "amp-fp16" else contextlib.nullcontext()
    size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)  # noqa: E731
    phases, out, loss = [], None, None

    def end(step, phase):
        phases.append({"step": step, "phase": phase, "end_bytes": memory.memory_allocated(), "peak_bytes": memory.max_memory_allocated()})
        memory.reset_peak_memory_stats()

    def forward(x, y):  # the last step's output and loss live until both new ones are there
        out = model(x)
        return out, nn.functional.cross_entropy(out, y)
    memory.reset_peak_memory_stats()
    for step in (1, 2, 3):
        new = x_host.to("cuda"), y_host.to("cuda")
        x, y = new
        del new
        end(step, "inputs")
        if training:
            stepper.zero_grad()
            end(step, "zero_grad")
        with contextlib.nullcontext() if training else torch.no_grad(), autocast:
            out, loss = forward(x, y)
        end(step, "forward")
        if training:
            (scaler.scale(loss) if scaler else loss).backward()
            end(step, "backward")
            if scaler:
                scaler.step(stepper)
                scaler.update()
            else:
                stepper.step()
            end(step, "optimizer")
    if trace:
        events = [e for e in memory._snapshot()["device_traces"][0] if "addr" in e]
        low = min(e["addr"] for e in events)
        Path(trace).write_text(json.dumps({"fields": ["action", "address", "bytes"], "events": [[e["action"], e["addr"] - low, e["size"]] for e in events]}))
    parameters, buffers = list(model.parameters()), list(model.buffers())
    state = [t for s in (stepper.state.values() if stepper else ()) for t in s.values() if torch.is_tensor(t) and t.is_cuda]
    return {"parameters": sum(p.numel() for p in parameters), "phases": phases, "reserved": memory.max_memory_reserved(), "device": torch.cuda.get_device_name(0),
            "states": {"parameters_bytes": size(parameters), "buffers_bytes": size(buffers), "gradients_bytes": size(p for p in parameters if p.requires_grad) if training else 0,
                       "optimizer_state_bytes": size(state)}}


def forked(work, limit):
    """What the work returns, done in a process of its own; an error becomes {"error": text}."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.alarm(limit)
        try:
            answer = work()
        except BaseException as error:  # noqa: B902
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": f"ended after {limit} s or crashed"}


def differences(truth, answer):
    notes = [f"{k}: {answer['states'][k]:,} for {v:,}" for k, v in truth["states"].items() if answer["states"][k] != v]
    result = {"states": not notes, "ends": True, "peaks": True}
    ours = {(p["step"], p["phase"]): p for p in answer["phases"]}
    for p in truth["phases"]:
        q = ours.get((p["step"], p["phase"]), {})
        for key, what in (("end_bytes", "ends"), ("peak_bytes", "peaks")):
            if q.get(key) != p[key]:
                result[what] = False
                notes.append(f"step {p['step']} {p['phase']} {key[:-6]}: {q.get(key)} for {p[key]:,}")
    peak = max(p["peak_bytes"] for p in truth["phases"])
    result["peak_error"] = max(p["peak_bytes"] for p in answer["phases"]) / peak - 1
    result["reserved"] = answer["totals"]["reserved_peak_bytes"] == truth["reserved"]
    if not result["reserved"]:
        notes.append(f"reserved: {answer['totals']['reserved_peak_bytes']:,} for {truth['reserved']:,}")
    return {**result, "peak": peak, "notes": notes}


def compare(text, folder, options, vocabulary):
    """One model: exported, read by memest, and compared in each run."""
    started, row = time.time(), {"model": text, "runs": {}}
    path = Path(folder) / (re.sub(r"\W+", "_", text) + ".json")

    def exported():
        notes = []
        path.write_text(export_spec.rendered(export_spec.export(export_spec.Source(text), vocabulary, notes.append)) + "\n")
        return {"notes": notes}
    row["export"] = forked(exported, 300)
    if "error" in row["export"]:
        return row

    def estimate(arguments):
        words = [str(options.memest), "estimate", str(path), "--batch", str(BATCH), "--loss", "cross_entropy", *arguments, "--strict", "--json", "-"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout) if done.returncode in (0, 1) else {"error": " ".join(done.stderr.strip().splitlines())[:600]}
    if options.export_only:
        answer = estimate([])
        row["runs"]["read"] = {"error": answer["error"]} if "error" in answer else {}
        row["parameters"] = answer.get("model", {}).get("parameters", {}).get("count")
        return row
    for name, (precision, optimizer, mode, arguments) in RUNS.items():
        place = Path(options.traces) / f"{path.stem}.{precision}.{mode}" if options.traces else None
        if place:
            place.parent.mkdir(parents=True, exist_ok=True)
        truth = forked(lambda: step_loop(export_spec.Source(text), precision, optimizer, mode, place and f"{place}.pytorch.json"), 300)
        if "error" in truth:
            row["runs"][name] = {"error": "eager: " + truth["error"]}
            continue
        row["parameters"] = truth["parameters"]
        answer = estimate([*arguments, "--gpu", DEVICES.get(truth["device"], "a100-80gb"), *(["--trace", f"{place}.memest.json"] if place else [])])
        row["runs"][name] = {"error": answer["error"]} if "error" in answer else differences(truth, answer)
    row["seconds"] = round(time.time() - started, 1)
    return row


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def p95(values):
    values = sorted(values)
    return values[min(len(values) - 1, int(0.95 * len(values)))] if values else 0.0


def report(rows):
    lines = ["# Models against PyTorch", "",
             f"Written by `scripts/compare_models.py`: every classification model of torchvision and {sum(r['model'].startswith('timm') for r in rows)} popular ones of timm, exported by `scripts/export_spec.py`, run eagerly by",
             f"PyTorch's CUDA build on a virtual A100-80GB, and by memest on the exported spec. Batch {BATCH}, each model's own image size, cross-entropy, three steps. *Exact* is to the byte: the ends (and the peaks) of all",
             "phases of all steps; the peak's error is that of `max_memory_allocated`. What a virtual device cannot know (cuDNN's workspaces) counts on neither side.", "",
             "| | models | exported | answered | states exact | ends exact | peaks exact | reserved exact | peak error: p95 | worst |", "|---|---|---|---|---|---|---|---|---|---|"]
    for library in ("torchvision", "timm", ""):
        part = [r for r in rows if r["model"].startswith(library)]
        runs = [x for r in part for x in r["runs"].values()]
        good = [x for x in runs if "error" not in x]
        exported = sum("error" not in r["export"] for r in part)
        errors = [abs(x["peak_error"]) for x in good]
        lines.append(f"| {library or 'all'} | {len(part)} | {percent(exported, len(part))} | {len(good)} of {len(runs)} | " + " | ".join(percent(sum(x[k] for x in good), len(good)) for k in ("states", "ends", "peaks", "reserved"))
                     + f" | {100 * p95(errors):.2f} % | {100 * max(errors, default=0):.2f} % |")
    lines += ["", "Each run: `=` everything exact, `e` ends exact, else the error of the peak.", "", "| model | parameters | " + " | ".join(RUNS) + " | |", "|---|--:|" + "---|" * len(RUNS) + "---|"]
    for r in rows:
        if "error" in r["export"]:
            lines.append(f"| {r['model']} | | " + " | ".join("" for _ in RUNS) + f" | not exported: {r['export']['error'][:160]} |")
            continue
        cells, notes = [], []
        for name in RUNS:
            x = r["runs"].get(name, {"error": "not run"})
            if "error" in x:
                cells.append("-")
                notes.append(x["error"][:160].replace("|", "/"))
            else:
                exact = x["states"] and x["ends"] and x["peaks"] and x["reserved"]
                cells.append("=" if exact else f"e {100 * x['peak_error']:+.2f} %" if x["ends"] else f"{100 * x['peak_error']:+.2f} %")
        lines.append(f"| {r['model']} | {r.get('parameters', 0):,} | " + " | ".join(cells) + f" | {'; '.join(dict.fromkeys(notes))} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memest", default=ROOT / "build/release/memest")
    parser.add_argument("--only", default="", help="models whose name matches this regular expression")
    parser.add_argument("--export-only", action="store_true")
    parser.add_argument("--rows", type=Path, help="a file of results, a line each: those in it are taken as they are, new ones are added")
    parser.add_argument("--specs", help="keep the exported specs in this folder")
    parser.add_argument("--traces", help="write both lists of allocator events of each run into this folder")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--show", action="store_true", help="print each difference")
    options = parser.parse_args()
    import timm  # noqa: F401  loaded once; each run is a fork
    import torchvision  # noqa: F401
    torch.set_num_threads(1)
    vocabulary = export_spec.Vocabulary(str(options.memest))
    done = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows and options.rows.exists() else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.specs or scratch
        Path(folder).mkdir(parents=True, exist_ok=True)
        for text in models():
            if not re.search(options.only, text) or any(r["model"] == text for r in done):
                continue
            row = compare(text, folder, options, vocabulary)
            done.append(row)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            runs = row["runs"]
            print(text, row["export"].get("error", ""), *(f"[{n}: {x.get('error') or ('=' if x.get('ends') and x.get('peaks') and x.get('reserved') else str(x.get('peak_error', '')))}]" for n, x in runs.items()), *row["export"].get("notes", []), flush=True)
            if options.show:
                for name, x in runs.items():
                    for note in x.get("notes", [])[:40]:
                        print("   ", name, note)
    if options.report:
        options.report.write_text(report(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Writes docs/strategies.md: what the things people try when a job does not fit do to its memory and its work, as memest estimates them.

    scripts/regen_strategies.py [--memest PROGRAM] [--check]

--check writes nothing and exits 1 where the page is not what the program gives.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/strategies.md"

# (what a person would say, options); each stands alone beside the model's base options
COMMON = [
    ("as it is", ""),
    ("half the batch, two micro-batches", "--batch {half} --grad-accum 2"),
    ("autocast to bf16", "--amp bf16"),
    ("autocast to fp16 with GradScaler", "--amp fp16"),
    ("everything in bf16", "--precision bf16"),
    ("everything in bf16, float32 master weights as DeepSpeed keeps them", "--precision bf16 --master-weights deepspeed"),
    ("gradients freed before the forward (`zero_grad` at the end of the step)", "--zero-grad-at end"),
    ("gradients zeroed instead of freed", "--zero-grad zero"),
    ("output's name deleted before backward", "--keep-output no"),
    ("fused AdamW", "--optimizer adamw:fused=true"),
    ("AdamW as a for-loop", "--optimizer adamw:foreach=false"),
    ("SGD with momentum", "--optimizer sgd:momentum=0.9"),
    ("8-bit AdamW (bitsandbytes)", "--optimizer adamw-8bit"),
    ("Adafactor", "--optimizer adafactor"),
    ("checkpoint each block", "--checkpoint modules={blocks}"),
    ("checkpoint each block, keep what {kept} gives", "--checkpoint modules={blocks},keep={kept}"),
    ("checkpoint each block, reentrant", "--checkpoint modules={blocks},reentrant"),
    ("saved tensors on the host (`save_on_cpu`)", "--saved-tensors cpu"),
    ("saved tensors as int8", "--saved-tensors int8"),
    ("checkpoint each block, its input on the host", "--checkpoint modules={blocks} --saved-tensors cpu"),
    ("train the head alone", "{freeze}"),
    ("expandable segments", "--alloc-conf expandable_segments:True"),
    ("bf16 autocast, fused AdamW, checkpoint each block", "--amp bf16 --optimizer adamw:fused=true --checkpoint modules={blocks}"),
    ("inference", "--mode infer"),
]
MODELS = [
    ("resnet50", "images of 224 × 224", {"batch": 64, "half": 32, "blocks": "layer*.*", "kept": "convolution",
                                         "freeze": "--freeze 'conv*' --freeze 'bn*' --freeze 'layer*'"}),
    ("vit_b_16", "a transformer encoder of 12 layers on 197 patches", {"batch": 64, "half": 32, "blocks": "encoder.layers.*", "kept": "matmul",
                                                                       "freeze": "--freeze 'encoder*' --freeze 'conv_proj*' --freeze class_token",
                                                                       "more": [
                                                                           ("LoRA on the linear layers, the rest in bf16", "--precision bf16 --lora r=8,targets=all-linear"),
                                                                           ("the same over NF4 weights", "--precision bf16 --quant nf4 --lora r=8,targets=all-linear"),
                                                                       ]}),
]
CATEGORIES = [("weights", ["parameter", "buffer"]), ("gradients", ["gradient"]), ("optimizer", ["optimizer_state", "grad_scaler"]),
              ("activations", ["activation", "autocast_cache"])]


def human(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def flops(n):
    return f"{n / 1e12:.2f}"


def run(program, model, options):
    import shlex
    command = [str(program), "estimate", model, *shlex.split(options), "--quiet", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"memest estimate {model} {options}: {done.stderr}")
    return json.loads(done.stdout)


def row(what, options, r):
    at = r["peak"]["categories"]
    shares = [sum(at.get(c, 0) for c in names) for _, names in CATEGORIES]
    rest = sum(at.values()) - sum(shares)
    compute = r["compute"]
    again = compute["recomputed_flops"]
    work = f"{flops(compute['forward_flops'])} + {flops(compute['backward_flops'])}"
    if again:
        work += f" ({100 * again / compute['forward_flops']:.0f} % again)"
    host = r.get("host", {}).get("saved_tensors_peak_bytes", 0)
    totals = r["totals"]
    cells = [what + (f"; {human(host)} on the host" if host else ""), f"`{options}`" if options else "",
             f"**{human(totals['allocated_peak_bytes'])}**", human(totals["reserved_peak_bytes"]), *map(human, shares), human(rest), work]
    return "| " + " | ".join(cells) + " |"


def page(program):
    lines = ["# When a job does not fit", "",
             "Written by `scripts/regen_strategies.py` from memest's own answers: three steps, fp32 and AdamW unless the row says otherwise, cross-entropy, PyTorch's newest",
             "release that memest models. The peak is `max_memory_allocated`, and the columns after `reserved` say what is alive at that instant. Work is forward + backward of a step in TFLOP, as",
             "torch.utils.flop_counter counts it, with the share of the forward that checkpointing repeats. Rows change one thing each; try combinations yourself.", ""]
    for model, what, names in MODELS:
        lines += [f"## {model}, batch {names['batch']} ({what})", "",
                  "| | options | peak | reserved | weights | gradients | optimizer | activations | other | TFLOP |",
                  "|---|---|--:|--:|--:|--:|--:|--:|--:|---|"]
        for text, options in COMMON + names.get("more", []):
            options = options.format(**names)
            given = options if "--batch" in options else f"--batch {names['batch']} {options}"
            lines.append(row(text.format(**names), options, run(program, model, given)))
        lines.append("")
    lines.append("`memest estimate MODEL --alloc-what-if` shows what other settings of the allocator would reserve for any of these.")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memest", default=ROOT / "build/release/memest", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = page(options.memest.resolve())
    if not options.check:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print("docs/strategies.md is not what memest gives; scripts/regen_strategies.py writes it anew")
    return 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Records what torch.utils.flop_counter counts for every shipped spec's eager model: forward and backward of one training step, batch 2.

Needs torch with CUDA or the virtual device of ../shared/tools/oracle (sh vgpu/run.sh LIBS python scripts/record_flops.py);
writes tests/unit/run/flops.txt, which tests/unit/run/flops_test.cpp reads.
"""
import sys
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import export_spec  # noqa: E402


def first_tensor(out):
    if torch.is_tensor(out):
        return out
    return first_tensor(next(iter(out.values())) if isinstance(out, dict) else out[0])


def flops(source):
    setting = {"batch": 2, **source.defaults, "training": 1}
    model = source.build(source.defaults.get("classes")).to(torch.float32).to_empty(device="cuda").train()
    batch = [torch.empty(x.shape, dtype=torch.float32 if x.is_floating_point() else x.dtype, device="cuda") for x in source.batch(setting)]
    counts = []
    with FlopCounterMode(display=False) as counter:
        loss = first_tensor(model(*batch)).sum()
    counts.append(counter.get_total_flops())
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return [*counts, counter.get_total_flops()]


def main():
    torch.backends.cuda.enable_cudnn_sdp(False)
    lines = []
    for name, text in sorted(export_spec.shipped().items()):
        lines.append(" ".join(map(str, (name, *flops(export_spec.Source(text))))))
        print(lines[-1], file=sys.stderr)
    head = "# name, FLOPs of forward and backward with batch 2, as torch.utils.flop_counter counts them (scripts/record_flops.py)\n"
    (ROOT / "tests/unit/run/flops.txt").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

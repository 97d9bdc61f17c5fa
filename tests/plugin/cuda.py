#!/usr/bin/env python3
"""memest probe --device cuda on the virtual device of ../shared/tools/oracle: cuda.py --memest PROGRAM --vgpu LIBS [NAME...]

LIBS is what its vgpu/build.sh made. memest_cuda.so must have been built with the LibTorch of the same environment. Each network's allocated
and reserved peaks must be the estimate's. The last line is "N passed, N failed".
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run import CONFIGS  # noqa: E402

RUN = Path(__file__).resolve().parents[3] / "shared" / "tools" / "oracle" / "vgpu" / "run.sh"
CASES = {
    "mlp": [], "resnet18": [], "resnet50": ["--batches", "2,4"], "vgg16": ["--optimizer", "sgd:momentum=0.9"], "mobilenet_v2": [],
    "efficientnet_b0": ["--optimizer", "adam"], "densenet121": [], "convnext_tiny": ["--precision", "bf16"], "swin_t": [], "vit_b_16": [],
    "transformer_encoder": ["--seq", "64"], "unet": ["--mode", "infer"],
    "bert": ["--seq", "32", "--strategies", "plain,amp-bf16,amp-fp16,accum=2,checkpoint,amp-bf16+checkpoint"],
    "gpt2": ["--seq", "32", "--strategies", "plain,amp-bf16,checkpoint"], "llama": ["--seq", "32", "--strategies", "plain,amp-bf16,checkpoint"],
    "opt": ["--seq", "32"], "t5": ["--seq", "32"], "vit": [],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memest", required=True)
    parser.add_argument("--vgpu", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    failed = []
    names = options.names or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            spec = name
            if name in CONFIGS:
                spec = Path(folder) / name / "config.json"
                spec.parent.mkdir()
                spec.write_text(json.dumps({"model_type": name, **CONFIGS[name]}))
            batch = [] if "--batches" in CASES[name] else ["--batch", "2"]
            p = subprocess.run(["sh", RUN, options.vgpu, options.memest, "probe", spec, *batch, "--device", "cuda", "--validate", *CASES[name]],
                               capture_output=True, text=True)
            print(f"{'equal' if p.returncode == 0 else 'DIFFERS'}  {name} {' '.join(CASES[name])}")
            if p.returncode:
                failed.append(name)
                print(p.stdout + p.stderr)
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

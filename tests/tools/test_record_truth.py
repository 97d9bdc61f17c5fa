"""scripts/record_truth.py: what it refuses, and, where MEMEST_TORCH_PYTHON names a Python with PyTorch and a CUDA device (or a stand-in for one), a recorded run beside memest's estimate."""
import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts/record_truth.py"
MODEL = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)), torch.randn(16, 64)

def with_loss():
    return *make(), lambda out: out.square().mean()

number = 5

def nothing():
    return number
"""


class RecordTruth(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "net.py").write_text(MODEL)

    def run_script(self, python, *arguments, **environment):
        return subprocess.run([*python, str(SCRIPT), *arguments], cwd=self.folder, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})

    def refused(self, p, message):
        self.assertEqual((p.returncode, p.stdout), (2, ""), p.stderr)
        self.assertTrue(p.stderr.startswith("record_truth.py: ") and p.stderr.count("\n") == 1, p.stderr)
        self.assertIn(message, p.stderr)

    def test_without_torch(self):
        (self.folder / "torch.py").write_text("raise ImportError('none here')\n")
        self.refused(self.run_script([sys.executable], "net.py:make", PYTHONPATH=str(self.folder)), "PyTorch is not installed here")

    def test_without_gpu(self):
        (self.folder / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
        self.refused(self.run_script([sys.executable], "net.py:make", PYTHONPATH=str(self.folder)), "finds no CUDA GPU")

    def test_on_a_device(self):
        python, memest = shlex.split(os.environ.get("MEMEST_TORCH_PYTHON", "")), ROOT / "build/release/memest"
        if not python or not memest.exists():
            self.skipTest("MEMEST_TORCH_PYTHON names no Python with PyTorch and a CUDA device, or memest is not built")
        for model, options in (("net.py:make", ["--optimizer", "adamw"]), ("net.py:with_loss", ["--optimizer", "sgd:momentum=0.9", "--precision", "amp-fp16"]), ("net:make", ["--mode", "infer"])):
            p = self.run_script(python, model, "--compare", "--memest", str(memest), "--snapshot", "run.pickle", "--out", "rows.jsonl", *options)
            self.assertEqual(p.returncode, 0, p.stderr)
            rows = [line.split() for line in p.stdout.splitlines() if line.endswith("%")]
            self.assertGreater(len(rows), 6)
            self.assertEqual([row for row in rows if row[-3] != "+0"], [])
            replayed = json.loads(subprocess.run([memest, "replay", "run.pickle", "--json", "-"], cwd=self.folder, capture_output=True, text=True).stdout)
            self.assertIsNone(replayed["devices"][0]["settings"][0]["difference"])
        truths = [json.loads(line) for line in (self.folder / "rows.jsonl").read_text().splitlines()]
        self.assertEqual([len(t["truth"]["iterations"]) for t in truths], [3, 3, 3])
        for model, message in (("net.py:nope", "no function nope"), ("net.py:number", "no function number"), ("net.py:nothing", "gives no (model, inputs)"), ("nowhere.py:make", "no file nowhere.py"),
                               ("nowhere:make", "cannot be imported"), ("net", "neither MODULE:FUNCTION")):
            self.refused(self.run_script(python, model), message)
        self.refused(self.run_script(python, "net.py:make", "--optimizer", "lion"), "this script makes")


if __name__ == "__main__":
    unittest.main()

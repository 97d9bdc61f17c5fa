#!/usr/bin/env python3
"""TorchScript through the LibTorch plugin: run.py --memest PROGRAM

Archives are written here, without PyTorch; those of ../shared/fixtures are read too where they are there. Where the plugin
was not built, the tests that need it count as skipped. The last line is "N passed, N failed, N skipped".
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from script_writer import Parameter, Script, Tensor, write  # noqa: E402

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures"
MEMEST = "memest"

LINEAR = '''class Linear(Module):
  __parameters__ = ["weight", "bias", ]
  __buffers__ = []
  weight : Tensor
  bias : Tensor
  training : bool
  def forward(self: __torch__.Linear,
    x: Tensor) -> Tensor:
    weight = self.weight
    bias = self.bias
    return torch.linear(x, weight, bias)
'''


def linear(outputs, inputs, **options):
    return Script("Linear", weight=Parameter(outputs, inputs, **options), bias=Parameter(outputs, **options), training=True)


def net(body, attributes="", signature="x: Tensor) -> Tensor", more=""):
    """A class Net whose forward has this body, indented by four, with two linear layers."""
    return LINEAR + f'''class Net(Module):
  __parameters__ = []
  __buffers__ = ["steps", ]
{attributes}  training : bool
  steps : Tensor
  a : __torch__.Linear
  b : __torch__.Linear
  def forward(self: __torch__.Net,
    {signature}:
    a = self.a
    b = self.b
{body}{more}'''


def run(*arguments, **environment):
    return subprocess.run([MEMEST, "estimate", *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **environment})


def probe(*arguments):
    return subprocess.run([MEMEST, "probe", *map(str, arguments)], capture_output=True, text=True)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name) / "net.pt"

    def write(self, source, shared=False, dtype="Float", constants=(), **attributes):
        a = linear(8, 8, dtype=dtype)
        write(self.path, Script("Net", **attributes, training=True, steps=Tensor(1, dtype="Long"), a=a, b=a if shared else linear(8, 8, dtype=dtype)),
              source, constants)

    def refused(self, *arguments, **environment):
        p = run(*arguments, **environment)
        self.assertEqual(p.returncode, 2, p.stderr)
        self.assertTrue(p.stderr.startswith("memest: "), p.stderr)
        return p.stderr


class WithoutPlugin(Files):
    """What is said of a file before LibTorch is asked."""

    def test_damaged(self):
        self.write(net("    return (b).forward((a).forward(x, ), )\n"))
        data = self.path.read_bytes()
        self.path.write_bytes(data[: len(data) // 2])
        self.refused(self.path)
        write(self.path, Script("Net"), "", leave_out=("data.pkl",))
        self.assertIn("its data.pkl is missing", self.refused(self.path))

    def test_missing_plugin(self):
        self.write(net("    return (b).forward((a).forward(x, ), )\n"))
        self.assertIn("/nowhere.so cannot be loaded", self.refused(self.path, MEMEST_TORCH_PLUGIN="/nowhere.so"))

    def test_core_is_not_linked(self):
        self.assertNotIn(b"libtorch_cpu", Path(MEMEST).read_bytes())


class OnGpu(Files):
    """What is said of a run on a GPU, by a plugin that gives canned replies."""

    def setUp(self):
        super().setUp()
        self.plugin = Path(MEMEST).parent / "tests" / "fake_cuda.so"
        if not self.plugin.exists():
            self.skipTest("fake_cuda.so was not built")
        p = run("mlp", "--gpu", "a100-80gb", "--json", "-")
        self.estimate = json.loads(p.stdout)

    def probe(self, changes, *options, product="NVIDIA A100-SXM4-80GB"):
        device = {"device": product, "total_memory": 80 << 30}
        phases = [{"end_bytes": q["end_bytes"], "peak_bytes": q["peak_bytes"],
                   "categories": dict.fromkeys(("parameter", "buffer", "input", "gradient", "optimizer_state", "activation"), 0)}
                  for q in self.estimate["phases"] if q["phase"] != "load"]
        reply = {**device, "torch": "2.15.0", "allocations": 1, "constants_bytes": 0, "context": 430 << 20, "retries": 0, "step_ms": [9, 2, 3, 4],
                 "allocated_peak": self.estimate["totals"]["allocated_peak_bytes"], "reserved_peak": self.estimate["totals"]["reserved_peak_bytes"],
                 "phases": phases, **changes}
        replies = Path(self.folder.name) / "replies"
        replies.write_text(json.dumps(device) + "\n" + json.dumps(reply) + "\n")
        return subprocess.run([MEMEST, "probe", "mlp", "--device", "cuda", "--validate", *options], capture_output=True, text=True,
                              env={**os.environ, "MEMEST_CUDA_PLUGIN": str(self.plugin), "FAKE_CUDA": str(replies)})

    def test_equal(self):
        p = self.probe({})
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertIn("3.0 ms", p.stdout)  # the median without the first step
        self.assertIn("context: memest 425 MiB, GPU 430 MiB", p.stdout)

    def test_differs(self):
        more = {"reserved_peak": 2 * self.estimate["totals"]["reserved_peak_bytes"]}
        self.assertEqual(self.probe(more).returncode, 1)
        p = self.probe(more, "--tolerance", "60%", "--batches", "1,1", "--strategies", "plain,fp32")
        self.assertEqual(p.returncode, 0, p.stdout)
        self.assertEqual(p.stdout.count("-50.00 %"), 4)

    def test_out_of_memory(self):
        p = self.probe({"out_of_memory": {"step": 1, "phase": "forward", "op": "aten::linear", "module": "fc1", "message": "CUDA out of memory. Tried"}})
        self.assertEqual(p.returncode, 1)  # memest says that it fits
        self.assertIn("out of memory with batch 1, plain: step 1, forward, aten::linear in fc1", p.stdout)
        self.assertIn("memest:   it fits", p.stdout)

    def test_wrong(self):
        self.assertIn("memest does not know the GPU 'Tensor Card 9'", self.probe({}, product="Tensor Card 9").stderr)
        self.assertEqual(self.probe({}, "--gpu", "a100-80gb", product="Tensor Card 9").returncode, 0)
        self.assertIn("'twice' is no strategy", self.probe({}, "--strategies", "twice").stderr)


class WithPlugin(Files):
    def estimate(self, *arguments):
        p = run(self.path, *arguments, "--json", "-")
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)

    def test_same_as_spec(self):
        """A script of two layers takes what a spec of them takes, in each phase of each step."""
        self.write(net("    return (b).forward(torch.relu((a).forward(x, )), )\n"))
        layer = {"type": "Linear", "in_features": 8, "out_features": 8}
        spec = self.path.with_suffix(".json")
        spec.write_text(json.dumps({"memest_spec": 1, "name": "net", "inputs": [{"name": "x", "shape": ["batch", 8], "dtype": "float32"}],
                                    "layers": [layer, {"type": "ReLU"}, layer]}))
        for options in (["--mode", "infer"], ["--optimizer", "adam"], ["--amp"], ["--precision", "bf16"]):
            script = self.estimate("--input", "x=batchx8", "--batch", "32", *options)
            p = run(spec, "--batch", "32", *options, "--json", "-")
            wanted = json.loads(p.stdout)
            script_ends = [(q["phase"], q["end_bytes"] - 512) for q in script["phases"]]  # the script's buffer
            self.assertEqual(script_ends, [(q["phase"], q["end_bytes"]) for q in wanted["phases"]], options)
            self.assertEqual(script["states"]["gradients_bytes"], wanted["states"]["gradients_bytes"])
        self.assertEqual(script["model"]["buffers"]["bytes"], 8)

    def test_loops_and_branches(self):
        self.write(net('''    for i in range(3):
      x = (a).forward(x, )
    if self.training:
      x1 = (b).forward(x, )
    else:
      x1 = x
    return x1
'''))
        flops = [self.estimate("--input", "x=4x8", "--mode", mode)["compute"]["forward_flops"] for mode in ("train", "infer")]
        self.assertEqual(flops[0] * 3, flops[1] * 4)

    def test_modules(self):
        self.write(net("    return (b).forward(torch.relu((a).forward(x, )), )\n"))
        saved = {m["path"]: m["activations_bytes"] for m in self.estimate("--input", "x=16x8")["modules"]}
        self.assertEqual(set(saved), {"", "a", "b"})
        self.assertEqual(self.estimate("--input", "x=16x8")["model"]["parameters"]["count"], 144)

    def test_shared(self):
        self.write(net("    return (b).forward((a).forward(x, ), )\n"), shared=True)
        self.assertEqual(self.estimate("--input", "x=4x8")["model"]["parameters"], {"count": 72, "trainable_count": 72, "bytes": 288, "trainable_bytes": 288})

    def test_data_dependent(self):
        self.write(net('''    if bool(torch.gt(torch.sum(x), 1.)):
      y = (a).forward(x, )
    else:
      y = (b).forward(x, )
    return y
'''))
        found = self.estimate("--input", "x=4x8")["diagnostics"]
        self.assertEqual([d["code"] for d in found if d["severity"] == "warning"], ["data-dependent"])
        self.assertEqual(run(self.path, "--input", "x=4x8", "--strict").returncode, 3)

    def test_loop_over_data(self):
        """Every question is answered with no, so a loop that asks whether to go on ends, and one that asks whether to stop is given up."""
        self.write(net('''    go = True
    while go:
      x = (a).forward(x, )
      go = bool(torch.lt(torch.sum(x), 1.))
    return x
'''))
        self.estimate("--input", "x=4x8", "--mode", "infer")
        self.write(net('''    stop = False
    while torch.__not__(stop):
      x = (a).forward(x, )
      stop = bool(torch.lt(torch.sum(x), 1.))
    return x
'''))
        self.assertIn("a loop of the script depends on data", self.refused(self.path, "--input", "x=4x8", "--mode", "infer"))

    def test_inputs(self):
        self.write(net('''    y = torch.add((a).forward(feats["left"], ), (pair)[0])
    return {"out": y, "other": (b).forward((pair)[1], )}
''', signature="feats: Dict[str, Tensor],\n    pair: Tuple[Tensor, Tensor]) -> Dict[str, Tensor]"))
        given = ["--input", "feats.left=3x8", "--input", "pair.0=3x8", "--input", "pair.1=5x8"]
        self.estimate(*given)
        self.assertIn("the input 'pair.1' (Tensor) was not given", self.refused(self.path, *given[:-2]))
        self.assertIn("forward takes (Dict[str, Tensor] feats, Tuple[Tensor, Tensor] pair)", self.refused(self.path))
        self.assertIn("the method has no input 'other'", self.refused(self.path, *given, "--input", "other=1"))
        self.assertIn("forward failed with these inputs", self.refused(self.path, *given[:-1], "pair.1=5x9"))
        self.assertIn("no input's shape has the size 'batch'", self.refused(self.path, *given, "--batch", "4"))

    def test_types(self):
        self.write(net("    return (b).forward((a).forward(x, ), )\n"), dtype="Half")
        half = self.estimate("--input", "x=4x8", "--mode", "infer")
        self.assertEqual(half["model"]["parameters"]["bytes"], 288)
        self.write(net("    return (b).forward((a).forward(x, ), )\n"))
        self.assertEqual(self.estimate("--input", "x=4x8", "--precision", "bf16")["model"]["parameters"]["bytes"], 288)

    def test_saved_on_cuda(self):
        weights = [Parameter(8, 8, device="cuda:0"), Parameter(8, device="cuda:0")]
        layer = Script("Linear", weight=weights[0], bias=weights[1], training=True)
        write(self.path, Script("Net", training=True, steps=Tensor(1, dtype="Long"), a=layer, b=layer), net("    return (a).forward(x, )\n"))
        self.assertEqual(self.estimate("--input", "x=4x8")["model"]["parameters"]["count"], 72)

    def test_method(self):
        more = '''  def embed(self: __torch__.Net,
    x: Tensor) -> Tensor:
    a = self.a
    return (a).forward(x, )
'''
        self.write(net("    return (b).forward((a).forward(x, ), )\n", more=more))
        self.assertLess(self.estimate("--input", "x=4x8", "--method", "embed")["compute"]["forward_flops"],
                        self.estimate("--input", "x=4x8")["compute"]["forward_flops"])
        self.assertIn("it has forward, embed", self.refused(self.path, "--method", "nope"))

    def test_constants(self):
        """A frozen file: weights are constants, which load with it; numbers of a trace are computed with."""
        source = '''class Net(Module):
  __parameters__ = []
  __buffers__ = []
  def forward(self: __torch__.Net,
    x: Tensor) -> Tensor:
    n = torch.add(CONSTANTS.c1, CONSTANTS.c1)
    return torch.linear(torch.reshape(x, [int(n), 8]), CONSTANTS.c0)
'''
        write(self.path, Script("Net"), source, [Tensor(8, 8), Tensor(dtype="Long", value=2)])
        found = self.estimate("--input", "x=32", "--mode", "infer")
        self.assertEqual((found["model"]["parameters"]["bytes"], found["model"]["buffers"]["bytes"]), (0, 256))
        self.assertIn("the file is frozen", self.refused(self.path, "--input", "x=32"))

    def test_quantised(self):
        """Packed weights are objects of the CPU's kernels: counted, and not run. quantised.pt: quantize_dynamic of Linear(16, 32), ReLU, Linear(32, 8), scripted by torch 2.6."""
        path = Path(__file__).parent / "quantised.pt"
        for given in ([], ["--input", "x=4x16"]):
            p = run(path, "--mode", "infer", *given, "--json", "-")
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertEqual(p.stderr.count("memest: "), 1)
            self.assertIn("the file holds 2 quantised modules", p.stderr)
            model = json.loads(p.stdout)["model"]
            self.assertEqual((model["parameters"]["bytes"], model["buffers"]["bytes"]), (0, 16 * 32 + 32 * 8 + 4 * (32 + 8)))
        self.assertIn("which do not train", run(path).stderr)
        self.assertIn("which a probe does not run", probe(path, "--mode", "infer").stderr)

    def test_unknown_op(self):
        self.write(net("    return torch.special_airy_ai((a).forward(x, ))\n"))
        self.assertEqual([d["code"] for d in self.estimate("--input", "x=4x8", "--mode", "infer")["diagnostics"] if d["severity"] == "warning"], ["unknown-op"])

    def test_probe(self):
        """LibTorch's own run of the same file, on the meta device and on the CPU, ends each phase with the same bytes."""
        self.write(net("    return (b).forward(torch.dropout(torch.relu((a).forward(x, )), 0.5, self.training), )\n"))
        for device in ("meta", "cpu"):
            for options in (["--optimizer", "sgd:momentum=0.9"], ["--optimizer", "adam", "--precision", "bf16"], ["--mode", "infer"], ["--loss", "mean"]):
                p = probe(self.path, "--input", "x=4x8", "--device", device, "--validate", *options)
                self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
                self.assertIn("equal to the byte at the end of each phase", p.stdout)
        for options, message in ((["--amp"], "does not take --amp"), (["--device", "tpu"], "is none of cpu, meta, cuda"), (["--optimizer", "lion"], "lion"),
                                 (["--tolerance", "much"], "is no share"), (["--loss", "mse"], "a probe takes no loss 'mse'")):
            p = probe(self.path, "--input", "x=4x8", *options)
            self.assertEqual(p.returncode, 2, p.stdout)
            self.assertIn(message, p.stderr)

    def test_probe_differs(self):
        """An operator that memest does not know is booked as assumed; beyond the tolerance the exit code says so."""
        self.write(net("    return torch.special_entr((a).forward(x, ))\n"))
        p = probe(self.path, "--input", "x=64x8", "--validate")
        if "equal to the byte" not in p.stdout:
            self.assertEqual(p.returncode, 1, p.stdout)
            self.assertIn("activations and others", p.stdout)
            self.assertEqual(probe(self.path, "--input", "x=64x8", "--validate", "--tolerance", "1000%").returncode, 0)

    def test_batches(self):
        """Another batch is another recording."""
        self.write(net("    return (b).forward((a).forward(x, ), )\n"))
        found = self.estimate("--input", "x=batchx8", "--batch", "512,64")
        peaks = [q["peak_bytes"] for q in found["phases"] if q["phase"] == "inputs"]
        self.assertEqual(len(peaks), 3)
        ends = [q["end_bytes"] for q in found["phases"] if q["phase"] == "forward"]
        self.assertGreater(ends[0], ends[1])


# Networks whose recorded program LibTorch runs: shipped specs with what makes them small, and configs of Hugging Face families.
SPECS = {
    "mlp": [], "lenet5": [], "alexnet": ["--image", "96"], "vgg16": ["--image", "32"], "resnet18": ["--image", "64"], "resnet50": ["--image", "64"],
    "squeezenet1_0": ["--image", "64"], "mobilenet_v2": ["--image", "64"], "mobilenet_v3_small": ["--image", "64"], "mnasnet0_5": ["--image", "64"],
    "shufflenet_v2_x1_0": ["--image", "64"], "efficientnet_b0": ["--image", "64"], "regnet_y_400mf": ["--image", "64"], "densenet121": ["--image", "64"],
    "googlenet": ["--image", "64"], "convnext_tiny": ["--image", "64"], "swin_t": ["--image", "64"], "vit_b_16": [], "unet": ["--image", "64"],
    "transformer_encoder": ["--seq", "16"], "lstm_classifier": ["--seq", "16"],
}
ON_CPU = {"mlp", "lenet5", "resnet18", "squeezenet1_0", "mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x1_0", "efficientnet_b0",
          "regnet_y_400mf", "transformer_encoder", "lstm_classifier"}  # small enough to be computed
TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 96, "max_position_embeddings": 64}
CONFIGS = {
    "bert": {**TEXT, "architectures": ["BertForMaskedLM"]},
    "roberta": {**TEXT, "architectures": ["RobertaForSequenceClassification"]},
    "electra": {**TEXT, "embedding_size": 16, "architectures": ["ElectraForPreTraining"]},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 96, "max_position_embeddings": 64, "architectures": ["DistilBertForMaskedLM"]},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64, "architectures": ["GPT2LMHeadModel"]},
    "gpt_neox": {**TEXT, "architectures": ["GPTNeoXForCausalLM"]},
    "llama": {**TEXT, "num_key_value_heads": 2, "architectures": ["LlamaForCausalLM"]},
    "opt": {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "architectures": ["OPTForCausalLM"]},
    "t5": {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 64, "vocab_size": 96, "architectures": ["T5ForConditionalGeneration"]},
    "vit": {**TEXT, "image_size": 32, "patch_size": 8, "architectures": ["ViTForImageClassification"]},
}


class ProgramProbes(Files):
    """What memest records of a network, run by LibTorch: the same bytes at the end of each phase."""

    def check(self, cases, batch=("--batch", "2")):
        def wrong(case):
            spec, *options = case
            p = probe(spec, *batch, "--steps", "2", "--validate", *options)
            return f"{' '.join(map(str, case))}: {p.stdout}{p.stderr}" if p.returncode else None

        with ThreadPoolExecutor(2) as pool:
            self.assertEqual([w for w in pool.map(wrong, cases) if w], [])

    def test_specs(self):
        self.check([(spec, *options, "--device", device) for spec, options in SPECS.items()
                    for device in ("meta", "cpu") if device == "meta" or spec in ON_CPU])

    def test_configs(self):
        cases = []
        for kind, fields in CONFIGS.items():
            path = Path(self.folder.name) / kind / "config.json"
            path.parent.mkdir()
            path.write_text(json.dumps({"model_type": kind, **fields}))
            cases += [(path, *([] if kind == "vit" else ["--seq", "16"]), "--device", device) for device in ("meta", "cpu")]
        self.check(cases)

    def test_grouped_heads(self):
        """Llama and its kin, whose key and value heads serve several query heads."""
        cases = []
        for kind, fields in {"llama": {}, "mistral": {"sliding_window": 8}, "qwen2": {"num_key_value_heads": 1}, "gemma": {"head_dim": 8, "num_key_value_heads": 1}}.items():
            path = Path(self.folder.name) / kind / "config.json"
            path.parent.mkdir()
            path.write_text(json.dumps({"model_type": kind, **TEXT, "num_key_value_heads": 2, "architectures": [f"{kind.capitalize()}ForCausalLM"], **fields}))
            for options in ([], ["--precision", "bf16"], ["--mode", "infer"], ["--lora", "targets=all-linear"], ["--checkpoint", "full"]):
                cases += [(path, "--seq", "16", "--device", "meta", *options)]
        self.check(cases)

    def test_recurrent(self):
        """The CPU and the meta device run the steps one by one."""
        cases = []
        for name, layer in {"lstm": {"type": "LSTM"}, "deep": {"type": "LSTM", "num_layers": 2, "batch_first": True, "bidirectional": True, "dropout": 0.2},
                            "projected": {"type": "LSTM", "proj_size": 4}, "gru": {"type": "GRU", "num_layers": 2, "bias": False, "bidirectional": True}, "rnn": {"type": "RNN"},
                            "relu": {"type": "RNN", "nonlinearity": "relu", "num_layers": 2, "dropout": 0.1}}.items():
            path = Path(self.folder.name) / f"{name}.json"
            nodes = [("x", "placeholder", None, []), ("r", "call_module", "rnn", ["%x"]), ("y", "call_function", "getitem", ["%r", 0]), ("output", "output", None, ["%y"])]
            path.write_text(json.dumps({"memest_spec": 1, "name": name, "inputs": [{"name": "x", "shape": ["batch", 7, 12], "dtype": "float32"}], "loss": "sum",
                                        "modules": {"rnn": {"input_size": 12, "hidden_size": 24, **layer}},
                                        "nodes": [{"name": n, "op": op, **({"target": target} if target else {}), **({"args": args} if args else {})} for n, op, target, args in nodes]}))
            cases += [(path, "--device", device, *options) for device in ("meta", "cpu") for options in ([], ["--mode", "infer"], ["--precision", "bf16"])]
        self.check(cases)

    def test_programs(self):
        """Exported programs, a decomposed one among them; one that holds its own backward pass is refused."""
        folder = Path(__file__).resolve().parent.parent / "pt2"
        self.check([(folder / f"{name}.pt2", "--device", "meta", *options) for name in ("convolutions", "convolutions_core", "no_grad", "tied", "twice", "names", "statistics", "branch")
                    for options in ([], ["--mode", "infer"]) if options or name != "convolutions_core"], batch=())
        for name, message in (("joint", "holds its own backward pass"), ("autocast", "runs without autocast"), ("custom", "LibTorch has no op 'memest_test.repeated")):
            p = probe(folder / f"{name}.pt2", "--device", "meta")
            self.assertIn(message, p.stderr)
            self.assertEqual(p.returncode, 2)

    def test_options(self):
        self.check([("resnet18", "--image", "64", "--device", "meta", *options) for options in (
            ["--mode", "infer"], ["--grad-accum", "2"], ["--precision", "bf16"], ["--zero-grad-at", "end"], ["--freeze", "layer1.*"],
            ["--optimizer", "sgd:momentum=0.9"], ["--optimizer", "rmsprop"], ["--keep-output", "no"], ["--checkpoint", "modules=layer2*"],
            ["--lora", "targets=fc"])])
        for options, message in ((["--checkpoint", "full,reentrant"], "a probe checkpoints without reentrance"), (["--checkpoint", "modules=*,keep=matmul"], "checkpoints whole regions"),
                                 (["--batches", "1,2"], "does not take --batches"), (["--optimizer", "lion"], "lion")):
            p = probe("mlp", *options)
            self.assertEqual(p.returncode, 2, p.stdout)
            self.assertIn(message, p.stderr)


NAMES = {"structured": ["feats.left", "feats.right", "pair.0", "pair.1"], "encoder": ["ids"], "lstm": ["ids"], "gpt": ["ids"], "gptloss": ["ids", "targets"]}


def given_inputs(row):
    names = NAMES.get(Path(row["file"]).name.split("_")[0], ["x"])
    given = []
    for name, x in zip(names, row["inputs"]):
        given += ["--input", f"{name}={'x'.join(map(str, x['shape']))}:{x['dtype']}"]
    return given


class SharedFixtures(unittest.TestCase):
    def test_good(self):
        if not (FIXTURES / "index.json").exists():
            self.skipTest("../shared/fixtures is not there")
        rows = [r for r in json.loads((FIXTURES / "index.json").read_text())["fixtures"] if r["format"] == "torchscript"]

        def wrong(row):
            given = given_inputs(row)
            frozen = row["kind"] == "frozen"
            for mode in ("infer",) if frozen else ("infer", "train"):
                p = run(FIXTURES / row["file"], *given, "--mode", mode, "--json", "-")
                if p.returncode:
                    return f"{row['file']} {mode}: {p.stderr}"
                model = json.loads(p.stdout)["model"]
                if not frozen and (model["parameters"]["bytes"], model["buffers"]["bytes"]) != (row["param_bytes"], row["buffer_bytes"]):
                    return f"{row['file']} {mode}: {model['parameters']['bytes']} bytes of parameters, {model['buffers']['bytes']} of buffers"
            return None

        with ThreadPoolExecutor(2) as pool:
            self.assertEqual([w for w in pool.map(wrong, rows) if w], [])

    def test_probes(self):
        """Byte for byte at the ends of phases."""
        if not (FIXTURES / "index.json").exists():
            self.skipTest("../shared/fixtures is not there")
        rows = [r for r in json.loads((FIXTURES / "index.json").read_text())["fixtures"]
                if r["format"] == "torchscript" and r["kind"] != "frozen" and "torch-2.15" in r["file"]]
        cases = [(r, "meta" if i % 2 else "cpu") for i, r in enumerate(rows)]
        cases += [(r, "cpu" if i % 2 else "meta") for i, r in enumerate(rows) if "16" in r["file"] or "scripted_train" in r["file"]]
        self.assertGreaterEqual(len(rows), 20)

        def wrong(case):
            row, device = case
            p = probe(FIXTURES / row["file"], *given_inputs(row), "--device", device, "--validate", "--steps", "2")
            return f"{row['file']} on {device}: {p.stdout}{p.stderr}" if p.returncode else None

        with ThreadPoolExecutor(2) as pool:
            self.assertEqual([w for w in pool.map(wrong, cases) if w], [])

    def test_as_exported(self):
        """The same network as TorchScript and as an exported program: the same states, and peaks within 1 %. TorchScript's interpreter drops a value after its last use, as
        running the program itself does (--lifetimes graph), where the module's names hold it longer."""
        if not (FIXTURES / "index.json").exists():
            self.skipTest("../shared/fixtures is not there")
        rows = [r for r in json.loads((FIXTURES / "index.json").read_text())["fixtures"] if "torch-2.15" in r["file"]]
        key = lambda r: (r["model"], r["dtype"], r["mode"], json.dumps(r["inputs"]))  # noqa: E731
        programs = {key(r): r for r in rows if r["format"] == "pt2" and r["kind"] == "export"}
        pairs = [(r, programs[key(r)]) for r in rows if r["format"] == "torchscript" and r["kind"] == "scripted" and key(r) in programs]
        self.assertGreaterEqual(len(pairs), 12)

        def wrong(pair):
            script, program = pair
            mode = ["--mode", "train" if script["mode"] == "train" else "infer", "--json", "-"]
            done = [run(FIXTURES / script["file"], *given_inputs(script), *mode), *(run(FIXTURES / program["file"], *mode, "--lifetimes", way) for way in ("frames", "graph"))]
            if any(p.returncode for p in done):
                return [p.stderr for p in done]
            one, *others = [json.loads(p.stdout) for p in done]
            if any(one["states"] != other["states"] for other in others):
                return script["file"], "states", [e["states"] for e in (one, *others)]
            peaks = [[e["totals"][f"{what}_peak_bytes"] for e in (one, *others)] for what in ("allocated", "reserved")]
            return (script["file"], peaks) if any(min(abs(mine - a), abs(mine - b)) > 0.01 * mine for mine, a, b in peaks) else None

        with ThreadPoolExecutor(2) as pool:
            self.assertEqual([w for w in pool.map(wrong, pairs) if w], [])

    def test_bad(self):
        if not (FIXTURES / "bad").exists():
            self.skipTest("../shared/fixtures is not there")
        for path in sorted((FIXTURES / "bad").glob("*.pt")):
            p = run(path, "--input", "x=6x16", "--mode", "infer")
            if path.name == "missing_constants.pt":  # without its constants it is a checkpoint, whose weights can be counted
                continue
            self.assertEqual(p.returncode, 2, path)
            self.assertTrue(p.stderr.startswith("memest: ") and p.stderr.count("\n") <= 2 and "FAILED" not in p.stderr, p.stderr)


def main():
    global MEMEST
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memest", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    MEMEST = str(Path(options.memest).resolve())
    there = (Path(MEMEST).parent / "memest_torch.so").exists() or "MEMEST_TORCH_PLUGIN" in os.environ
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    suite = unittest.TestSuite(load(c) for c in (WithoutPlugin, OnGpu, *((WithPlugin, ProgramProbes, SharedFixtures) if there else ())))
    if options.names:
        flat = [t for group in suite for t in group if any(n in t.id() for n in options.names)]
        suite = unittest.TestSuite(flat)
    result = unittest.TextTestRunner(stream=sys.stdout).run(suite)
    skipped = len(result.skipped)
    if not there:
        skipped += unittest.TestSuite(load(c) for c in (WithPlugin, ProgramProbes, SharedFixtures)).countTestCases()
        print("skipped: the LibTorch plugin was not built")
    failed = len({test.id() for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {skipped} skipped")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Writes the small .pt2 files of tests/pt2 and what PyTorch says of the modules that they were exported from: record_pt2_fixtures.py [NAME]...

Needs torch 2.9 or newer, and a CUDA device (or a stand-in for one) for the peaks of the eager modules. A file keeps what memest reads: the program, without weights and
without metadata that nobody asks for. index.json holds the counts, and for training and evaluation the peak of three steps of the eager module: AdamW, the sum of
the output as the loss, the batch moved to the device in each step.
"""
import argparse
import copy
import gc
import io
import json
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from export_pt2 import keep_helpers

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests/pt2"
HERE = str(Path(__file__).resolve())
PACKAGES = str(Path(torch.__file__).resolve().parent.parent)


class Names(nn.Module):
    """Locals that outlive their use, and names that are bound again."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.last = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 64)

    def forward(self, x):
        h = self.up(x)
        big = F.gelu(h)
        y = self.down(big)
        y = torch.sin(y)
        y = torch.cos(y)
        y = self.last(y)
        return y


class Helpers(nn.Module):
    """Functions that a forward calls: their locals hold values until they return."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.narrow, self.wide = nn.LayerNorm(512), nn.Linear(512, 64), nn.Linear(64, 256)

        def bottleneck(self, inputs):
            both = torch.cat(inputs, 1)
            scaled = self.norm(both) * 2
            return self.narrow(self.activated(scaled))

        def activated(self, x):
            bent = torch.sin(x)
            bent = torch.cos(bent)
            return torch.tanh(bent)

        def forward(self, inputs):
            small = self.bottleneck(inputs)
            return self.wide(small)

    def __init__(self):
        super().__init__()
        self.one, self.two = self.Layer(), self.Layer()

    def forward(self, x):
        y = self.one([x, x])
        y = self.two([x, y])
        y = self.two([y, y])
        return y


class Twice(nn.Module):
    """Modules that are called more than once."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.ReLU())

    def forward(self, x):
        y = self.a(x)
        z = self.b(y)
        y = self.a(z)
        return self.b(y) + z


class NoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, 8)

    def forward(self, x):
        with torch.no_grad():
            h = self.backbone(x)
            h = h * 2
        return self.head(h)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            h = self.inner(x)
        return self.outer(h.float())


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x.mean((2, 3))
        return self.head(self.drop(x))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(512, 32), nn.LayerNorm(32), nn.Linear(32, 512, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        h = self.norm(self.embed(ids))
        return self.head(h)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, ids):
        return self.layer(self.embed(ids))


class Statistics(nn.Module):
    """A buffer that the forward replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        return self.linear(x - self.mean)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        def positive(x):
            return self.linear(x).relu()

        def negative(x):
            return x - 1
        return torch.cond(x.sum() > 0, positive, negative, (x,))


class Running(nn.Module):
    """scan: sums of the rows."""

    def forward(self, x):
        from torch._higher_order_ops.scan import scan

        def step(total, row):
            total = total + row
            return total, total * 2
        return scan(step, torch.zeros_like(x[0]), x)[1]


class Counted(nn.Module):
    """A size that only the data knows."""

    def forward(self, x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k < 100)
        return x.new_zeros(k, 64) + x[0]


@torch.library.custom_op("memest_test::repeated", mutates_args=())
def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    return x.repeat(times, 1)


@repeated.register_fake
def _(x, times):
    return x.new_empty(x.shape[0] * times, x.shape[1])


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return torch.ops.memest_test.repeated(self.linear(x), 3).sum(0)


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Convolutions()

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


def batch(least=1, most=4096):
    return torch.export.Dim("batch", min=least, max=most)


def cases():
    x = torch.randn(8, 64)
    images = torch.randn(4, 3, 32, 32)
    ids = torch.randint(0, 100, (2, 16))
    plain = {"dynamic_shapes": ({0: batch()},)}
    return {
        "names": (Names(), (x,), {"mode": "train", **plain}),
        "names_strict": (Names(), (x,), {"mode": "train", "strict": True, **plain}),
        "twice": (Twice(), (x,), {"mode": "train"}),
        "twice_strict": (Twice(), (x,), {"mode": "train", "strict": True}),
        "no_grad": (NoGrad(), (x,), {"mode": "train"}),
        "autocast": (Autocast(), (x,), {"mode": "train"}),
        "convolutions": (Convolutions(), (images,), {"mode": "train", "dynamic_shapes": ({0: batch(2)},)}),
        "convolutions_eval": (Convolutions(), (images,), {"mode": "eval"}),
        "convolutions_core": (Convolutions(), (images,), {"mode": "train", "decomposed": True}),
        "tied": (Tied(), (ids,), {"mode": "train"}),
        "encoder": (Encoder(), (ids,), {"mode": "train", "dynamic_shapes": ({0: batch(), 1: torch.export.Dim("seq", min=2, max=512)},)}),
        "statistics": (Statistics(), (x,), {"mode": "train"}),
        "branch": (Branch(), (x,), {"mode": "train"}),
        "running": (Running(), (torch.randn(3, 8, 64),), {"mode": "eval"}),
        "counted": (Counted(), (x, torch.tensor(5)), {"mode": "eval"}),
        "custom": (Custom(), (x,), {"mode": "train"}),
        "joint": (Loss(), (images, torch.zeros(4, dtype=torch.int64)), {"mode": "train", "joint": True}),
        # the last one: the exporter keeps lines of other functions than forward from here on
        "helpers": (Helpers(), (torch.randn(64, 256),), {"mode": "train", "helpers": True}),
    }


# What has no eager truth beside it: evaluated in another way than exported, or by data.
NO_PEAKS = {"running", "counted", "custom", "joint", "branch"}


def peak(module, inputs, training):
    """max_memory_allocated of three steps."""
    gc.collect()
    torch.cuda.empty_cache()
    module = copy.deepcopy(module).cuda().train(training)
    optimizer = torch.optim.AdamW(module.parameters()) if training else None

    def forward(x):
        out = module(*x)
        return out, out.sum() if training else None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = out = loss = None
    for _ in range(3):
        x = [t.cuda() for t in inputs]
        if training:
            optimizer.zero_grad()
            out, loss = forward(x)
            loss.backward()
            optimizer.step()
        else:
            with torch.no_grad():
                out, loss = forward(x)
    assert before >= 0
    return torch.cuda.max_memory_allocated()


def anonymous(trace):
    return trace.replace(HERE, "model.py").replace(PACKAGES, "site-packages")


def reduced(data):
    """The archive without weights, and metadata without what memest does not read."""
    source = zipfile.ZipFile(io.BytesIO(data))
    out = io.BytesIO()

    def lean(graph):
        for node in graph["nodes"]:
            node["metadata"] = {k: anonymous(v) for k, v in node["metadata"].items() if k in ("nn_module_stack", "stack_trace")}
            for given in node["inputs"]:
                if "as_graph" in given["arg"]:
                    lean(given["arg"]["as_graph"]["graph"])
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name in source.namelist():
            short = name.split("/", 1)[1]
            if short.startswith("models/"):
                program = json.loads(source.read(name))
                lean(program["graph_module"]["graph"])
                text = json.dumps(program, separators=(",", ":"))
            elif short in ("archive_format", "archive_version", "byteorder") or short.endswith("_config.json"):
                text = source.read(name)
            else:
                continue
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(info, text)
    return out.getvalue()


def legacy(data):
    """The same program as 2.6 wrote it: no root folder, other names."""
    source = zipfile.ZipFile(io.BytesIO(data))
    program = next(n for n in source.namelist() if n.endswith("models/model.json"))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name, text in (("serialized_exported_program.json", source.read(program)), ("version", b"8.2")):
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(info, text)
    return out.getvalue()


def first_schema(data):
    """And as 2.1 did: a signature of dictionaries, sizes one level deeper, a version that is a number."""
    source = zipfile.ZipFile(io.BytesIO(data))
    program = json.loads(source.read("serialized_exported_program.json"))
    module = program["graph_module"]
    parameters, buffers, users = {}, {}, []
    for spec in module["signature"]["input_specs"]:
        (kind, value), = spec.items()
        if kind == "user_input":
            users.append(value["arg"]["as_tensor"]["name"])
        else:
            (parameters if kind == "parameter" else buffers)[value["arg"]["name"]] = value[kind + "_name"]
    outputs = [s["user_output"]["arg"]["as_tensor"]["name"] for s in module["signature"]["output_specs"]]
    module["signature"] = {"inputs_to_parameters": parameters, "inputs_to_buffers": buffers, "user_inputs": users, "user_outputs": outputs, "buffers_to_mutate": {}, "backward_signature": None}
    module["call_spec"] = {"in_spec": "", "out_spec": ""}
    del module["module_call_graph"]
    graph = module["graph"]
    graph["tensor_values"] = {name: {"meta": {k: v for k, v in meta.items()}} for name, meta in graph["tensor_values"].items()}
    for node in graph["nodes"]:
        node["metadata"].pop("nn_module_stack", None)
        for given in node["inputs"]:
            given.pop("kind", None)
    program["schema_version"] = 1
    program["equality_constraints"] = []
    for key in ("verifiers", "torch_version", "guards_code"):
        program.pop(key, None)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        info = zipfile.ZipInfo("serialized_exported_program.json", (2020, 1, 1, 0, 0, 0))
        info.compress_type = zipfile.ZIP_DEFLATED
        target.writestr(info, json.dumps(program, separators=(",", ":")))
    return out.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.manual_seed(0)
    index_file = FOLDER / "index.json"
    index = json.loads(index_file.read_text()) if index_file.exists() else {}
    for name, (module, inputs, how) in cases().items():
        if options.names and name not in options.names:
            continue
        module.train(how["mode"] == "train")
        if how.get("helpers"):
            keep_helpers()
        program = torch.export.export(module, inputs, strict=how.get("strict", False), **{k: how[k] for k in ("dynamic_shapes",) if k in how})
        if how.get("decomposed"):
            program = program.run_decompositions()
        if how.get("joint"):
            from torch.export.experimental import _export_forward_backward
            program = _export_forward_backward(program)
        file = io.BytesIO()
        torch.export.save(program, file)
        parameters, buffers = list(module.parameters()), list(module.buffers())
        row = {"parameter_bytes": sum(p.nbytes for p in parameters), "buffer_bytes": sum(b.nbytes for b in buffers), "buffers": len(buffers)}
        if name not in NO_PEAKS and not how.get("decomposed"):
            row["train_peak_bytes"] = peak(module, inputs, True)
            if name != "encoder":  # its layer takes another way in evaluation, which an export in training does not hold
                row["infer_peak_bytes"] = peak(module, inputs, False)
        data = reduced(file.getvalue())
        files = {name: data}
        if name == "names":
            files["names_2.6"] = legacy(data)
            files["names_2.1"] = first_schema(files["names_2.6"])
        for stem, content in files.items():
            (FOLDER / f"{stem}.pt2").write_bytes(content)
            index[stem] = {k: v for k, v in row.items() if not (stem == "names_2.1" and k == "infer_peak_bytes")}  # no module stacks: values go after their last use
            print(stem, len(content), "bytes", index[stem])
    index_file.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(index.items())) + "\n}\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A folder with a config.json and safetensors files, written here: run.py [--memest PATH]

What the headers say is counted, and held against the config.
"""
import argparse
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = {"model_type": "llama", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES = {"BF16": 2, "F32": 4, "F16": 2, "I64": 8}


def llama(layers=2):
    tensors = {"model.embed_tokens.weight": [100, 8], "model.norm.weight": [8], "lm_head.weight": [100, 8]}
    for i in range(layers):
        at = f"model.layers.{i}."
        tensors |= {f"{at}self_attn.{p}_proj.weight": [8, 8] for p in "qkvo"}
        tensors |= {at + "mlp.gate_proj.weight": [16, 8], at + "mlp.up_proj.weight": [16, 8], at + "mlp.down_proj.weight": [8, 16]}
        tensors |= {at + "input_layernorm.weight": [8], at + "post_attention_layernorm.weight": [8]}
    return tensors


def mixtral():
    config = CONFIG | {"model_type": "mixtral", "num_local_experts": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    tensors = {name: shape for name, shape in llama(1).items() if ".mlp." not in name}
    at = "model.layers.0.block_sparse_moe."
    tensors[at + "gate.weight"] = [4, 8]
    for e in range(4):
        tensors |= {f"{at}experts.{e}.w1.weight": [16, 8], f"{at}experts.{e}.w2.weight": [8, 16], f"{at}experts.{e}.w3.weight": [16, 8]}
    return config, tensors


def write(path, tensors, dtype="BF16"):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        kind, shape = shape if isinstance(shape, tuple) else (dtype, shape)
        size = SIZES[kind]
        for n in shape:
            size *= n
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * at)
    return at


class Test:
    def __init__(self, memest):
        self.memest, self.problems, self.checks = memest, [], 0

    def run(self, folder, *options):
        return subprocess.run([self.memest, "estimate", str(folder), "--seq", "8", "--mode", "infer", *options], capture_output=True, text=True, timeout=60)

    def ask(self, folder, *options):
        done = self.run(folder, *options, "--json", "-")
        if done.returncode:
            raise RuntimeError(done.stderr)
        answer = json.loads(done.stdout)
        return answer["model"]["stored_weights"], {d["code"] for d in answer["diagnostics"]}, answer

    def check(self, what, condition):
        self.checks += 1
        if not condition:
            self.problems.append(what)


def folder_of(root, name, config=CONFIG):
    folder = root / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tests(t, root):
    folder = folder_of(root, "exact")
    size = write(folder / "model.safetensors", llama())
    stored, codes, answer = t.ask(folder)
    t.check("bytes of the headers", stored["bytes"] == size == answer["states"]["parameters_bytes"] and stored["dtypes"] == {"BF16": size})
    t.check(f"nothing to say: {codes}", not codes)
    t.check("the files' type is the model's", answer["run"]["precision"] == "bf16")

    folder = folder_of(root, "differs", CONFIG | {"dtype": "float16"})
    tensors = llama() | {"model.extra.weight": [3], "model.layers.0.self_attn.rotary_emb.inv_freq": [2], "model.norm.weight": [9]}
    del tensors["model.layers.1.mlp.up_proj.weight"]
    write(folder / "model.safetensors", tensors, "F32")
    stored, codes, answer = t.ask(folder)
    t.check(f"missing {stored['missing']}", stored["missing"] == ["model.layers.1.mlp.up_proj.weight"])
    t.check(f"unexpected {stored['unexpected']}", stored["unexpected"] == ["model.extra.weight"])
    t.check(f"shape {stored['mismatched']}", len(stored["mismatched"]) == 1 and "model.norm.weight" in stored["mismatched"][0])
    t.check(f"all are said: {codes}", {"weights-missing", "weights-unexpected", "weights-shape", "weights-dtype"} <= codes)
    t.check("the config's type counts", answer["run"]["precision"] == "fp16")

    folder = folder_of(root, "base")  # a base model's file has no prefix, and no head
    write(folder / "model.safetensors", {n.removeprefix("model."): s for n, s in llama().items() if n != "lm_head.weight"})
    stored, codes, _ = t.ask(folder)
    t.check(f"the head alone is missing: {stored['missing']}", stored["missing"] == ["lm_head.weight"] and not stored["unexpected"])

    folder = folder_of(root, "tied", CONFIG | {"tie_word_embeddings": True})
    write(folder / "model.safetensors", llama())
    t.check("both copies of a tied weight may be stored", not t.ask(folder)[1])

    config, tensors = mixtral()
    folder = folder_of(root, "experts", config)
    write(folder / "model.safetensors", tensors)
    stored, codes, _ = t.ask(folder)
    t.check(f"experts one by one: {codes}", "weights-converted" in codes and not stored["missing"])

    folder = folder_of(root, "shards")
    names = list(llama().items())
    first = write(folder / "model-00001-of-00002.safetensors", dict(names[:9]))
    index = {"metadata": {"total_size": 12345}, "weight_map": {n: f"model-0000{1 if i < 9 else 2}-of-00002.safetensors" for i, (n, _) in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    stored, codes, _ = t.ask(folder)
    t.check(f"a shard that is not there: {codes}", codes == {"weights-absent"} and stored["files"] == 2 and stored["tensors"] == len(names))
    t.check("bytes of the index", stored["bytes"] == 12345 and sum(stored["dtypes"].values()) == first)
    second = write(folder / "model-00002-of-00002.safetensors", dict(names[9:]))
    stored, codes, _ = t.ask(folder)
    t.check("both shards", stored["bytes"] == first + second and not codes)

    for name, content in {"cut": struct.pack("<Q", 1 << 40), "short": b"abc", "text": b"\x02\0\0\0\0\0\0\0[]", "beyond": struct.pack("<Q", 64) + json.dumps(
            {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).ljust(64).encode()}.items():
        folder = folder_of(root, name)
        (folder / "model.safetensors").write_bytes(content)
        done = t.run(folder)
        t.check(f"{name}: exit code {done.returncode}, {done.stderr}", done.returncode == 2 and "model.safetensors" in done.stderr)
    for name, content in {"no_map": {}, "map_list": {"weight_map": []}, "map_number": {"weight_map": {"a": 3}}, "outside": {"weight_map": {"a": "../b"}},
                          "size": {"metadata": {"total_size": -1}, "weight_map": {"a": "b"}}}.items():
        folder = folder_of(root, name)
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
        done = t.run(folder)
        t.check(f"{name}: exit code {done.returncode}, {done.stderr}", done.returncode == 2 and "index.json" in done.stderr)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--memest", default=ROOT / "build/release/memest")
    t = Test(str(p.parse_args().memest))
    with tempfile.TemporaryDirectory() as folder:
        tests(t, Path(folder))
    for problem in t.problems:
        print(problem)
    print(f"{t.checks - len(t.problems)} passed, {len(t.problems)} failed, 0 skipped")
    return 1 if t.problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Records rows of --loss chunked for tests/accuracy: record_liger.py [--traces DIR] > rows

Small models of transformers train on PyTorch's CUDA build with the forward and the loss that liger_kernel 0.8.5 puts in the place of their own;
one row of tests/accuracy/rows.jsonl a line, and with --traces the allocator's events of each. It needs torch, transformers, liger_kernel and a
CUDA device, or a stand-in whose allocator counts: Triton's kernels, which allocate nothing, are passed over.
"""
import argparse
import gc
import gzip
import json
import types
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from liger_kernel.ops import fused_linear_cross_entropy as fused
from liger_kernel.transformers.model import gemma, llama, mistral, phi3, qwen2

CONFIG_FILES = Path(__file__).resolve().parent.parent / "tests" / "accuracy" / "configs"
memory = torch.cuda.memory
AMP = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS = {
    "llama": SMALL | {"model_type": "llama", "vocab_size": 4000},
    "mistral": SMALL | {"model_type": "mistral", "vocab_size": 1000, "sliding_window": 50},
    "qwen2": SMALL | {"model_type": "qwen2", "vocab_size": 5000, "tie_word_embeddings": True},
    "gemma": SMALL | {"model_type": "gemma", "vocab_size": 3000, "head_dim": 64},
    "phi3": SMALL | {"model_type": "phi3", "vocab_size": 2000, "pad_token_id": 0},
}
FORWARDS = {"llama": llama.lce_forward, "mistral": mistral.lce_forward, "qwen2": qwen2.lce_forward, "gemma": gemma.lce_forward, "phi3": phi3.lce_forward}
CASES = [("llama", 2, 128, "fp32", "adamw"), ("llama", 3, 100, "bf16", "sgd"), ("llama", 1, 77, "amp-bf16", "adamw"), ("mistral", 2, 60, "fp16", "sgd"),
         ("qwen2", 2, 90, "bf16", "adamw"), ("gemma", 1, 200, "amp-fp16", "sgd"), ("phi3", 4, 33, "fp32", "sgd")]


class NoKernel:
    def __getitem__(self, grid):
        return lambda *a, **k: None


fused.liger_cross_entropy_kernel = fused.element_mul_kernel = NoKernel()


def save_trace(folder, name, config):
    events = memory._snapshot()["device_traces"][0]
    low = min(e["addr"] for e in events if "addr" in e)
    lines = [[e["action"], e["addr"] - low, e["size"]] for e in events if "addr" in e]
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"id": name, "config": config, "fields": ["action", "address", "bytes"], "events": lines}, separators=(",", ":"))
    (folder / (name.replace(" ", "_") + ".json.gz")).write_bytes(gzip.compress(text.encode(), mtime=0))


def run(name, batch, seq, precision, optimizer_name, traces=None):
    config = AutoConfig.for_model(**CONFIGS[name])
    model = AutoModelForCausalLM.from_config(config, dtype=PRECISIONS.get(precision, torch.float32))
    model.forward = types.MethodType(FORWARDS[name], model)
    ids, labels = torch.zeros(batch, seq, dtype=torch.long), torch.zeros(batch, seq, dtype=torch.long)
    gc.collect()
    memory.empty_cache()
    if traces:
        memory._record_memory_history(max_entries=1000000, context=None, stacks="python")
    model.to("cuda")
    gc.collect()
    parameters, buffers = list(model.parameters()), list(model.buffers())
    optimizer = (torch.optim.AdamW if optimizer_name == "adamw" else torch.optim.SGD)(parameters)
    scaler = torch.amp.GradScaler("cuda") if precision == "amp-fp16" else None
    rows, reserved = [], 0

    def end(step, phase):
        nonlocal reserved
        rows.append({"step": step, "phase": phase, "end": memory.memory_allocated(), "peak": memory.max_memory_allocated()})
        reserved = max(reserved, memory.max_memory_reserved())
        memory.reset_peak_memory_stats()

    memory.reset_peak_memory_stats()
    for step in (1, 2, 3):
        on_device = [ids.to("cuda"), labels.to("cuda")]
        x, y = on_device
        del on_device
        end(step, "inputs")
        optimizer.zero_grad()
        end(step, "zero_grad")
        with torch.autocast("cuda", dtype=AMP.get(precision), enabled=precision in AMP):
            out = model(input_ids=x, labels=y)
        loss = out.loss
        end(step, "forward")
        (scaler.scale(loss) if scaler else loss).backward()
        end(step, "backward")
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        end(step, "optimizer")
    spec, ident = f"liger-{name}.json", f"liger: {name} batch={batch} seq={seq} precision={precision} optimizer={optimizer_name}"
    if traces:
        save_trace(Path(traces), ident, CONFIGS[name])
        memory._record_memory_history(enabled=None)
    (CONFIG_FILES / spec).write_text(json.dumps(CONFIGS[name], indent=1) + "\n")
    size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
    state = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t) and t.is_cuda]
    return {"set": "liger", "id": ident,
            "arguments": [f"configs/{spec}", "--batch", str(batch), "--seq", str(seq), "--precision", precision, "--optimizer", optimizer_name,
                          "--loss", "chunked", "--gpu", "a100-80gb", "--torch-version", "2.15"],
            "states": {"parameters_bytes": size(parameters), "buffers_bytes": size(buffers), "gradients_bytes": size(parameters),
                       "optimizer_state_bytes": size(state)},
            "phases": rows, "reserved": reserved}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--traces")
    a = p.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(False)
    for case in CASES:
        print(json.dumps(run(*case, traces=a.traces), separators=(",", ":")), flush=True)


if __name__ == "__main__":
    main()

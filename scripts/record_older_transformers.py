#!/usr/bin/env python3
"""Records rows of --transformers-version for tests/accuracy: record_older_transformers.py > rows

Small models train three steps on PyTorch's CUDA build with the transformers that is installed; one row of tests/accuracy/rows.jsonl a line. It
needs torch, transformers and a CUDA device, or a stand-in whose allocator counts. The rows of the repository are of 4.51 with PyTorch 2.6.
"""
import gc
import json
import os
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

CONFIG_FILES = Path(__file__).resolve().parent.parent / "tests" / "accuracy" / "configs"
memory = torch.cuda.memory
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
LLAMA = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
CONFIGS = {
    "llama": LLAMA | {"model_type": "llama"},
    "gpt2": {"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 1000},
    "gpt_neo": {"model_type": "gpt_neo", "hidden_size": 256, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 256, "vocab_size": 1000,
                "attention_types": [[["global", "local"], 1]], "window_size": 64},
    "t5": {"model_type": "t5", "decoder_start_token_id": 0, "pad_token_id": 0, "d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 1000},
}
CASES = [("llama", 2, 128, "fp32", True), ("llama", 3, 60, "bf16", False), ("gpt2", 4, 100, "fp32", True), ("gpt2", 2, 64, "bf16", False), ("gpt_neo", 3, 128, "fp32", True),
         ("t5", 4, 96, "fp32", True), ("t5", 2, 50, "bf16", False)]


def run(name, batch, seq, precision, use_cache):
    seq2seq = name == "t5"
    config = AutoConfig.for_model(**CONFIGS[name])
    model = (AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM).from_config(config, torch_dtype=PRECISIONS[precision])
    ids, labels = torch.zeros(batch, seq, dtype=torch.long), torch.zeros(batch, seq, dtype=torch.long)
    gc.collect()
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    model = model.to("cuda").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phases, out, loss, reserved = [], None, None, 0

    def end(step, phase):
        nonlocal reserved
        phases.append({"step": step, "phase": phase, "end": memory.memory_allocated(), "peak": memory.max_memory_allocated()})
        reserved = max(reserved, memory.max_memory_reserved())
        memory.reset_peak_memory_stats()

    def forward(x, y):
        out = model(input_ids=x, labels=y, use_cache=use_cache)
        return out, out.loss

    memory.reset_peak_memory_stats()
    for step in (1, 2, 3):
        new = ids.to("cuda"), labels.to("cuda")
        x, y = new
        del new
        end(step, "inputs")
        optimizer.zero_grad()
        end(step, "zero_grad")
        out, loss = forward(x, y)
        end(step, "forward")
        loss.backward()
        end(step, "backward")
        optimizer.step()
        end(step, "optimizer")
    spec = f"older-transformers-{name}.json"
    (CONFIG_FILES / spec).write_text(json.dumps(CONFIGS[name], indent=1) + "\n")
    parameters, buffers = list(model.parameters()), list(model.buffers())
    size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
    releases = [".".join(v.split(".")[:2]) for v in (torch.__version__, transformers.__version__)]
    return {"set": "older transformers", "id": f"transformers {releases[1]}: {name} batch={batch} seq={seq} precision={precision} use_cache={use_cache}",
            "arguments": [f"configs/{spec}", "--batch", str(batch), "--seq", str(seq), "--task", "seq2seq" if seq2seq else "causal-lm", "--precision", precision, "--optimizer", "sgd",
                          "--use-cache", "yes" if use_cache else "no", "--gpu", "a100-80gb", "--torch-version", releases[0], "--transformers-version", releases[1]],
            "states": {"parameters_bytes": size(parameters), "buffers_bytes": size(buffers), "gradients_bytes": size(parameters), "optimizer_state_bytes": 0},
            "phases": phases, "reserved": reserved}


if __name__ == "__main__":
    for case in CASES:  # each on a fresh device: these releases keep their workspaces
        if os.fork() == 0:
            torch.backends.cuda.enable_cudnn_sdp(False)
            print(json.dumps(run(*case), separators=(",", ":")), flush=True)
            os._exit(0)
        os.wait()

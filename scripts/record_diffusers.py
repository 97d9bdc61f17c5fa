#!/usr/bin/env python3
"""Records rows of models of diffusers for tests/accuracy: record_diffusers.py > rows

Small models of diffusers' classes are called as pipelines and training scripts call them, on PyTorch's CUDA build; one row of
tests/accuracy/rows.jsonl a line. It needs torch, diffusers, peft and a CUDA device, or a stand-in whose allocator counts.
"""
import contextlib
import gc
import json
import sys
from pathlib import Path

import diffusers
import torch
from peft import LoraConfig
from torch.nn import functional as F

CONFIG_FILES = Path(__file__).resolve().parent.parent / "tests" / "accuracy" / "configs"
memory = torch.cuda.memory
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
CROSS, PLAIN = "CrossAttn{}Block2D", "{}Block2D"
CONFIGS = {
    "unet": {"_class_name": "UNet2DConditionModel", "sample_size": 16, "block_out_channels": [32, 64], "down_block_types": [CROSS.format("Down"), PLAIN.format("Down")],
             "up_block_types": [PLAIN.format("Up"), CROSS.format("Up")], "cross_attention_dim": 48, "attention_head_dim": 4, "norm_num_groups": 16, "layers_per_block": 1},
    "sdxl": {"_class_name": "UNet2DConditionModel", "sample_size": 16, "block_out_channels": [32, 64, 64], "down_block_types": [PLAIN.format("Down"), *[CROSS.format("Down")] * 2],
             "up_block_types": [*[CROSS.format("Up")] * 2, PLAIN.format("Up")], "cross_attention_dim": 64, "attention_head_dim": [2, 4, 4], "norm_num_groups": 8, "layers_per_block": 2,
             "transformer_layers_per_block": [1, 2, 3], "use_linear_projection": True, "addition_embed_type": "text_time", "addition_time_embed_dim": 32,
             "projection_class_embeddings_input_dim": 224},
    "vae": {"_class_name": "AutoencoderKL", "sample_size": 64, "block_out_channels": [32, 64], "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
            "layers_per_block": 2, "norm_num_groups": 16},
    "flux": {"_class_name": "FluxTransformer2DModel", "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 32, "num_attention_heads": 4, "joint_attention_dim": 96,
             "pooled_projection_dim": 48, "guidance_embeds": True, "axes_dims_rope": [8, 12, 12], "in_channels": 16},
    "chroma": {"_class_name": "ChromaTransformer2DModel", "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 32, "num_attention_heads": 4, "joint_attention_dim": 96,
               "axes_dims_rope": [8, 12, 12], "in_channels": 16, "approximator_hidden_dim": 64, "approximator_layers": 2},
    "sd3": {"_class_name": "SD3Transformer2DModel", "sample_size": 32, "num_layers": 3, "attention_head_dim": 32, "num_attention_heads": 4, "caption_projection_dim": 128,
            "joint_attention_dim": 96, "pooled_projection_dim": 64, "pos_embed_max_size": 24},
}
CONFIGS["sd35"] = CONFIGS["sd3"] | {"qk_norm": "rms_norm", "dual_attention_layers": [0, 1]}
CASES = [("unet", "fp32", {}), ("unet", "bf16", {"mode": "infer"}), ("unet", "amp-bf16", {"lora": True, "checkpoint": True}), ("sdxl", "bf16", {"mode": "infer"}),
         ("sdxl", "bf16", {"checkpoint": True}), ("vae", "amp-fp16", {}), ("vae", "fp32", {"checkpoint": True}), ("vae", "bf16", {"mode": "infer", "task": "decode"}),
         ("flux", "fp16", {"mode": "infer"}), ("flux", "amp-bf16", {}), ("flux", "bf16", {"checkpoint": True}), ("flux", "bf16", {"lora": True}), ("chroma", "fp16", {"mode": "infer"}), ("chroma", "amp-bf16", {}), ("chroma", "bf16", {"checkpoint": True}),
         ("chroma", "fp32", {"lora": True}),
         ("sd3", "fp32", {}), ("sd3", "bf16", {"lora": True}), ("sd35", "amp-fp16", {}), ("sd35", "bf16", {"checkpoint": True})]
BATCH, IMAGE, TOKENS = 2, 128, 77
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]


def inputs_of(name, c, dtype, task):
    """The call's arguments by name, and the target's shape; none: the first argument."""
    def x(*sizes, dtype=dtype):
        return torch.zeros(BATCH, *sizes, dtype=dtype)
    side, packed = IMAGE // 8, (IMAGE // 16) ** 2
    if name in ("unet", "sdxl"):
        given = {"sample": x(4, side, side), "timestep": x(dtype=torch.int64), "encoder_hidden_states": x(TOKENS, c.cross_attention_dim)}
        if name == "sdxl":
            given |= {"text_embeds": x(c.projection_class_embeddings_input_dim - 6 * c.addition_time_embed_dim), "time_ids": x(6)}
        return given, x(4, side, side)
    if name == "vae":
        half = IMAGE // 2
        return ({"z": x(4, half, half)}, x(3, IMAGE, IMAGE)) if task == "decode" else ({"sample": x(3, IMAGE, IMAGE)}, None)
    if name == "chroma":
        return {"hidden_states": x(packed, c.in_channels), "encoder_hidden_states": x(TOKENS, c.joint_attention_dim), "timestep": x(),
                "img_ids": torch.zeros(packed, 3, dtype=dtype), "txt_ids": torch.zeros(TOKENS, 3, dtype=dtype)}, x(packed, c.in_channels)
    states = {"encoder_hidden_states": x(TOKENS, c.joint_attention_dim), "pooled_projections": x(c.pooled_projection_dim)}
    if name == "flux":
        given = {"hidden_states": x(packed, c.in_channels), **states, "timestep": x(), "img_ids": torch.zeros(packed, 3, dtype=dtype),
                 "txt_ids": torch.zeros(TOKENS, 3, dtype=dtype), "guidance": x(dtype=torch.float32)}
        return given, x(packed, c.in_channels)
    return {"hidden_states": x(16, side, side), **states, "timestep": x(dtype=torch.float32)}, x(16, side, side)


def call(name, model, x, task):
    if name == "sdxl":
        added = {"text_embeds": x["text_embeds"], "time_ids": x["time_ids"]}
        return model(x["sample"], x["timestep"], x["encoder_hidden_states"], added_cond_kwargs=added).sample
    return model.decode(x["z"]).sample if task == "decode" else model(**x).sample


def size(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def run(name, precision, mode="train", checkpoint=False, lora=False, task=""):
    config = {k: v for k, v in CONFIGS[name].items() if k != "_class_name"}
    dtype, training = PRECISIONS.get(precision, torch.float32), mode == "train"
    model = getattr(diffusers, CONFIGS[name]["_class_name"]).from_config(config).to(dtype)
    if lora:
        model.requires_grad_(False)
        model.add_adapter(LoraConfig(r=4, lora_alpha=8, init_lora_weights="gaussian", target_modules=TARGETS))
    model.train(training)
    if checkpoint:
        model.enable_gradient_checkpointing()
    host, target = inputs_of(name, model.config, dtype, task)
    names, tensors = list(host), [*host.values(), *([target] if training and target is not None else [])]
    gc.collect()
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    model.to("cuda")
    parameters, buffers = list(model.parameters()), list(model.buffers())
    trainable = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable) if training else None
    scaler = torch.amp.GradScaler("cuda") if precision == "amp-fp16" and training else None
    amp = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}.get(precision)
    phases, reserved = [], memory.max_memory_reserved()

    def end(step, phase):
        nonlocal reserved
        phases.append({"step": step, "phase": phase, "end": memory.memory_allocated(), "peak": memory.max_memory_allocated()})
        reserved = max(reserved, memory.max_memory_reserved())
        memory.reset_peak_memory_stats()

    def forward():
        x = dict(zip(names, batch))
        pred = call(name, model, x, task)
        return pred, F.mse_loss(pred.float(), (batch[len(names)] if target is not None else x["sample"]).float()) if training else None

    batch, out, loss = [None] * len(tensors), None, None
    memory.reset_peak_memory_stats()
    for step in (1, 2, 3):
        fresh = [t.to("cuda") for t in tensors]
        for i in range(len(batch)):
            batch[i], fresh[i] = fresh[i], None
        end(step, "inputs")
        if training:
            optimizer.zero_grad()
            end(step, "zero_grad")
        with contextlib.nullcontext() if training else torch.no_grad(), torch.autocast("cuda", dtype=amp) if amp else contextlib.nullcontext():
            out, loss = forward()
        end(step, "forward")
        if training:
            (scaler.scale(loss) if scaler else loss).backward()
            end(step, "backward")
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            end(step, "optimizer")
    state = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t) and t.is_cuda] if optimizer else []
    spec = f"diffusers-{name}.json"
    (CONFIG_FILES / spec).write_text(json.dumps(CONFIGS[name], indent=1) + "\n")
    words = [f"configs/{spec}", "--batch", str(BATCH), "--image", str(IMAGE), *([] if name == "vae" else ["--seq", str(TOKENS)]), "--mode", mode, "--precision", precision,
             *(["--task", task] if task else []), *(["--checkpoint", "full"] if checkpoint else []), *(["--lora", "r=4,alpha=8,targets=" + "+".join(TARGETS)] if lora else []),
             "--gpu", "a100-80gb", "--torch-version", "2.15"]
    text = f"diffusers: {name} precision={precision} mode={mode}{' checkpoint' if checkpoint else ''}{' lora' if lora else ''}{' ' + task if task else ''}"
    return {"set": "diffusers", "id": text, "arguments": words,
            "states": {"parameters_bytes": size(parameters), "buffers_bytes": size(buffers), "gradients_bytes": size(trainable) if training else 0,
                       "optimizer_state_bytes": size(state)}, "phases": phases, "reserved": reserved}


def main():
    torch.backends.cuda.enable_cudnn_sdp(False)
    run(*CASES[0][:2])  # what the first use of the libraries sets up belongs to no row
    for name, precision, options in CASES:
        print(json.dumps(run(name, precision, **options), separators=(",", ":")))


if __name__ == "__main__":
    sys.exit(main())

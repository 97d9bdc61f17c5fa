#!/usr/bin/env python3
"""Records rows of --new-tokens for tests/accuracy: record_generation.py [--traces DIR] [TEXT...] > rows

Small models of transformers continue a prompt with generate() on PyTorch's CUDA build; one row of tests/accuracy/rows.jsonl a line. It needs
torch, transformers and a CUDA device, or a stand-in whose allocator counts: there values read back are not those of a run, so what generate
decides by them (no padding, no sequence ends early) is given here. TEXT chooses the rows whose id contains one of them; --traces also writes
the allocator's events of each.
"""
import argparse
import contextlib
import functools
import gc
import json
from pathlib import Path

import record_image_text
import torch
from record_image_text import save_trace
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForCausalLM, AutoModelForSeq2SeqLM, WhisperForConditionalGeneration
from transformers.generation import logits_process, utils

CONFIG_FILES = Path(__file__).resolve().parent.parent / "tests" / "accuracy" / "configs"
memory = torch.cuda.memory
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
CONFIGS = {
    "llama": SMALL | {"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2},
    "mistral": SMALL | {"model_type": "mistral", "sliding_window": 50, "bos_token_id": 1, "eos_token_id": 2},
    "qwen3": SMALL | {"model_type": "qwen3", "head_dim": 64, "bos_token_id": 151643, "eos_token_id": [1, 2]},
    "gemma2": SMALL | {"model_type": "gemma2", "head_dim": 64, "sliding_window": 50, "bos_token_id": 2, "eos_token_id": [1, 107], "pad_token_id": 0},
    "qwen3_5_text": SMALL | {"model_type": "qwen3_5_text", "head_dim": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                             "layer_types": ["linear_attention", "full_attention"], "bos_token_id": 1, "eos_token_id": 2},
}
CONFIGS |= {"rwkv": {"model_type": "rwkv", "hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 1000, "bos_token_id": 0, "eos_token_id": 0},
            "xlstm": {"model_type": "xlstm", "hidden_size": 256, "num_hidden_layers": 2, "num_heads": 4, "vocab_size": 1000, "chunk_size": 16, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "mode": "inference"}}
MIDDLE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "bos_token_id": 1, "eos_token_id": 2,
          "pad_token_id": 0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32, "n_shared_experts": 1, "first_k_dense_replace": 1,
          "n_group": 1, "topk_group": 1, "n_routed_experts": 8}
CONFIGS |= {name: MIDDLE | {"model_type": name} | more for name, more in {
    "phi3": {}, "gemma3_text": {"head_dim": 32, "num_hidden_layers": 3, "sliding_window": 50, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gpt_oss": EXPERTS | {"head_dim": 32, "sliding_window": 50, "num_local_experts": 8}, "deepseek_v3": EXPERTS | LATENT, "mixtral": EXPERTS | {"num_local_experts": 8},
    "qwen2_moe": EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 64},
    "llama4_text": EXPERTS | {"head_dim": 32, "num_local_experts": 8, "intermediate_size_mlp": 256, "interleave_moe_layer_step": 1, "attention_chunk_size": 64}}.items()}
EDGES = {"vocab_size": 1000, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS |= {"opt": EDGES | {"model_type": "opt", "hidden_size": 128, "ffn_dim": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 128},
            "falcon": EDGES | {"model_type": "falcon", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
            "bloom": EDGES | {"model_type": "bloom", "hidden_size": 128, "n_layer": 2, "n_head": 4}, "mpt": {"model_type": "mpt", "d_model": 128, "n_layers": 2, "n_heads": 4, "vocab_size": 1000}}
SMALL_PAIR = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 320,
              "max_position_embeddings": 512, "vocab_size": 1000, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2}
CONFIGS |= {name: SMALL_PAIR | {"model_type": name} for name in ("bart", "mbart", "pegasus", "m2m_100", "plbart", "mvp", "blenderbot", "blenderbot-small")}
CONFIGS |= {"marian": SMALL_PAIR | {"model_type": "marian", "pad_token_id": 999, "decoder_start_token_id": 999, "forced_eos_token_id": 0}}
SMALL_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "vocab_size": 1000, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
CONFIGS |= {"t5": SMALL_T5 | {"model_type": "t5"}, "mt5": SMALL_T5 | {"model_type": "mt5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, "umt5": SMALL_T5 | {"model_type": "umt5"}}
SMALL_WHISPER = {"model_type": "whisper", "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 256,
                 "decoder_ffn_dim": 256, "vocab_size": 1000, "num_mel_bins": 20, "max_source_positions": 150, "max_target_positions": 100, "pad_token_id": 999, "bos_token_id": 999,
                 "eos_token_id": 999, "decoder_start_token_id": 998, "begin_suppress_tokens": [220, 999]}
CONFIGS |= {"whisper": SMALL_WHISPER, "whisper-suppress": SMALL_WHISPER | {"suppress_tokens": list(range(1, 21)), "forced_decoder_ids": [[1, 900], [2, 901], [3, 902]]}}
GRIDS = {name: json.loads((CONFIG_FILES / f"image-grid-{name}.json").read_text()) for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")}
GRIDS |= {"qwen3_5": {"model_type": "qwen3_5", "text_config": CONFIGS["qwen3_5_text"], "vision_config": {k: x for k, x in GRIDS["qwen3_vl"]["vision_config"].items() if k != "deepstack_visual_indexes"},
                      "image_token_id": 0, "tie_word_embeddings": True}}
TEXT_ALONE = {f"{name}-text": GRIDS[name] for name in ("qwen2_vl", "qwen3_vl")}
CONFIGS |= GRIDS | TEXT_ALONE
GRID_SIDES = {"qwen2_vl": (224, 336), "qwen2_5_vl": (224, 336), "qwen3_vl": (256, 384), "glm4v": (224, 336), "qwen3_5": (256, 384)}
IMAGES = {name: model for name, model in record_image_text.MODELS.items() if model[1] == "image-text-to-text"}
CONFIGS |= {name: model[2] for name, model in IMAGES.items()}
CACHES = {"none": {"use_cache": False}, "static": {"cache_implementation": "static"}, "fp8": {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}}
CASES = [("llama", 2, 100, 30, "bf16", "sdpa"), ("llama", 1, 300, 5, "fp32", "eager"), ("llama", 3, 2, 70, "fp16", "sdpa"),
         ("mistral", 2, 77, 9, "bf16", "sdpa"), ("mistral", 1, 20, 60, "fp16", "sdpa"), ("qwen3", 2, 200, 12, "bf16", "sdpa"), ("gemma2", 2, 45, 20, "bf16", "eager"),
         ("llama", 2, 100, 30, "bf16", "sdpa", "static"), ("llama", 1, 40, 9, "fp32", "eager", "static"), ("mistral", 2, 30, 40, "fp16", "sdpa", "static"),
         ("mistral", 1, 77, 9, "bf16", "sdpa", "static"), ("qwen3", 2, 20, 12, "bf16", "sdpa", "static"), ("gemma2", 2, 45, 20, "bf16", "eager", "static"),
         ("gemma2", 1, 60, 8, "fp32", "eager", "static"), ("llama", 2, 100, 30, "bf16", "sdpa", "fp8"), ("qwen3", 1, 50, 9, "fp32", "eager", "fp8"),
         ("qwen3_5_text", 2, 77, 9, "bf16", "sdpa"),
         ("opt", 2, 60, 6, "bf16", "sdpa"), ("opt", 2, 60, 6, "bf16", "sdpa", "static"), ("opt", 1, 30, 40, "fp32", "eager", "static"), ("falcon", 2, 60, 6, "bf16", "sdpa", "static"),
         ("bloom", 1, 40, 20, "fp32", "eager"), ("mpt", 1, 40, 20, "fp32", "eager"), ("llama4_text", 2, 60, 6, "bf16", "sdpa"), ("llama4_text", 1, 30, 40, "fp32", "eager", "static"),
         ("phi3", 2, 60, 6, "bf16", "sdpa", "static"), ("gemma3_text", 2, 60, 6, "bf16", "sdpa", "static"), ("gpt_oss", 1, 30, 40, "fp32", "eager", "static"),
         ("deepseek_v3", 2, 60, 6, "bf16", "sdpa", "static"), ("mixtral", 2, 60, 6, "bf16", "sdpa"), ("qwen2_moe", 2, 60, 6, "bf16", "sdpa", "static"),
         ("rwkv", 1, 20, 9, "bf16", "eager"), ("rwkv", 2, 15, 6, "fp32", "eager"), ("xlstm", 2, 40, 9, "fp32", "eager"), ("xlstm", 1, 32, 9, "bf16", "eager"),
         ("t5", 2, 100, 30, "bf16", "sdpa"), ("t5", 1, 70, 9, "fp32", "eager"), ("mt5", 2, 60, 9, "fp32", "sdpa"), ("umt5", 3, 50, 20, "bf16", "sdpa"), ("bart", 2, 100, 30, "bf16", "sdpa"),
         ("bart", 1, 300, 5, "fp32", "eager"), ("mbart", 2, 77, 9, "bf16", "sdpa"), ("marian", 2, 77, 9, "fp32", "sdpa"), ("pegasus", 1, 200, 12, "bf16", "sdpa"), ("m2m_100", 3, 40, 12, "bf16", "sdpa"),
         ("plbart", 2, 50, 9, "bf16", "sdpa"), ("mvp", 2, 50, 9, "fp32", "eager"), ("blenderbot", 2, 50, 9, "fp32", "sdpa"), ("blenderbot-small", 2, 50, 9, "bf16", "sdpa"),
         ("whisper", 2, 0, 30, "bf16", "sdpa"), ("whisper", 1, 0, 20, "fp32", "eager"), ("whisper-suppress", 3, 0, 9, "fp32", "sdpa"),
         *[(name, 2, 50, 9, *run) for name, run in zip(("llava", "llava-full", "paligemma", "gemma3"), [("bf16", "sdpa"), ("fp32", "eager")] * 2)],
         ("paligemma", 1, 30, 5, "fp32", "eager"), ("gemma3", 1, 40, 20, "fp32", "eager"),
         # Values does not follow the windows of qwen2_5_vl's tower
         *[(name, 2, 160, 9, *run) for name, run in zip(GRIDS, [("bf16", "sdpa"), ("fp32", "eager")] * 3) if name != "qwen2_5_vl"], ("qwen2_vl", 1, 150, 5, "fp32", "eager"), *[(name, 2, 40, 9, "bf16", "sdpa") for name in TEXT_ALONE], ("qwen2_vl", 2, 130, 5, "bf16", "sdpa", "static"), ("qwen3_vl-text", 2, 30, 5, "bf16", "sdpa", "static"),
         ("gemma3", 2, 30, 5, "bf16", "sdpa", "none"), ("llava", 1, 30, 5, "bf16", "sdpa", "none"), ("paligemma", 2, 30, 5, "bf16", "sdpa", "none"), ("t5", 2, 30, 5, "bf16", "sdpa", "none"),
         ("bart", 1, 30, 5, "bf16", "sdpa", "none"), ("llama", 2, 30, 5, "bf16", "sdpa", "none"), ("llava", 2, 40, 8, "bf16", "sdpa", "static"), ("gemma3", 2, 40, 8, "bf16", "sdpa", "static"),
         ("paligemma", 2, 40, 8, "bf16", "sdpa", "static"),
         *[(name, 2, 60, 9, *run) for name in ("internvl", "mistral3", "llava-pixtral", "llava-next") for run in (("bf16", "sdpa"), ("fp32", "eager"))]]


class Values(TorchFunctionMode):
    """The values that small integer tensors on the device would have: computed beside them on the CPU, and read from there."""
    READS = ("tolist", "item", "__bool__", "__index__", "__int__")

    def shadow(self, x):
        if isinstance(x, (list, tuple)):
            return type(x)(self.shadow(y) for y in x)
        if isinstance(x, torch.Tensor):
            return x._values if x.is_cuda else x
        return torch.device("cpu") if isinstance(x, torch.device) or x == "cuda" else x

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name, values = kwargs or {}, getattr(func, "__name__", ""), None
        if name in ("__get__", "_set_grad_enabled"):
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction(), contextlib.suppress(AttributeError, TypeError, RuntimeError, IndexError, ValueError):
            values = func(*self.shadow(args), **{key: self.shadow(x) for key, x in kwargs.items()})
        if name in self.READS and values is not None:
            return values
        if name == "arange":
            args = tuple(x._values.item() if isinstance(x, torch.Tensor) else x for x in args)
        if name == "repeat_interleave" and values is not None:
            kwargs = {"output_size": values.shape[kwargs.get("dim") or 0]} | kwargs
        chosen = args[1] if name in ("__getitem__", "__setitem__") else ()
        if any(getattr(x, "dtype", None) == torch.bool for x in (chosen if isinstance(chosen, tuple) else (chosen,))):
            if name == "__setitem__":  # its size is that of the values
                return None
            chosen = self.shadow(chosen)
            shape = torch.empty(args[0].shape, dtype=args[0].dtype)[chosen].shape
            result = torch.empty(shape, dtype=args[0].dtype, device="cuda")
        elif name == "prod":  # compiled at run time, which a stand-in may not do
            result = torch.empty(values.shape, dtype=values.dtype, device="cuda")
        else:
            result = func(*args, **kwargs)
        self.learn(result, values)
        return result

    def learn(self, result, values):
        if isinstance(result, (list, tuple)) and isinstance(values, (list, tuple)):
            for x, y in zip(result, values):
                self.learn(x, y)
        elif isinstance(result, torch.Tensor) and isinstance(values, torch.Tensor) and result.is_cuda and not values.is_floating_point() and values.numel() < 100000:
            result._values = values


class Phases:
    def __init__(self):
        self.rows, self.reserved = [], 0

    def end(self, name):
        self.rows.append({"step": 1, "phase": name, "end": memory.memory_allocated(), "peak": memory.max_memory_allocated()})
        self.reserved = max(self.reserved, memory.max_memory_reserved())
        memory.reset_peak_memory_stats()


def name_of(name, batch, seq, new_tokens, precision, attention, cache=None):
    text = f"generation: {name} batch={batch} seq={seq} new_tokens={new_tokens} precision={precision} attention={attention}"
    return text + (f" cache={cache}" if cache else "")


def run(name, batch, seq, new_tokens, precision, attention, cache=None, traces=None):
    config = AutoConfig.for_model(**CONFIGS[name])
    config._attn_implementation = attention
    speech = config.model_type == "whisper"
    build = WhisperForConditionalGeneration._from_config if speech else AutoModelForImageTextToText.from_config if name in IMAGES | GRIDS | TEXT_ALONE else AutoModelForSeq2SeqLM.from_config if config.is_encoder_decoder else AutoModelForCausalLM.from_config
    model = build(config, dtype=PRECISIONS[precision]).eval()
    prompt = 1 + len(getattr(config, "forced_decoder_ids", None) or ()) if config.is_encoder_decoder else seq
    ids, mask = torch.zeros(batch, seq, dtype=torch.long), torch.ones(batch, seq, dtype=torch.long)
    if speech:
        ids, mask = torch.zeros(batch, config.num_mel_bins, 2 * config.max_source_positions, dtype=PRECISIONS[precision]), None
    images = grid_inputs(name, batch, seq, PRECISIONS[precision]) if name in GRIDS else dict(list(record_image_text.inputs_of(name, False, PRECISIONS[precision], batch, seq).items())[1:]) if name in IMAGES else {}
    gc.collect()
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    if traces:
        memory._record_memory_history(max_entries=1000000, context=None, stacks="python")
    model.to("cuda")
    parameters, buffers = list(model.parameters()), list(model.buffers())
    phases = Phases()
    memory.reset_peak_memory_stats()
    ids, mask = ids.to("cuda"), None if speech else mask.to("cuda")
    host = images
    images = {key: x.to("cuda") for key, x in images.items()}
    phases.end("inputs")
    prepare, calls = model.prepare_inputs_for_generation, 0

    @functools.wraps(prepare)
    def counted(*arguments, **keywords):
        nonlocal calls
        calls += 1
        if calls == 2:
            phases.end("forward")
        return prepare(*arguments, **keywords)

    model.prepare_inputs_for_generation = counted

    def stop(_, unfinished, _tokens, length):
        _ = unfinished.max() == 0
        return length >= prompt + new_tokens

    utils.StopCheck.__call__ = stop
    truth, torch.Tensor.__bool__ = torch.Tensor.__bool__, lambda x: not speech if x.is_cuda else truth(x)
    values = contextlib.nullcontext()
    if name in GRIDS:
        values = Values()
        for key, x in images.items():
            x._values = host[key]
        ids._values, mask._values = 1 - host["mm_token_type_ids"], torch.ones(batch, seq, dtype=torch.long)
    for told in [(0, 8)] * 2 * bool(record_image_text.told_masks) + record_image_text.told_masks:  # generate reads two numbers before
        record_image_text.tell(*told if isinstance(told, tuple) else (told,))
        torch.Tensor.prod = torch.Tensor.sum  # as in record_image_text.py
    record_image_text.told_masks.clear()
    try:
        with values:
            sequences = model.generate(ids, attention_mask=mask, **images, max_new_tokens=new_tokens, do_sample=False, disable_compile=True, **CACHES.get(cache, {}))
    finally:
        torch.Tensor.__bool__ = truth
    phases.end("decode")
    assert sequences.shape == (batch, new_tokens if speech else prompt + new_tokens)
    ident = name_of(name, batch, seq, new_tokens, precision, attention, cache)
    if traces:
        save_trace(Path(traces), ident)
    spec = f"generation-{name}.json"
    (CONFIG_FILES / spec).write_text(json.dumps(CONFIGS[name], indent=1) + "\n")
    size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
    return {"set": "generation", "id": ident,
            "arguments": [f"configs/{spec}", "--batch", str(batch), *(["--seq", str(seq)] if seq else []), "--mode", "infer", "--precision", precision, "--attn", attention,
                          "--new-tokens", str(new_tokens), *{"none": ["--use-cache", "no"], "static": ["--cache", "static"], "fp8": ["--cache-dtype", "fp8"]}.get(cache, []),
                          *(["--task", "image-text-to-text", "--images", str(IMAGES[name][5]) if name in IMAGES else str(len(images) and 1)] if name in IMAGES | GRIDS | TEXT_ALONE else []), *(["--image", "x".join(map(str, GRID_SIDES[name]))] if name in GRIDS else ["--image", IMAGES[name][6]] if name in IMAGES and len(IMAGES[name]) > 6 else []), "--gpu", "a100-80gb", "--torch-version", "2.15"],
            "states": {"parameters_bytes": size(parameters), "buffers_bytes": size(buffers), "gradients_bytes": 0, "optimizer_state_bytes": 0},
            "phases": phases.rows, "reserved": phases.reserved}


def grid_inputs(name, batch, seq, dtype):
    """What the processor makes of one image a sample: 15 tokens of the chat template before its own."""
    vision = AutoConfig.for_model(**CONFIGS[name]).vision_config
    height, width = (side // vision.patch_size for side in GRID_SIDES[name])
    types = torch.zeros(batch, seq, dtype=torch.long)
    types[:, 15:15 + height * width // vision.spatial_merge_size**2] = 1
    pixels = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {"mm_token_type_ids": types, "pixel_values": torch.zeros(batch * height * width, pixels, dtype=dtype), "image_grid_thw": torch.tensor([[1, height, width]] * batch)}


def without_check(made):
    """ForcedEOSTokenLogitsProcessor.__init__ raises where a token is negative."""
    @functools.wraps(made)
    def init(*arguments, **keywords):
        true, torch.Tensor.__bool__ = torch.Tensor.__bool__, lambda _: False
        made(*arguments, **keywords)
        torch.Tensor.__bool__ = true
    return init


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--traces")
    p.add_argument("text", nargs="*")
    a = p.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch._check_tensor_all_with = lambda error, condition, message=None: bool(condition._is_all_true().item())
    forced = logits_process.ForcedEOSTokenLogitsProcessor
    forced.__init__ = without_check(forced.__init__)
    run(*CASES[0])  # what the first use of the libraries sets up belongs to no row
    for case in CASES:
        if not a.text or any(t in name_of(*case) for t in a.text):
            print(json.dumps(run(*case, traces=a.traces), separators=(",", ":")), flush=True)


if __name__ == "__main__":
    main()

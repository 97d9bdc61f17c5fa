#!/usr/bin/env python3
"""Records rows of models of images and text for tests/accuracy: record_image_text.py [--traces DIR] [NAME...] > rows

Small models of transformers are trained or run on PyTorch's CUDA build with the inputs that their processors make; one row of
tests/accuracy/rows.jsonl a line. It needs torch, transformers and a CUDA device, or a stand-in whose allocator counts: there values read back
are not those of a run, so checks of them are left out here, and the stand-in is told how many elements a mask selects where it has a function
vgpu_tell_bytes(values, bytes): what the next read of so many bytes gives. --traces also writes the allocator's events of each run. The rows were recorded with PYTHONHASHSEED=0: llama4 makes its masks in the order of a set.
"""
import argparse
import contextlib
import ctypes
import gc
import gzip
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers

CONFIG_FILES = Path(__file__).resolve().parent.parent / "tests" / "accuracy" / "configs"
memory = torch.cuda.memory
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32, "amp-bf16": torch.float32}
TEXT = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
GEMMA = TEXT | {"num_key_value_heads": 1, "head_dim": 16}
VISION = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 56, "patch_size": 14}
PART = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAVA = {"model_type": "llava", "image_token_index": 0, "text_config": TEXT | {"model_type": "llama"}, "vision_config": VISION | {"model_type": "clip_vision_model"}}
LLAMA4 = {"model_type": "llama4", "image_token_index": 0,
          "text_config": TEXT | {"head_dim": 16, "intermediate_size_mlp": 128, "num_hidden_layers": 3, "num_local_experts": 4, "interleave_moe_layer_step": 2, "no_rope_layer_interval": 3,
                                 "attention_chunk_size": 16},
          "vision_config": {"hidden_size": 48, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56, "patch_size": 14, "projector_input_dim": 80,
                            "projector_output_dim": 80, "vision_output_dim": 80}}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 112, "patch_size": 14}
MODELS = {  # name: class, task, configuration, batch, tokens, images a sample, and the size of an image where it is not the configuration's
    "clip": ("CLIPModel", "zero-shot-image-cls", {"model_type": "clip", "projection_dim": 48, "text_config": PART | {"vocab_size": 1000}, "vision_config": VISION}, 3, 20, 1),
    "siglip": ("SiglipModel", "zero-shot-image-cls", {"model_type": "siglip", "text_config": PART | {"vocab_size": 1000, "projection_size": 48}, "vision_config": VISION}, 3, 20, 1),
    "llava": ("LlavaForConditionalGeneration", "image-text-to-text", LLAVA, 2, 40, 1),
    "llava-full": ("LlavaForConditionalGeneration", "image-text-to-text", LLAVA | {"vision_feature_select_strategy": "full", "vision_feature_layer": [-2, -1],
                   "vision_config": VISION | {"model_type": "siglip_vision_model"}}, 2, 40, 2),
    "paligemma": ("PaliGemmaForConditionalGeneration", "image-text-to-text", {"model_type": "paligemma", "image_token_index": 0, "projection_dim": 64, "hidden_size": 64, "vocab_size": 1000,
                  "text_config": GEMMA | {"model_type": "gemma"}, "vision_config": VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}}, 2, 40, 1),
    "gemma3": ("Gemma3ForConditionalGeneration", "image-text-to-text", {"model_type": "gemma3", "image_token_index": 0, "mm_tokens_per_image": 4,
               "text_config": GEMMA | {"num_hidden_layers": 3, "sliding_window": 16, "sliding_window_pattern": 3}, "vision_config": VISION}, 2, 40, 1),
    "mllama": ("MllamaForConditionalGeneration", "image-text-to-text", {"model_type": "mllama",
               "text_config": TEXT | {"num_hidden_layers": 3, "cross_attention_layers": [1], "pad_token_id": 0},
               "vision_config": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_global_layers": 2, "attention_heads": 4, "image_size": 56, "patch_size": 14,
                                 "intermediate_layers_indices": [0, 2], "vision_output_dim": 144}}, 2, 40, 1),
    "git": ("GitForCausalLM", "image-text-to-text", {"model_type": "git", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
            "vision_config": VISION}, 2, 40, 1),
    "llava-pixtral": ("LlavaForConditionalGeneration", "image-text-to-text", LLAVA | {"vision_feature_select_strategy": "full", "vision_feature_layer": -1, "vision_config": PIXTRAL,
                      "text_config": TEXT | {"model_type": "mistral", "head_dim": 16}}, 2, 60, 1, "84x112"),
    **{name: (f"{prefix}ForConditionalGeneration", "image-text-to-text", {"model_type": name, "image_token_id": 0, "scale_factor": 2, "text_config": TEXT | {"model_type": "llama"},
              "vision_config": VISION}, 2, 100, 1, "40x100") for name, prefix in (("smolvlm", "SmolVLM"), ("idefics3", "Idefics3"))},
    "llava-next": ("LlavaNextForConditionalGeneration", "image-text-to-text", {"model_type": "llava_next", "image_token_index": 0, "text_config": TEXT | {"model_type": "llama"},
                   "vision_config": VISION | {"model_type": "clip_vision_model"}, "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]}, 2, 100, 1, "60x100"),
    "mistral3": ("Mistral3ForConditionalGeneration", "image-text-to-text", {"model_type": "mistral3", "image_token_index": 0, "spatial_merge_size": 2,
                 "text_config": TEXT | {"model_type": "mistral", "head_dim": 16}, "vision_config": PIXTRAL}, 2, 40, 2, "112x84"),
    "internvl": ("InternVLForConditionalGeneration", "image-text-to-text", {"model_type": "internvl", "image_token_id": 0, "text_config": TEXT | {"model_type": "qwen2"},
                 "vision_config": VISION | {"norm_type": "rms_norm", "use_qk_norm": True}}, 2, 40, 1),
    "internvl-tiles": ("InternVLForConditionalGeneration", "image-text-to-text", {"model_type": "internvl", "image_token_id": 0, "text_config": TEXT | {"model_type": "qwen2"},
                       "vision_config": VISION | {"attention_bias": True, "use_mean_pooling": False}}, 2, 60, 1, "100x150"),
    "voxtral": ("VoxtralForConditionalGeneration", "seq2seq", {"model_type": "voxtral", "audio_token_id": 0, "text_config": TEXT | {"head_dim": 16},
                "audio_config": {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_mel_bins": 16, "max_source_positions": 40}}, 2, 40, 1),
    "llama4": ("Llama4ForConditionalGeneration", "image-text-to-text", LLAMA4, 2, 40, 1),
    "llama4-tiles": ("Llama4ForConditionalGeneration", "image-text-to-text", LLAMA4, 2, 40, 1, "100x150"),
    "llama4-text": ("Llama4ForConditionalGeneration", "image-text-to-text", LLAMA4, 2, 40, 0),
}
selected, told_masks = [], []  # counts for backward, and for forward
PIXELS = {"llama4-tiles": 7, "internvl-tiles": 7}  # tiles of an image: two by three, and the whole one
EXTRAS = {  # memest's options
    "checkpoint": ["--checkpoint", "full"], "reentrant": ["--checkpoint", "full,reentrant"], "lora": ["--lora", "r=8,alpha=16,targets=q_proj+v_proj"],
    "lora-checkpoint": ["--lora", "r=8,alpha=16,targets=all-linear", "--checkpoint", "full"], "freeze": ["--freeze", "*vision*"],
    "nf4": ["--quant", "nf4,compute=bf16"], "int8-lora": ["--quant", "int8", "--lora", "r=8,alpha=16,targets=q_proj+v_proj"],
    "nf4-kbit-lora": ["--quant", "nf4,compute=bf16", "--kbit-training", "--lora", "r=8,alpha=16,targets=q_proj+v_proj"],
}
RUNS = [("fp32", "sdpa", "train"), ("amp-bf16", "eager", "train"), ("bf16", "sdpa", "infer")]


def save_trace(folder, ident):
    events = memory._snapshot()["device_traces"][0]
    low = min(e["addr"] for e in events if "addr" in e)
    lines = [[e["action"], e["addr"] - low, e["size"]] for e in events if "addr" in e]
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"id": ident, "fields": ["action", "address", "bytes"], "events": lines}, separators=(",", ":"))
    (folder / (ident.replace(" ", "_") + ".json.gz")).write_bytes(gzip.compress(text.encode(), mtime=0))
    memory._record_memory_history(enabled=None)


def pixtral_reads(images, rows, columns, merge):
    """What modeling_pixtral.py and modeling_mistral3.py read of image_sizes, in their order: numbers of 8 bytes, and a list of the tokens."""
    reads = [(rows, 8), (columns, 8)] * images
    if merge:
        reads += [(rows * columns, 8)] * images + [(rows, 8), (columns, 8)] * images
    tokens = rows * columns // (merge or 1) ** 2
    return reads + [((tokens,) * images, 8 * images)]


def inputs_of(name, training, dtype, batch=None, seq=None):
    """The arguments of forward, in the order of the processor; labels last."""
    _, task, config, own_batch, own_seq, images, *size = MODELS[name]
    batch, seq = batch or own_batch, seq or own_seq
    side = config.get("vision_config", {}).get("image_size")
    made = {"input_ids": torch.zeros(batch, seq, dtype=torch.long)}
    if name in ("paligemma", "gemma3"):
        made["token_type_ids"] = torch.zeros(batch, seq, dtype=torch.long)
    if name == "mllama":
        made |= {"pixel_values": torch.zeros(batch, images, 4, 3, side, side, dtype=dtype), "aspect_ratio_ids": torch.ones(batch, images, dtype=torch.long),
                 "aspect_ratio_mask": torch.ones(batch, images, 4, dtype=torch.long), "cross_attention_mask": torch.ones(batch, seq, images, 4, dtype=torch.long)}
    elif name == "voxtral":
        audio = config["audio_config"]
        made["input_features"] = torch.zeros(batch, audio["num_mel_bins"], 2 * audio["max_source_positions"], dtype=dtype)
        told_masks.append(batch * audio["max_source_positions"] * audio["hidden_size"] // audio["intermediate_size"] * config["text_config"]["hidden_size"])
    elif config.get("vision_config", {}).get("model_type") == "pixtral":
        height, width = (int(x) for x in size[0].split("x"))
        made |= {"pixel_values": torch.zeros(batch * images, 3, height, width, dtype=dtype), "image_sizes": torch.ones(batch * images, 2, dtype=torch.long)}
        told_masks.extend(pixtral_reads(batch * images, height // 14, width // 14, config.get("spatial_merge_size")))
    elif name in ("smolvlm", "idefics3"):  # two rows of four tiles, and the whole image
        made |= {"pixel_values": torch.zeros(batch, images * 9, 3, side, side, dtype=dtype), "pixel_attention_mask": torch.ones(batch, images * 9, side, side, dtype=torch.long)}
        told_masks.extend([batch * images * 9] * 2 + [((images * 9,) * batch, 8 * batch)])
    elif name == "llava-next":
        made |= {"pixel_values": torch.zeros(batch * images, 5, 3, side, side, dtype=dtype), "image_sizes": torch.ones(batch * images, 2, dtype=torch.long)}
        told_masks.extend([((60, 100), 16)] * (batch * images * 3))  # image_sizes as lists: of the tiles, of the grid, of what is not padding
    elif images:
        made["pixel_values"] = torch.zeros(batch * images * PIXELS.get(name, 1), 3, side, side, dtype=dtype)
    if training and task != "zero-shot-image-cls":
        made["labels"] = torch.zeros(batch, seq, dtype=torch.long)
    return made


def tell(count, size=4):
    """Says how many elements the next mask selects: nonzero reads an int."""
    if hasattr(ctypes.CDLL(None), "vgpu_tell_bytes"):
        values = (ctypes.c_longlong * 64)(*(count if isinstance(count, tuple) else (count,)))
        ctypes.CDLL(None).vgpu_tell_bytes(values, ctypes.c_size_t(size))


def masked_scatter(self, mask, source, scatter=torch.Tensor.masked_scatter):
    """Its backward selects from the gradient what the mask took from the source."""
    if source.requires_grad:
        selected.append(source.numel())
    return scatter(self, mask, source)


def with_extra(model, extra):
    """As a user trains it: adapters, checkpoints of the layers, or a vision model that is not trained."""
    if "lora" in extra:
        import peft
        if "kbit" in extra:
            model = peft.prepare_model_for_kbit_training(model)
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear" if "checkpoint" in extra else ["q_proj", "v_proj"]))
    if "checkpoint" in extra or extra == "reentrant":
        model.gradient_checkpointing_enable({"use_reentrant": extra == "reentrant"})
        if extra.startswith("lora"):
            model.enable_input_require_grads()
    for name, parameter in model.named_parameters() if extra == "freeze" else ():
        if "vision" in name or "visual" in name:
            parameter.requires_grad = False
    return model


def quantised(model, extra, attention):
    """As from_pretrained loads it onto the device."""
    four_bit = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder, quantization_config=transformers.BitsAndBytesConfig(**(four_bit if "nf4" in extra else {"load_in_8bit": True})),
                                           device_map={"": 0}, dtype=model.dtype, attn_implementation=attention)


def measured(model, host, precision, training, options):
    """Three steps of it: states, phases, the most reserved."""
    if not hasattr(model, "hf_device_map"):
        model.to("cuda")
    parameters, buffers = list(model.parameters()), list(model.buffers())
    optimizer = torch.optim.AdamW(p for p in parameters if p.requires_grad) if training else None
    memory.reset_peak_memory_stats()
    phases, on_device, reserved, out, loss = [], {}, 0, None, None

    def end(step, phase):
        nonlocal reserved
        phases.append({"step": step, "phase": phase, "end": memory.memory_allocated(), "peak": memory.max_memory_allocated()})
        reserved = max(reserved, memory.max_memory_reserved())
        memory.reset_peak_memory_stats()

    amp = torch.autocast("cuda", dtype=torch.bfloat16) if precision.startswith("amp") else contextlib.nullcontext()
    for step in (1, 2, 3):
        fresh = {key: x.to("cuda") for key, x in host.items()}
        for key in host:
            on_device[key] = fresh.pop(key)
        end(step, "inputs")
        if training:
            optimizer.zero_grad()
            end(step, "zero_grad")
        with contextlib.nullcontext() if training else torch.no_grad(), amp:
            for told in told_masks:
                tell(*told if isinstance(told, tuple) else (told,))
            out = model(**on_device, **options)
            loss = out.loss if training else None
        end(step, "forward")
        if training:
            for count in reversed(selected):
                tell(count)
            selected.clear()
            loss.backward()
            end(step, "backward")
            optimizer.step()
            end(step, "optimizer")
    size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
    state = [t for values in optimizer.state.values() for t in values.values() if t.device.type == "cuda"] if training else []
    return {"states": {"parameters_bytes": size(parameters), "buffers_bytes": size(buffers), "gradients_bytes": size(p for p in parameters if p.requires_grad) if training else 0,
                       "optimizer_state_bytes": size(state)}, "phases": phases, "reserved": reserved}


def run(name, precision, attention, mode, extra="", traces=None):
    cls, task, config, batch, seq, images, *size_of_image = MODELS[name]
    training, dtype = mode == "train", PRECISIONS[precision]
    made = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    model = getattr(transformers, cls)._from_config(made, dtype=dtype, attn_implementation=attention).train(training)
    gc.collect()
    memory.empty_cache()
    if traces:
        memory._record_memory_history(max_entries=1000000, context=None, stacks="python")
    if "nf4" in extra or "int8" in extra:
        model = quantised(model, extra, attention).train(training)
    model = with_extra(model, extra)
    options = {"return_loss": training} if task == "zero-shot-image-cls" else {"use_cache": False}
    told_masks.clear()
    result = measured(model, inputs_of(name, training, dtype), precision, training, options)
    if "nf4" in extra or "int8" in extra:
        del result["states"]["parameters_bytes"]  # memest counts the scales of quantised weights, too
    ident = f"images and text: {name} batch={batch} seq={seq} mode={mode} precision={precision} attention={attention}" + (f" {extra}" if extra else "")
    if traces:
        from record_generation import save_trace  # which imports this file
        save_trace(traces, ident)
    spec = f"image-text-{name}.json"
    (CONFIG_FILES / spec).write_text(json.dumps(config) + "\n")
    arguments = [f"configs/{spec}", "--task", task, "--batch", str(batch), "--seq", str(seq), "--mode", mode, "--precision", precision, "--attn", attention]
    if name == "voxtral":
        arguments += ["--use-cache", "no"]
    if task == "image-text-to-text":
        arguments += ["--images", str(images), "--use-cache", "no"] + [word for size in size_of_image for word in ("--image", size)]
    if training:
        arguments += ["--optimizer", "adamw"]
    arguments += EXTRAS.get(extra, [])
    return {"set": "images and text", "id": ident, "arguments": arguments + ["--gpu", "a100-80gb", "--torch-version", "2.15"]} | result


def prepare():
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.Tensor.masked_scatter = masked_scatter
    torch.Tensor.prod = torch.Tensor.sum  # the same allocations, without a kernel that is compiled at run time
    torch._check_tensor_all_with = lambda error, condition, message=None: bool(condition._is_all_true().item())
    transformers.modeling_outputs.MoeCausalLMOutputWithPast.image_outputs = None  # 5.24: Llama4ForConditionalGeneration.forward asks for it at its end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--only", help="runs with this word: fp32, infer, lora ...")
    parser.add_argument("--extras", help="joined by +: " + ", ".join(EXTRAS))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    prepare()
    for name in options.names or MODELS:
        for case in RUNS + [("bf16", "sdpa", "infer" if extra == "nf4" else "train", extra) for extra in (options.extras or "").split("+") if extra]:
            if options.only and options.only not in case:
                continue
            if name == "git" and case[1] == "sdpa":  # eager attention alone
                case = (case[0], "eager", case[2])
            print(json.dumps(run(name, *case, traces=options.traces), separators=(",", ":")), flush=True)


if __name__ == "__main__":
    sys.exit(main())

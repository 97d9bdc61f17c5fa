#!/usr/bin/env python3
"""Records rows of models whose images are grids of patches, and of audio and text, for tests/accuracy: record_image_grids.py [--traces DIR] [NAME...] > rows

As record_image_text.py. What a stand-in for a CUDA device cannot read back is said here: the grid of each image, the places of its tokens, and the
totals that sizes on the device are read from.
"""
import argparse
import gc
import json
import sys
from pathlib import Path

import torch
import transformers
from record_generation import save_trace
from record_image_text import CONFIG_FILES, EXTRAS, PRECISIONS, measured, selected, tell, with_extra
import record_image_text

TEXT = {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
VISION = {"depth": 3, "hidden_size": 128, "out_hidden_size": 256, "intermediate_size": 300, "num_heads": 4}
ROPE = {"rope_type": "default", "rope_theta": 500000.0}
MODELS = {  # name: class, configuration
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", None),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", None),
    "glm4v": ("Glm4vForConditionalGeneration", None),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", {
        "model_type": "qwen3_5", "image_token_id": 0, "text_config": TEXT | {
            "head_dim": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": ROPE | {"mrope_section": [3, 3, 2], "mrope_interleaved": True, "partial_rotary_factor": 0.25}},
        "vision_config": VISION | {"num_position_embeddings": 256}}),
}
RUNS = [(1, 200, "252x336", "amp-bf16", "eager", "train"), (2, 160, "224x336", "fp32", "sdpa", "train"), (2, 160, "224x336", "bf16", "sdpa", "infer"),
        (3, 160, "224x336", "bf16", "sdpa", "train", "checkpoint"), (2, 160, None, "fp32", "sdpa", "train")]


class Told:
    """The values of an image's grid, by the function of transformers that asks for them."""

    def __init__(self, batch, seq, image, vision):
        self.patch, self.merge = vision.patch_size, vision.spatial_merge_size
        self.batch = self.images = batch if image else 0
        self.height, self.width = (int(side) // self.patch for side in image.split("x")) if image else (0, 0)
        self.patches = self.height * self.width
        self.tokens = self.patches // self.merge ** 2
        before = min(15, seq - self.tokens)
        self.types = [0] * before + [1] * self.tokens + [0] * (seq - before - self.tokens)

    def listed(self, tensor, caller):
        if caller == "get_rope_index":
            return self.types
        if caller == "get_image_features":
            return [self.tokens] * self.images
        if tensor.dim() == 2:
            return [[1, self.height, self.width]] * self.images
        if caller == "get_vision_position_ids":
            return [self.merge] * self.images
        return None

    def numbers(self, caller):
        return [1, self.height, self.width] if caller == "get_vision_position_ids" else None


def say(told):
    """Tensors say these values where transformers reads them; the reads happen all the same."""
    tolist, item, repeat, arange = torch.Tensor.tolist, torch.Tensor.item, torch.repeat_interleave, torch.arange
    asked = []

    def told_list(self):
        read, caller = tolist(self), sys._getframe(1).f_code.co_name
        if not self.is_cuda or told.images == 0:
            return read
        if caller in ("forward", "<genexpr>", "<listcomp>"):  # lengths of an attention
            return [told.patches] * told.images
        return told.listed(self, caller) or read

    def told_item(self):
        read, numbers = item(self), told.numbers(sys._getframe(1).f_code.co_name)
        if not self.is_cuda or not numbers:
            return read
        asked.append(numbers[len(asked) % 3])
        return asked[-1]

    def told_repeat(x, repeats=None, *arguments, **keywords):
        if isinstance(repeats, torch.Tensor):
            tell(told.images if sys._getframe(1).f_code.co_name == "get_vision_cu_seqlens" else told.images * told.patches, 8)
        return repeat(x, repeats, *arguments, **keywords)

    def told_arange(end, *arguments, **keywords):
        if isinstance(end, torch.Tensor) and not arguments:
            tell(told.images * told.patches, 8)
        return arange(end, *arguments, **keywords)

    torch.Tensor.tolist, torch.Tensor.item, torch.repeat_interleave, torch.arange = told_list, told_item, told_repeat, told_arange


def say_deepstack(model, told):
    """Masks select the image's tokens, in forward, and in backward twice each."""
    for module in model.modules():
        if hasattr(module, "_deepstack_process"):
            def process(hidden_states, visual_pos_masks, visual_embeds, original=module._deepstack_process):
                for _ in range(2):
                    tell(told.images * told.tokens)
                selected.extend([told.images * told.tokens] * 3 if hidden_states.requires_grad else [])
                return original(hidden_states, visual_pos_masks, visual_embeds)
            module._deepstack_process = process


def run(name, batch, seq, image, precision, attention, mode, extra="", traces=None):
    cls, config = MODELS[name]
    spec = f"image-grid-{name}.json"
    if config is None:
        config = json.loads((CONFIG_FILES / spec).read_text())
    training, dtype = mode == "train", PRECISIONS[precision]
    model = getattr(transformers, cls)._from_config(transformers.AutoConfig.for_model(**json.loads(json.dumps(config))), dtype=dtype, attn_implementation=attention).train(training)
    vision = model.config.vision_config
    if image and vision.patch_size == 16:
        image = {"252x336": "256x320", "224x336": "224x320"}[image]
    told = Told(batch, seq, image, vision)
    say(told)
    say_deepstack(model, told)
    model = with_extra(model, extra)
    if traces:
        torch.cuda.memory._record_memory_history(max_entries=1000000, context=None, stacks="python")
    gc.collect()
    torch.cuda.empty_cache()
    host = {"input_ids": torch.zeros(batch, seq, dtype=torch.long)}
    if image:
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size ** 2
        host |= {"mm_token_type_ids": torch.zeros(batch, seq, dtype=torch.long), "pixel_values": torch.zeros(told.images * told.patches, width, dtype=dtype),
                 "image_grid_thw": torch.ones(told.images, 3, dtype=torch.long)}
    if training:
        host["labels"] = torch.zeros(batch, seq, dtype=torch.long)
    result = measured(model, host, precision, training, {"use_cache": not training})
    ident = f"images in grids: {name} batch={batch} seq={seq} image={image or 'none'} mode={mode} precision={precision} attention={attention}" + (f" {extra}" if extra else "")
    if traces:
        save_trace(traces, ident)
    (CONFIG_FILES / spec).write_text(json.dumps(config) + "\n")
    arguments = [f"configs/{spec}", "--task", "image-text-to-text", "--batch", str(batch), "--seq", str(seq), "--mode", mode, "--precision", precision, "--attn", attention,
                 "--use-cache", "no" if training else "yes"]
    arguments += ["--image", image, "--images", "1"] if image else ["--images", "0"]
    arguments += ["--optimizer", "adamw"] if training else []
    arguments += ["--freeze", "*visual*"] if extra == "freeze" else EXTRAS.get(extra, [])
    return {"set": "images in grids", "id": ident, "arguments": arguments + ["--gpu", "a100-80gb", "--torch-version", "2.15"]} | result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--only", type=int, help="the number of one run")
    parser.add_argument("--extras", help="joined by +: " + ", ".join(EXTRAS))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    record_image_text.prepare()
    plain = torch.Tensor.tolist, torch.Tensor.item, torch.repeat_interleave, torch.arange
    for name in options.names or MODELS:
        for number, case in enumerate(RUNS + [(2, 160, "224x336", "bf16", "sdpa", "train", extra) for extra in (options.extras or "").split("+") if extra]):
            if options.only is None or options.only == number:
                torch.Tensor.tolist, torch.Tensor.item, torch.repeat_interleave, torch.arange = plain
                print(json.dumps(run(name, *case, traces=options.traces), separators=(",", ":")), flush=True)


if __name__ == "__main__":
    sys.exit(main())

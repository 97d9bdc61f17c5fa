#!/usr/bin/env python3
"""Records rows of families of transformers for tests/accuracy: record_families.py [NAME...] [--into tests/accuracy] [--counts]

Small models of each family are trained and run on PyTorch's CUDA build; their rows replace those of the same models in rows.jsonl of the folder, and every
allocation of a training step in fp32 goes to allocations/ (of every run with --all-lists, for tests/accuracy/run.py --data). --counts prints lines of
tests/unit/spec/hf_counts.txt instead: of each task, the small model's and those of the class's own sizes.
It needs torch, transformers and a CUDA device, or a stand-in whose allocator counts: there values read back are zeros.
"""
import argparse
import contextlib
import gc
import hashlib
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SET = "families"
AUTO = {"causal-lm": "AutoModelForCausalLM", "masked-lm": "AutoModelForMaskedLM", "seq-cls": "AutoModelForSequenceClassification", "token-cls": "AutoModelForTokenClassification",
        "question-answering": "AutoModelForQuestionAnswering", "multiple-choice": "AutoModelForMultipleChoice", "seq2seq": "AutoModelForSeq2SeqLM", "image-cls": "AutoModelForImageClassification",
        "semantic-seg": "AutoModelForSemanticSegmentation", "ctc": "AutoModelForCTC", "base": "AutoModel"}
TEXT = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
GQA = TEXT | {"num_key_value_heads": 2}
AUDIO = TEXT | {"vocab_size": 32, "conv_dim": [32, 32, 32], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3], "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
                "apply_spec_augment": False, "layerdrop": 0.0}
FALCON_H1 = GQA | {"model_type": "falcon_h1", "head_dim": 16, "mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 16}
EAGER = {"attention": "eager"}  # classes without sdpa
MODELS = {  # name: tasks, configuration, batch, the length of a sequence or an image's side, and what is another
    "deberta": (["masked-lm", "seq-cls", "token-cls", "question-answering"], TEXT | {"model_type": "deberta", "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": -1}, 2, 40, EAGER),
    "resnet": (["image-cls"], {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [32, 64], "depths": [2, 2]}, 2, 64, EAGER),
    "regnet-y": (["image-cls"], {"model_type": "regnet", "embedding_size": 16, "hidden_sizes": [32, 64], "depths": [2, 2], "groups_width": 16}, 2, 64, EAGER),
    "regnet-x": (["image-cls"], {"model_type": "regnet", "layer_type": "x", "embedding_size": 16, "hidden_sizes": [24, 24, 48], "depths": [1, 2, 1], "groups_width": 8,
                 "downsample_in_first_stage": False}, 2, 64, EAGER),
    "poolformer": (["image-cls"], {"model_type": "poolformer", "hidden_sizes": [16, 32, 48, 64], "depths": [1, 2, 1, 1], "drop_path_rate": 0.1}, 2, 64, EAGER),
    "segformer": (["image-cls", "semantic-seg"], {"model_type": "segformer", "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 3, 4], "decoder_hidden_size": 32}, 2, 64),
    "nemotron": (["causal-lm", "seq-cls"], GQA | {"model_type": "nemotron"}, 2, 40),
    "ministral3": (["causal-lm", "seq-cls"], GQA | {"model_type": "ministral3", "head_dim": 16}, 2, 40),
    "wav2vec2": (["ctc"], AUDIO | {"model_type": "wav2vec2"}, 2, 4000),
    "hubert": (["ctc"], AUDIO | {"model_type": "hubert"}, 2, 4000),
    "nemotron-h": (["causal-lm"], GQA | {"model_type": "nemotron_h", "num_hidden_layers": 4, "head_dim": 16, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
                   "mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 16, "n_routed_experts": 4, "moe_intermediate_size": 48,
                   "moe_shared_expert_intermediate_size": 80}, 2, 40),
    "persimmon": (["causal-lm", "seq-cls", "token-cls"], TEXT | {"model_type": "persimmon"}, 2, 40),
    "squeezebert": (["masked-lm", "seq-cls", "token-cls", "question-answering", "multiple-choice"], TEXT | {"model_type": "squeezebert", "embedding_size": 64}, 2, 40, EAGER),
    "convbert": (["masked-lm", "seq-cls", "token-cls", "question-answering", "multiple-choice"], TEXT | {"model_type": "convbert", "embedding_size": 32}, 2, 40, EAGER),
    "falcon-h1": (["causal-lm"], FALCON_H1, 2, 40),
    "falcon-h1-norm": (["causal-lm"], FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "projectors_bias": True}, 2, 40),
    "gemma3n": (["causal-lm"], GQA | {"model_type": "gemma3n_text", "head_dim": 16, "num_hidden_layers": 5, "num_kv_shared_layers": 2, "sliding_window": 16, "vocab_size_per_layer_input": 900,
                "hidden_size_per_layer_input": 24, "laurel_rank": 8, "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0, 0.0],
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]}, 2, 40),
    "layoutlmv3": (["token-cls", "seq-cls", "question-answering"], TEXT | {"model_type": "layoutlmv3", "pad_token_id": 1, "coordinate_size": 12, "shape_size": 8, "input_size": 32,
                   "patch_size": 8, "max_rel_pos": 16, "max_rel_2d_pos": 24, "rel_pos_bins": 8, "rel_2d_pos_bins": 16}, 2, 40, {"image": 32}),
    "lilt": (["token-cls", "seq-cls", "question-answering"], TEXT | {"model_type": "lilt", "hidden_size": 48, "pad_token_id": 1}, 2, 40, EAGER),
    "led": (["seq2seq"], {"model_type": "led", "vocab_size": 1000, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
            "encoder_ffn_dim": 160, "decoder_ffn_dim": 160, "attention_window": 16, "max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 96}, 2, 40, EAGER),
    "esm": (["masked-lm", "seq-cls", "token-cls"], TEXT | {"model_type": "esm", "vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32,
            "position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False}, 3, 40),
    "esm-1b": (["masked-lm"], TEXT | {"model_type": "esm", "vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "emb_layer_norm_before": True}, 3, 40),
    "lfm2-moe": (["causal-lm"], GQA | {"model_type": "lfm2_moe", "num_hidden_layers": 3, "num_dense_layers": 1, "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2,
                 "layer_types": ["conv", "full_attention", "conv"]}, 2, 40),
    "exaone-moe": (["causal-lm"], GQA | {"model_type": "exaone_moe", "num_hidden_layers": 3, "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
                   "sliding_window_pattern": 3}, 2, 40),
    "granitemoeshared": (["causal-lm"], GQA | {"model_type": "granitemoeshared", "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 96}, 2, 40),
    "hunyuan-moe": (["causal-lm", "seq-cls"], GQA | {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": 2, "head_dim": 16}, 2, 40),
    "hunyuan": (["causal-lm", "seq-cls"], GQA | {"model_type": "hunyuan_v1_dense", "head_dim": 16}, 2, 40),
}
STAND_IN = "libcudart" in os.environ.get("LD_PRELOAD", "")  # values read back are zeros
NO_DEFAULT = {"esm"}  # classes without sizes of their own for the vocabulary
RUNS = [  # precision, attention, mode, cache, checkpointing
    ("fp32", "sdpa", "train", False, False), ("amp-bf16", "eager", "train", False, False), ("bf16", "sdpa", "train", False, True), ("bf16", "sdpa", "infer", True, False)]


def build(task, config, **options):
    import transformers
    values = json.loads(json.dumps(config))
    made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    return getattr(transformers, AUTO[task]).from_config(made, **options)


def inputs_of(task, model, batch, size, training, dtype):
    import torch
    zeros = lambda *shape: torch.zeros(shape, dtype=torch.long)
    config = model.config
    if task in ("image-cls", "semantic-seg"):
        made = {"pixel_values": torch.zeros(batch, getattr(config, "num_channels", 3), size, size, dtype=dtype)}
        labels = {"labels": zeros(batch) if task == "image-cls" else zeros(batch, size, size)}
    elif task == "ctc":
        made, labels = {"input_values": torch.zeros(batch, size, dtype=dtype)}, {"labels": zeros(batch, 8)}
    elif task == "multiple-choice":
        made, labels = {"input_ids": zeros(batch, 4, size)}, {"labels": zeros(batch)}
    else:
        made = {"input_ids": zeros(batch, size)}
        labels = {"start_positions": zeros(batch), "end_positions": zeros(batch)} if task == "question-answering" else {"labels": zeros(batch) if task == "seq-cls" else zeros(batch, size)}
    if config.model_type == "layoutlmv3":
        made |= {"bbox": zeros(batch, size, 4), "pixel_values": torch.zeros(batch, 3, config.input_size, config.input_size, dtype=dtype)}
    return made | (labels if training and task != "base" else {})


def run(name, task, precision, attention, mode, cache, checkpoint):
    """The row, and the lines of its allocation list."""
    import torch
    memory = torch.cuda.memory
    for item in dir(torch.nn.init):
        if item.endswith("_") and not item.startswith("_"):
            setattr(torch.nn.init, item, lambda t, *a, **k: t)
    torch.backends.cuda.enable_cudnn_sdp(False)
    if STAND_IN:
        torch.erfinv = torch.exp  # compiled when it first runs, which a stand-in cannot; another pointwise op allocates the same
    torch._check_tensor_all_with = lambda error, condition, message=None: bool(condition._is_all_true().item())
    _, config, batch, size, *other = MODELS[name]
    attention = other[0].get("attention", attention) if other else attention
    training, dtype = mode == "train", {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    model = build(task, config, dtype=dtype, attn_implementation=attention).train(training)
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    host = inputs_of(task, model, batch, size, training, dtype)
    options = {"use_cache": cache} if task in ("causal-lm", "seq2seq") else {}
    memory._record_memory_history(max_entries=1000000, context=None, stacks="python")
    model = model.to("cuda")
    gc.collect()
    parameters, buffers = list(model.parameters()), list(model.buffers())
    trainable = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable) if training else None
    memory.reset_peak_memory_stats()
    phases, on_device, reserved, out, loss = [], {}, 0, None, None

    def end(step, phase):
        nonlocal reserved
        phases.append({"step": step, "phase": phase, "end": memory.memory_allocated(), "peak": memory.max_memory_allocated()})
        reserved = max(reserved, memory.max_memory_reserved())
        memory.reset_peak_memory_stats()

    amp = torch.autocast("cuda", dtype=torch.bfloat16) if precision.startswith("amp") else contextlib.nullcontext()

    def forward():  # the last step's output and loss live until both new ones are there
        out = model(**on_device, **options)
        return out, out.loss if training and task != "base" else None
    for step in (1, 2, 3):
        fresh = {key: x.to("cuda") for key, x in host.items()}
        for key in host:
            on_device[key] = fresh.pop(key)
        end(step, "inputs")
        if training:
            optimizer.zero_grad()
            end(step, "zero_grad")
        with contextlib.nullcontext() if training else torch.no_grad(), amp:
            out, loss = forward()
        end(step, "forward")
        if training:
            loss.backward()
            end(step, "backward")
            optimizer.step()
            end(step, "optimizer")
    total = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
    state = [t for values in optimizer.state.values() for t in values.values() if t.device.type == "cuda"] if training else []
    states = {"parameters_bytes": total(parameters), "buffers_bytes": total(buffers)}
    if training:
        states |= {"gradients_bytes": total(trainable), "optimizer_state_bytes": total(state)}
    sizes = ["--image", str(size)] if task in ("image-cls", "semantic-seg") else ["--set", f"samples={size}", *(["--tgt-seq", "8"] if training else [])] if task == "ctc" else ["--seq", str(size)]
    arguments = [f"configs/family-{name}.json", "--task", task, "--batch", str(batch), *sizes, "--mode", mode, "--precision", precision, "--attn", attention]
    if other and "image" in other[0]:
        arguments += ["--image", str(other[0]["image"])]
    if options:
        arguments += ["--use-cache", "yes" if cache else "no"]
    if training:
        arguments += ["--optimizer", "adamw"]
    if checkpoint:
        arguments += ["--checkpoint", "full"]
    key = f"family: {name} task={task} precision={precision} mode={mode} attention={attention} batch={batch} size={size}" + (" checkpoint" if checkpoint else "")
    sys.path.insert(0, str(ROOT / "tests" / "accuracy"))
    from run import lines_of_events
    events = [{"action": e["action"], "address": e["addr"], "bytes": e["size"]} for e in memory._snapshot()["device_traces"][0] if "addr" in e]
    row = {"set": SET, "id": key, "arguments": [*arguments, "--gpu", "a100-80gb", "--torch-version", "2.15"], "states": states, "phases": phases, "reserved": reserved}
    return row, [line for line, _ in lines_of_events(events)]


def forked(work):
    """What the work returns, done in a process of its own that meets a fresh device; an error becomes its text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer = work()
        except BaseException as error:  # noqa: B902
            answer = f"{type(error).__name__}: {error}"[:300]
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else "it crashed"


def print_counts(name):
    import torch
    tasks, config, *_ = MODELS[name]
    for task in tasks:
        needed = {key: config[key] for key in ("vocab_size", "pad_token_id", "mask_token_id") if key in config} if config["model_type"] in NO_DEFAULT else {}
        for values in (config, {"model_type": config["model_type"]} | needed):
            with torch.device("meta"):
                model = build(task, values)
            parameters, buffers = list(model.parameters()), list(model.buffers())
            print(task, sum(p.numel() for p in parameters), len(buffers), sum(b.numel() * b.element_size() for b in buffers), json.dumps(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--into", type=Path, default=ROOT / "tests" / "accuracy")
    parser.add_argument("--all-lists", action="store_true")
    parser.add_argument("--counts", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in MODELS]:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(MODELS)}")
    import torch
    import transformers  # noqa: F401  loaded once
    torch.set_num_threads(1)
    path, lists, configs = options.into / "rows.jsonl", options.into / "allocations", ROOT / "tests" / "accuracy" / "configs"
    lists.mkdir(parents=True, exist_ok=True)
    for name in options.names or MODELS:
        if options.counts:
            print_counts(name)
            continue
        tasks, config, *_ = MODELS[name]
        (configs / f"family-{name}.json").write_text(json.dumps(config) + "\n")
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        rows = [row for row in rows if not row["id"].startswith(f"family: {name} ")]
        for task in tasks:
            for i, case in enumerate(RUNS if task == tasks[0] else RUNS[:2]):
                if STAND_IN and task == "ctc" and case[2] == "train":  # its targets' number is read back
                    continue
                answer = forked(lambda: run(name, task, *case))
                if isinstance(answer, str):
                    print(name, task, *case, answer, file=sys.stderr)
                    continue
                row, lines = answer
                rows.append(row)
                if options.all_lists or (i == 0 and task == tasks[0] and len(lines) < 4000):
                    slug = re.sub(r"[^a-z0-9]+", "-", row["id"].lower())[:60].strip("-")
                    (lists / f"{slug}-{hashlib.sha256(row['id'].encode()).hexdigest()[:6]}.txt").write_text(f"# {row['id']}\n" + "\n".join(lines) + "\n")
        path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in sorted(rows, key=lambda r: (r["set"], r["id"]))))


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Records rows of truth for tests/accuracy: record_accuracy_rows.py [--shared ../shared] [--set NAME...]

Copies the numbers of chosen rows from the shared truth into tests/accuracy/rows.jsonl (a row a line: its id, memest's arguments, the states, each
phase's end and peak, the most reserved), their specs into tests/accuracy/specs/ (Hugging Face configs into configs/), and for some small rows of each model every allocation into
tests/accuracy/allocations/. What is chosen stands in SETS. Sets that are not asked for keep their recorded rows.
"""
import argparse
import gzip
import hashlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "tests" / "accuracy"


def plain_optimizer(case):
    return case.get("optimizer", "sgd").partition(":")[0] in ("sgd", "sgd-momentum", "sgd-nesterov", "adam", "adam-amsgrad", "adamw")


# name: file of truth, rows by id, a condition on the case, and the ids of rows whose every allocation is kept
SETS = {
    "networks": {
        "file": "vgpu.jsonl",
        "ids": r"^(nn:(LeNet|UNet|Sequential.(Linear|Conv2d|Sequential))|torchvision:(resnet|wide_resnet|resnext|vgg|mobilenet_v2))",
        "condition": lambda case: plain_optimizer(case) and not case.get("checkpoint") and not case.get("channels_last"),
        "lists": {"for_each_model": 2, "most_events": 3000},
    },
    "encoders": {
        "file": "vgpu.jsonl",
        "ids": r"^hf:((megatron-bert|mpnet|deberta-v2|mobilebert|rembert|nomic_bert|roformer|xlm|flaubert)-2layers \S+ precision=amp-bf16|(luke|xlnet|big_bird|tapas|got_ocr2|longformer)-2layers|(layoutlm|ultrabert)-2layers \S+ precision=fp32"
               r"|(gte|eurobert|bert-generation|modernvbert)-2layers \S+ precision=bf16|(esmc|jina_embeddings_v3|modernbert|modernbert-decoder)-2layers \S+ precision=fp16)",
        "condition": lambda case: True,
    },
    "image models": {
        "file": "vgpu.jsonl",
        "ids": r"^hf:((beit-base-patch16-224) \S+ precision=fp32|swin-2layers \S+ precision=bf16|data2vec-vision-2layers \S+ precision=fp16|(donut-swin|convnextv2|mobilenet_v2|mobilevit|swiftformer|efficientnet)-2layers|ijepa-2layers \S+ precision=bf16)",
        "condition": lambda case: True,
    },
    "experts": {
        "file": "vgpu.jsonl",
        "ids": r"^hf:(mixtral batch=2 seq=64 .*precision=(amp-bf16|fp32) .*experts=grouped_mm|qwen3-moe batch=2 .*precision=bf16 .*experts=grouped_mm device=h100|deepseek-v3-ipex )",
        "condition": lambda case: True,
    },
    "encoder-decoders": {
        "file": "vgpu.jsonl",
        "ids": r"^hf:((bart|plbart)-2layers task=seq2seq precision=(fp16|amp-bf16)|mbart-2layers task=masked-lm precision=fp32|mvp-2layers task=causal-lm"
               r"|(pegasus|blenderbot|blenderbot-small|marian)-2layers task=seq2seq precision=bf16|pegasus-2layers task=causal-lm precision=fp16|(pegasus_x|bigbird_pegasus)-2layers task=seq2seq)",
        "condition": lambda case: True,
    },
    "decoders": {
        "file": "vgpu.jsonl",
        "ids": r"^hf:((gptj|opt)-2layers task=causal-lm precision=bf16|(codegen-ipex|falcon-2layers|bloom-2layers|mpt-2layers|xglm-2layers|gpt_neox_japanese-2layers)"
               r" task=causal-lm precision=amp-bf16|(cpmant|doge)-2layers|(biogpt|gpt_bigcode)-2layers task=causal-lm precision=fp16)",
        "condition": lambda case: True,
    },
    "recurrences": {
        "file": "vgpu.jsonl",
        "ids": r"^hf:((mamba|mamba2|falcon_mamba|xlstm|lfm3)-2layers|(recurrent_gemma|bailing_hybrid)-2layers \S+ precision=(fp32|bf16)|zaya-2layers \S+ precision=fp16)",
        "condition": lambda case: True,
    },
    "t5-and-whisper": {
        "file": "vgpu.jsonl",
        "ids": r"^hf:(t5-small .*precision=fp16|mt5-2layers .*precision=fp32|umt5-2layers .*precision=amp-bf16|whisper-2layers .*precision=(amp-bf16|fp16))",
        "condition": lambda case: True,
    },
}


def slug(text, most=60):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:most].strip("-")


def phases_of(iterations, fields):
    """The last end and the highest peak of each phase of each step: under accumulation a phase comes more than once."""
    for step, iteration in enumerate(iterations, 1):
        peaks = {"optimizer" if k == "step" else k: v for k, v in iteration["peak_by_phase"].items()}
        for phase, field in fields.items():
            if field in iteration or phase in peaks:
                yield {"step": step, "phase": phase} | ({"end": iteration[field]} if field in iteration else {}) | ({"peak": peaks[phase]} if phase in peaks else {})


def arguments_of(scoreboard, case):
    """memest's arguments for the row, its spec copied beside the rows; ends in a name relative to tests/accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        words = scoreboard.command(case, Path(folder))
        assert words[0] == "estimate" and words[-2:] == ["--json", "-"]
        spec = Path(words[1])
        if spec.is_absolute():
            name = f"{slug(case['model'], 48)}-{spec.stem[:6]}.json"
            folder = "configs" if "hf" in case else "specs"
            (HERE / folder).mkdir(exist_ok=True)
            shutil.copyfile(spec, HERE / folder / name)
            words[1] = f"{folder}/{name}"
    return words[1:-2]


def record(scoreboard, name, row):
    truth, case = row["truth"], scoreboard.case_of(row)
    out = {"set": name, "id": row["id"], "arguments": arguments_of(scoreboard, case), "states": scoreboard.states_truth(truth),
           "phases": list(phases_of(truth["iterations"], scoreboard.ENDS))}
    if "max_reserved" in truth["iterations"][0]:
        out["reserved"] = max(i["max_reserved"] for i in truth["iterations"])
    return out


def allocation_list(path):
    """The allocator's events as text lines, or None where there is no trace: see tests/accuracy/README.md."""
    if not path.exists():
        return None, None
    with gzip.open(path) as file:
        document = json.load(file)
    events = (dict(zip(document["fields"], event)) for event in document["events"])
    sys.path.insert(0, str(HERE))
    from run import lines_of_events
    return document["id"], [line for line, _ in lines_of_events(events)]


def write_lists(truth, rows, choice):
    """Writes the allocation lists of the smallest rows of each model, of different precision and optimizer; returns how many."""
    folder, taken = HERE / "allocations", {}
    folder.mkdir(exist_ok=True)
    sized = []
    for row in rows:
        trace = truth / "vgpu_traces" / ("".join(c if c.isalnum() or c in "-=." else "_" for c in row["id"])[:120] + ".json.gz")
        who, lines = allocation_list(trace)
        if who == row["id"] and len(lines) <= choice["most_events"]:  # names of traces are cut: another row may have the same
            sized.append((len(lines), row["id"], lines, row["arguments"]))
    for _, key, lines, words in sorted(sized):
        settings = {words[i + 1] for i, word in enumerate(words) if word in ("--precision", "--optimizer")}
        used = taken.setdefault(words[0], [])
        if len(used) == choice["for_each_model"] or any(settings & other for other in used):
            continue
        used.append(settings)
        name = slug(key.partition(":")[2], 60) + "-" + hashlib.sha256(key.encode()).hexdigest()[:6] + ".txt"
        (folder / name).write_text(f"# {key}\n" + "\n".join(lines) + "\n")
    return sum(map(len, taken.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="the folder with truth/ and tools/")
    parser.add_argument("--set", action="append", choices=list(SETS))
    options = parser.parse_args()
    if not (options.shared / "tools" / "scoreboard.py").exists():
        sys.exit(f"{options.shared} holds no truth")
    sys.path.insert(0, str(options.shared / "tools"))
    import scoreboard
    truth, path = options.shared / "truth", HERE / "rows.jsonl"
    chosen = options.set or list(SETS)
    kept = [row for row in (scoreboard.rows_of(path) if path.exists() else []) if row["set"] not in chosen]
    for name in chosen:
        choice = SETS[name]
        rows = [record(scoreboard, name, row) for row in scoreboard.rows_of(truth / choice["file"])
                if re.search(choice["ids"], row["id"]) and choice["condition"](scoreboard.case_of(row)) and row["truth"].get("exact", True)]
        lists = write_lists(truth, rows, choice["lists"]) if "lists" in choice else 0
        print(f"{name}: {len(rows)} rows, {lists} allocation lists")
        kept += rows
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in sorted(kept, key=lambda r: (r["set"], r["id"]))))


if __name__ == "__main__":
    main()

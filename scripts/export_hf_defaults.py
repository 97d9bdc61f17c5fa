#!/usr/bin/env python3
"""Writes the class defaults of transformers' configurations into estimator/spec/hf_defaults.inc (needs transformers; you run it, users do not).

    export_hf_defaults.py [--memest build/release/memest]

One line a model_type that memest builds (memest list models) and of the sections that these hold: the fields of the configuration class with their
defaults, its attribute_map, which class each nested section takes, and whether its model cannot checkpoint. Fields that no model's shape or forward depends on are left out.
"""
import argparse
import dataclasses
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DROPPED = {"initializer_range", "sep_token_id", "label2id", "transformers_version", "return_dict", "output_hidden_states", "architectures", "pretraining_tp",
           "id2label", "dtype", "problem_type", "chunk_size_feed_forward", "initializer_factor", "rms_norm_eps", "layer_norm_eps", "image_token_id", "video_token_id",
           "audio_token_id", "boi_token_id", "eoi_token_id", "time_step_limit"}


def facts(name, mapping):
    cls = mapping[name]
    fields = {}
    for f in dataclasses.fields(cls):
        if f.name in DROPPED:
            continue
        value = f.default if f.default is not dataclasses.MISSING else f.default_factory() if f.default_factory is not dataclasses.MISSING else None
        fields[f.name] = value
    base = {f.name: f.default for f in dataclasses.fields(mapping_base())}
    fields = {k: v for k, v in fields.items() if not (k in base and base[k] == v)}
    fields = {cls.attribute_map.get(k, k): v for k, v in fields.items()}
    entry = {"fields": fields}
    if cls.attribute_map:
        entry["aliases"] = cls.attribute_map
    if cls.sub_configs_defaults:
        entry["sections"] = {k: {"model_type": s.model_type, **({"fields": s.init_kwargs} if s.init_kwargs else {}), **({"optional": True} if s.optional else {}),
                                 **({"flat": True} if takes_flat(cls, k) else {}), **({"merged": True} if merges(cls, k, s) else {})} for k, s in cls.sub_configs_defaults.items()}
    if not checkpoints(cls):
        entry["gradient_checkpointing"] = False
    return entry


def checkpoints(cls):
    """Whether gradient_checkpointing_enable() of the class's model works."""
    from transformers import AutoModel
    try:
        model = AutoModel._model_mapping[cls]
    except KeyError:
        return True
    return all(m.supports_gradient_checkpointing for m in (model if isinstance(model, tuple) else (model,)))


def takes_flat(cls, key):
    """Whether the fields of a section may stand in the configuration itself, as files did that were written before it had sections."""
    if key != "text_config" or cls.attribute_map.get("vocab_size"):
        return False
    try:
        return getattr(getattr(cls(vocab_size=4711), key), "vocab_size", None) == 4711
    except Exception:
        return False


def merges(cls, key, spec):
    """Whether a section that is given gets what it would be made of otherwise for the fields that it leaves out."""
    if not spec.init_kwargs:
        return False
    try:
        section = getattr(cls(**{key: {"model_type": spec.model_type}}), key)
        return all(getattr(section, name, None) == value for name, value in spec.init_kwargs.items() if name != "rope_theta")
    except Exception:
        return False


def mapping_base():
    from transformers.configuration_utils import PreTrainedConfig
    return PreTrainedConfig


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--memest", default=str(ROOT / "build/release/memest"))
    a = p.parse_args()
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    names = subprocess.run([a.memest, "list", "models"], capture_output=True, text=True, check=True).stdout.split("\n")
    todo, done = [n.split()[0] for n in names if n.strip()], {}
    while todo:
        name = todo.pop()
        if name in done or name not in CONFIG_MAPPING:
            continue
        done[name] = facts(name, CONFIG_MAPPING)
        todo += [s["model_type"] for s in done[name].get("sections", {}).values() if s["model_type"]]
    lines = [f"// Class defaults of transformers {transformers.__version__}, written by scripts/export_hf_defaults.py."]
    for name in sorted(done):
        text = json.dumps(done[name], separators=(",", ":"))
        pieces = [text[i:i + 8000] for i in range(0, len(text), 8000)]
        lines.append("{" + json.dumps(name) + ", " + " ".join(f'R"json({piece})json"' for piece in pieces) + "},")
    known = sorted(n for n in CONFIG_MAPPING if n not in done)
    (ROOT / "estimator/spec/hf_defaults.inc").write_text("\n".join(lines) + "\n")
    print(len(done), "classes;", len(known), "model types of transformers are not built")


if __name__ == "__main__":
    main()

#include "run/options.h"

#include <fmt/format.h>

#include "base/text.h"

namespace memest::run {

std::string_view name_of(Mode mode) { return mode == Mode::train ? "train" : "infer"; }
std::string_view name_of(Precision p) {
  static constexpr std::string_view names[] = {"fp32", "amp-fp16", "amp-bf16", "bf16", "fp16"};
  return names[int(p)];
}
std::string_view name_of(ZeroGradAt at) {
  static constexpr std::string_view names[] = {"start", "before-backward", "end"};
  return names[int(at)];
}

std::string_view name_of(InferMode mode) {
  static constexpr std::string_view names[] = {"no_grad", "inference_mode", "grad"};
  return names[int(mode)];
}
std::string_view name_of(Averaging averaging) {
  static constexpr std::string_view names[] = {"none", "ema", "swa"};
  return names[int(averaging)];
}
std::string_view name_of(EvalBetween when) {
  static constexpr std::string_view names[] = {"none", "no_grad", "inference_mode", "grad"};
  return names[int(when)];
}
std::string_view name_of(Resume resume) {
  static constexpr std::string_view names[] = {"no", "host", "device", "device-kept"};
  return names[int(resume)];
}
std::string_view name_of(EmptyCache when) {
  static constexpr std::string_view names[] = {"never", "step", "phase"};
  return names[int(when)];
}

std::string_view name_of(SavedTensors where) {
  static constexpr std::string_view names[] = {"kept", "cpu", "int8", "fp8"};
  return names[int(where)];
}
Precision parse_precision(const std::string& text) {
  for (int i = 0; i < 5; ++i)
    if (text == name_of(Precision(i))) return Precision(i);
  throw Error(fmt::format("--precision: '{}' is none of fp32, amp-fp16, amp-bf16, bf16, fp16", text));
}

DType model_dtype(Precision p) { return p == Precision::bf16 ? DType::bfloat16 : p == Precision::fp16 ? DType::float16 : DType::float32; }
std::optional<DType> autocast_dtype(Precision p) {
  if (p == Precision::amp_fp16) return DType::float16;
  if (p == Precision::amp_bf16) return DType::bfloat16;
  return {};
}

std::string Checkpointing::text() const {
  std::string out;
  switch (where) {
    case Where::none: return "none";
    case Where::full: out = "full"; break;
    case Where::sqrt: out = "sqrt"; break;
    case Where::every: out = fmt::format("every={}", count); break;
    case Where::segments: out = fmt::format("segments={}", count); break;
    case Where::modules: out = "modules=" + pattern; break;
  }
  if (reentrant) out += ",reentrant";
  for (KernelKind kind : keep) out += fmt::format(",keep={}", name_of(kind));
  return out;
}

Checkpointing parse_checkpointing(const std::string& text) {
  Checkpointing c;
  const std::vector<std::string> parts = split(text, ',');
  const std::string what = parts.empty() ? text : parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i] == "reentrant") {
      c.reentrant = true;
    } else if (auto kind = parts[i].starts_with("keep=") ? kernel_kind_from(parts[i].substr(5)) : std::nullopt) {
      c.keep.push_back(*kind);
    } else {
      throw Error(fmt::format("--checkpoint {}: '{}' is none of reentrant, keep=matmul, keep=attention, keep=convolution", text, parts[i]));
    }
  }
  if (c.reentrant && !c.keep.empty())
    throw Error("--checkpoint: selective checkpointing (keep=) needs use_reentrant=False", "leave ,reentrant out");
  auto number = [&](std::string_view after) {
    auto n = parse_int(what.substr(after.size()));
    if (!n || *n < 1) throw Error(fmt::format("--checkpoint {}: a positive number must follow '{}'", text, after));
    return *n;
  };
  using Where = Checkpointing::Where;
  if (what == "none")
    c.where = Where::none;
  else if (what == "full")
    c.where = Where::full;
  else if (what == "sqrt")
    c.where = Where::sqrt;
  else if (what.starts_with("every="))
    c.where = Where::every, c.count = number("every=");
  else if (what.starts_with("segments="))
    c.where = Where::segments, c.count = number("segments=");
  else if (what.starts_with("modules=") && what.size() > 8)
    c.where = Where::modules, c.pattern = what.substr(8);
  else
    throw Error(
        fmt::format("--checkpoint: '{}' is none of none, full, every=K, segments=N, sqrt, modules=GLOB, each with ,reentrant or "
                    ",keep=KERNEL where wanted",
                    text));
  if (c.where == Where::none && parts.size() > 1) throw Error(fmt::format("--checkpoint {}: nothing is checkpointed", text));
  return c;
}

std::string Lora::text() const {
  std::string out = fmt::format("r={},alpha={}", r, alpha);
  if (dropout > 0) out += fmt::format(",dropout={}", dropout);
  if (dtype) out += fmt::format(",dtype={}", name_of(*dtype));
  return out + ",targets=" + join(targets, "+");
}
Lora parse_lora(const std::string& text) {
  Lora lora;
  const std::string hint = "for example --lora r=8,alpha=16,targets=q_proj+v_proj";
  for (auto& part : split(text, ',')) {
    const auto equals = part.find('=');
    const std::string key = part.substr(0, equals), value = equals == part.npos ? "" : part.substr(equals + 1);
    auto bad = [&](const char* wanted) {
      return Error(fmt::format("--lora: {} is {}, found '{}'", key, wanted, value.substr(0, 60)), hint);
    };
    if (key == "r") {
      auto r = parse_int(value);
      if (!r || *r < 1 || *r > 1'000'000) throw bad("a positive number");
      lora.r = *r;
    } else if (key == "alpha" || key == "dropout") {
      auto number = parse_number(value);
      if (!number || *number < 0 || (key == "dropout" && *number >= 1)) throw bad(key == "alpha" ? "a number" : "a share below 1");
      (key == "alpha" ? lora.alpha : lora.dropout) = *number;
    } else if (key == "dtype") {
      lora.dtype = dtype_from(value == "bf16" ? "bfloat16" : value == "fp16" ? "float16" : value == "fp32" ? "float32" : value);
      if (!lora.dtype || !is_floating(*lora.dtype)) throw bad("bf16, fp16 or fp32");
    } else if (key == "targets" && !value.empty()) {
      lora.targets = split(value, '+');
    } else {
      throw Error(fmt::format("--lora: '{}' is none of r, alpha, dropout, dtype, targets, each with =VALUE", part.substr(0, 60)), hint);
    }
  }
  if (lora.targets.empty()) throw Error("--lora: targets=NAME+NAME or targets=all-linear says which linear layers get adapters", hint);
  return lora;
}

}  // namespace memest::run

#include "nn/quantization.h"

#include <fmt/format.h>

#include "base/text.h"

namespace memest::nn {
namespace {

struct Named {
  const char* name;
  Quantization::Method method;
  bool nested;
};
constexpr Named kMethods[] = {{"int8", Quantization::Method::int8, false},
                              {"nf4", Quantization::Method::nf4, false},
                              {"nf4-dq", Quantization::Method::nf4, true},
                              {"fp4", Quantization::Method::fp4, false},
                              {"fp4-dq", Quantization::Method::fp4, true}};

std::optional<DType> short_dtype(const std::string& name) {
  if (name == "bf16") return DType::bfloat16;
  if (name == "fp16") return DType::float16;
  if (name == "fp32") return DType::float32;
  return {};
}

}  // namespace

std::string Quantization::text() const {
  std::string out;
  for (auto& m : kMethods)
    if (m.method == method && m.nested == nested) out = m.name;
  if (method == Method::fp8) out = block.size() == 2 ? fmt::format("fp8 of blocks {}x{}", block[0], block[1]) : "fp8";
  if (method == Method::gptq) out = fmt::format("gptq of {} bits, groups of {}", bits, group_size);
  if (method == Method::awq) out = fmt::format("awq, groups of {}", group_size);
  if (compute) out += fmt::format(",compute={}", name_of(*compute));
  if (dtype) out += fmt::format(",dtype={}", name_of(*dtype));
  if (method == Method::int8 && threshold != 6) out += fmt::format(",threshold={}", threshold);
  if (skip && !skip->empty()) out += ",skip=" + join(*skip, "+");
  return out;
}

Quantization parse_quantization(const std::string& text) {
  Quantization q;
  const std::string hint = "for example --quant nf4-dq,compute=bf16";
  const std::vector<std::string> parts = split(text, ',');
  bool known = false;
  std::vector<std::string> names;
  for (auto& m : kMethods) {
    names.emplace_back(m.name);
    if (!parts.empty() && parts[0] == m.name) q.method = m.method, q.nested = m.nested, known = true;
  }
  if (!known) throw Error(fmt::format("--quant: '{}' is none of {}", parts.empty() ? "" : parts[0].substr(0, 60), join(names, ", ")), hint);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto equals = parts[i].find('=');
    const std::string key = parts[i].substr(0, equals), value = equals == std::string::npos ? "" : parts[i].substr(equals + 1);
    auto bad = [&](const char* wanted) {
      return Error(fmt::format("--quant: {} is {}, found '{}'", key, wanted, value.substr(0, 60)), hint);
    };
    if (key == "compute") {
      if (!q.four_bit()) throw Error("--quant: compute is of nf4 and fp4; int8 multiplies integers", hint);
      q.compute = short_dtype(value);
      if (!q.compute) throw bad("bf16, fp16 or fp32");
    } else if (key == "dtype") {
      q.dtype = short_dtype(value);
      if (!q.dtype) throw bad("bf16, fp16 or fp32");
    } else if (key == "threshold") {
      if (q.four_bit()) throw Error("--quant: threshold is of int8", hint);
      auto number = parse_number(value);
      if (!number || *number < 0) throw bad("a number that is not negative");
      q.threshold = *number;
    } else if (key == "skip" && !value.empty()) {
      q.skip = split(value, '+');
    } else {
      throw Error(fmt::format("--quant: '{}' is none of compute=TYPE, dtype=TYPE, threshold=X, skip=NAME+NAME", parts[i].substr(0, 60)),
                  hint);
    }
  }
  return q;
}

std::shared_ptr<QuantizedWeight> make_quantized(const Quantization& q, std::shared_ptr<QuantizationMaps> maps) {
  return q.bitsandbytes() ? make_bitsandbytes(q, std::move(maps)) : make_stored_format(q);
}

}  // namespace memest::nn

// Sources: transformers 5.24 utils/quantization_config.py, quantizers/quantizer_{bnb_4bit,bnb_8bit,finegrained_fp8,gptq,awq,mxfp4}.py.
#include "spec/hf_quantization.h"

#include <fmt/format.h>

#include "base/text.h"
#include "fake/runtime.h"

namespace memest::spec {
namespace {
using Method = nn::Quantization::Method;

void note(const char* code, std::string message, std::string hint = {}) {
  runtime().diagnostics.add({Diagnostic::Severity::note, code, std::move(message), "/quantization_config", std::move(hint)});
}

std::vector<std::string> texts_if(const Config& c, const char* key) { return c.has(key) ? c.texts(key) : std::vector<std::string>{}; }

nn::Quantization bitsandbytes(const Config& c) {
  nn::Quantization q;
  const bool four = c.boolean_or("load_in_4bit", c.boolean_or("_load_in_4bit", false));
  const bool eight = c.boolean_or("load_in_8bit", c.boolean_or("_load_in_8bit", false));
  if (four == eight) throw c.error("load_in_4bit", "one of load_in_4bit and load_in_8bit is true");
  q.method = Method::int8;
  if (four) {
    const std::string type = c.text_or("bnb_4bit_quant_type", "fp4");
    if (type != "nf4" && type != "fp4") throw c.error("bnb_4bit_quant_type", "nf4 or fp4, found '" + type.substr(0, 60) + "'");
    q.method = type == "nf4" ? Method::nf4 : Method::fp4;
    q.nested = c.boolean_or("bnb_4bit_use_double_quant", false);
    auto dtype = [&](const char* key, const char* otherwise) {
      const std::string name = c.text_or(key, otherwise);
      auto found = dtype_from(name);
      if (!found) throw c.error(key, "a type of PyTorch, found '" + name.substr(0, 60) + "'");
      return *found;
    };
    q.compute = dtype("bnb_4bit_compute_dtype", "float32");
    if (!is_floating(*q.compute)) throw c.error("bnb_4bit_compute_dtype", "a floating type");
    q.storage = dtype("bnb_4bit_quant_storage", "uint8");
  } else if (c.boolean_or("llm_int8_has_fp16_weight", false)) {
    throw c.error("llm_int8_has_fp16_weight", "memest does not model 16-bit weights that are quantised in each forward");
  }
  q.threshold = c.number_or("llm_int8_threshold", 6.0);
  if (c.has("llm_int8_skip_modules")) q.skip = c.texts("llm_int8_skip_modules");
  return q;
}

std::optional<nn::Quantization> fp8(const Config& c) {
  const Device& device = runtime().settings.device;
  if (c.boolean_or("dequantize", false) || device.capability() < 89) {
    note("fp8-dequantised", "transformers makes plain weights of fp8 ones on a card below compute capability 8.9",
         "name yours with --gpu; the load's temporaries are not counted");
    return {};
  }
  nn::Quantization q;
  q.method = Method::fp8;
  if (!c.given("weight_block_size"))
    q.block = {128, 128};
  else if (c.has("weight_block_size"))
    q.block = c.integers("weight_block_size");
  if (!q.block.empty() && (q.block.size() != 2 || q.block[0] < 1 || q.block[1] < 1))
    throw c.error("weight_block_size", "two positive numbers or null");
  q.static_scale = c.text_or("activation_scheme", "dynamic") == "static";
  if (c.has("modules_to_not_convert")) q.skip = c.texts("modules_to_not_convert");
  return q;
}

nn::Quantization packed(const Config& c, Method method) {
  nn::Quantization q;
  q.method = method;
  q.bits = int(c.integer_or("bits", 4));
  if (q.bits != 2 && q.bits != 3 && q.bits != 4 && q.bits != 8) throw c.error("bits", "2, 3, 4 or 8, found " + std::to_string(q.bits));
  if (method == Method::awq && q.bits != 4) throw c.error("bits", "4, found " + std::to_string(q.bits));
  q.group_size = c.integer_or("group_size", 128);
  if (q.group_size < 1 && q.group_size != -1) throw c.error("group_size", "a positive number or -1");
  q.also_skip = texts_if(c, "modules_to_not_convert");
  return q;
}

/// The configuration's own, or that of the text model in it.
std::optional<Config> quantization_section(const Config& config) {
  if (auto own = config.section_if("quantization_config")) return own;
  for (const char* text : {"text_config", "llm_config", "language_config", "thinker_config"})
    if (const auto section = config.section_if(text))
      if (auto nested = quantization_section(*section)) return nested;
  return {};
}

}  // namespace

std::shared_ptr<const nn::Quantization> read_quantization(const Config& config) {
  const auto section = quantization_section(config);
  if (!section) return {};
  const Config& c = *section;
  const bool bnb = c.boolean_or("load_in_4bit", false) || c.boolean_or("load_in_8bit", false);
  const std::string method = bnb ? "bitsandbytes" : c.text("quant_method");
  std::optional<nn::Quantization> q;
  if (method == "bitsandbytes")
    q = bitsandbytes(c);
  else if (method == "fp8")
    q = fp8(c);
  else if (method == "gptq")
    q = packed(c, Method::gptq);
  else if (method == "awq")
    q = packed(c, Method::awq);
  else if (method == "mxfp4")
    note("mxfp4-dequantised", "transformers makes bfloat16 weights of mxfp4 ones where the package `kernels` is absent: taken so",
         "the load's temporaries are not counted; with the kernels, experts stay at 4.25 bits a parameter");
  else
    throw c.error("quant_method", fmt::format("memest does not read weights of '{}'", method.substr(0, 60)),
                  "it reads bitsandbytes, fp8, gptq, awq and mxfp4; without quantization_config it takes the weights as plain");
  if (!q) return {};
  q->stored = true;
  if (!q->bitsandbytes())
    note("assumed-kernel",
         fmt::format("{}: what is stored is exact; one kernel is assumed to multiply it, with no scratch beside its result", q->text()));
  return std::make_shared<const nn::Quantization>(*q);
}

}  // namespace memest::spec

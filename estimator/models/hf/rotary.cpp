#include "models/hf/rotary.h"

#include "models/hf/release.h"

namespace memest::hf {
namespace {

std::optional<Config> parameters(const Config& config, const std::string& layer_type) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {  // a given rope_scaling wins over the class's rope_parameters
    auto section = config.has(key) ? config.section_if(key) : std::nullopt;
    if (!section) continue;
    if (!layer_type.empty() && section->has(layer_type)) return section->section_if(layer_type);
    return section;
  }
  return {};
}

}  // namespace

std::string rope_type(const Config& config, const std::string& layer_type) {
  auto p = parameters(config, layer_type);
  if (!p) return "default";
  return p->text_or("rope_type", p->text_or("type", "default"));
}

I rotary_width(const Config& config, I head_dim, double default_factor) {
  auto p = parameters(config, "");
  double factor = config.number_or("partial_rotary_factor", default_factor);
  if (p) factor = p->number_or("partial_rotary_factor", factor);
  if (!(factor > 0 && factor <= 1))
    throw config.error("partial_rotary_factor", "expected a number above 0 and at most 1, found " + std::to_string(factor));
  return I(double(head_dim) * factor);
}

RotaryEmbedding::RotaryEmbedding(std::string type, const Config& config, I width, Form form)
    : Base(std::move(type)), form_(std::move(form)) {
  auto add = [&](const std::string& prefix, I n, const std::string& layer_type) {
    const std::string kind = rope_type(config, layer_type);
    new_buffer(prefix + "inv_freq", {ceil_div(n, 2)}, DType::float32);
    if (release().rotary_registers_original()) new_buffer(prefix + "original_inv_freq", {ceil_div(n, 2)}, DType::float32);
    kinds_.push_back(kind);
  };
  if (form_.layer_types.empty()) add("", width, "");
  for (auto& [name, n] : form_.layer_types) add(name + "_", n, name);
  long_inv_freq_.resize(kinds_.size());
}

std::size_t RotaryEmbedding::index(const std::string& layer_type) const {
  for (std::size_t i = 0; i < form_.layer_types.size(); ++i)
    if (form_.layer_types[i].first == layer_type) return i;
  return 0;
}

Pair RotaryEmbedding::operator()(X x, X position_ids, const std::string& layer_type) {
  Entered scope(*this);
  const std::size_t i = index(layer_type);
  const std::size_t of_each = release().rotary_registers_original() ? 2 : 1;
  const X inv_freq = X(buffer(of_each * i));
  if (kinds_[i] == "longrope") {  // longrope_frequency_update
    X seq_len = aten("max", {Tensor(position_ids)}).add(1);
    if (!long_inv_freq_[i]) {
      // rope_init_fn on the device: the factors as a tensor, arange, .float() / dim, base ** shape, factors * that, 1 / that
      const I half = inv_freq.size(0);
      X ext_factors = empty({half}, DType::float32);
      X inv_freq_shape = arange(half).to_float().div(2 * half);
      long_inv_freq_[i] = aten("reciprocal", {Tensor(ext_factors.mul(X(ops::unary("aten::pow", inv_freq_shape))))}).mul(1.0);
    }
    X chosen = where(aten("gt", {Tensor(seq_len), I{1}}), long_inv_freq_[i], X(buffer(of_each * (i + 1) - 1)));
    NoGrad guard;
    ops::copy_(inv_freq, chosen, false);
  } else if (kinds_[i].find("dynamic") != std::string::npos) {
    X seq_len = aten("max", {Tensor(position_ids)}).add(1);
    aten("gt", {Tensor(seq_len), I{1}});
    aten("lt", {Tensor(seq_len), I{1}});
  }
  X freqs = position_ids.unsqueeze(-1).to_float().mul(inv_freq);
  if (form_.table == Table::complex) {
    X freqs_cis = aten("polar", {Tensor(aten("ones_like", {Tensor(freqs)})), Tensor(freqs)});
    freqs_cis = freqs_cis.mul(1.0);
    freqs.reset();
    return {freqs_cis, {}};
  }
  X emb = form_.table == Table::doubled       ? cat({freqs, freqs}, -1)
          : form_.table == Table::interleaved ? aten("repeat_interleave", {Tensor(freqs), I{2}, I{-1}})
                                              : freqs;
  X cos = aten("cos", {Tensor(emb)}).mul(1.0);
  X sin = aten("sin", {Tensor(emb)}).mul(1.0);
  Pair result{cos, sin};
  if (form_.cast) {
    result.first = cos.to(x.dtype());
    result.second = sin.to(x.dtype());
  }
  for (X* local : {&freqs, &emb, &cos, &sin}) local->reset();  // a Python frame drops its locals in the order in which they came
  return result;
}

}  // namespace memest::hf

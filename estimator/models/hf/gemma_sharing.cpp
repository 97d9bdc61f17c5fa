#include "models/hf/gemma_sharing.h"

#include <algorithm>

namespace memest::hf {
namespace {

X normed(const X& x) {
  X mean_squared = x.pow(2).mean(-1, true).add(1e-6);
  return x.mul(mean_squared.pow(-0.5));
}

}  // namespace

X PowRMSNorm::forward(X hidden_states) {
  X normed_output = normed(hidden_states.to_float());
  if (with_scale_) normed_output = normed_output.mul(X(parameter(0)).to_float());
  return normed_output.to(hidden_states.dtype());
}

X rotated_before_transpose(const X& x, const X& given_cos, const X& given_sin) {
  X cos = given_cos.unsqueeze(2), sin = given_sin.unsqueeze(2);
  X straight = x.mul(cos);
  X turned = rotate_half(x).mul(sin);
  return std::move(straight).add(std::move(turned));
}

std::vector<KvSharing> kv_sharing_modes(const DecoderConfig& c) {
  const I shared = c.file.integer_or("num_kv_shared_layers", 0), first = c.layers - shared;
  if (shared < 0 || first <= 0)
    throw c.file.error("num_kv_shared_layers", "expected 0 to " + std::to_string(c.layers - 1) + ", found " + std::to_string(shared));
  std::vector<KvSharing> modes(std::size_t(c.layers), KvSharing::reuse);
  std::fill(modes.begin(), modes.begin() + first, KvSharing::none);
  for (const char* type : {"full_attention", "sliding_attention"}) {
    const auto& types = c.layer_types;
    if (std::find(types.begin(), types.end(), type) == types.end()) continue;
    I producer = first - 1;
    while (producer >= 0 && types[std::size_t(producer)] != type) --producer;
    if (producer < 0)
      throw c.file.error("num_kv_shared_layers",
                         std::string("no layer of type ") + type + " is left that makes keys and values of its own");
    modes[std::size_t(producer)] = KvSharing::store;
  }
  return modes;
}

}  // namespace memest::hf

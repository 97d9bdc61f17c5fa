// What the text models of gemma3n and gemma4 share: their norm and embedding, and the layers that attend to another layer's keys and
// values.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/hf/decoder.h"

namespace memest::hf {

/// Gemma3nRMSNorm, Gemma4RMSNorm: x * pow(mean(x^2) + eps, -0.5), times the weight in fp32 where it has one.
class PowRMSNorm final : public Unary {
 public:
  PowRMSNorm(std::string type, I width, bool with_scale = true) : Unary(std::move(type)), with_scale_(with_scale) {
    new_parameter("weight", {width}, with_scale);
  }

 protected:
  X forward(X hidden_states) override;

 private:
  bool with_scale_;
};

/// Gemma3nTextScaledWordEmbedding, Gemma4TextScaledWordEmbedding: the scale is a buffer.
class BufferScaledEmbedding final : public Module<BufferScaledEmbedding>, public nn::InputEmbedding {
 public:
  BufferScaledEmbedding(std::string type, I count, I width) : Module(std::move(type)) {
    new_parameter("weight", {count, width});
    new_buffer("embed_scale", {}, runtime().default_dtype);
  }
  X forward(const X& input_ids) {
    X embedded = ops::embedding(parameter(0), input_ids, -1, false, false);
    return hooked(std::move(embedded).mul(X(buffer(0)).to(parameter(0).dtype())));
  }
};

/// apply_rotary_pos_emb of one tensor, [batch, length, heads, width].
X rotated_before_transpose(const X& x, const X& cos, const X& sin);

enum class KvSharing { none, store, reuse };
/// KVSharingDict.
using SharedKv = std::map<std::string, Pair>;
/// config.kv_sharing_modes: the last num_kv_shared_layers layers reuse what the last one of their type before them stored.
std::vector<KvSharing> kv_sharing_modes(const DecoderConfig& c);

}  // namespace memest::hf

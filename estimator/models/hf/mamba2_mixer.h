// models/mamba2: the scan by chunks and its mixer, which the hybrids share.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// mamba2_chunk_scan. dt: [batch, length, heads], hidden_states: [.., heads, head_dim], B and C: [.., groups, state].
struct ChunkScan {
  X hidden_states, dt, A, B, C, D, dt_bias;
  I chunk_size = 256;
  X initial_states = {};
  X z = {};  ///< of one token: the output is multiplied by silu(z)
};
/// The output, and the final state.
Pair mamba2_chunk_scan(const ChunkScan& call);
/// mamba2_selective_state_update of one token; `state` is written. dt, A, D and dt_bias are expanded to a state's shape.
X mamba2_selective_state_update(const X& state, const ChunkScan& call);

struct Mamba2Form {
  std::string type;  ///< of the class
  I heads = 0, head_dim = 0, state = 0, groups = 1, kernel = 4, chunk_size = 256;
  I intermediate = 0;
  bool bias = false, conv_bias = true;
  std::string act = "silu";
  // of falcon_h1
  bool scaled = false;  ///< the input and its projection are multiplied, the latter by a vector
  enum class Gate {
    in_norm,      ///< MambaRMSNormGated
    before_norm,  ///< FalconH1RMSNormGated: gated, then normed
    after_norm,   ///< normed, then gated
    alone         ///< without a norm
  } gate = Gate::in_norm;
  std::optional<bool> out_bias = {};  ///< `bias` unless given
};
MixerPtr make_mamba2_mixer(const DecoderConfig& c, I layer, const Mamba2Form& form);
/// The same from the fields mamba_n_heads, mamba_d_head, ... of the hybrids.
MixerPtr make_hybrid_mamba2_mixer(const DecoderConfig& c, I layer, std::string type);
/// Sets layer_types to what `attends(i)` says of each layer; those of the file come first, by their older names or the present ones.
Config with_mamba2_layers(Config config, const std::function<bool(I)>& attends);

}  // namespace memest::hf

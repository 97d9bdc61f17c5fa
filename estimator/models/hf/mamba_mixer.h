// models/mamba: the selective scan and its mixer, which falcon_mamba and jamba share.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

struct MambaMixerForm {
  std::string prefix;  ///< of the class names
  I intermediate = 0, state = 0, kernel = 0, rank = 0;
  bool bias = false, conv_bias = true;
  std::string act = "silu";
  bool asks_for_fused = true;                                      ///< prepares a call of mamba_inner_fn in training
  enum class Norms { none, weightless, rms } norms = Norms::none;  ///< of dt, B and C
};
MixerPtr make_mamba_mixer(const DecoderConfig& c, I layer, const MambaMixerForm& form);
/// time_step_rank, mamba_dt_rank: the number, or "auto".
I time_step_rank(const Config& config, const char* key, I hidden);

}  // namespace memest::hf

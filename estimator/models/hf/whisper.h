// The encoder layer of Whisper, which models of audio and text have under other names (transformers 5.24, models/whisper, voxtral).
#pragma once
#include <memory>
#include <string>

#include "models/hf/module.h"
#include "models/hf/options.h"

namespace memest::hf {

class AudioEncoderLayer : public Base {
 public:
  using Base::Base;
  X operator()(X hidden_states, X attention_mask) { return layer(std::move(hidden_states), std::move(attention_mask)); }

 protected:
  virtual X layer(X hidden_states, X attention_mask) = 0;
};

/// PREFIXEncoderLayer of an encoder's configuration.
std::shared_ptr<AudioEncoderLayer> make_whisper_encoder_layer(const Config& encoder, const Options& options, const std::string& prefix);

}  // namespace memest::hf

// ElectraGeneratorPredictions, and ConvBERT's copy of it.
#pragma once
#include <string>

#include "models/hf/encoder.h"

namespace memest::hf {

class GeneratorPredictions final : public Unary {
 public:
  GeneratorPredictions(const std::string& prefix, const EncoderConfig& c)
      : Unary(prefix + "GeneratorPredictions"),
        activation(child<Activation>("activation", "gelu")),
        norm(child<LayerNorm>("LayerNorm", c.embedding)),
        dense(child<Linear>("dense", c.hidden, c.embedding)) {}

 protected:
  X forward(X generator_hidden_states) override {
    X hidden_states = dense(generator_hidden_states);
    hidden_states = activation(hidden_states);
    hidden_states = norm(hidden_states);
    return hidden_states;
  }

 private:
  Activation& activation;
  LayerNorm& norm;
  Linear& dense;
};

}  // namespace memest::hf

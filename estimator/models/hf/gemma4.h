// The text model of Gemma 4 as its model of several parts calls it.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

class Gemma4Text : public DecoderBody {
 public:
  using DecoderBody::DecoderBody;
  /// get_per_layer_inputs(input_ids); undefined where the layers have no inputs of their own.
  virtual X get_per_layer_inputs(const X& input_ids) = 0;
  virtual T embedding_weight() const = 0;
  /// Of the next call with inputs_embeds.
  X given_per_layer_inputs;
};

}  // namespace memest::hf

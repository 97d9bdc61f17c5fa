// A decoder layer whose MLP is registered after its norms, otherwise as make_layer's: parameters move to the device in that order.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// LayerForm::Order pre or sandwich.
DecoderLayerPtr make_layer_with_late_mlp(const DecoderConfig& c, const LayerForm& form, MixerPtr attention, UnaryPtr mlp);

}  // namespace memest::hf

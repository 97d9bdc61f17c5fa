// The body of afmoe and gpt_oss: their calls of the mask functions leave position_ids out, so that no packed sequences are looked for.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// DecoderForm::body: a full and a sliding mask, both made in every forward.
std::shared_ptr<DecoderBody> make_unpacked_body(std::shared_ptr<const DecoderConfig> config, std::shared_ptr<const DecoderForm> form);

}  // namespace memest::hf

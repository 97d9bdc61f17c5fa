// The parameters of Whisper's encoder under other names, for models of audio and text of which memest does not know the run.
#pragma once
#include "models/hf/weights_only.h"

namespace memest::hf {

/// PREFIXEncoder of an audio_config.
void add_whisper_encoder(Weights& tower, const Config& c, const std::string& prefix);

}  // namespace memest::hf

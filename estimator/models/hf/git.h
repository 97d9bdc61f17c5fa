// What GIT and BLIP share: embeddings of words to which those of the positions are added in place.
#pragma once
#include "models/hf/encoder.h"

namespace memest::hf {

/// GitEmbeddings and BlipTextEmbeddings. `keeps_sum`: another name holds the sum until the end.
UnaryPtr make_added_embeddings(std::string type, const EncoderConfig& c, bool keeps_sum);

}  // namespace memest::hf

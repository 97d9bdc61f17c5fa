// The text model of ministral3, which mistral3 holds as well.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

DecoderForm ministral3_form();

}  // namespace memest::hf

// The release of transformers whose code runs on this thread. A reader sets it as it builds a model, and the model as it is called.
#pragma once
#include "device/transformers_version.h"

namespace memest::hf {

TransformersVersion& release();

}  // namespace memest::hf

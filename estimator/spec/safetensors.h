// The header of a safetensors file (github.com/huggingface/safetensors, README.md): names, types and shapes of its tensors.
#pragma once
#include <string>
#include <vector>

#include "fake/tensor.h"

namespace memest::spec {

struct SafeTensor {
  std::string name;
  std::string stored_type;  ///< as the file has it: "BF16"
  DType dtype;              ///< the nearest of PyTorch's: uint8 for scales of type F8_E8M0
  Dims sizes;
  Bytes bytes = 0;
};
/// Throws Error where the header is damaged or its tensors do not lie in the file.
std::vector<SafeTensor> read_safetensors_header(const std::string& path);

}  // namespace memest::spec

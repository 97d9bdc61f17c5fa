// The tensors in what torch.save wrote, without their data: a pickle is read as plain records, and nothing that it names is ever called
// (Lib/pickletools.py of CPython; torch/serialization.py, torch/_utils.py of 2.15).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/dims.h"
#include "base/dtype.h"

namespace memest::spec {

struct SavedTensor {
  std::string name;  ///< keys on the way to it, joined by dots
  DType dtype = DType::float32;
  Dims sizes;
  std::string storage;             ///< key of its storage; tensors that share one have the same
  std::int64_t storage_numel = 0;  ///< elements of the storage
  bool parameter = false;          ///< wrapped as torch.nn.Parameter
};

/// Those of a data.pkl, in order. Throws Error for a damaged pickle and for objects that no checkpoint of tensors holds.
std::vector<SavedTensor> saved_tensors(std::string_view pickle);

}  // namespace memest::spec

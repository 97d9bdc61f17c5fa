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
  bool optimizer = false;          ///< of an optimizer's state_dict()
};

/// What a file before torch 1.6 begins with: the pickle of a magic number.
inline constexpr std::string_view kLegacyCheckpoint = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

/// Those of a data.pkl, in order. Throws Error for a damaged pickle and for objects that no checkpoint of tensors holds.
std::vector<SavedTensor> saved_tensors(std::string_view pickle);
/// The same of a whole file before torch 1.6: pickles of the magic number, the protocol, the machine, and what was saved.
std::vector<SavedTensor> legacy_saved_tensors(std::string_view file);

}  // namespace memest::spec

// Recorded allocator traces: pickles of torch.cuda.memory._snapshot() (torch/csrc/cuda/memory_snapshot.cpp, 2.0 to 2.15) and what
// `memest estimate --trace` writes.
#pragma once
#include <string>

#include "trace/recording.h"

namespace memest::spec {

/// Throws Error for a file that is neither, or is damaged. Nothing that a pickle names is looked up or called.
Recording read_recording(const std::string& path);

}  // namespace memest::spec

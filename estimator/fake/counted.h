// Runs that are held against LibTorch's own tensors instead of a GPU's (memest probe, --semantics meta and cpu): no scratch of kernels,
// bytes to the byte, and on the CPU the CPU's kernels where these keep other tensors.
#pragma once
#include "fake/runtime.h"

namespace memest {

inline bool counts_cpu() {
  const RunSettings& s = runtime().settings;
  return s.semantics == RunSettings::Semantics::fake_tensor && s.device.name == "cpu";
}
inline bool counts_libtorch() {
  const RunSettings& s = runtime().settings;
  return s.semantics == RunSettings::Semantics::fake_tensor && (s.device.name == "cpu" || s.device.name == "meta");
}

}  // namespace memest

// cuBLAS and cuBLASLt workspaces, by release (device/torch_version.h) and device.
#pragma once
#include "fake/runtime.h"

namespace memest {

/// The workspaces of one matrix product; made after its output. Those taken per call are freed when the object goes, in order.
class CublasWorkspace {
 public:
  enum class Call {
    gemm,    ///< mm, bmm, baddbmm, addmm without the fused bias
    lt_bias  ///< addmm with a 1-D bias through cuBLASLt
  };
  explicit CublasWorkspace(Call call, std::int64_t rows = 2);

 private:
  Tensor blas_, lt_;
};

}  // namespace memest

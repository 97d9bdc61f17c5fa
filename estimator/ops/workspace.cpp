#include "ops/workspace.h"

namespace memest {
namespace {

Tensor take(Bytes bytes) {
  CategoryScope category(Category::workspace);
  return bytes > 0 ? empty({bytes}, DType::uint8) : Tensor();
}

}  // namespace

CublasWorkspace::CublasWorkspace(Call call, std::int64_t rows) {
  Runtime& rt = runtime();
  const RunSettings& s = rt.settings;
  if (!s.kernel_scratch()) return;
  // With TORCH_CUBLAS_WORKSPACE_CACHE=1 2.15 does exactly as 2.12 to 2.14.
  const TorchVersion torch = s.torch.cublas_workspace_per_call() && s.cublas_workspace_cache ? TorchVersion{2, 14} : s.torch;
  Tensor& kept_blas = rt.cublas_workspaces[rt.in_backward_thread];
  Tensor& kept_lt = rt.cublaslt_workspaces[rt.in_backward_thread];
  auto blas = [&] {
    if (torch.cublas_workspace_per_call())
      blas_ = take(s.cublas_workspace);
    else if (!kept_blas)
      kept_blas = take(s.cublas_workspace);
  };
  if (call == Call::gemm) {
    blas();
    return;
  }
  auto lt = [&] {
    if (torch.lt_scratch() == TorchVersion::LtScratch::per_call)
      lt_ = take(s.cublaslt_workspace);
    else if (torch.lt_scratch() == TorchVersion::LtScratch::kept && !kept_lt && !(torch.lt_scratch_skips_one_row() && rows == 1))
      kept_lt = take(s.cublaslt_workspace);
  };
  if (!torch.addmm_takes_cublas_workspace()) {
    lt();
  } else if (torch.cublas_workspace_before_lt()) {
    blas();
    lt();
  } else {
    lt();
    blas();
  }
}

}  // namespace memest

// Systems of equations with triangular matrices.
// Sources: derivatives.yaml linalg_solve_triangular; FunctionsManual.cpp linalg_solve_triangular_backward;
// native/BatchLinearAlgebra.cpp linalg_solve_triangular_out, native/cuda/linalg/BatchLinearAlgebra.cpp triangular_solve_kernel of 2.15.
#include "ops/copy.h"
#include "ops/iterator.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/views.h"
#include "ops/workspace.h"

namespace memest {
namespace {

using I = std::int64_t;

Tensor transposed(T x) { return ops::transpose(x, -2, -1); }
bool is_row_or_column_contiguous(T x) { return is_contiguous(x) || is_contiguous(transposed(x)); }
/// cloneBatchedColumnMajor
Tensor column_major_clone(T x) { return transposed(ops::clone(transposed(x), MemoryFormat::contiguous)); }
Tensor expanded(T x, const Dims& batch) {
  const Dims sizes = batch + x.sizes().slice(x.dim() - 2, x.dim());
  return sizes == x.sizes() ? x : ops::expand(x, sizes, false);
}

void check_system(T A, T B, bool left) {
  if (A.dim() < 2 || B.dim() < 2 || A.size(-1) != A.size(-2))
    throw Error("linalg.solve_triangular: A must be batches of square matrices and B of matrices, found " + describe(A) + " and " +
                describe(B));
  if (A.size(-1) != B.size(left ? -2 : -1))
    throw Error("linalg.solve_triangular: incompatible shapes of A and B for the equation " + std::string(left ? "AX = B" : "XA = B") +
                ": " + describe(A) + " and " + describe(B));
  if (A.dtype() != B.dtype())
    throw Error("linalg.solve_triangular: expected A and B to have the same dtype, found " + describe(A) + " and " + describe(B));
}

/// triangular_solve_kernel: few large systems one by one, else a batched call over arrays of pointers. (Beyond 512 rows MAGMA's batched
/// kernel takes over, which has such arrays too.)
void triangular_solve(T A) {
  if (!runtime().settings.kernel_scratch()) return;
  I count = 1;
  for (int d = 0; d < A.dim() - 2; ++d) count *= A.sizes()[d];
  Tensor A_pointers, B_pointers;
  if (count > 8 || A.size(-1) < 64) {
    A_pointers = empty({count}, DType::int64);
    B_pointers = empty({count}, DType::int64);
  }
  CublasWorkspace workspace(CublasWorkspace::Call::gemm);
}

Tensor solve(T A_given, T B_given, bool left) {
  check_system(A_given, B_given, left);
  const Dims batch = broadcast(A_given.sizes().slice(0, A_given.dim() - 2), B_given.sizes().slice(0, B_given.dim() - 2));
  Tensor B = expanded(B_given, batch), A = expanded(A_given, batch);
  Dims columns = B.sizes();
  std::swap(columns[-1], columns[-2]);
  Tensor out = transposed(empty(columns, B.dtype()));
  if (out.numel() == 0) return out;
  if (!is_row_or_column_contiguous(A)) A = column_major_clone(A);
  triangular_solve(A);
  return out;
}

Tensor linalg_solve_triangular(T self, T B, bool upper, bool left, bool unitriangular) {
  auto fn = node("LinalgSolveTriangularBackward0", {self, B}, {self}, [=](Backward& w, T A, T X) {
    const Tensor G_B = solve(transposed(A), w.grad[0], left);
    if (w.needs(0)) {
      const Tensor X_H = transposed(X);
      Tensor G_A = ops::neg(left ? ops::matmul(G_B, X_H) : ops::matmul(X_H, G_B));
      const I diagonal = unitriangular ? (upper ? 1 : -1) : 0;
      w.out[0] = Unbox<Tensor>::from(call_op(upper ? "aten::triu" : "aten::tril", {std::move(G_A), diagonal}, {}));
    }
    if (w.needs(1)) w.out[1] = G_B;
  });
  Tensor result = solve(self, B, left);
  fn.outputs({result}, {result});
  return result;
}
const Op linalg_solve_triangular_op{
    {"aten::linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor",
     Autocast::none, "result, self", "native/BatchLinearAlgebra.cpp linalg_solve_triangular_out"},
    linalg_solve_triangular};

}  // namespace
}  // namespace memest

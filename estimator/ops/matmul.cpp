// Sources: derivatives.yaml; aten/src/ATen/native/{Linear,LinearAlgebra}.cpp, native/cuda/Blas.cpp of 2.15.
#include "ops/matmul.h"

#include "fake/kernel.h"
#include "ops/copy.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/views.h"
#include "ops/workspace.h"

namespace memest {
namespace {

void check_matrices(const char* name, T a, T b) {
  if (a.dim() != 2 || b.dim() != 2)
    throw Error(std::string(name) + ": both must be matrices, found " + describe(a) + " and " + describe(b));
  if (a.sizes()[1] != b.sizes()[0])
    throw Error("mat1 and mat2 shapes cannot be multiplied (" + to_string(a.sizes()) + " and " + to_string(b.sizes()) + ")");
  if (a.dtype() != b.dtype())
    throw Error("mat1 and mat2 must have the same dtype, but got " + std::string(name_of(a.dtype())) + " and " +
                std::string(name_of(b.dtype())));
}

/// prepare_matrix_for_cublas: a clone for the call where neither stride suits.
Tensor prepared(T x) {
  if (is_dense(x)) return {};
  const Dims &s = x.strides(), &n = x.sizes();
  if ((s[0] == 1 && s[1] >= std::max<std::int64_t>(1, n[0])) || (s[1] == 1 && s[0] >= std::max<std::int64_t>(1, n[1]))) return {};
  return runtime().settings.kernel_scratch() ? ops::clone(x, MemoryFormat::contiguous) : Tensor();
}

bool column_major(T x) { return x.strides()[0] == 1 && x.strides()[1] == x.sizes()[0]; }
/// mm_mat1_grad, mm_mat2_grad: a column-major operand gets its gradient as the transpose of a product.
Tensor mat1_grad(T grad, T mat2, bool columns) {
  if (columns) return ops::t(ops::mm(mat2, ops::t(grad)));
  return ops::mm(grad, ops::t(mat2));
}
Tensor mat2_grad(T grad, T mat1, bool columns) {
  if (columns) return ops::t(ops::mm(ops::t(grad), mat1));
  return ops::mm(ops::t(mat1), grad);
}

Tensor mm(T self, T mat2) {
  check_matrices("mm", self, mat2);
  auto fn = node("MmBackward0", {self, mat2}, {save_if(mat2, self), save_if(self, mat2)},
                 [ca = column_major(self), cb = column_major(mat2)](Backward& w, T b, T a) {
                   if (w.needs(1)) w.out[1] = mat2_grad(w.grad[0], a, cb);
                   if (w.needs(0)) w.out[0] = mat1_grad(w.grad[0], b, ca);
                 });
  const std::int64_t rows = self.sizes()[0], columns = mat2.sizes()[1];
  Tensor y = run_kernel(KernelKind::matmul, matmul_flops(1, rows, self.sizes()[1], columns), [&] {
    Tensor product = empty({rows, columns}, self.dtype());
    if (product.numel() > 0) {
      Tensor a = prepared(self), b = prepared(mat2);
      CublasWorkspace workspace(CublasWorkspace::Call::gemm);
    }
    return product;
  });
  fn.outputs({y});
  return y;
}

/// addmm_out_cuda_impl: whether the fused epilogue of cuBLASLt takes the bias. Measured on 2.15 for the forms beyond 1-D.
bool goes_through_lt(T bias, const Dims& sizes, std::int64_t inner, double beta) {
  if (inner <= 1 || sizes[1] <= 1 || !is_contiguous(bias)) return false;
  if (bias.dim() == 1) return bias.sizes()[0] == sizes[1] && beta == 1;
  if (!runtime().settings.torch.lt_takes_matrix_bias() || bias.dim() != 2) return false;
  if (bias.sizes()[0] == 1) return bias.sizes()[1] == sizes[1] && beta == 1;
  return bias.sizes() == sizes && is_reduced_floating(bias.dtype()) && beta != 0;
}

/// maybe_multiply.
Tensor scaled(Tensor gradient, const Scalar& factor) { return factor.to_double() == 1 ? gradient : ops::mul_scalar(gradient, factor); }

Tensor addmm(T self, T mat1, T mat2, const Scalar& beta, const Scalar& alpha) {
  check_matrices("addmm", mat1, mat2);
  const Dims sizes{mat1.sizes()[0], mat2.sizes()[1]};
  if (!(broadcast(self.sizes(), sizes) == sizes))
    throw Error("addmm: the bias " + describe(self) + " does not broadcast to " + to_string(sizes));
  auto fn = node("AddmmBackward0", {self, mat1, mat2}, {save_if(mat1, mat2), save_if(mat2, mat1)},
                 [alpha, beta, ca = column_major(mat1), cb = column_major(mat2)](Backward& w, T a, T b) {
                   if (w.needs(1)) w.out[1] = scaled(mat1_grad(w.grad[0], b, ca), alpha);
                   if (w.needs(2)) w.out[2] = scaled(mat2_grad(w.grad[0], a, cb), alpha);
                   if (w.needs(0)) w.out[0] = scaled(w.grad[0], beta);
                 });
  Tensor y = run_kernel(KernelKind::matmul, matmul_flops(1, sizes[0], mat2.sizes()[0], sizes[1]), [&] {
    Tensor product = empty(sizes, self.dtype());
    if (product.numel() > 0) {
      const bool lt = goes_through_lt(self, sizes, mat2.sizes()[0], beta.to_double());
      Tensor a = prepared(mat1), b = prepared(mat2);
      CublasWorkspace workspace(lt ? CublasWorkspace::Call::lt_bias : CublasWorkspace::Call::gemm, sizes[0]);
    }
    return product;
  });
  fn.outputs({y});
  return y;
}

/// prepare_batch_matrix_for_cublas.
Tensor batch_prepared(T x, std::int64_t m, std::int64_t n) {  // the result is row-major: its transpose is computed
  const Dims& s = x.strides();
  constexpr int fast = 2, leading = 1;
  if (s[fast] == 1 && s[leading] >= std::max<std::int64_t>(1, m)) return {};
  if (s[leading] == 1 && s[fast] >= std::max<std::int64_t>(1, n)) return {};
  if (is_contiguous(x) && s[1] != 0 && s[2] != 0) return {};
  return runtime().settings.kernel_scratch() ? ops::clone(x, MemoryFormat::contiguous) : Tensor();
}

void check_batches(const std::string& name, T a, T b) {
  if (a.dim() != 3 || b.dim() != 3) throw Error(name + ": both must be 3-D, found " + describe(a) + " and " + describe(b));
  if (a.sizes()[0] != b.sizes()[0] || a.sizes()[2] != b.sizes()[1])
    throw Error(name + ": shapes cannot be multiplied (" + to_string(a.sizes()) + " and " + to_string(b.sizes()) + ")");
  if (a.dtype() != b.dtype())
    throw Error(name + ": expected the same dtype, found " + std::string(name_of(a.dtype())) + " and " + std::string(name_of(b.dtype())));
}

Tensor bmm(T self, T mat2) {
  check_batches("bmm", self, mat2);
  auto fn = node("BmmBackward0", {self, mat2}, {save_if(mat2, self), save_if(self, mat2)}, [](Backward& w, T b, T a) {
    if (w.needs(1)) w.out[1] = ops::bmm(ops::transpose(a, 1, 2), w.grad[0]);
    if (w.needs(0)) w.out[0] = ops::bmm(w.grad[0], ops::transpose(b, 1, 2));
  });
  const std::int64_t batch = self.sizes()[0], n = self.sizes()[1], k = self.sizes()[2], m = mat2.sizes()[2];
  Tensor y = run_kernel(KernelKind::matmul, matmul_flops(batch, n, k, m), [&] {
    Tensor product = empty({batch, n, m}, self.dtype());
    if (product.numel() > 0 && self.numel() > 0) {
      Tensor b = batch_prepared(mat2, m, k), a = batch_prepared(self, k, n);
      const bool outer = k == 1 && runtime().settings.torch.triton_outer_product();
      if (!outer) CublasWorkspace workspace(CublasWorkspace::Call::gemm);
    }
    return product;
  });
  fn.outputs({y});
  return y;
}

/// A view made without grad mode of something that requires grad says that it does too.
bool says_requires_grad(T x) { return x.requires_grad() || (x->base && x->base.requires_grad()); }
bool should_fold(T a, T b) {
  const bool a_larger = a.dim() >= b.dim();
  const Tensor t1 = a_larger ? a : ops::transpose(b, -2, -1);
  const Tensor& t2 = a_larger ? b : a;
  if (!(t1.dim() >= 3 && t2.dim() <= 2)) return false;
  if (says_requires_grad(t2)) return true;
  if (a.dim() == 2) return false;
  if (t1.numel() == 0) return true;
  for (int i = 0; i < t1.dim() - 2; ++i)
    if (t1.strides()[i] != t1.strides()[i + 1] * t1.sizes()[i + 1]) return false;
  return true;
}

Tensor outer(T self, T vec2) {
  if (self.dim() != 1 || vec2.dim() != 1) throw Error("outer: both must be 1-D, found " + describe(self) + " and " + describe(vec2));
  return ops::mul(ops::reshape(self, {self.numel(), 1}), vec2);
}

/// native/Blas.cpp addmv_out: gemv takes a matrix with one stride of 1, another is copied.
void gemv(T matrix) {
  const Dims &s = matrix.strides(), &n = matrix.sizes();
  const bool fits = (s[0] == 1 && s[1] >= std::max<std::int64_t>(1, n[0])) || (s[1] == 1 && s[0] >= std::max<std::int64_t>(1, n[1]));
  Tensor copy = fits || !runtime().settings.kernel_scratch() ? Tensor() : ops::clone(matrix, MemoryFormat::contiguous);
  CublasWorkspace workspace(CublasWorkspace::Call::gemm);
}
void check_matrix_vector(const char* name, T matrix, T vec) {
  if (matrix.dim() != 2 || vec.dim() != 1 || matrix.sizes()[1] != vec.sizes()[0])
    throw Error(std::string(name) + ": shapes cannot be multiplied (" + describe(matrix) + " and " + describe(vec) + ")");
  if (matrix.dtype() != vec.dtype())
    throw Error(std::string(name) + ": expected one dtype, found " + describe(matrix) + " and " + describe(vec));
}
Tensor mv(T self, T vec) {
  check_matrix_vector("mv", self, vec);
  auto fn = node("MvBackward0", {self, vec}, {save_if(self, vec), save_if(vec, self)}, [](Backward& w, T a, T v) {
    if (w.needs(0)) w.out[0] = outer(w.grad[0], v);
    if (w.needs(1)) w.out[1] = ops::mv(ops::t(a), w.grad[0]);
  });
  Tensor y = empty({self.sizes()[0]}, self.dtype());
  if (y.numel() > 0) gemv(self);
  fn.outputs({y});
  return y;
}
Tensor addmv(T self, T mat, T vec, const Scalar& beta, const Scalar& alpha) {
  check_matrix_vector("addmv", mat, vec);
  auto fn = node("AddmvBackward0", {self, mat, vec}, {save_if(mat, vec), save_if(vec, mat)}, [alpha, beta](Backward& w, T a, T v) {
    if (w.needs(1)) w.out[1] = scaled(outer(w.grad[0], v), alpha);
    if (w.needs(0)) w.out[0] = scaled(w.grad[0], beta);
    if (w.needs(2)) w.out[2] = scaled(ops::mv(ops::t(a), w.grad[0]), alpha);
  });
  Tensor y = empty({mat.sizes()[0]}, self.dtype());
  if (!(broadcast(self.sizes(), y.sizes()) == y.sizes()))
    throw Error("addmv: " + describe(self) + " does not broadcast to " + to_string(y.sizes()));
  if (y.numel() > 0) gemv(mat);
  fn.outputs({y});
  return y;
}
Tensor addr(T self, T vec1, T vec2, const Scalar& beta, const Scalar& alpha) {
  if (vec1.dim() != 1 || vec2.dim() != 1) throw Error("addr: expected 1-D vectors, found " + describe(vec1) + " and " + describe(vec2));
  auto fn = node("AddrBackward0", {self, vec1, vec2}, {save_if(vec1, vec2), save_if(vec2, vec1)}, [alpha, beta](Backward& w, T a, T b) {
    if (w.needs(0)) w.out[0] = scaled(w.grad[0], beta);
    if (w.needs(1)) w.out[1] = scaled(ops::mv(w.grad[0], b), alpha);
    if (w.needs(2)) w.out[2] = scaled(ops::mv(ops::t(w.grad[0]), a), alpha);
  });
  const Dims sizes{vec1.numel(), vec2.numel()};
  if (!(broadcast(self.sizes(), sizes) == sizes)) throw Error("addr: " + describe(self) + " does not broadcast to " + to_string(sizes));
  Tensor y = empty(sizes, self.dtype());
  fn.outputs({y});
  return y;
}

/// One kernel of two vectors: dot and vdot.
Tensor dot_of(const char* name, T a, T b) {
  if (a.dim() != 1 || b.dim() != 1 || !(a.sizes() == b.sizes()))
    throw Error(std::string(name) + ": 1D tensors of one size expected, found " + describe(a) + " and " + describe(b));
  Tensor y = empty({}, a.dtype());
  CublasWorkspace workspace(CublasWorkspace::Call::gemm);
  return y;
}
Tensor dot(T self, T tensor) {
  auto fn = node("DotBackward0", {self, tensor}, {save_if(self, tensor), save_if(tensor, self)}, [](Backward& w, T a, T b) {
    if (w.needs(0)) w.out[0] = ops::mul(w.grad[0], b);
    if (w.needs(1)) w.out[1] = ops::mul(w.grad[0], a);
  });
  Tensor y = dot_of("dot", self, tensor);
  fn.outputs({y});
  return y;
}
Tensor vdot(T self, T other) {
  auto fn = node("VdotBackward0", {self, other}, {save_if(other, self), save_if(self, other)}, [](Backward& w, T b, T a) {
    if (w.needs(1)) w.out[1] = ops::mul(w.grad[0], a);
    if (w.needs(0)) w.out[0] = ops::mul(w.grad[0], b);
  });
  Tensor y = dot_of("vdot", self, other);
  fn.outputs({y});
  return y;
}

// native/cuda/Blas.cpp baddbmm_out_cuda_impl: the input is copied into the result
Tensor baddbmm(T self, T batch1, T batch2, const Scalar& beta, const Scalar& alpha) {
  check_batches("baddbmm", batch1, batch2);
  const Dims sizes{batch1.sizes()[0], batch1.sizes()[1], batch2.sizes()[2]};
  if (!(broadcast(self.sizes(), sizes) == sizes)) throw Error("baddbmm: " + describe(self) + " does not broadcast to " + to_string(sizes));
  auto fn = node("BaddbmmBackward0", {self, batch1, batch2}, {save_if(batch1, batch2), save_if(batch2, batch1)},
                 [alpha, beta](Backward& w, T a, T b) {
                   if (w.needs(1)) w.out[1] = scaled(ops::bmm(w.grad[0], ops::transpose(b, 1, 2)), alpha);
                   if (w.needs(2)) w.out[2] = scaled(ops::bmm(ops::transpose(a, 1, 2), w.grad[0]), alpha);
                   if (w.needs(0)) w.out[0] = scaled(w.grad[0], beta);
                 });
  const std::int64_t n = sizes[1], k = batch1.sizes()[2], m = sizes[2];
  Tensor y = run_kernel(KernelKind::matmul, matmul_flops(sizes[0], n, k, m), [&] {
    Tensor product = empty(sizes, self.dtype());
    if (product.numel() > 0 && batch1.numel() > 0) {
      Tensor b = batch_prepared(batch2, m, k), a = batch_prepared(batch1, k, n);
      CublasWorkspace workspace(CublasWorkspace::Call::gemm);
    }
    return product;
  });
  fn.outputs({y});
  return y;
}
// native/LinearAlgebra.cpp addbmm_impl_: one addmm_ for each matrix of the batch
Tensor addbmm(T self, T batch1, T batch2, const Scalar& beta, const Scalar& alpha) {
  check_batches("addbmm", batch1, batch2);
  const Dims sizes{batch1.sizes()[1], batch2.sizes()[2]};
  if (!(broadcast(self.sizes(), sizes) == sizes)) throw Error("addbmm: " + describe(self) + " does not broadcast to " + to_string(sizes));
  auto fn = node("AddbmmBackward0", {self, batch1, batch2}, {save_if(batch1, batch2), save_if(batch2, batch1)},
                 [alpha, beta, batches = batch1.sizes()[0]](Backward& w, T a, T b) {
                   auto expanded = [&] {
                     return ops::expand(ops::unsqueeze(w.grad[0], 0), {batches, w.grad[0].sizes()[0], w.grad[0].sizes()[1]}, false);
                   };
                   if (w.needs(1)) w.out[1] = scaled(ops::bmm(expanded(), ops::transpose(b, 1, 2)), alpha);
                   if (w.needs(2)) w.out[2] = scaled(ops::bmm(ops::transpose(a, 1, 2), expanded()), alpha);
                   if (w.needs(0)) w.out[0] = scaled(w.grad[0], beta);
                 });
  Tensor y = empty(sizes, self.dtype());
  runtime().count_flops(matmul_flops(batch1.sizes()[0], sizes[0], batch1.sizes()[2], sizes[1]));
  if (y.numel() > 0)
    for (std::int64_t i = 0; i < std::min<std::int64_t>(batch1.sizes()[0], 100'000); ++i)
      CublasWorkspace workspace(CublasWorkspace::Call::gemm);
  fn.outputs({y});
  return y;
}

// aten/src/ATen/native/LinearAlgebra.cpp _matmul_impl
Tensor matmul(T a, T b) {
  const int da = a.dim(), db = b.dim();
  if (da == 0 || db == 0)
    throw Error("both arguments to matmul need to be at least 1D, but they are " + std::to_string(da) + "D and " + std::to_string(db) +
                "D");
  if (da == 1 && db == 1) return ops::dot(a, b);
  if (da == 2 && db == 1) return ops::mv(a, b);
  if (da == 1 && db == 2) return ops::squeeze_dim(ops::mm(ops::unsqueeze(a, 0), b), 0);
  if (da == 2 && db == 2) return ops::mm(a, b);
  if (should_fold(a, b)) {
    const bool swapped = db > da;
    const Tensor t1 = swapped ? ops::transpose(b, -2, -1) : a;
    const Tensor t2 = !swapped ? b : da == 2 ? ops::t(a) : a;
    Dims sizes = t1.sizes().slice(0, t1.dim() - 1);
    const std::int64_t rows = sizes.numel(), inner = t1.sizes().back();
    Tensor folded = ops::reshape(t1, {rows, inner});
    if (t2.dim() == 1) return ops::unsafe_view(ops::mv(folded, t2), sizes);
    sizes.push_back(t2.sizes()[1]);
    Tensor product = ops::mm(folded, t2);
    folded.reset();
    Tensor y = ops::unsafe_view(std::move(product), sizes);
    return swapped ? ops::contiguous_tensor(ops::transpose(y, -2, -1)) : y;
  }
  const Dims batch_a = a.sizes().slice(0, std::max(da - 2, 0)), batch_b = b.sizes().slice(0, std::max(db - 2, 0));
  if (da == 3 && db == 3 && batch_a[0] != batch_b[0]) {
    if (batch_a[0] == 1 && a.requires_grad()) return matmul(ops::squeeze_dim(a, 0), b);
    if (batch_b[0] == 1 && b.requires_grad()) return matmul(a, ops::squeeze_dim(b, 0));
  }
  const std::int64_t n = da > 1 ? a.sizes()[-2] : 1, m1 = a.sizes().back(), m2 = db > 1 ? b.sizes()[-2] : b.sizes()[0],
                     p = db > 1 ? b.sizes().back() : 1;
  Dims sizes = broadcast(batch_a, batch_b);
  const std::int64_t batch = sizes.numel();
  const Tensor a3 = ops::reshape(ops::expand(a, sizes + Dims{n, m1}, false), {batch, n, m1});
  Tensor b3;
  if (db == 1)
    b3 = ops::unsqueeze(ops::reshape(ops::expand(b, sizes + Dims{m2}, false), {batch, m2}), 2);
  else
    b3 = ops::reshape(ops::expand(b, sizes + Dims{m2, p}, false), {batch, m2, p});
  if (da > 1) sizes.push_back(n);
  if (db > 1) sizes.push_back(p);
  Tensor product = ops::bmm(a3, b3);
  if (db == 1) product = ops::squeeze_dim(std::move(product), -1);
  return ops::unsafe_view(std::move(product), sizes);
}

// aten/src/ATen/native/Linear.cpp
/// _flatten_nd_linear ends in _unsafe_view: what is done to its result in place is no matter of slices (seen in 2.15 only).
bool flat_linear_is_no_view() { return runtime().settings.torch.at_least(15); }

Tensor linear(T input, T weight, T bias) {
  if (weight.dim() != 2 && weight.dim() != 1) throw Error("linear: the weight must be 1-D or 2-D, found " + describe(weight));
  if (input.dim() == 0 || input.sizes().back() != weight.sizes().back())
    throw Error("linear: an input of shape " + to_string(input.sizes()) + " does not meet a weight of shape " + to_string(weight.sizes()) +
                " (in_features " + std::to_string(weight.sizes().back()) + ")");
  if (bias && input.dim() == 2) return ops::addmm(bias, input, ops::t(weight), 1, 1);
  if (bias && is_contiguous(input)) {  // _flatten_nd_linear
    Dims sizes = input.sizes();
    sizes[-1] = weight.sizes()[0];
    Tensor flat = ops::reshape(input, {input.sizes().slice(0, input.dim() - 1).numel(), input.sizes().back()});
    Tensor product = ops::addmm(bias, flat, ops::t(weight), 1, 1);
    return flat_linear_is_no_view() ? ops::unsafe_view(std::move(product), sizes) : ops::view(product, sizes);
  }
  Tensor output = ops::matmul(input, ops::t(weight));
  if (bias) return ops::add_(output, bias, 1);
  return output;
}

}  // namespace

namespace ops {
const Op<Tensor(T, T)> mm{
    {"aten::mm(Tensor self, Tensor mat2) -> Tensor", Autocast::lower, "mat2, self", "derivatives.yaml mm; native/cuda/Blas.cpp"},
    memest::mm};
const Op<Tensor(T, T, T, const Scalar&, const Scalar&)> addmm{
    {"aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", Autocast::lower, "mat1, mat2",
     "derivatives.yaml addmm; native/cuda/Blas.cpp"},
    memest::addmm};
const Op<Tensor(T, T)> bmm{
    {"aten::bmm(Tensor self, Tensor mat2) -> Tensor", Autocast::lower, "self, mat2", "derivatives.yaml bmm; native/cuda/Blas.cpp"},
    memest::bmm};
const Op<Tensor(T, T, T, const Scalar&, const Scalar&)> baddbmm{
    {"aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", Autocast::lower,
     "batch1, batch2", "derivatives.yaml baddbmm; native/cuda/Blas.cpp"},
    memest::baddbmm};
const Op<Tensor(T, T)> mv{
    {"aten::mv(Tensor self, Tensor vec) -> Tensor", Autocast::lower, "self, vec", "derivatives.yaml mv; native/Blas.cpp"}, memest::mv};
const Op<Tensor(T, T)> dot{
    {"aten::dot(Tensor self, Tensor tensor) -> Tensor", Autocast::promote, "self, tensor", "derivatives.yaml dot; native/cuda/Blas.cpp"},
    memest::dot};
const Op<Tensor(T, T)> vdot{
    {"aten::vdot(Tensor self, Tensor other) -> Tensor", Autocast::promote, "other, self", "derivatives.yaml vdot; native/cuda/Blas.cpp"},
    memest::vdot};
const Op<Tensor(T, T)> outer{{"aten::outer(Tensor self, Tensor vec2) -> Tensor", Autocast::none, "", "native/LinearAlgebra.cpp outer"},
                             memest::outer};
const Op<Tensor(T, T)> matmul{
    {"aten::matmul(Tensor self, Tensor other) -> Tensor", Autocast::lower, "", "native/LinearAlgebra.cpp _matmul_impl"}, memest::matmul};
const Op<Tensor(T, T, T)> linear{
    {"aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", Autocast::lower, "", "native/Linear.cpp linear"},
    memest::linear};
}  // namespace ops

namespace {
const Op addmv_op{{"aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor", Autocast::lower,
                   "mat, vec", "derivatives.yaml addmv; native/Blas.cpp"},
                  addmv};
const Op addr_op{{"aten::addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", Autocast::lower,
                  "vec1, vec2", "derivatives.yaml addr"},
                 addr};
const Op addbmm_op{{"aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", Autocast::lower,
                    "batch1, batch2", "derivatives.yaml addbmm; native/LinearAlgebra.cpp addbmm_impl_"},
                   addbmm};
const Op ger_op{{"aten::ger(Tensor self, Tensor vec2) -> Tensor", Autocast::none, "", "native/LinearAlgebra.cpp outer"},
                +[](T self, T vec2) { return ops::outer(self, vec2); }};
}  // namespace
}  // namespace memest

// Products of matrices by groups, as experts of a mixture have them.
// Sources: derivatives.yaml _grouped_mm; FunctionsManual.cpp _grouped_mm_mat1_backward, _grouped_mm_mat2_backward;
// aten/src/ATen/native/GroupedMMUtils.h, native/cuda/{GroupedBlas.cpp,GroupMM.cu} of 2.15; transformers/integrations/moe.py 5.24.
#include "ops/grouped_matmul.h"

#include <utility>

#include "device/grouped_mm.h"
#include "fake/kernel.h"
#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/views.h"
#include "ops/workspace.h"

namespace memest {
namespace {
using I = std::int64_t;

thread_local bool groups_hold_rows = false;

/// The products of the groups, one after the other: all take the same workspace, those of groups with rows.
void products_of_groups(bool groups_hold_rows_then) {
  if (groups_hold_rows_then) {
    CublasWorkspace workspace(CublasWorkspace::Call::gemm);
    return;
  }
  if (runtime().settings.kernel_scratch())
    runtime().diagnostics.add(
        {Diagnostic::Severity::note, "data-dependent",
         "which groups of a grouped matrix product have rows depends on values, which memest does not have: the cuBLAS "
         "workspace that their products take one after the other is not counted",
         "", ""});
}

/// check_valid_strides_and_return_transposed: one stride of 1, the other a multiple of 16 bytes.
void check_strides(const char* which, T x) {
  const Dims &s = x.strides(), &n = x.sizes();
  const int last = x.dim() - 1;
  const I alignment = 16 / item_size(x.dtype());
  I other = -1;
  if (s[last - 1] == 1 && s[last] >= std::max<I>(1, n[last - 1]))
    other = s[last];
  else if (s[last] == 1 && s[last - 1] >= std::max<I>(1, n[last]))
    other = s[last - 1];
  if (other < 0) throw Error(std::string("_grouped_mm: invalid strides of ") + which + ", " + describe(x));
  if (other % alignment != 0)
    throw Error(
        std::string("_grouped_mm: strides should be multiple of 16 bytes, found ") + which + " " + describe(x),
        "widths of experts must be multiples of " + std::to_string(alignment) + " for this type; --experts batched_mm has no such limit");
}
void check(T a, T b, T offs) {
  for (const Tensor& x : {a, b}) {
    if (x.dim() != 2 && x.dim() != 3) throw Error("_grouped_mm: matrices have to be 2 or 3d, found " + describe(x));
    if (x.dtype() != DType::float32 && x.dtype() != DType::bfloat16 && x.dtype() != DType::float16)
      throw Error("_grouped_mm: expected float32, bfloat16 or float16, found " + describe(x));
  }
  if (a.dtype() != b.dtype()) throw Error("_grouped_mm: expected one dtype, found " + describe(a) + " and " + describe(b));
  if ((a.dim() != 2 || b.dim() != 2) && a.sizes().back() != b.sizes()[-2])
    throw Error("_grouped_mm: contraction dimension of " + describe(a) + " and " + describe(b) + " must match");
  if (bool(offs) != (a.dim() == 2 || b.dim() == 2)) throw Error("_grouped_mm: offsets are for 2d matrices, and have to be given for them");
  if (offs && (offs.dim() != 1 || offs.dtype() != DType::int32))
    throw Error("_grouped_mm: offsets are a 1-D int32 tensor, found " + describe(offs));
  check_strides("the first matrix", a);
  check_strides("the second matrix", b);
}

bool column_major(T x) { return x.strides()[-2] == 1 && x.strides().back() == x.sizes()[-2]; }

/// GroupMM.cu: pointers, strides and sizes of each group, and a descriptor in global memory for each multiprocessor.
void kernel_workspace(I groups) {
  const I pointers = (groups + groups % 2) * 3 * 8, sizes = groups * 12, strides = 3 * groups * 8;
  CategoryScope category(Category::workspace);
  Tensor arguments = empty({pointers + sizes + strides}, DType::uint8);
  Tensor descriptors = empty({runtime().settings.device.multiprocessors * I{512}}, DType::uint8);
  descriptors.reset();
  arguments.reset();
}

Tensor product(T a, T b, T offs) { return ops::grouped_mm(a, b, offs, {}, {}); }

Tensor grouped_mm(T self, T mat2, T offs, T bias, std::optional<DType> out_dtype) {
  check(self, mat2, offs);
  if (bias) throw Error("_grouped_mm: bias not supported yet");
  if (out_dtype && *out_dtype != self.dtype()) throw Error("_grouped_mm: the output's dtype must match that of " + describe(self));
  auto fn = node("GroupedMmBackward0", {self, mat2}, {save_if(mat2, self), save_if(self, mat2), offs},
                 [ca = column_major(self), cb = column_major(mat2), held = groups_hold_rows](Backward& w, T b, T a, T o) {
                   Scoped<bool> as_in_forward(groups_hold_rows, held);
                   Tensor &da = w.out[0], &db = w.out[1], &grad = w.grad[0];
                   if (w.needs(1)) {
                     if (cb)
                       db = ops::transpose(product(ops::transpose(grad, -2, -1), a, o), -2, -1);
                     else
                       db = product(ops::transpose(a, -2, -1), grad, o);
                   }
                   if (w.needs(0)) {
                     if (ca)
                       da = ops::transpose(product(b, ops::transpose(grad, -2, -1), o), -2, -1);
                     else
                       da = product(grad, ops::transpose(b, -2, -1), o);
                   }
                 });
  const bool a2 = self.dim() == 2, b2 = mat2.dim() == 2;
  const I groups = offs ? offs.numel() : self.sizes()[0];
  Dims sizes;
  if (a2 && b2)
    sizes = {groups, self.sizes()[0], mat2.sizes()[1]};
  else if (a2 || b2)
    sizes = {self.sizes()[-2], mat2.sizes().back()};
  else
    sizes = {groups, self.sizes()[1], mat2.sizes()[2]};
  if ((a2 != b2) && (a2 ? mat2 : self).sizes()[0] != groups) throw Error("_grouped_mm: matrix batch sizes have to match");
  const I alignment = 16 / item_size(self.dtype()), padded = (sizes.back() + alignment - 1) / alignment * alignment;
  const Dims strides = a2 == b2 ? Dims{sizes[1] * padded, padded, 1} : Dims{padded, 1};
  const I rows = self.sizes()[-2], inner = self.sizes().back(), columns = mat2.sizes().back();
  Tensor y = run_kernel(KernelKind::matmul, matmul_flops(a2 == b2 && !a2 ? groups : 1, rows, inner, columns), [&] {
    Tensor product = empty_strided(sizes, strides, self.dtype());
    if (!runtime().settings.kernel_scratch()) return product;
    if (self.dtype() == DType::bfloat16 && has_grouped_mm_kernel(runtime().settings.device)) {
      kernel_workspace(groups);
    } else if (product.numel() > 0) {
      products_of_groups(groups_hold_rows || !offs);
    }
    return product;
  });
  fn.outputs({y});
  return y;
}

/// transformers::grouped_mm_fallback, a custom op with an autograd formula of its own: zeros, and a product for each group written there.
Tensor grouped_mm_fallback(T input, T weight, T offs) {
  if (input.dim() != 2 || weight.dim() != 3 || input.sizes()[1] != weight.sizes()[1])
    throw Error("grouped_mm_fallback: " + describe(input) + " and " + describe(weight) + " do not match");
  auto fn = node("GeneratedBackwardFor_transformers_grouped_mm_fallback_default", {input, weight}, {input, weight},
                 [held = groups_hold_rows, offs = Tensor(offs)](Backward& w, T x, T y) {  // ctx.offs lives as long as the node
                   w.out[0] = ops::zeros_like(x, std::nullopt, std::nullopt);
                   w.out[1] = ops::zeros_like(y, std::nullopt, std::nullopt);
                   products_of_groups(held);
                 });
  Tensor y = run_kernel(KernelKind::matmul, matmul_flops(1, input.sizes()[0], input.sizes()[1], weight.sizes()[2]), [&] {
    Tensor product = ops::zeros({input.sizes()[0], weight.sizes()[2]}, input.dtype());
    products_of_groups(groups_hold_rows);
    return product;
  });
  fn.outputs({y});
  return y;
}

}  // namespace

namespace ops {
const Op<Tensor(T, T, T, T, std::optional<DType>)> grouped_mm{
    {"aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor",
     Autocast::none, "mat2, self, offs", "derivatives.yaml _grouped_mm; native/cuda/GroupedBlas.cpp, GroupMM.cu"},
    memest::grouped_mm};
Tensor grouped_mm_fallback(T input, T weight, T offs) { return memest::grouped_mm_fallback(input, weight, offs); }
AssumedGroups::AssumedGroups(bool hold_rows) : before_(std::exchange(groups_hold_rows, hold_rows)) {}
AssumedGroups::~AssumedGroups() { groups_hold_rows = before_; }
}  // namespace ops
}  // namespace memest

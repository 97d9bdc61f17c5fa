// Kernels for the meta device, where LibTorch's own are Python (torch/_meta_registrations.py, torch/_decomp). They make what CUDA's make
// and compute nothing. What is left runs on zeros on the CPU for the sake of its results' shapes.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/version.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "torch/plugin.h"

namespace memest::plugin {
namespace {
using at::Scalar;
using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using std::optional;
using std::tuple;
using Sizes = std::vector<std::int64_t>;
using Two = tuple<Tensor, Tensor>;
using Three = tuple<Tensor, Tensor, Tensor>;
using Four = tuple<Tensor, Tensor, Tensor, Tensor>;
using OptTensor = const optional<Tensor>&;

Tensor like(const Tensor& x) { return at::empty_like(x); }
Tensor made(const Sizes& sizes, const Tensor& of) { return at::empty(sizes, of.options()); }
Tensor made(const Sizes& sizes, const Tensor& of, c10::ScalarType type) { return at::empty(sizes, of.options().dtype(type)); }
bool given(OptTensor x) { return x && x->defined(); }
/// The type in which CUDA's normalisations keep statistics.
c10::ScalarType accumulated(const Tensor& x) { return x.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat; }
Sizes broadcast(const Tensor& a, const Tensor& b) { return at::infer_size(a.sizes(), b.sizes()); }
std::int64_t number(const SymInt& s) { return s.expect_int(); }

// ---- convolution
Tensor convolution(const Tensor& x, const Tensor& w, OptTensor, SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                   bool transposed, SymIntArrayRef output_padding, SymInt groups) {
  TORCH_CHECK(x.dim() == w.dim(), "convolution: the input has ", x.dim(), " dimensions, the weight ", w.dim());
  TORCH_CHECK(x.size(1) == (transposed ? w.size(0) : w.size(1) * number(groups)), "convolution: the input has ", x.size(1),
              " channels, the weight ", w.sizes(), " does not fit");
  Sizes out{x.size(0), transposed ? w.size(1) * number(groups) : w.size(0)};
  for (std::int64_t d = 2; d < x.dim(); ++d) {
    auto at_dim = [d](SymIntArrayRef list) { return number(list[list.size() == 1 ? 0 : std::size_t(d - 2)]); };
    const std::int64_t reach = at_dim(dilation) * (w.size(d) - 1), pad = 2 * at_dim(padding);
    const std::int64_t size = transposed ? (x.size(d) - 1) * at_dim(stride) - pad + reach + at_dim(output_padding) + 1
                                         : (x.size(d) + pad - reach - 1) / at_dim(stride) + 1;
    TORCH_CHECK(size > 0, "convolution: the kernel is larger than the padded input ", x.sizes());
    out.push_back(size);
  }
  const auto format = w.suggest_memory_format() == c10::MemoryFormat::Contiguous ? x.suggest_memory_format() : w.suggest_memory_format();
  return at::empty(out, x.options().memory_format(format));
}
Three convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& w, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef, bool,
                           SymIntArrayRef, SymInt, std::array<bool, 3> mask) {
  return {mask[0] ? like(x) : Tensor(), mask[1] ? like(w) : Tensor(), mask[2] ? made({grad.size(1)}, w) : Tensor()};
}

// ---- normalisation
Three batch_norm(const Tensor& x, OptTensor weight, OptTensor bias, OptTensor, OptTensor, bool training, double, double) {
  // CUDA's own kernel keeps them in evaluation, too; cuDNN, where it can be used, does not.
  const bool cudnn =
      given(weight) && given(bias) && x.dim() >= 3 && x.scalar_type() != c10::kBFloat16 && weight->scalar_type() == accumulated(x);
  const Sizes saved{training || !cudnn ? x.size(1) : 0};
  return {like(x), made(saved, x, accumulated(x)), made(saved, x, accumulated(x))};
}
/// Of decomposed programs: never cuDNN's.
Three batch_norm_legit(const Tensor& x, OptTensor, OptTensor, Tensor&, Tensor&, bool, double, double) {
  return {like(x), made({x.size(1)}, x, accumulated(x)), made({x.size(1)}, x, accumulated(x))};
}
Three batch_norm_backward(const Tensor&, const Tensor& x, OptTensor weight, OptTensor, OptTensor, OptTensor, OptTensor, bool, double,
                          std::array<bool, 3> mask) {
  const Tensor& of = given(weight) ? *weight : x;
  return {mask[0] ? like(x) : Tensor(), mask[1] ? made({x.size(1)}, of) : Tensor(), mask[2] ? made({x.size(1)}, of) : Tensor()};
}
Three layer_norm(const Tensor& x, SymIntArrayRef shape, OptTensor, OptTensor, double) {
  Sizes saved = x.sizes().vec();
  for (std::size_t i = saved.size() - shape.size(); i < saved.size(); ++i) saved[i] = 1;
  return {made(x.sizes().vec(), x), made(saved, x, accumulated(x)), made(saved, x, accumulated(x))};
}
Three layer_norm_backward(const Tensor&, const Tensor& x, SymIntArrayRef, const Tensor&, const Tensor&, OptTensor weight, OptTensor bias,
                          std::array<bool, 3> mask) {
  return {mask[0] ? made(x.sizes().vec(), x) : Tensor(), mask[1] && given(weight) ? like(*weight) : Tensor(),
          mask[2] && given(bias) ? like(*bias) : Tensor()};
}
Three group_norm(const Tensor& x, OptTensor, OptTensor, SymInt n, SymInt, SymInt, std::int64_t groups, double) {
  return {like(x), made({number(n), groups}, x), made({number(n), groups}, x)};
}
Three group_norm_backward(const Tensor&, const Tensor& x, const Tensor&, const Tensor&, OptTensor weight, SymInt, SymInt channels, SymInt,
                          std::int64_t, std::array<bool, 3> mask) {
  const Tensor& of = given(weight) ? *weight : x;
  return {mask[0] ? like(x) : Tensor(), mask[1] ? made({number(channels)}, of) : Tensor(),
          mask[2] ? made({number(channels)}, of) : Tensor()};
}

// ---- pointwise
Tensor second(const Tensor&, const Tensor& x) { return like(x); }
Scalar number_of(const Tensor& x) {  // not known: zero, as a recording answers
  if (x.is_floating_point()) return 0.0;
  return x.scalar_type() == c10::kBool ? Scalar(false) : Scalar(0);
}
Tensor& itself(Tensor& x) { return x; }
Tensor hardtanh(const Tensor& x, const Scalar&, const Scalar&) { return like(x); }
Tensor& hardtanh_(Tensor& x, const Scalar&, const Scalar&) { return x; }
Tensor hardtanh_backward(const Tensor&, const Tensor& x, const Scalar&, const Scalar&) { return like(x); }
Two prelu_backward(const Tensor&, const Tensor& x, const Tensor& weight) { return {like(x), made(broadcast(x, weight), weight)}; }
Two log_sigmoid(const Tensor& x) { return {like(x), made({0}, x)}; }
Tensor log_sigmoid_backward(const Tensor&, const Tensor& x, const Tensor&) { return like(x); }
Tensor where(const Tensor& c, const Tensor& a, const Tensor& b) {
  return made(at::infer_size(c.sizes(), broadcast(a, b)), a.device().is_meta() ? a : c, at::result_type(a, b));
}
Tensor promoted(const Tensor& a, const Tensor& b) { return made(broadcast(a, b), a.is_meta() ? a : b, at::result_type(a, b)); }
Tensor compared(const Tensor& a, const Tensor& b) { return made(broadcast(a, b), a.is_meta() ? a : b, c10::kBool); }
Two dropout_with_mask(const Tensor& x, double, optional<bool>) { return {like(x), at::empty_like(x, x.options().dtype(c10::kBool))}; }
Tensor dropout_backward(const Tensor& grad, const Tensor&, double) { return like(grad); }

// ---- indices, reductions, shapes
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  Sizes sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[std::size_t(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return made(sizes, x);
}
Tensor embedding_backward(const Tensor& grad, const Tensor&, SymInt rows, SymInt, bool) {
  return made({number(rows), grad.size(-1)}, grad);
}
Two moments(const Tensor& x, at::OptionalIntArrayRef dim, const optional<Scalar>&, bool keepdim) {
  const Tensor mean = dim && !dim->empty() ? at::mean(x, *dim, keepdim) : at::mean(x);
  return {like(mean), mean};
}
Tensor variance(const Tensor& x, at::OptionalIntArrayRef dim, const optional<Scalar>& c, bool keepdim) {
  return std::get<0>(moments(x, dim, c, keepdim));
}
Sizes pooled(const Tensor& x, SymIntArrayRef out) {
  Sizes sizes = x.sizes().vec();
  for (std::size_t i = 0; i < out.size(); ++i) sizes[sizes.size() - out.size() + i] = number(out[i]);
  return sizes;
}
Tensor adaptive_avg_pool(const Tensor& x, SymIntArrayRef out) {
  return at::empty(pooled(x, out), x.options().memory_format(x.suggest_memory_format()));
}
bool same(const Tensor& a, const Tensor& b) { return a.is_same(b); }  // asked where the JIT merges equal constants
Tensor roll(const Tensor& x, SymIntArrayRef, at::IntArrayRef) { return like(x); }

// ---- attention: seeds are on the device, as in FakeTensorMode
Tensor heads_second(const Tensor& q, std::int64_t value_size) {
  return made({q.size(0), q.size(2), q.size(1), value_size}, q).transpose(1, 2);
}
/// flash_api.cpp: at::empty_like of what has the heads second, in its own order.
Tensor heads_like(const Tensor& x) { return at::empty_like(x.transpose(1, 2)).transpose(1, 2); }
Four efficient(const Tensor& q, const Tensor&, const Tensor& v, OptTensor, bool log_sumexp, double, bool, optional<double>) {
  const std::int64_t rows = log_sumexp ? (q.size(2) + 31) / 32 * 32 : 0;
  return {heads_second(q, v.size(3)), made({q.size(0), q.size(1), rows}, q, c10::kFloat), made({}, q, c10::kLong), made({}, q, c10::kLong)};
}
Four efficient_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const Tensor&, const Tensor&,
                        const Tensor&, const Tensor&, double, std::array<bool, 4> mask, bool, optional<double>) {
  return {heads_second(q, q.size(3)), heads_second(k, k.size(3)), heads_second(v, v.size(3)),
          mask[3] && bias.defined() ? like(bias) : Tensor()};
}
tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> flash(const Tensor& q, const Tensor& k, const Tensor&,
                                                                                    double p, bool, bool, optional<double>) {
  const auto seed = c10::kUInt64;
  return {heads_like(q),
          made({q.size(0), q.size(1), q.size(2)}, q, c10::kFloat),
          Tensor(),
          Tensor(),
          q.size(2),
          k.size(2),
          made({2}, q, seed),
          made({}, q, seed),
          p > 0 ? made({0}, q) : made({0}, q)};
}
Three flash_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&, SymInt, SymInt, double, bool, const Tensor&, const Tensor&, optional<double>) {
  return {heads_like(q), heads_like(k), heads_like(v)};
}

// ---- where CUDA's dispatch differs from that of a device without kernels (AutogradMeta)
Tensor dropout(const Tensor& x, double p, bool train) {
  if (!train || p == 0 || x.numel() == 0) return x;
  return std::get<0>(at::native_dropout(x, p, true));
}
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, OptTensor mask, double p, bool causal, optional<double> scale,
                 bool gqa) {
  const bool grad = at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  const bool half = q.scalar_type() == c10::kHalf || q.scalar_type() == c10::kBFloat16;
  const bool grouped = q.dim() == 4 && gqa && q.size(1) != k.size(1);  // heads: the efficient kernel takes them since 2.15
  const bool fits = q.dim() == 4 && (grouped || q.size(1) == k.size(1)) && k.size(1) == v.size(1) && q.scalar_type() != c10::kDouble;
  const std::int64_t step = half ? 8 : 4, head = fits ? q.size(3) : 0;
  if (fits && half && !given(mask) && head % 8 == 0 && head <= 256 && v.size(3) == head)
    return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v, p, causal, false, scale));
  if (fits && (!grouped || TORCH_VERSION_MINOR >= 15) && head % step == 0 && v.size(3) % step == 0 &&
      !(given(mask) && mask->requires_grad() && mask->size(-1) % (16 / q.itemsize()) != 0)) {
    optional<Tensor> bias = mask;
    if (given(mask)) {
      Tensor added = mask->scalar_type() == c10::kBool ? at::empty_like(*mask, q.options()) : *mask;
      bias = added.expand({q.size(0), q.size(1), q.size(2), k.size(2)});
    }
    return std::get<0>(at::_scaled_dot_product_efficient_attention(q, k, v, bias, grad, p, causal, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask, p, causal, std::nullopt, scale, gqa));
}

// ---- the rest
/// Runs one operator on the CPU with zeros in place of the device's tensors (True for masks: as many elements as can be), and gives its
/// results' shapes.
void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::size_t first = stack->size() - schema.arguments().size();
  std::vector<std::pair<Tensor, Tensor>> copies;  // on the CPU, on the device
  auto down = [&](const Tensor& x) {
    if (!x.defined() || !x.is_meta()) return x;
    for (auto& [host, device] : copies)
      if (device.is_same(x)) return host;
    const auto options = x.options().device(c10::kCPU);
    copies.emplace_back(x.scalar_type() == c10::kBool ? at::ones(x.sizes(), options) : at::zeros(x.sizes(), options), x);
    return copies.back().first;
  };
  for (std::size_t i = first; i < stack->size(); ++i) {
    c10::IValue& v = (*stack)[i];
    if (v.isTensor()) {
      v = down(v.toTensor());
    } else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& x : v.toTensorVector()) list.push_back(down(x));
      v = list;
    } else if (v.isOptionalTensorList()) {
      c10::List<optional<Tensor>> list;
      for (const optional<Tensor>& x : v.toOptionalTensorVector()) list.push_back(x ? optional(down(*x)) : x);
      v = list;
    } else if (v.isDevice()) {
      v = c10::Device(c10::kCPU);
    }
  }
  op.callBoxed(stack);
  auto up = [&](const Tensor& x) {
    for (auto& [host, device] : copies) {
      if (!x.is_same(host)) continue;
      if (device.sizes() != x.sizes()) device.resize_(x.sizes());
      return device;
    }
    return x.defined() && x.is_cpu() ? at::empty_strided(x.sizes(), x.strides(), x.options().device(c10::kMeta)) : x;
  };
  for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    c10::IValue& v = (*stack)[i];
    if (v.isTensor()) {
      v = up(v.toTensor());
    } else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& x : v.toTensorVector()) list.push_back(up(x));
      v = list;
    }
  }
}

TORCH_LIBRARY_IMPL(aten, AutogradMeta, m) {
  m.impl("dropout", TORCH_FN(dropout));
  m.impl("scaled_dot_product_attention", TORCH_FN(attention));
}

/// One registration of a kernel whose operator may be absent from this LibTorch, or have a kernel already.
template <class F>
void add(torch::Library& library, const char* name, F kernel) {
  const std::string text(name);
  const auto dot = text.find('.');
  const auto op =
      c10::Dispatcher::singleton().findOp({"aten::" + text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)});
  if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) library.impl(name, kernel);
}

}  // namespace

void register_meta_kernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  static bool done = false;
  if (std::exchange(done, true)) return;
  auto put = [](const char* name, auto kernel) { add(library, name, kernel); };
  put("convolution_overrideable", TORCH_FN(convolution));
  put("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  put("native_batch_norm", TORCH_FN(batch_norm));
  put("_native_batch_norm_legit", TORCH_FN(batch_norm_legit));
  put("native_batch_norm_backward", TORCH_FN(batch_norm_backward));
  put("native_layer_norm", TORCH_FN(layer_norm));
  put("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  put("native_group_norm", TORCH_FN(group_norm));
  put("native_group_norm_backward", TORCH_FN(group_norm_backward));
  put("_local_scalar_dense", TORCH_FN(number_of));
  put("relu", TORCH_FN(like));
  put("relu_", TORCH_FN(itself));
  put("hardswish", TORCH_FN(like));
  put("hardswish_", TORCH_FN(itself));
  put("hardswish_backward", TORCH_FN(second));
  put("hardtanh", TORCH_FN(hardtanh));
  put("hardtanh_", TORCH_FN(hardtanh_));
  put("hardtanh_backward", TORCH_FN(hardtanh_backward));
  put("_prelu_kernel", TORCH_FN(promoted));
  put("_prelu_kernel_backward", TORCH_FN(prelu_backward));
  put("log_sigmoid_forward", TORCH_FN(log_sigmoid));
  put("log_sigmoid_backward", TORCH_FN(log_sigmoid_backward));
  put("where.self", TORCH_FN(where));
  put("floor_divide", TORCH_FN(promoted));
  put("logical_and", TORCH_FN(compared));
  put("logical_or", TORCH_FN(compared));
  put("logical_xor", TORCH_FN(compared));
  put("native_dropout", TORCH_FN(dropout_with_mask));
  put("native_dropout_backward", TORCH_FN(dropout_backward));
  put("index_select", TORCH_FN(index_select));
  put("embedding_dense_backward", TORCH_FN(embedding_backward));
  put("var_mean.correction", TORCH_FN(moments));
  put("std_mean.correction", TORCH_FN(moments));
  put("var.correction", TORCH_FN(variance));
  put("std.correction", TORCH_FN(variance));
  put("_adaptive_avg_pool2d", TORCH_FN(adaptive_avg_pool));
  put("_adaptive_avg_pool3d", TORCH_FN(adaptive_avg_pool));
  put("_adaptive_avg_pool2d_backward", TORCH_FN(second));
  put("_adaptive_avg_pool3d_backward", TORCH_FN(second));
  put("roll", TORCH_FN(roll));
  put("equal", TORCH_FN(same));
  put("_scaled_dot_product_efficient_attention", TORCH_FN(efficient));
  put("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_backward));
  put("_scaled_dot_product_flash_attention", TORCH_FN(flash));
  put("_scaled_dot_product_flash_attention_backward", TORCH_FN(flash_backward));
  // LibTorch has a fallback for the Meta key already (it throws), so each operator gets its own kernel.
  using Key = c10::DispatchKey;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(Key::CPU)) continue;
    bool runs = false;
    for (Key key : {Key::Meta, Key::CompositeImplicitAutograd, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional})
      runs = runs || op->hasKernelForDispatchKey(key);
    if (runs) continue;
    const std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  }
}

}  // namespace memest::plugin

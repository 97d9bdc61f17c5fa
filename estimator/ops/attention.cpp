// Sources: derivatives.yaml; aten/src/ATen/native/{Dropout.cpp,cuda/Dropout.cu},
// native/transformers/{attention.cpp,cuda/sdp_utils.cpp,cuda/attention.cu,cuda/attention_backward.cu,
// cuda/flash_attn/flash_api.cpp,cuda/mem_eff_attention/{kernel_forward.h,kernel_backward.h,kernels/cutlassB.h}} of 2.15.
#include "ops/attention.h"

#include <cmath>
#include <span>

#include "fake/counted.h"
#include "fake/kernel.h"
#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;
using ops::SdpBackend;

/// masked_scale_kernel's result.
Tensor dropout_gradient(T grad, T) { return empty(grad.sizes(), grad.dtype(), suggest_memory_format(grad)); }
// fused_dropout: the mask is made before the result
Tensor dropout(T input, double p, bool train) {
  if (p < 0 || p > 1) throw Error("dropout probability has to be between 0 and 1, but got " + std::to_string(p));
  if (p == 0 || !train || input.numel() == 0) return input;
  if (p == 1) return ops::mul(input, ops::zeros({}, input.dtype()));
  if (counts_cpu()) {  // aten/src/ATen/native/Dropout.cpp _dropout_impl: a noise tensor of the input's type
    const Tensor noise = empty_like(input);
    return ops::mul(input, noise);
  }
  auto fn = node("NativeDropoutBackward0", {input}, {}, [](Backward& w, T mask) { w.out[0] = dropout_gradient(w.grad[0], mask); });
  Tensor mask = empty_like(input, DType::boolean);
  Tensor y = empty_like(input);
  fn.outputs({y}, {mask});
  return y;
}

/// native_dropout_cuda: what decomposed programs call.
std::tuple<Tensor, Tensor> native_dropout(T input, double p, std::optional<bool> train) {
  if (p < 0 || p > 1) throw Error("dropout probability has to be between 0 and 1, but got " + std::to_string(p));
  auto fn = node("NativeDropoutBackward0", {input}, {}, [](Backward& w, T mask) { w.out[0] = dropout_gradient(w.grad[0], mask); });
  const bool as_it_is = train && !*train;
  Tensor mask = as_it_is ? empty({}, DType::boolean) : empty_like(input, DType::boolean);
  Tensor y = empty_like(input);
  fn.outputs({y}, {mask});
  return {y, mask};
}
const Op native_dropout_record{{"aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)", Autocast::none, "result1",
                                "native/cuda/Dropout.cu; derivatives.yaml native_dropout"},
                               native_dropout};

bool is_half(DType t) { return t == DType::float16 || t == DType::bfloat16; }
I round_up(I n, I multiple) { return ceil_div(n, multiple) * multiple; }

// flop_counter.py sdpa_flop_count and sdpa_backward_flop_count: products of matrices, masks not considered; the backward repeats the first.
I attention_flops(T query, T key, T value, I of_head, I of_value_head) {
  const Dims& q = query.sizes();
  const I per_score = checked_add(checked_mul(of_head, q[3]), checked_mul(of_value_head, value.sizes()[3]));
  return flops_of({q[0], q[1], q[2], key.sizes()[2], per_score});
}
I forward_flops(T query, T key, T value) { return attention_flops(query, key, value, 1, 1); }
void count_backward_flops(T query, T key, T value) { runtime().count_flops(attention_flops(query, key, value, 3, 2)); }

// ---- the choice: sdp_utils.cpp ------------------------------------------------------------------------------------------

struct Call {
  T query, key, value, mask;
  double dropout;
  bool causal, gqa;
  bool trains() const { return runtime().grad_mode && (query.requires_grad() || key.requires_grad() || value.requires_grad()); }
};

bool same_dtype(const Call& c, bool (*allowed)(DType)) {
  return c.query.dtype() == c.key.dtype() && c.query.dtype() == c.value.dtype() && allowed(c.query.dtype());
}
/// check_batch_size_and_num_heads_dense.
bool heads_fit(const Call& c, bool groups) {
  const I batch = c.query.sizes()[0], heads = c.query.size(-3), key_heads = c.key.size(-3), value_heads = c.value.size(-3);
  if (batch != c.key.sizes()[0] || batch != c.value.sizes()[0]) return false;
  if (heads == key_heads && heads == value_heads) return true;
  const bool broadcast = runtime().settings.torch.efficient_attention_groups_heads() && heads > 0 && key_heads == 1 && value_heads == 1;
  if (groups && (c.gqa || broadcast)) return key_heads == value_heads && key_heads > 0 && heads % key_heads == 0;
  return false;
}
bool sequences_nonempty(const Call& c) { return c.query.size(-2) != 0 && c.key.size(-2) != 0; }
bool last_strides_are_1(const Call& c, bool ignore_singleton) {
  const bool qkv = c.query.strides().back() == 1 && c.key.strides().back() == 1 && c.value.strides().back() == 1;
  return (qkv || (ignore_singleton && c.query.sizes().back() == 1)) && (!c.mask || c.mask.strides().back() == 1);
}

bool can_use_flash(const Call& c) {
  const Device& device = runtime().settings.device;
  const I head = c.query.sizes().back();
  if (c.mask || head != c.key.sizes().back() || head != c.value.sizes().back() || head > 256) return false;
  if (device.capability() < 80 || device.capability() > 121) return false;
  const bool small_device = (device.capability() >= 86 && device.capability() <= 89) || device.major == 12;
  if (small_device && c.trains() && head > 192 && (head <= 224 || c.dropout > 0)) return false;
  if (c.causal && c.query.size(-2) != c.key.size(-2)) return false;
  return same_dtype(c, is_half) && heads_fit(c, true) && sequences_nonempty(c) && last_strides_are_1(c, true);
}

/// minimum_gemm_alignment, in elements.
I gemm_alignment(DType type) {
  const int major = runtime().settings.device.major;
  const bool tensor_cores = major >= 8 || (major >= 7 && is_half(type));
  const I least = major >= 8 ? 4 : 1;
  return tensor_cores ? std::max<I>(least, is_half(type) ? 8 : 4) : least;
}
bool can_use_efficient(const Call& c) {
  const Device& device = runtime().settings.device;
  const I head = c.query.sizes().back(), value_head = c.value.sizes().back(), alignment = gemm_alignment(c.query.dtype());
  if (head != c.key.sizes().back() || head <= 0 || value_head <= 0 || head % alignment != 0 || value_head % alignment != 0) return false;
  if (device.major >= 8)
    for (auto* x : {&c.query, &c.key, &c.value})
      if (x->numel() > 0 && (*x)->offset % alignment != 0) return false;
  if (!sequences_nonempty(c) || !last_strides_are_1(c, false) || !heads_fit(c, runtime().settings.torch.efficient_attention_groups_heads()))
    return false;
  return device.major >= 8 ? same_dtype(c, [](DType t) { return is_half(t) || t == DType::float32; })
                           : same_dtype(c, [](DType t) { return t == DType::float16 || t == DType::float32; });
}

bool can_use_cudnn(const Call& c) {
  const Device& device = runtime().settings.device;
  const I limit = device.major == 9 || device.major == 10 ? 256 : 128;
  const I head = c.query.sizes().back(), value_head = c.value.sizes().back();
  if (device.major < 8 || c.mask.requires_grad() || head > limit || value_head > limit || head % 8 != 0 || value_head % 8 != 0)
    return false;
  if (c.key.size(-2) == 1 || (c.dropout != 0 && c.query.size(-2) == 1) || c.dropout * 16 != std::floor(c.dropout * 16)) return false;
  return same_dtype(c, is_half) && heads_fit(c, true) && sequences_nonempty(c) && last_strides_are_1(c, true);
}

SdpBackend choose(const Call& c) {
  const SdpKernels& enabled = runtime().sdp;
  if (c.query.dim() == 4 && c.key.dim() == 4 && c.value.dim() == 4) {
    if (enabled.cudnn && can_use_cudnn(c)) return SdpBackend::cudnn;
    if (enabled.flash && can_use_flash(c)) return SdpBackend::flash;
    if (enabled.efficient && can_use_efficient(c)) return SdpBackend::efficient;
  }
  if (!enabled.math)
    throw Error("scaled_dot_product_attention: no kernel that is enabled takes " + describe(c.query), "allow the math kernel");
  return SdpBackend::math;
}

/// transpose(1, 2) of a gradient, below autograd: it is no view of another tensor there, and sums of gradients may go into it.
Tensor heads_first(T x) {
  Dims sizes = x.sizes(), strides = x.strides();
  std::swap(sizes[1], sizes[2]);
  std::swap(strides[1], strides[2]);
  return share(x, sizes, strides, x->offset);
}

// ---- flash ----------------------------------------------------------------------------------------------------------------

/// num_splits_heuristic.
I flash_splits(I blocks, I slots, I key_blocks) {
  if (double(blocks) >= 0.8f * double(slots)) return 1;
  const I most = std::min({I{128}, slots, key_blocks});
  auto eligible = [&](I s) { return s == 1 || ceil_div(key_blocks, s) != ceil_div(key_blocks, s - 1); };
  auto efficiency = [&](I s) {
    const float waves = float(blocks * s) / float(slots);
    return waves / std::ceil(waves);
  };
  float best = 0;
  for (I s = 1; s <= most; ++s)
    if (eligible(s)) best = std::max(best, efficiency(s));
  for (I s = 1; s <= most; ++s)
    if (eligible(s) && double(efficiency(s)) >= 0.85 * double(best)) return s;
  return 1;
}
I flash_head_size(I head) { return round_up(head, head <= 128 ? 32 : 64); }

void flash_backward(Backward& w, T query, T key, T value, T out) {
  Scoped<const char*> scope(runtime().op, "aten::_scaled_dot_product_flash_attention_backward");
  count_backward_flops(query, key, value);
  const bool real = runtime().settings.kernel_scratch();
  const Tensor q = ops::transpose(query, 1, 2), k = ops::transpose(key, 1, 2), v = ops::transpose(value, 1, 2);
  Tensor grad = ops::transpose(w.grad[0], 1, 2), o = ops::transpose(out, 1, 2);
  if (real) {
    grad = ops::contiguous_tensor(grad);
    o = ops::contiguous_tensor(o);
  }
  Tensor dq = empty_like(q), dk = empty_like(k), dv = empty_like(v);
  {
    const I batch = q.sizes()[0], rows = q.sizes()[1], heads = q.sizes()[2], head = q.sizes()[3];
    const I rounded = round_up(rows, 128);
    Scratch softmax_d(checked_mul(4 * batch * heads, rounded));
    Scratch dq_accum(checked_mul(4 * batch * heads * flash_head_size(head), rounded));
    const bool grouped = k.sizes()[2] != heads;
    const Bytes expanded = grouped ? checked_mul(batch * k.sizes()[1], heads * head * item_size(q.dtype())) : 0;
    Scratch dk_expanded(expanded), dv_expanded(expanded);
  }
  o.reset();
  grad.reset();
  if (w.needs(0)) w.out[0] = heads_first(dq);
  if (w.needs(1)) w.out[1] = heads_first(dk);
  if (w.needs(2)) w.out[2] = heads_first(dv);
}

using FlashResult = std::tuple<Tensor, Tensor, Tensor, Tensor, I, I, Tensor, Tensor, Tensor>;
/// flash_api.cpp mha_fwd: output, logsumexp, rng_state, unused.
Tensors flash_kernel(T query, T key, double dropout_p) {
  const RunSettings& s = runtime().settings;
  Tensor q = ops::transpose(query, 1, 2);
  I rows = q.sizes()[1], heads = q.sizes()[2];
  const I batch = q.sizes()[0], head = q.sizes()[3], key_rows = key.sizes()[2], key_heads = key.sizes()[1];
  if (batch == 0 || head == 0 || key_heads == 0) throw Error("flash attention: empty inputs are not modelled, found " + describe(query));
  // one query row of grouped heads: the groups become rows
  const bool swapped = rows == 1 && heads > key_heads && dropout_p == 0;
  if (swapped) {
    NoGrad below;
    q = ops::transpose(ops::reshape(q, {batch, key_heads, heads / key_heads, head}), 1, 2);
    rows = heads / key_heads;
    heads = key_heads;
  }
  Tensor out = empty_like(q);
  Tensor lse = empty({batch, heads, rows}, DType::float32);
  Tensor lse_accum, out_accum;
  if (s.kernel_scratch() && dropout_p == 0) {
    const I block = head <= 64 ? 256 : head <= 128 ? 128 : 64;
    const I splits = flash_splits(batch * heads * ceil_div(rows, I{64}), I{s.device.multiprocessors} * 2, ceil_div(key_rows, block));
    if (splits > 1) {
      CategoryScope category(Category::workspace);
      lse_accum = empty({splits, batch, heads, rows}, DType::float32);
      out_accum = empty({splits, batch, heads, rows, flash_head_size(head)}, DType::float32);
    }
  }
  const bool on_device = s.torch.flash_rng_on_device() || !s.kernel_scratch();
  auto rng = [&](const Dims& sizes) { return on_device ? empty(sizes, DType::uint64) : host_tensor(sizes, DType::uint64); };
  Tensor state = rng({2}), unused = rng({});
  if (dropout_p > 0) state = rng({2});
  lse_accum.reset();
  out_accum.reset();
  if (swapped) {
    NoGrad below;
    out = ops::reshape(ops::transpose(out, 1, 2), {batch, 1, heads * rows, head});
    lse = ops::reshape(lse, {batch, heads * rows, 1});
  }
  out = share(out, {out.sizes()[0], out.sizes()[2], out.sizes()[1], out.sizes()[3]},
              {out.strides()[0], out.strides()[2], out.strides()[1], out.strides()[3]}, out->offset);
  return {out, lse, state, unused};
}
FlashResult flash_attention(T query, T key, T value, double dropout_p, bool, bool, std::optional<double>) {
  auto fn = node("ScaledDotProductFlashAttentionBackward0", {query, key, value}, {key, query, value},
                 [](Backward& w, T k, T q, T v, T, T out, T, T) { flash_backward(w, q, k, v, out); });
  Tensors made = run_kernels(KernelKind::attention, forward_flops(query, key, value), [&] { return flash_kernel(query, key, dropout_p); });
  const Tensor out = made[0], lse = made[1], state = made[2], unused = made[3];
  made.clear();
  fn.outputs({out}, {lse, out, state, unused});
  return {out, lse, {}, {}, query.sizes()[2], key.sizes()[2], state, unused, {}};
}
const Op flash_op{
    {"aten::_scaled_dot_product_flash_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, bool "
     "return_debug_mask=False, *, "
     "float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor "
     "rng_state, Tensor unused, "
     "Tensor debug_attn_mask)",
     Autocast::none, "query, key, value, output, logsumexp, rng_state", "derivatives.yaml; cuda/flash_attn/flash_api.cpp mha_fwd, mha_bwd"},
    flash_attention};

// ---- memory efficient -------------------------------------------------------------------------------------------------------

/// AttentionBackwardKernel: what of a kernel decides sizes.
struct BackwardKernel {
  I block_i, block_j, max_head;
  bool accumulates_in_registers;  ///< kOutputInRF: dK and dV never leave the registers
};
/// dispatch_cutlassB: the first kernel that takes the head size and fits the device's shared memory. In kernels/cutlassB.h's order; which
/// of them fit was seen on devices of 64, 99, 163 and 227 KiB.
BackwardKernel backward_kernel(DType type, I head, bool dropout) {
  const Device& device = runtime().settings.device;
  const bool large = device.shared_memory_per_block() > 99 * kKiB;
  if (head <= 64) return {64, 64, 64, is_half(type)};
  if (!is_half(type)) return device.major >= 8 && large ? BackwardKernel{128, 64, 1 << 16, false} : BackwardKernel{64, 64, 1 << 16, false};
  if (head > 128) return {128, 64, 1 << 16, false};
  if (device.major < 8) return {128, 64, 128, true};
  if ((device.capability() == 86 || device.capability() == 89) && head <= 96 && !dropout) return {128, 64, 96, true};
  return large ? BackwardKernel{128, 128, 128, true} : BackwardKernel{64, 64, 128, false};
}
/// Params::workspace_size, bytes.
Bytes backward_workspace(const BackwardKernel& k, DType type, I batch, I heads, I rows, I keys, I head, I value_head) {
  const bool accumulates = is_half(type) && !k.accumulates_in_registers;  // kNeedsAccumGradK, kNeedsAccumGradV
  I splits = ceil_div(keys, k.block_j);
  if (batch * heads >= 256 && keys <= 2 * k.block_j) splits = 1;
  if (accumulates) splits = std::min(splits, 200 / std::max<I>(1, batch * heads));
  splits = std::max<I>(splits, 1);
  const I tile = k.block_i * k.block_j + 4;  // GradQTempStorage: lock, counter, padding, one tile of float
  I words = checked_mul(ceil_div(rows, k.block_i) * ceil_div(head, k.block_j), tile);
  if (accumulates) words = checked_add(words, checked_mul(splits * k.block_j, round_up(head, k.block_i) + round_up(value_head, k.block_i)));
  return checked_mul(checked_mul(batch * heads, 4), round_up(words, 4));
}

void efficient_backward(Backward& w, T query, T key, T value, T bias, T out, double dropout_p) {
  Scoped<const char*> scope(runtime().op, "aten::_scaled_dot_product_efficient_attention_backward");
  count_backward_flops(query, key, value);
  const bool real = runtime().settings.kernel_scratch();
  const I batch = query.sizes()[0], heads = query.sizes()[1], rows = query.sizes()[2], head = query.sizes()[3];
  const I key_heads = key.sizes()[1], keys = key.sizes()[2], value_head = value.sizes()[3];
  const DType type = query.dtype();
  Tensor grad = ops::transpose(w.grad[0], 1, 2);
  if (real) grad = ops::contiguous_tensor(grad);
  Tensor dq = empty({batch, rows, heads, head}, type), dk = empty({batch, keys, key_heads, head}, type),
         dv = empty({batch, keys, key_heads, value_head}, type), db;
  if (w.needs(3)) {
    Dims sizes = bias.sizes();
    sizes[-1] = round_up(sizes[-1], 16);
    db = empty(sizes, type);
    db = share(db, bias.sizes(), db.strides(), 0);
  }
  if (real) {
    const bool grouped = key_heads != heads;
    const Bytes per_head = checked_mul(batch * keys, heads * item_size(type));
    Scratch dk_expanded(grouped ? checked_mul(per_head, head) : 0), dv_expanded(grouped ? checked_mul(per_head, value_head) : 0);
    const BackwardKernel kernel = backward_kernel(type, std::max(head, value_head), dropout_p != 0);
    const bool computes_delta = is_half(type) && (kernel.accumulates_in_registers || runtime().settings.device.capability() != 70);
    Tensor delta;
    {
      CategoryScope category(Category::workspace);
      if (computes_delta) {
        delta = empty({batch, heads, rows}, DType::float32);
      } else {  // (grad_out.to(float) * out.to(float)).sum(-1).transpose(-2, -1).contiguous()
        const Tensor o = ops::transpose(out, 1, 2);
        Tensor grad_float = ops::to_float(grad), out_float = ops::to_float(o);
        Tensor product = elementwise({grad_float, out_float}, DType::float32);
        Tensor sum = empty({batch, rows, heads}, DType::float32);
        Tensor transposed = ops::transpose(sum, -2, -1);
        delta = ops::contiguous_tensor(transposed);
        transposed.reset();
        sum.reset();
      }
    }
    std::optional<Scratch> workspace(backward_workspace(kernel, type, batch, heads, rows, keys, head, value_head));
    delta.reset();
    workspace.reset();
    // dv_expanded, dk_expanded go here: each is summed over its group
  }
  grad.reset();
  if (w.needs(0)) w.out[0] = heads_first(dq);
  if (w.needs(1)) w.out[1] = heads_first(dk);
  if (w.needs(2)) w.out[2] = heads_first(dv);
  if (w.needs(3)) w.out[3] = db;
}

/// cuda/attention.cu _efficient_attention_forward: output, log_sumexp, philox_seed, philox_offset.
Tensors efficient_kernel(T query, T value, bool compute_log_sumexp, double dropout_p) {
  const RunSettings& s = runtime().settings;
  const I batch = query.sizes()[0], heads = query.sizes()[1], rows = query.sizes()[2], head = query.sizes()[3],
          value_head = value.sizes()[3];
  const bool on_device = !s.kernel_scratch() || (s.torch.efficient_rng_on_device() && dropout_p == 0);
  auto rng = [&] { return on_device ? empty(Dims{}, DType::int64) : host_tensor(Dims{}, DType::int64); };
  Tensor seed = rng(), offset = rng();
  Tensor out = empty({batch, rows, heads, value_head}, query.dtype());
  Tensor lse = empty({batch, heads, compute_log_sumexp ? round_up(rows, 32) : 0}, DType::float32);
  if (is_half(query.dtype()) && std::max(head, value_head) > 128)
    Scratch output_accum(checked_mul(4, out.numel()));  // kNeedsOutputAccumulatorBuffer
  out = share(out, {batch, heads, rows, value_head}, {out.strides()[0], out.strides()[2], out.strides()[1], out.strides()[3]}, out->offset);
  return {out, lse, seed, offset};
}
using EfficientResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;
EfficientResult efficient_attention(T query, T key, T value, T attn_bias, bool compute_log_sumexp, double dropout_p, bool,
                                    std::optional<double>) {
  auto fn = node("ScaledDotProductEfficientAttentionBackward0", {query, key, value, attn_bias}, {attn_bias, key, query, value},
                 [dropout_p](Backward& w, T bias, T k, T q, T v, T, T out, T, T) { efficient_backward(w, q, k, v, bias, out, dropout_p); });
  Tensors made = run_kernels(KernelKind::attention, forward_flops(query, key, value),
                             [&] { return efficient_kernel(query, value, compute_log_sumexp, dropout_p); });
  const Tensor out = made[0], lse = made[1], seed = made[2], offset = made[3];
  made.clear();
  fn.outputs({out}, {lse, out, offset, seed});
  return {out, lse, seed, offset};
}
const Op efficient_op{
    {"aten::_scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, "
     "float dropout_p=0.0, bool "
     "is_causal=False, *, float? scale=None) -> (Tensor output, Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)",
     Autocast::none, "query, key, value, attn_bias, output, log_sumexp, philox_seed, philox_offset",
     "derivatives.yaml; cuda/attention.cu, cuda/attention_backward.cu, cuda/mem_eff_attention"},
    efficient_attention};

/// cuDNN's: its workspaces are not known.
Tensor cudnn_attention(T query, T key, T value, T attn_bias) {
  auto fn = node("ScaledDotProductCudnnAttentionBackward0", {query, key, value}, {attn_bias, key, query, value},
                 [](Backward& w, T, T k, T q, T v, T, T, T, T) {
                   count_backward_flops(q, k, v);
                   Tensor dq = empty_like(q), dk = empty_like(k), dv = empty_like(v);
                   for (int i = 0; i < 3; ++i)
                     if (w.needs(i)) w.out[std::size_t(i)] = i == 0 ? dq : i == 1 ? dk : dv;
                 });
  runtime().count_flops(forward_flops(query, key, value));
  Dims sizes = query.sizes();
  sizes[-1] = value.sizes().back();
  Tensor out = query.sizes() == sizes ? empty_like(query) : empty(sizes, query.dtype());
  Tensor lse = empty(sizes.slice(0, 3), DType::float32);
  Tensor seed = empty(Dims{}, DType::int64), offset = empty(Dims{}, DType::int64);
  fn.outputs({out}, {lse, out, offset, seed});
  return out;
}

// ---- math -------------------------------------------------------------------------------------------------------------------

Tensor safe_softmax(T self, I dim, std::optional<DType> dtype) {
  auto fn = node("SafeSoftmaxBackward0", {self}, {}, [type = self.dtype()](Backward& w, T result) {
    Scoped<const char*> scope(runtime().op, "aten::_softmax_backward_data");
    Tensor grad_input = empty(result.sizes(), type);
    if (runtime().settings.kernel_scratch()) Tensor product = elementwise({w.grad[0], result}, result.dtype());
    w.out[0] = grad_input;
  });
  Tensor out;
  {
    NoGrad below;
    out = ops::softmax(self, dim, dtype);
    Tensor masked = elementwise({self}, DType::boolean);
    Dims rows = self.sizes();
    rows[int(wrap_dim(dim, self.dim()))] = 1;
    Tensor masked_rows = empty(rows, DType::boolean);
    Tensor zero = empty(Dims{}, out.dtype());
  }
  fn.outputs({out}, {out});
  return out;
}
const Op safe_softmax_op{{"aten::_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", Autocast::none, "result",
                          "derivatives.yaml; native/transformers/attention.cpp _safe_softmax"},
                         safe_softmax};

/// convert_boolean_attn_mask: where(mask, 0, -inf) in the query's type.
Tensor float_mask(T mask, DType type) {
  if (!mask || mask.dtype() != DType::boolean) return mask;
  Tensor zero = empty(Dims{}, type), minus_infinity = empty(Dims{}, type);
  Tensor converted = elementwise({mask}, type);
  minus_infinity.reset();
  zero.reset();
  return converted;
}

Tensor repeated_heads(T x, I times) {  // x.repeat_interleave(times, -3)
  const int d = x.dim() - 3;
  Dims sizes = x.sizes();
  sizes.insert(d + 1, times);
  Tensor copy = ops::clone(ops::expand(ops::unsqueeze(x, d + 1), sizes, false), MemoryFormat::contiguous);
  return ops::flatten(copy, d, d + 1);
}

Tensor math_attention(T query_, T key, T value, T attn_mask, double dropout_p, bool causal, bool gqa) {
  const TorchVersion torch = runtime().settings.torch;
  const DType type = query_.dtype();
  auto upcast = [&](T x) { return torch.sdpa_math_upcasts() && is_half(x.dtype()) ? ops::to_float(x) : x; };
  Tensor query_acc = upcast(query_), key_acc = upcast(key), value_acc = upcast(value);
  Tensor mask = attn_mask;
  Tensor query = ops::mul_scalar(query_acc, 1.0);
  if (causal) {
    if (mask) throw Error("scaled_dot_product_attention: explicit attn_mask should not be set when is_causal=True");
    Tensor ones = empty({query.size(-2), key_acc.size(-2)}, DType::boolean);
    mask = elementwise({ones}, DType::boolean);  // tril
    ones.reset();
    Tensor converted = float_mask(mask, query.dtype());
    mask = converted;
  }
  Tensor key_expanded = key_acc, value_expanded = value_acc;
  if (gqa && !(query.size(-3) == key_acc.size(-3) && query.size(-3) == value_acc.size(-3))) {
    const I heads = query.size(-3), key_heads = key_acc.size(-3), value_heads = value_acc.size(-3);
    if (key_heads == 0 || value_heads == 0 || heads % key_heads != 0 || heads % value_heads != 0)
      throw Error("number of heads in key and value must divide the number of heads in query, found " + describe(query_) + " and " +
                  describe(key));
    key_expanded = repeated_heads(key_acc, heads / key_heads);
    value_expanded = repeated_heads(value_acc, heads / value_heads);
  }
  Tensor scaled_key = ops::mul_scalar(ops::transpose(key_expanded, -2, -1), 1.0);
  Tensor attn = ops::matmul(query, scaled_key);
  scaled_key.reset();
  if (mask) ops::add_(attn, mask, 1);
  attn = torch.sdpa_safe_softmax() ? safe_softmax_op(attn, -1, std::nullopt) : ops::softmax(attn, -1, std::nullopt);
  if (dropout_p > 0) attn = ops::dropout(attn, dropout_p, true);
  // make_tuple(matmul(attn, value).to(type), attn.to(type)): right to left
  Tensor weights = ops::to(attn, type);
  Tensor product = ops::matmul(attn, value_expanded);
  Tensor out = ops::to(product, type);
  product.reset();
  // locals, last first
  attn.reset();
  value_expanded.reset();
  key_expanded.reset();
  query.reset();
  mask.reset();
  value_acc.reset();
  key_acc.reset();
  query_acc.reset();
  return out;
}

// ---- the op -------------------------------------------------------------------------------------------------------------------

/// pad_last_dim<8, false>: flash takes head sizes in multiples of 8.
Tensor pad_last_dim(T x, I multiple) {
  const I size = x.sizes().back();
  if (size % multiple == 0) return x;
  return Unbox<Tensor>::from(call_op("aten::constant_pad_nd", {x, make_list({I{0}, multiple - size % multiple}), 0.0}, {}));
}

/// preprocess_mask: rows of the mask start at multiples of 8 elements; then it is expanded.
Tensor expanded_mask(T mask, T query, T key) {
  constexpr I kAlignment = 8;
  Tensor result = mask;
  bool aligned = mask.strides().back() == 1;
  for (int i = 0; i + 1 < mask.dim(); ++i) aligned &= mask.strides()[i] % kAlignment == 0;
  if (!aligned) {
    const I size = mask.sizes().back();
    Tensor padded =
        Unbox<Tensor>::from(call_op("aten::constant_pad_nd", {mask, make_list({I{0}, kAlignment - size % kAlignment}), 0.0}, {}));
    result = ops::slice(padded, -1, 0, size, 1);
  }
  return ops::expand(result, {query.sizes()[0], query.sizes()[1], query.sizes()[2], key.sizes()[2]}, false);
}

// aten/src/ATen/native/transformers/attention.cpp _scaled_dot_product_flash_attention_cpu
bool can_use_cpu_flash(const Call& c) {
  const I head = c.query.sizes().back();
  const bool same_head = head == c.key.sizes().back() && head == c.value.sizes().back();
  return c.query.dim() == 4 && c.key.dim() == 4 && c.value.dim() == 4 && c.dropout == 0 && !c.mask.requires_grad() && same_head &&
         heads_fit(c, true) && sequences_nonempty(c) && last_strides_are_1(c, false);
}
Tensor cpu_flash(T query, T key, T value, T mask) {
  const Tensors inputs{query, key, value};
  Tensors saved_inputs = inputs;
  if (mask) saved_inputs.push_back(mask);
  auto fn = node("ScaledDotProductFlashAttentionForCpuBackward0", std::span<const Tensor>(inputs), saved_inputs,
                 [](Backward& w, const Tensors& saved) {
                   for (int i = 0; i < 3; ++i)
                     if (w.needs(i)) w.out[std::size_t(i)] = empty_like(saved[std::size_t(i)]);
                 });
  const Dims& q = query.sizes();
  const Tensor out = empty_like(query);
  const Tensor log_sumexp = empty({q[0], q[2], q[1]}, query.dtype() == DType::float64 ? DType::float64 : DType::float32);
  fn.outputs(Tensors{out}, Tensors{out, log_sumexp});
  return out;
}

Tensor fused_or_math(T query, T key, T value, T attn_mask, double dropout_p, bool causal, std::optional<double> scale, bool gqa) {
  if (counts_cpu()) {
    const Tensor mask = float_mask(attn_mask, query.dtype());
    if (can_use_cpu_flash({query, key, value, attn_mask, dropout_p, causal, gqa})) return cpu_flash(query, key, value, mask);
    return math_attention(query, key, value, mask, dropout_p, causal, gqa);
  }
  switch (choose({query, key, value, attn_mask, dropout_p, causal, gqa})) {
    case SdpBackend::flash: {
      const I head = query.sizes().back();
      Tensor q = pad_last_dim(query, 8), k = pad_last_dim(key, 8), v = pad_last_dim(value, 8);
      Tensor out = std::get<0>(flash_op(q, k, v, dropout_p, causal, false, scale));
      return out.sizes().back() == head ? out : ops::slice(out, -1, 0, head, 1);
    }
    case SdpBackend::efficient: {
      Tensor mask = float_mask(attn_mask, query.dtype());
      if (mask) mask = expanded_mask(mask, query, key);
      const bool trains = Call{query, key, value, attn_mask, dropout_p, causal, gqa}.trains();
      return std::get<0>(efficient_op(query, key, value, mask, trains, dropout_p, causal, scale));
    }
    case SdpBackend::cudnn: return cudnn_attention(query, key, value, float_mask(attn_mask, query.dtype()));
    case SdpBackend::math: break;
  }
  return math_attention(query, key, value, float_mask(attn_mask, query.dtype()), dropout_p, causal, gqa);
}

Tensor scaled_dot_product_attention(T query, T key, T value, T attn_mask, double dropout_p, bool is_causal, std::optional<double> scale,
                                    bool enable_gqa) {
  for (auto* x : {&query, &key, &value})
    if (x->dim() < 2) throw Error("expected query, key and value to be at least 2 dimensional, found " + describe(*x));
  if (query.dtype() != key.dtype() || query.dtype() != value.dtype())
    throw Error("expected query, key and value to have the same dtype, found " + describe(query) + ", " + describe(key) + ", " +
                describe(value));
  const bool rank3 = query.dim() == 3 && key.dim() == 3 && value.dim() == 3 && runtime().settings.torch.sdpa_fuses_rank3();
  if (!rank3) return fused_or_math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  Tensor q = ops::unsqueeze(query, 0), k = ops::unsqueeze(key, 0), v = ops::unsqueeze(value, 0);
  Tensor mask = attn_mask && attn_mask.dim() == 3 ? ops::unsqueeze(attn_mask, 0) : attn_mask;
  Tensor out = fused_or_math(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa);
  return ops::squeeze_dim(out, 0);
}

}  // namespace

namespace ops {
const Op<Tensor(T, double, bool)> dropout{{"aten::dropout(Tensor input, float p, bool train) -> Tensor", Autocast::none, "mask",
                                           "native/Dropout.cpp; derivatives.yaml native_dropout"},
                                          memest::dropout};
const Op<Tensor(T, T, T, T, double, bool, std::optional<double>, bool)> scaled_dot_product_attention{
    {"aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool "
     "is_causal=False, *, float? scale=None, bool "
     "enable_gqa=False) -> Tensor",
     Autocast::lower, "", "native/transformers/attention.cpp; cuda/sdp_utils.cpp"},
    memest::scaled_dot_product_attention};
SdpBackend sdp_choice(T query, T key, T value, T attn_mask, double dropout_p, bool is_causal, bool enable_gqa) {
  return choose({query, key, value, attn_mask, dropout_p, is_causal, enable_gqa});
}
}  // namespace ops
}  // namespace memest

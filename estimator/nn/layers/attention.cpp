// torch.nn.MultiheadAttention (torch/nn/modules/activation.py, torch/nn/functional.py multi_head_attention_forward), statement by
// statement: what Python's names hold decides what is freed when.
#include "nn/layers/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fake/autograd.h"
#include "nn/layer.h"
#include "ops/native_attention.h"
#include "ops/ops.h"

namespace memest::nn {
using I = std::int64_t;

Tensor canonical_mask(T mask, const char* name, DType target) {
  if (!mask || is_floating(mask.dtype())) return mask;
  if (mask.dtype() != DType::boolean) throw Error(fmt::format("only bool and floating types of {} are supported", name));
  Tensor zeros = ops::zeros_like(mask, target, {});
  return Unbox<Tensor>::from(call_op("aten::masked_fill_", {zeros, mask, -std::numeric_limits<double>::infinity()}, {}));
}

MergedMask merge_masks(T attn_mask, T key_padding_mask, T query, I heads) {
  if (!attn_mask) return {key_padding_mask, key_padding_mask ? std::optional<I>(1) : std::nullopt};
  const I batch = query.size(0), length = query.size(1);
  Tensor merged;
  if (attn_mask.dim() == 3)
    merged = ops::view(attn_mask, {batch, -1, length, length});
  else
    merged = ops::expand(ops::view(attn_mask, {1, 1, length, length}), {batch, heads, -1, -1}, false);
  if (key_padding_mask) {
    const Tensor padding = ops::expand(ops::view(key_padding_mask, {batch, 1, 1, length}), {-1, heads, -1, -1}, false);
    merged = ops::add(merged, padding, 1);
  }
  return {merged, 2};
}

Values named(const std::string& what, const std::vector<std::string>& names, const Values& arguments, const KeywordArguments& keywords) {
  if (arguments.size() > names.size())
    throw Error(fmt::format("{} takes {} arguments, {} were given", what, names.size(), arguments.size()));
  Values values = arguments;
  values.resize(names.size());
  for (auto& [key, v] : keywords) {
    auto at = std::find(names.begin(), names.end(), key);
    if (at == names.end())
      throw Error(fmt::format("{} takes no argument '{}'", what, key), fmt::format("it takes {}", fmt::join(names, ", ")));
    values[std::size_t(at - names.begin())] = v;
  }
  return values;
}
Tensor tensor_argument(const std::string& what, const std::string& name, const Value& v) {
  if (!std::holds_alternative<Tensor>(v)) throw Error(fmt::format("{}: {} must be a tensor, found {}", what, name, describe(v)));
  return std::get<Tensor>(v);
}
bool allows_fast_path(const Tensors& tensors) {
  const Runtime& rt = runtime();
  return rt.settings.kernel_scratch() && !rt.autocast.enabled && !(rt.grad_mode && any_requires_grad(tensors));
}

namespace {

/// proj.unflatten(-1, (n, E)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous(): n projections one after the other.
Tensor apart(Tensor projected, I n, I width) {
  Dims sizes = projected.sizes();
  sizes[-1] = n;
  sizes.push_back(width);
  Tensor x = ops::view(projected, sizes);
  projected.reset();
  x = ops::unsqueeze(x, 0);
  x = ops::transpose(x, 0, -2);
  x = ops::squeeze_dim(x, -2);
  return ops::contiguous(x, MemoryFormat::contiguous);
}

struct Projections {
  Tensor q, k, v;
};
/// F._in_projection_packed.
Projections project_packed(T q, T k, T v, T w, T b) {
  const I width = q.size(-1);
  if (k.is_same(v) && q.is_same(k)) {
    Tensor projected = ops::linear(q, w, b);
    projected = apart(std::move(projected), 3, width);
    Projections p;
    p.q = ops::select(projected, 0, 0);
    p.k = ops::select(projected, 0, 1);
    p.v = ops::select(projected, 0, 2);
    return p;
  }
  if (k.is_same(v)) {
    const Tensors ws = ops::split_with_sizes(w, {width, 2 * width}, 0);
    const Tensors bs = b ? ops::split_with_sizes(b, {width, 2 * width}, 0) : Tensors(2);
    Projections p;
    p.q = ops::linear(q, ws[0], bs[0]);
    Tensor projected = ops::linear(k, ws[1], bs[1]);
    projected = apart(std::move(projected), 2, width);
    p.k = ops::select(projected, 0, 0);
    p.v = ops::select(projected, 0, 1);
    return p;
  }
  const Tensors ws = ops::chunk(w, 3, 0);
  const Tensors bs = b ? ops::chunk(b, 3, 0) : Tensors(3);
  Projections p;
  p.q = ops::linear(q, ws[0], bs[0]);
  p.k = ops::linear(k, ws[1], bs[1]);
  p.v = ops::linear(v, ws[2], bs[2]);
  return p;
}

Tensor padded(T mask) { return mask ? Unbox<Tensor>::from(call_function("pad", {mask, list_of(Dims{0, 1})}, {})) : Tensor(); }

std::tuple<Tensor, Tensor> attention_forward(Tensor query, Tensor key, Tensor value, I width, I heads, T in_weight, T in_bias, T bias_k,
                                             T bias_v, bool add_zero_attn, double dropout_p, T out_weight, T out_bias, bool training,
                                             Tensor key_padding_mask, bool need_weights, Tensor attn_mask, bool separate, T q_weight,
                                             T k_weight, T v_weight, T static_k, T static_v, bool average, bool is_causal) {
  const int dim = query.dim();
  if ((dim != 2 && dim != 3) || key.dim() != dim || value.dim() != dim)
    throw Error(fmt::format("query, key and value must all be 2-D (unbatched) or 3-D, found {}, {} and {}", describe(query), describe(key),
                            describe(value)));
  const bool batched = dim == 3;
  if (!batched) {
    // three views, so that none is another any more
    query = ops::unsqueeze(query, 1);
    key = ops::unsqueeze(key, 1);
    value = ops::unsqueeze(value, 1);
    if (key_padding_mask) key_padding_mask = ops::unsqueeze(key_padding_mask, 0);
  }
  const I target = query.size(0), batch = query.size(1);
  key_padding_mask = canonical_mask(key_padding_mask, "key_padding_mask", query.dtype());
  if (is_causal && !attn_mask) throw Error("Need attn_mask if specifying the is_causal hint.");
  if (is_causal && !key_padding_mask && !need_weights) {
    attn_mask.reset();
  } else {
    attn_mask = canonical_mask(attn_mask, "attn_mask", query.dtype());
    if (key_padding_mask) is_causal = false;
  }
  if (query.size(2) != width) throw Error(fmt::format("was expecting embedding dimension of {}, but got {}", width, query.size(2)));
  if (heads < 1 || width % heads != 0) throw Error(fmt::format("embed_dim {} not divisible by num_heads {}", width, heads));
  const I head = width / heads, rows = checked_mul(batch, heads);
  if (separate ? key.size(0) != value.size(0) || key.size(1) != value.size(1) : !(key.sizes() == value.sizes()))
    throw Error(fmt::format("key shape {} does not match value shape {}", to_string(key.sizes()), to_string(value.sizes())));
  Projections p;
  if (separate) {
    const Tensors bs = in_bias ? ops::chunk(in_bias, 3, 0) : Tensors(3);
    p.q = ops::linear(query, q_weight, bs[0]);
    p.k = ops::linear(key, k_weight, bs[1]);
    p.v = ops::linear(value, v_weight, bs[2]);
  } else {
    if (!in_weight) throw Error("use_separate_proj_weight is False but in_proj_weight is None");
    p = project_packed(query, key, value, in_weight, in_bias);
  }
  auto& [q, k, v] = p;
  if (attn_mask) {
    const Dims wanted = attn_mask.dim() == 2 ? Dims{target, key.size(0)} : Dims{rows, target, key.size(0)};
    if (!(attn_mask.sizes() == wanted))
      throw Error(fmt::format("The shape of the attn_mask is {}, but should be {}.", to_string(attn_mask.sizes()), to_string(wanted)));
    if (attn_mask.dim() == 2) attn_mask = ops::unsqueeze(attn_mask, 0);
  }
  if (bool(bias_k) != bool(bias_v)) throw Error("bias_k and bias_v must both be set or both be None");
  if (bias_k) {
    auto repeated = [&](T bias) { return Unbox<Tensor>::from(call_op("aten::repeat", {bias, list_of(Dims{1, batch, 1})}, {})); };
    k = ops::cat(Tensors{k, repeated(bias_k)}, 0);
    v = ops::cat(Tensors{v, repeated(bias_v)}, 0);
    attn_mask = padded(attn_mask);
    key_padding_mask = padded(key_padding_mask);
  }
  auto batch_first = [&](T x) { return ops::transpose(ops::view(x, {x.size(0), rows, head}), 0, 1); };
  q = batch_first(q);
  k = static_k ? static_k : batch_first(k);
  v = static_v ? static_v : batch_first(v);
  if (add_zero_attn) {
    k = ops::cat(Tensors{k, ops::zeros({rows, 1, head}, k.dtype())}, 1);
    v = ops::cat(Tensors{v, ops::zeros({rows, 1, head}, v.dtype())}, 1);
    attn_mask = padded(attn_mask);
    key_padding_mask = padded(key_padding_mask);
  }
  const I source = k.size(1);
  if (key_padding_mask) {
    if (!(key_padding_mask.sizes() == Dims{batch, source}))
      throw Error(fmt::format("key_padding_mask has the shape {}, it should be {}", to_string(key_padding_mask.sizes()),
                              to_string({batch, source})));
    key_padding_mask = ops::view(key_padding_mask, {batch, 1, 1, source});
    key_padding_mask = ops::expand(key_padding_mask, {-1, heads, -1, -1}, false);
    key_padding_mask = ops::reshape(key_padding_mask, {rows, 1, source});
    attn_mask = attn_mask ? ops::add(attn_mask, key_padding_mask, 1) : key_padding_mask;
  }
  if (!training) dropout_p = 0;

  if (need_weights) {
    Tensor q_scaled = ops::mul_scalar(q, std::sqrt(1.0 / double(q.size(2))));
    if (is_causal && !attn_mask) throw Error("is_causal not implemented for need_weights");
    Tensor weights =
        attn_mask ? ops::baddbmm(attn_mask, q_scaled, ops::transpose(k, -2, -1), 1, 1) : ops::bmm(q_scaled, ops::transpose(k, -2, -1));
    q_scaled.reset();
    k.reset();
    weights = ops::softmax(weights, -1, {});
    if (dropout_p > 0) weights = ops::dropout(weights, dropout_p, true);
    Tensor output = ops::bmm(weights, v);
    v.reset();
    output = ops::reshape(ops::transpose(output, 0, 1), {checked_mul(target, batch), width});
    output = ops::linear(output, out_weight, out_bias);
    output = ops::view(output, {target, batch, output.size(1)});
    weights = ops::view(weights, {batch, heads, target, source});
    if (average) weights = ops::mean_dim(weights, Dims{1}, false, {});
    if (!batched) {
      output = ops::squeeze_dim(output, 1);
      weights = ops::squeeze_dim(weights, 0);
    }
    key_padding_mask.reset();
    attn_mask.reset();
    return {output, weights};
  }
  if (attn_mask)
    attn_mask =
        attn_mask.size(0) == 1 && attn_mask.dim() == 3 ? ops::unsqueeze(attn_mask, 0) : ops::view(attn_mask, {batch, heads, -1, source});
  q = ops::view(q, {batch, heads, target, head});
  k = ops::view(k, {batch, heads, source, head});
  v = ops::view(v, {batch, heads, source, head});
  Tensor output = ops::scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, {}, false);
  p = {};
  output = ops::reshape(ops::permute(output, {2, 0, 1, 3}), {checked_mul(batch, target), width});
  output = ops::linear(output, out_weight, out_bias);
  output = ops::view(output, {target, batch, output.size(1)});
  if (!batched) output = ops::squeeze_dim(output, 1);
  return {output, Tensor()};
}

const Function multi_head_attention_forward{
    "multi_head_attention_forward(Tensor query, Tensor key, Tensor value, int embed_dim_to_check, int num_heads, Tensor? in_proj_weight, "
    "Tensor? "
    "in_proj_bias, Tensor? bias_k, Tensor? bias_v, bool add_zero_attn, float dropout_p, Tensor out_proj_weight, Tensor? out_proj_bias, "
    "bool "
    "training=True, Tensor? key_padding_mask=None, bool need_weights=True, Tensor? attn_mask=None, bool use_separate_proj_weight=False, "
    "Tensor? "
    "q_proj_weight=None, Tensor? k_proj_weight=None, Tensor? v_proj_weight=None, Tensor? static_k=None, Tensor? static_v=None, bool "
    "average_attn_weights=True, bool is_causal=False)",
    attention_forward};

class MultiheadAttention final : public Module {
 public:
  MultiheadAttention(I width, I heads, double dropout, bool bias, bool add_bias_kv, bool add_zero_attn, std::optional<I> kdim,
                     std::optional<I> vdim, bool batch_first)
      : Module("MultiheadAttention"), width_(width), heads_(heads), dropout_(dropout), zero_(add_zero_attn), batch_first_(batch_first) {
    if (width < 1 || heads < 1)
      throw Error(fmt::format("embed_dim and num_heads must be greater than 0, got embed_dim={} and num_heads={} instead", width, heads));
    if (width % heads != 0) throw Error("embed_dim must be divisible by num_heads", fmt::format("found {} and {}", width, heads));
    const I k = kdim.value_or(width), v = vdim.value_or(width);
    packed_ = k == width && v == width;
    new_parameter("q_proj_weight", {width, width}, !packed_);
    new_parameter("k_proj_weight", {width, k}, !packed_);
    new_parameter("v_proj_weight", {width, v}, !packed_);
    new_parameter("in_proj_weight", {checked_mul(3, width), width}, packed_);
    new_parameter("in_proj_bias", {checked_mul(3, width)}, bias);
    new_parameter("bias_k", {1, 1, width}, add_bias_kv);
    new_parameter("bias_v", {1, 1, width}, add_bias_kv);
    out_ = register_module("out_proj", make_layer("Linear", {{"in_features", width}, {"out_features", width}, {"bias", bias}})).get();
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    static const std::vector<std::string> names{
        "query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal"};
    const Values in = named("MultiheadAttention", names, arguments, keywords);
    auto tensor = [&](std::size_t i) { return tensor_argument(type(), names[i], in[i]); };
    Tensor query = tensor(0), key = tensor(1), value = tensor(2);
    const Tensor given_padding = Unbox<Tensor>::from(in[3]), given_mask = Unbox<Tensor>::from(in[5]);
    auto is_float = [](T mask) { return mask && is_floating(mask.dtype()); };
    Tensor padding = canonical_mask(given_padding, "key_padding_mask", query.dtype());
    Tensor mask = canonical_mask(given_mask, "attn_mask", query.dtype());
    const bool self = query.is_same(key) && key.is_same(value);
    if (self && !is_float(given_mask) && !is_float(given_padding) && takes_fast_path(query))
      return fast(query, padding, mask, flag(in[4], true), flag(in[6], true));
    const bool batched = query.dim() == 3;
    if (batch_first_ && batched) {
      const bool one = query.is_same(key) && key.is_same(value), two = key.is_same(value);
      query = ops::transpose(query, 1, 0);
      key = one ? query : ops::transpose(key, 1, 0);
      value = two ? key : ops::transpose(value, 1, 0);
    }
    auto [output, weights] =
        attention_forward(query, key, value, width_, heads_, parameter(3), parameter(4), parameter(5), parameter(6), zero_, dropout_,
                          out_->own_parameters()[0].second, out_->own_parameters()[1].second, training, padding, flag(in[4], true), mask,
                          !packed_, parameter(0), parameter(1), parameter(2), {}, {}, flag(in[6], true), flag(in[7], false));
    if (batch_first_ && batched) output = ops::transpose(output, 1, 0);
    padding.reset();
    mask.reset();
    return make_tuple({to_value(output), to_value(weights)});
  }

 private:
  bool takes_fast_path(T query) const {
    if (query.dim() != 3 || training || !batch_first_ || !packed_ || zero_ || heads_ % 2 != 0) return false;
    if (!parameter(4) || parameter(5) || query.dtype() != parameter(3).dtype()) return false;
    return allows_fast_path(Tensors{query, parameter(3), parameter(4), out_->own_parameters()[0].second, out_->own_parameters()[1].second});
  }
  /// Frees its names in the order of the frame.
  Value fast(T query, Tensor& padding, Tensor& mask, bool need_weights, bool average) const {
    const MergedMask merged = merge_masks(mask, padding, query, heads_);
    auto [output, weights] =
        ops::native_multi_head_attention(query, query, query, width_, heads_, parameter(3), parameter(4), out_->own_parameters()[0].second,
                                         out_->own_parameters()[1].second, merged.mask, need_weights, average, merged.type);
    padding.reset();
    mask.reset();
    return make_tuple({to_value(output), to_value(weights)});
  }

  I width_, heads_;
  double dropout_;
  bool zero_, batch_first_, packed_ = true;
  Module* out_;
};
const Layer multihead_attention{
    "MultiheadAttention(int embed_dim, int num_heads, float dropout=0.0, bool bias=True, bool add_bias_kv=False, bool add_zero_attn=False, "
    "int? "
    "kdim=None, int? vdim=None, bool batch_first=False)",
    [](I width, I heads, double dropout, bool bias, bool add_bias_kv, bool add_zero_attn, std::optional<I> kdim, std::optional<I> vdim,
       bool batch_first) -> ModulePtr {
      return std::make_shared<MultiheadAttention>(width, heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first);
    }};

}  // namespace
}  // namespace memest::nn

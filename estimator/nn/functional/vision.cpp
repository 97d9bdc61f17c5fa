// Functions and layers of torchvision and timm that graphs name: what their Python does, in its order (torchvision 0.29, timm 1.0).
#include <cmath>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

Tensor f(const char* name, const Values& arguments, const KeywordArguments& keywords = {}) {
  return Unbox<Tensor>::from(call_function(name, arguments, keywords, true));
}
Value ints(std::initializer_list<I> values) {
  Values items;
  for (I v : values) items.emplace_back(v);
  return make_list(std::move(items));
}

// ---- dropping whole branches -----------------------------------------------------------------------------------------------

/// x * noise, noise of one element a row (or one in all), drawn and scaled in place.
Tensor times_noise(T x, bool row, bool scaled, double survival) {
  Dims sizes = Dims::filled(x.dim(), 1);
  if (row && x.dim() > 0) sizes[0] = x.size(0);
  Tensor noise = empty(sizes, x.dtype());
  noise = f("bernoulli_", {noise, survival});
  if (scaled && survival > 0) f("div_", {noise, survival});
  return ops::mul(x, noise);
}

void check_probability(double p) {
  if (!(p >= 0 && p <= 1)) throw Error("drop probability has to be between 0 and 1, but got " + std::to_string(p));
}

// torchvision/ops/stochastic_depth.py
Tensor stochastic_depth(T input, double p, const std::string& mode, bool training) {
  check_probability(p);
  if (mode != "batch" && mode != "row") throw Error("mode has to be either 'batch' or 'row', but got " + mode);
  if (!training || p == 0) return input;
  return times_noise(input, mode == "row", true, 1 - p);
}
const Function stochastic_depth_function{"stochastic_depth(Tensor input, float p, str mode, bool training=True)", stochastic_depth};

class StochasticDepth final : public UnaryModule {
 public:
  StochasticDepth(double p, std::string mode) : UnaryModule("StochasticDepth"), p_(p), mode_(std::move(mode)) {}
  Tensor forward(T input) override { return stochastic_depth(input, p_, mode_, training); }

 private:
  double p_;
  std::string mode_;
};
const Layer stochastic_depth_layer{"StochasticDepth(float p, str mode)", [](double p, const std::string& mode) -> ModulePtr {
                                     return std::make_shared<StochasticDepth>(p, mode);
                                   }};

// timm/layers/drop.py
Tensor drop_path(T x, double drop_prob, bool training, bool scale_by_keep) {
  if (drop_prob == 0 || !training) return x;
  check_probability(drop_prob);
  return times_noise(x, true, scale_by_keep, 1 - drop_prob);
}
const Function drop_path_function{"drop_path(Tensor x, float drop_prob=0.0, bool training=False, bool scale_by_keep=True)", drop_path};

class DropPath final : public UnaryModule {
 public:
  DropPath(double drop_prob, bool scale_by_keep) : UnaryModule("DropPath"), drop_prob_(drop_prob), scale_by_keep_(scale_by_keep) {}
  Tensor forward(T input) override { return drop_path(input, drop_prob_, training, scale_by_keep_); }

 private:
  double drop_prob_;
  bool scale_by_keep_;
};
const Layer drop_path_layer{
    "DropPath(float drop_prob=0.0, bool scale_by_keep=True)",
    [](double drop_prob, bool scale_by_keep) -> ModulePtr { return std::make_shared<DropPath>(drop_prob, scale_by_keep); }};

// ---- Swin ------------------------------------------------------------------------------------------------------------------

/// torchvision/models/swin_transformer.py shifted_window_attention, of both versions of Swin. Whether it pads and shifts depends on the
/// image.
Tensor shifted_window_attention(T input, T qkv_weight, T proj_weight, T relative_position_bias, const Dims& window, I heads,
                                const Dims& shift_size, double attention_dropout, double dropout, T given_qkv_bias, T proj_bias,
                                T given_logit_scale, bool training) {
  if (input.dim() != 4) throw Error("shifted_window_attention takes an input [N, H, W, C], found " + describe(input));
  if (window.size() != 2 || shift_size.size() != 2) throw Error("shifted_window_attention: window_size and shift_size have two values");
  if (window[0] < 1 || window[1] < 1 || heads < 1) throw Error("shifted_window_attention: window_size and num_heads must be positive");
  const I b = input.size(0), h = input.size(1), w = input.size(2), c = input.size(3);
  const I right = (window[1] - w % window[1]) % window[1], below = (window[0] - h % window[0]) % window[0];
  Tensor x = Unbox<Tensor>::from(call_function("pad", {input, ints({0, 0, 0, right, 0, below})}, {}));
  const I height = x.size(1), width = x.size(2);
  const I shift_h = window[0] >= height ? 0 : shift_size[0], shift_w = window[1] >= width ? 0 : shift_size[1];
  const bool shifted = shift_h + shift_w > 0;
  if (shifted) x = f("roll", {x, ints({-shift_h, -shift_w}), ints({1, 2})});

  const I rows = height / window[0], columns = width / window[1], windows = rows * columns, tokens = window[0] * window[1];
  x = ops::view(x, {b, rows, window[0], columns, window[1], c});
  x = ops::reshape(ops::permute(x, {0, 1, 3, 2, 4, 5}), {b * windows, tokens, c});

  Tensor qkv_bias = given_qkv_bias, logit_scale = given_logit_scale;
  if (logit_scale && qkv_bias) {
    qkv_bias = f("clone", {qkv_bias});
    const I length = qkv_bias.numel() / 3;
    f("zero_", {ops::slice(qkv_bias, 0, length, 2 * length, 1)});
  }
  Tensor qkv = ops::linear(x, qkv_weight, qkv_bias);
  qkv = ops::permute(ops::reshape(qkv, {x.size(0), x.size(1), 3, heads, c / heads}), {2, 0, 3, 1, 4});
  Tensor q = ops::select(qkv, 0, 0), k = ops::select(qkv, 0, 1), v = ops::select(qkv, 0, 2);
  Tensor attention;
  if (logit_scale) {
    {
      Tensor left = f("normalize", {q}, {{"dim", I{-1}}});
      Tensor right_side = ops::transpose(f("normalize", {k}, {{"dim", I{-1}}}), -2, -1);
      attention = ops::matmul(left, right_side);
    }
    logit_scale = ops::exp(f("clamp", {logit_scale}, {{"max", std::log(100.0)}}));
    attention = ops::mul(attention, logit_scale);
  } else {
    q = f("mul", {q, std::pow(double(c / heads), -0.5)});
    attention = ops::matmul(q, ops::transpose(k, -2, -1));
  }
  attention = ops::add(attention, relative_position_bias, 1);

  Tensor mask;
  if (shifted) {
    mask = f("new_zeros", {x, ints({height, width})});  // then filled in place, window by window
    mask = ops::view(mask, {rows, window[0], columns, window[1]});
    mask = ops::reshape(ops::permute(mask, {0, 2, 1, 3}), {windows, tokens});
    mask = ops::sub(ops::unsqueeze(mask, 1), ops::unsqueeze(mask, 2), 1);
    {
      Tensor differ = f("ne", {mask, I{0}});
      Tensor first = f("masked_fill", {mask, differ, -100.0});
      differ = Tensor();
      Tensor equal = f("eq", {mask, I{0}});
      mask = f("masked_fill", {first, equal, 0.0});
    }
    attention = ops::view(attention, {windows == 0 ? 0 : x.size(0) / windows, windows, heads, x.size(1), x.size(1)});
    attention = ops::add(attention, ops::unsqueeze(ops::unsqueeze(mask, 1), 0), 1);
    attention = ops::view(attention, {-1, heads, x.size(1), x.size(1)});
  }

  attention = f("softmax", {attention, I{-1}});
  attention = ops::dropout(attention, attention_dropout, training);
  x = ops::reshape(ops::transpose(ops::matmul(attention, v), 1, 2), {x.size(0), x.size(1), c});
  x = ops::linear(x, proj_weight, proj_bias);
  x = ops::dropout(x, dropout, training);

  x = ops::view(x, {b, rows, columns, window[0], window[1], c});
  x = ops::reshape(ops::permute(x, {0, 1, 3, 2, 4, 5}), {b, height, width, c});
  if (shifted) x = f("roll", {x, ints({shift_h, shift_w}), ints({1, 2})});
  const bool whole = runtime().settings.torch.full_slice_records_node();
  if (whole) x = ops::slice(x, 0, std::nullopt, std::nullopt, 1);
  x = ops::slice(x, 1, std::nullopt, h, 1);
  x = ops::slice(x, 2, std::nullopt, w, 1);
  if (whole) x = ops::slice(x, 3, std::nullopt, std::nullopt, 1);
  return f("contiguous", {x});
}
const Function shifted_window_attention_function{
    "shifted_window_attention(Tensor input, Tensor qkv_weight, Tensor proj_weight, Tensor relative_position_bias, int[] window_size, int "
    "num_heads, int[] shift_size, "
    "float attention_dropout=0.0, float dropout=0.0, Tensor? qkv_bias=None, Tensor? proj_bias=None, Tensor? logit_scale=None, bool "
    "training=True)",
    shifted_window_attention};

}  // namespace
}  // namespace memest::nn

// Sources: derivatives.yaml _cudnn_rnn, _thnn_fused_lstm_cell, _thnn_fused_gru_cell;
// aten/src/ATen/native/{RNN.cpp,cudnn/RNN.cpp,cuda/RNN.cu}, aten/src/ATen/cudnn/AutocastRNN.cpp of 2.15.
#include "ops/recurrent.h"

#include <fmt/format.h>

#include "fake/counted.h"
#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/recurrent_steps.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

// ---- the flat buffer of parameters -------------------------------------------------------------------------------------------

/// Where cuDNN wants the parameters: the matrices of all layers, then two biases of each, also where the layers have none.
struct FlatLayout {
  I total = 0;
  std::vector<I> offsets;  ///< of each parameter, in elements
};
FlatLayout flat_layout(const Tensors& weights, I per_layer) {
  FlatLayout flat;
  flat.offsets.resize(weights.size());
  auto place = [&](bool biases) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      if ((weights[i].dim() == 1) == biases) {
        flat.offsets[i] = flat.total;
        flat.total = checked_add(flat.total, weights[i].numel());
      }
  };
  place(false);
  place(true);
  if (per_layer < 4) flat.total = checked_add(flat.total, checked_mul(I(weights.size()) / per_layer * 2, weights[0].size(0)));
  return flat;
}
Tensor part_of(T buffer, const Dims& sizes, I offset) { return share(buffer, sizes, contiguous_strides(sizes), offset); }

/// try_get_weight_buf: the buffer that the parameters are parts of already; undefined where they are not.
Tensor flat_buffer(const Tensors& weights, const FlatLayout& flat) {
  const Ref<Storage>& storage = weights[0]->storage;
  if (storage->bytes < checked_mul(flat.total, item_size(weights[0].dtype()))) return {};
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!(weights[i]->storage == storage) || weights[i]->offset != flat.offsets[i] || !is_contiguous(weights[i])) return {};
  return share(weights[0], {flat.total}, {1}, 0);
}

// ---- cuDNN -------------------------------------------------------------------------------------------------------------------

enum Mode : I { kRelu, kTanh, kLstm, kGru };  // cudnnRNNMode_t
struct Net {
  I mode, hidden, proj, layers, per_layer;
  bool batch_first, train, both;

  I gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }
  I directions() const { return both ? 2 : 1; }
  I output() const { return proj ? proj : hidden; }
  /// Time in front, as cuDNN has it.
  Tensor steps_first(T x) const { return batch_first ? ops::transpose(x, 0, 1) : x; }
  Tensor as_given(T x) const {
    return batch_first ? share(x, {x.sizes()[1], x.sizes()[0], x.sizes()[2]}, {x.strides()[1], x.strides()[0], x.strides()[2]}, x->offset)
                       : x;
  }
};

/// cuDNN tells these sizes only on a device. Assumed are one layer's gates at every step as workspace, and the gates, the cell and the
/// hidden state of every layer at every step as reserve.
Tensor assumed(T input, const Net& net, I layers, I states) {
  if (!runtime().settings.kernel_scratch()) return empty({0}, DType::uint8);
  runtime().diagnostics.add(
      {Diagnostic::Severity::note, "assumed-size",
       "the sizes of cuDNN's reserve and workspace of recurrent layers are assumed: the gates, the cell and the hidden "
       "state of every step",
       "", ""});
  CategoryScope category(Category::assumed);
  const I cells = checked_mul(checked_mul(input.size(0), input.size(1)), checked_mul(net.hidden, layers * net.directions()));
  return empty({checked_mul(cells, states * item_size(input.dtype()))}, DType::uint8);
}
Tensor workspace_of(T input, const Net& net) { return assumed(input, net, 1, net.gates()); }
Tensor reserve_of(T input, const Net& net) {
  return net.train ? assumed(input, net, net.layers, net.gates() + 2) : empty({0}, DType::uint8);
}

Tensors weight_gradients(T input, const Tensors& weights, T weight_buf, const Net& net) {
  const Tensor x = ops::contiguous_tensor(net.steps_first(input));
  const Tensor flat = ops::zeros(weight_buf.sizes(), weight_buf.dtype());
  const Tensor workspace = workspace_of(input, net);
  const FlatLayout layout = flat_layout(weights, net.per_layer);
  const bool as_parts = net.per_layer == (net.proj ? 5 : 4);  // with other strides than cuDNN's, which always has biases, they are copied
  Tensors gradients;
  for (std::size_t i = 0; i < weights.size(); ++i)
    gradients.push_back(as_parts ? part_of(flat, weights[i].sizes(), layout.offsets[i]) : empty(weights[i].sizes(), weights[i].dtype()));
  return gradients;
}

void cudnn_rnn_backward(Backward& w, const Tensors& saved, const Net& net) {
  const std::size_t count = saved.size() - 7;
  const Tensor &cx = saved[0], &hx = saved[2], &input = saved[3], &output = saved[4 + count], &weight_buf = saved[6 + count];
  if (!w.grad[0] && !w.grad[1] && !w.grad[2]) return;
  auto or_zeros = [](T gradient, T like) {
    return gradient ? Tensor(gradient) : ops::zeros_like(like, std::nullopt, MemoryFormat::contiguous);
  };
  Tensor grad_output = or_zeros(w.grad[0], output);
  Tensor grad_hy = or_zeros(w.grad[1], hx);
  Tensor grad_cy = cx ? or_zeros(w.grad[2], cx) : Tensor();
  if (!net.train) throw Error("cudnn RNN backward can only be called in training mode");
  Tensor dx, dhx, dcx;
  {
    const Tensor x = ops::contiguous_tensor(net.steps_first(input));
    const Tensor dy = ops::contiguous_tensor(net.steps_first(grad_output));
    dx = empty(x.sizes(), x.dtype());
    const Tensor dhy = ops::contiguous_tensor(grad_hy);
    const Tensor dcy = cx ? ops::contiguous_tensor(grad_cy) : Tensor();
    dhx = empty(hx.sizes(), hx.dtype());
    if (cx) dcx = empty(cx.sizes(), cx.dtype());
    const Tensor workspace = workspace_of(input, net);
  }
  dx = net.as_given(dx);
  bool any = false;
  for (std::size_t i = 1; i <= count; ++i) any |= w.needs(int(i));
  Tensors dw(count);
  if (any) dw = weight_gradients(input, Tensors(saved.begin() + 4, saved.begin() + 4 + std::ptrdiff_t(count)), weight_buf, net);
  grad_cy.reset();
  grad_hy.reset();
  grad_output.reset();
  auto give = [&w](std::size_t i, Tensor& gradient) {  // all are computed; those that nobody asked for go now
    if (w.needs(int(i))) w.out[i] = gradient;
    gradient.reset();
  };
  give(0, dx);
  give(count + 1, dhx);
  give(count + 2, dcx);
  for (std::size_t i = 0; i < count; ++i) give(i + 1, dw[i]);
}

using CudnnResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // output, hy, cy, reserve, weight_buf

CudnnResult run_cudnn_rnn(T input, const Tensors& weights, T weight_buf_, T hx, T cx, const Net& net) {
  Tensors inputs{input}, saved{cx, {}, hx, input};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  inputs.push_back(hx);
  inputs.push_back(cx);
  saved.insert(saved.end(), weights.begin(), weights.end());
  auto fn = node("CudnnRnnBackward0", std::span<const Tensor>(inputs), std::span<const Tensor>(saved),
                 [net](Backward& w, const Tensors& kept) { cudnn_rnn_backward(w, kept, net); });
  inputs.clear(), saved.clear();
  if (!is_contiguous(hx) || (cx && !is_contiguous(cx))) throw Error("rnn: hx or cx is not contiguous");
  Tensor output, hy, cy, reserve, weight_buf = weight_buf_;
  {
    NoGrad below;
    const Tensor x = ops::contiguous_tensor(net.steps_first(input));
    output = empty({x.sizes()[0], x.sizes()[1], net.output() * net.directions()}, input.dtype());
    hy = empty(hx.sizes(), hx.dtype());
    cy = cx ? empty(cx.sizes(), cx.dtype()) : empty({0}, hx.dtype());
    if (!weight_buf) weight_buf = empty({flat_layout(weights, net.per_layer).total}, x.dtype());
    const Tensor workspace = workspace_of(input, net);
    reserve = reserve_of(input, net);
  }
  output = net.as_given(output);
  fn.outputs({output, hy, cy}, {output, reserve, weight_buf});
  return {output, hy, cy, reserve, weight_buf};
}

/// _cudnn_rnn_cast_reflatten: a half buffer of the parameters for each call, whatever type autocast is set to.
CudnnResult run_under_autocast(T input, const Tensors& weights, T weight_buf, T hx, T cx, const Net& net) {
  Scoped<bool> off(runtime().autocast.enabled, false);
  Tensor buffer = weight_buf;
  Tensors cast = weights;
  const DType from = weights[0].dtype();
  if (from != DType::float16 && from != DType::float64) {
    const FlatLayout layout = flat_layout(weights, net.per_layer);
    buffer = ops::zeros({layout.total}, DType::float16);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      cast[i] = part_of(buffer, {weights[i].numel(), 1}, layout.offsets[i]);
      ops::copy_(cast[i], ops::view(weights[i], cast[i].sizes()), false);
    }
  }
  const Tensor half_cx = cx ? cached_cast(cx, DType::float16) : Tensor();
  const Tensor half_hx = cached_cast(hx, DType::float16);
  const Tensor half_input = cached_cast(input, DType::float16);
  return run_cudnn_rnn(half_input, cast, buffer, half_hx, half_cx, net);
}

CudnnResult cudnn_rnn(T input, const Tensors& weight, I weight_stride0, T weight_buf, T hx, T cx, I mode, I hidden_size, I proj_size,
                      I num_layers, bool batch_first, double, bool train, bool bidirectional, const Dims& batch_sizes, T) {
  if (!batch_sizes.empty()) throw Error("_cudnn_rnn: packed sequences are not modelled");
  if (weight.empty() || weight_stride0 < 2) throw Error("_cudnn_rnn: expected the parameters of at least one layer");
  const Net net{mode, hidden_size, proj_size, num_layers, weight_stride0, batch_first, train, bidirectional};
  return runtime().autocast.enabled ? run_under_autocast(input, weight, weight_buf, hx, cx, net)
                                    : run_cudnn_rnn(input, weight, weight_buf, hx, cx, net);
}
const Op<CudnnResult(T, const Tensors&, I, T, T, T, I, I, I, I, bool, double, bool, bool, const Dims&, T)> cudnn_rnn_op{
    {"aten::_cudnn_rnn(Tensor input, Tensor[] weight, int weight_stride0, Tensor? weight_buf, Tensor hx, Tensor? cx, int mode, SymInt "
     "hidden_size, SymInt proj_size, int num_layers, bool batch_first, float dropout, bool train, bool bidirectional, SymInt[] "
     "batch_sizes, Tensor? dropout_state) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
     Autocast::none, "cx, dropout_state, hx, input, weight, result0, result3, result4",
     "derivatives.yaml _cudnn_rnn; native/cudnn/RNN.cpp"},
    cudnn_rnn};

Tensor flatten_weight(const Tensors& weights, I weight_stride0, I, I, I, I, I, bool, bool) {
  const FlatLayout layout = flat_layout(weights, weight_stride0);
  NoGrad below;
  CategoryScope category(Category::parameter);
  Tensor buffer = ops::zeros({layout.total}, weights[0].dtype());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i]->storage = buffer->storage;
    weights[i]->strides = contiguous_strides(weights[i].sizes());
    weights[i]->offset = layout.offsets[i];
  }
  return buffer;
}
const Op<Tensor(const Tensors&, I, I, I, I, I, I, bool, bool)> flatten_weight_op{
    {"aten::_cudnn_rnn_flatten_weight(Tensor[] weight_arr, int weight_stride0, SymInt input_size, int mode, SymInt hidden_size, SymInt "
     "proj_size, int num_layers, bool batch_first, bool bidirectional) -> Tensor",
     Autocast::none, "", "native/cudnn/RNN.cpp copy_weights_to_flat_buf_views"},
    flatten_weight};

/// get_dropout_state: the first call that drops draws a seed and makes a state of about 2 MiB that stays.
void make_dropout_state() {
  Diagnostics& known = runtime().diagnostics;
  const std::size_t before = known.list().size();
  known.add({Diagnostic::Severity::note, "cudnn-dropout-state",
             "the state of cuDNN's dropout between recurrent layers, about 2 MiB, is not modelled", "", ""});
  if (known.list().size() > before) ops::scalar_tensor(DType::int64);
}

void check_state(T state, const char* name, I layers, I batch, I width) {
  const Dims wanted{layers, batch, width};
  if (!(state.sizes() == wanted))
    throw Error(fmt::format("Expected {} size {}, got {}", name, to_string(wanted), to_string(state.sizes())));
}

/// check_attributes and gather_params.
void check_net(T input, T hx, T cx, const Tensors& params, bool has_biases, I num_layers, bool bidirectional, bool batch_first) {
  if (input.dim() != 3) throw Error("recurrent layers take a 3-D input, found " + describe(input));
  const I hidden = (cx ? cx : hx).size(-1), proj = cx && cx.size(2) != hx.size(2) ? hx.size(2) : 0;
  const I per_layer = (has_biases ? 4 : 2) + (proj ? 1 : 0), layers = num_layers * (bidirectional ? 2 : 1);
  if (I(params.size()) != layers * per_layer)
    throw Error(fmt::format("got an incorrect number of RNN parameters: {}, expected {}", params.size(), layers * per_layer));
  const I batch = input.size(batch_first ? 0 : 1);
  check_state(hx, "hidden", layers, batch, proj ? proj : hidden);
  if (cx) check_state(cx, "cell", layers, batch, hidden);
}

/// _cudnn_impl. bfloat16 needs compute capability 8.0 (supportsBFloat16RNNWithCuDNN).
CudnnResult run_net(Mode mode, T input, T hx, T cx, const Tensors& params, bool has_biases, I num_layers, double dropout, bool train,
                    bool bidirectional, bool batch_first) {
  check_net(input, hx, cx, params, has_biases, num_layers, bidirectional, batch_first);
  if (!is_floating(input.dtype()) || input.numel() == 0 || (input.dtype() == DType::bfloat16 && runtime().settings.device.major < 8))
    throw Error("recurrent layers run on cuDNN only: " + describe(input) + " is nothing that it takes on this device");
  const I hidden = (cx ? cx : hx).size(-1), proj = cx && cx.size(2) != hx.size(2) ? hx.size(2) : 0;
  const I per_layer = (has_biases ? 4 : 2) + (proj ? 1 : 0);
  const Tensor weight_buf = flat_buffer(params, flat_layout(params, per_layer));
  if (train && dropout > 0) make_dropout_state();
  return cudnn_rnn_op(input, params, per_layer, weight_buf, hx, cx, mode, hidden, proj, num_layers, batch_first, dropout, train,
                      bidirectional, Dims{}, Tensor());
}
ops::TwoStates lstm(T input, const Tensors& hx, const Tensors& params, bool has_biases, I num_layers, double dropout, bool train,
                    bool bidirectional, bool batch_first) {
  if (hx.size() != 2) throw Error("lstm expects two hidden states");
  if (counts_libtorch()) {
    check_net(input, hx[0], hx[1], params, has_biases, num_layers, bidirectional, batch_first);
    return ops::lstm_by_steps(input, hx, {params, has_biases, num_layers, dropout, train, bidirectional, batch_first});
  }
  const CudnnResult r = run_net(kLstm, input, hx[0], hx[1], params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
}
template <Mode mode>
ops::OneState one_state(T input, T hx, const Tensors& params, bool has_biases, I num_layers, double dropout, bool train, bool bidirectional,
                        bool batch_first) {
  if (counts_libtorch()) {
    check_net(input, hx, {}, params, has_biases, num_layers, bidirectional, batch_first);
    const ops::RecurrentCall call{params, has_biases, num_layers, dropout, train, bidirectional, batch_first};
    return mode == kGru ? ops::gru_by_steps(input, hx, call) : ops::rnn_by_steps(input, hx, call, mode == kTanh);
  }
  const CudnnResult r = run_net(mode, input, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  return {std::get<0>(r), std::get<1>(r)};
}

// ---- cells ---------------------------------------------------------------------------------------------------------------------

void check_gates(const char* name, T input_gates, T hidden_gates, T state, I gates) {
  if (input_gates.dim() != 2 || !(input_gates.sizes() == hidden_gates.sizes()) || state.dim() != 2 ||
      input_gates.numel() != checked_mul(gates, state.numel()))
    throw Error(
        fmt::format("{}: gates {} and {} do not meet a state {}", name, describe(input_gates), describe(hidden_gates), describe(state)));
}
Tensor bias_gradient(T gates, bool wanted) { return wanted ? ops::sum_kernel(gates, {true, false}, false, gates.dtype()) : Tensor(); }

ops::TwoStates fused_lstm_cell(T input_gates, T hidden_gates, T cx, T input_bias, T hidden_bias) {
  check_gates("_thnn_fused_lstm_cell", input_gates, hidden_gates, cx, 4);
  auto fn = node("ThnnFusedLstmCellBackward0", {input_gates, hidden_gates, cx, input_bias, hidden_bias},
                 {cx, hidden_bias, hidden_gates, input_bias, input_gates},
                 [](Backward& w, T c, T, T, T bias, T, T, T workspace) {  // cy is read, the gates only by a second derivative
                   if (!w.grad[0] && !w.grad[1]) return;
                   const Tensor gates = empty(workspace.sizes(), workspace.dtype());
                   Tensor cell = empty(c.sizes(), c.dtype());
                   const Tensor bias_grad = bias_gradient(gates, bool(bias));
                   if (w.needs(0)) w.out[0] = gates;
                   if (w.needs(1)) w.out[1] = gates;
                   if (w.needs(2)) w.out[2] = std::move(cell);
                   if (w.needs(3)) w.out[3] = bias_grad;
                   if (w.needs(4)) w.out[4] = bias_grad;
                 });
  Tensor workspace = empty(input_gates.sizes(), input_gates.dtype());
  Tensor hy = empty(cx.sizes(), cx.dtype());
  Tensor cy = empty(cx.sizes(), cx.dtype());
  fn.outputs({hy, cy}, {cy, workspace});
  return {hy, cy, workspace};
}

ops::OneState fused_gru_cell(T input_gates, T hidden_gates, T hx, T input_bias, T hidden_bias) {
  check_gates("_thnn_fused_gru_cell", input_gates, hidden_gates, hx, 3);
  auto fn = node("ThnnFusedGruCellBackward0", {input_gates, hidden_gates, hx, input_bias, hidden_bias},
                 {hidden_bias, hidden_gates, hx, input_bias, input_gates}, [](Backward& w, T, T gates, T h, T bias, T, T) {
                   if (!w.grad[0]) return;
                   Tensor input_grad = empty(gates.sizes(), gates.dtype()), hidden_grad = empty(gates.sizes(), gates.dtype());
                   Tensor state = empty(h.sizes(), h.dtype());
                   Tensor input_bias_grad = bias_gradient(input_grad, bool(bias)),
                          hidden_bias_grad = bias_gradient(hidden_grad, bool(bias));
                   if (w.needs(0)) w.out[0] = std::move(input_grad);
                   if (w.needs(1)) w.out[1] = std::move(hidden_grad);
                   if (w.needs(2)) w.out[2] = std::move(state);
                   if (w.needs(3)) w.out[3] = std::move(input_bias_grad);
                   if (w.needs(4)) w.out[4] = std::move(hidden_bias_grad);
                 });
  Tensor workspace = empty({hx.sizes()[0], checked_mul(5, hx.sizes()[1])}, hx.dtype());
  Tensor hy = empty(hx.sizes(), hx.dtype());
  fn.outputs({hy, workspace}, {workspace});
  return {hy, workspace};
}
constexpr const char* kCells = "derivatives.yaml; native/cuda/RNN.cu";
const Op<ops::TwoStates(T, T, T, T, T)> fused_lstm_cell_op{
    {"aten::_thnn_fused_lstm_cell(Tensor input_gates, Tensor hidden_gates, Tensor cx, Tensor? input_bias=None, Tensor? hidden_bias=None) "
     "-> "
     "(Tensor, Tensor, Tensor)",
     Autocast::lower, "cx, hidden_bias, hidden_gates, input_bias, input_gates, result1, result2", kCells},
    fused_lstm_cell};
const Op<ops::OneState(T, T, T, T, T)> fused_gru_cell_op{
    {"aten::_thnn_fused_gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? input_bias=None, Tensor? hidden_bias=None) -> "
     "(Tensor, Tensor)",
     Autocast::lower, "hidden_bias, hidden_gates, hx, input_bias, input_gates, result1", kCells},
    fused_gru_cell};

void check_cell(T input, T state, T w_ih, T w_hh, I gates) {
  if (input.dim() != 2 || input.size(1) != w_ih.size(1))
    throw Error(fmt::format("input has inconsistent input_size: got {}, expected {}", describe(input), w_ih.size(1)));
  if (state.dim() != 2 || state.size(0) != input.size(0) || state.size(1) != w_hh.size(1))
    throw Error(
        fmt::format("hidden {} does not meet the input {} and a hidden_size of {}", describe(state), describe(input), w_hh.size(1)));
  if (w_ih.size(0) != gates * w_hh.size(1) || w_hh.size(0) != gates * w_hh.size(1))
    throw Error(fmt::format("weight_ih and weight_hh must have {} * hidden_size = {} rows", gates, gates * w_hh.size(1)));
}
ops::OneState lstm_cell(T input, const Tensors& hx, T w_ih, T w_hh, T b_ih, T b_hh) {
  if (hx.size() != 2) throw Error("lstm_cell expects two hidden states");
  for (auto& state : hx) check_cell(input, state, w_ih, w_hh, 4);
  if (counts_libtorch()) return ops::lstm_cell_by_steps(input, hx, w_ih, w_hh, b_ih, b_hh);
  const Tensor input_gates = ops::matmul(input, ops::t(w_ih));
  const Tensor hidden_gates = ops::matmul(hx[0], ops::t(w_hh));
  auto [hy, cy, workspace] = fused_lstm_cell_op(input_gates, hidden_gates, hx[1], b_ih, b_hh);
  return {hy, cy};
}
Tensor gru_cell(T input, T hx, T w_ih, T w_hh, T b_ih, T b_hh) {
  check_cell(input, hx, w_ih, w_hh, 3);
  if (counts_libtorch()) return ops::gru_cell_by_steps(input, hx, w_ih, w_hh, b_ih, b_hh);
  const Tensor input_gates = ops::matmul(input, ops::t(w_ih));
  const Tensor hidden_gates = ops::matmul(hx, ops::t(w_hh));
  return std::get<0>(fused_gru_cell_op(input_gates, hidden_gates, hx, b_ih, b_hh));
}
template <bool tanh>
Tensor simple_cell(T input, T hx, T w_ih, T w_hh, T b_ih, T b_hh) {
  check_cell(input, hx, w_ih, w_hh, 1);
  const Tensor from_hidden = ops::linear(hx, w_hh, b_hh);
  const Tensor from_input = ops::linear(input, w_ih, b_ih);
  const Tensor sum = ops::add_(from_hidden, from_input, 1);
  return tanh ? ops::tanh(sum) : ops::relu(sum);
}

constexpr const char* kSource = "native/RNN.cpp";
}  // namespace

namespace ops {
const Op<TwoStates(T, const Tensors&, const Tensors&, bool, I, double, bool, bool, bool)> lstm{
    {"aten::lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool "
     "bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)",
     Autocast::none, "", kSource},
    memest::lstm};
#define MEMEST_ONE_STATE(NAME, MODE)                                                                                                     \
  const Op<OneState(T, T, const Tensors&, bool, I, double, bool, bool, bool)> NAME {                                                     \
    {"aten::" #NAME                                                                                                                      \
     ".input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, " \
     "bool batch_first) -> (Tensor, Tensor)",                                                                                            \
     Autocast::none, "", kSource},                                                                                                       \
        one_state<MODE>                                                                                                                  \
  }
MEMEST_ONE_STATE(gru, kGru);
MEMEST_ONE_STATE(rnn_tanh, kTanh);
MEMEST_ONE_STATE(rnn_relu, kRelu);
#undef MEMEST_ONE_STATE
const Op<OneState(T, const Tensors&, T, T, T, T)> lstm_cell{
    {"aten::lstm_cell(Tensor input, Tensor[] hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> (Tensor, Tensor)",
     Autocast::lower, "", kSource},
    memest::lstm_cell};
#define MEMEST_CELL(NAME, IMPLEMENTATION)                                                                                  \
  const Op<Tensor(T, T, T, T, T, T)> NAME {                                                                                \
    {"aten::" #NAME "(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor", \
     Autocast::lower, "", kSource},                                                                                        \
        IMPLEMENTATION                                                                                                     \
  }
MEMEST_CELL(gru_cell, memest::gru_cell);
MEMEST_CELL(rnn_tanh_cell, simple_cell<true>);
MEMEST_CELL(rnn_relu_cell, simple_cell<false>);
#undef MEMEST_CELL

bool cudnn_takes_flat_weights(DType dtype) { return dtype == DType::float16 || dtype == DType::float32 || dtype == DType::float64; }
void flatten_recurrent_weights(const Tensors& weights, I per_layer) {
  flatten_weight_op(weights, per_layer, weights[0].size(1), kLstm, weights[1].size(1), 0, I(weights.size()) / per_layer, false, false);
}
}  // namespace ops
}  // namespace memest

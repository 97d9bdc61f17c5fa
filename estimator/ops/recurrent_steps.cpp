// Sources: aten/src/ATen/native/RNN.cpp of 2.15: LSTMCell, GRUCell, SimpleCell, FullLayer, FullBidirectionalLayer, apply_layer_stack.
#include "ops/recurrent_steps.h"

#include <algorithm>

#include "fake/counted.h"
#include "ops/attention.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;
using ops::RecurrentCall;

Tensor in_place(const char* op, T x) { return Unbox<Tensor>::from(call_op(op, {x}, {})); }
Tensors chunks(T gates, I count) { return Unbox<Tensors>::from(call_op("aten::unsafe_chunk", {gates, count, I{1}}, {})); }

/// CellParams: w_hr is that of a projection.
struct Parameters {
  Tensor w_ih, w_hh, b_ih, b_hh, w_hr;
  Tensor linear_ih(T x) const { return ops::linear(x, w_ih, b_ih); }
  Tensor linear_hh(T h) const { return ops::linear(h, w_hh, b_hh); }
  Tensor matmul_hr(T h) const { return w_hr ? ops::matmul(h, ops::t(w_hr)) : h; }
};
std::vector<Parameters> gather(const RecurrentCall& c) {
  const std::size_t cells = std::size_t(c.num_layers) * (c.bidirectional ? 2 : 1), each = c.params.size() / cells;
  const std::size_t of_bias = c.has_biases ? 2 : 0;
  std::vector<Parameters> list;
  for (std::size_t i = 0; i < c.params.size(); i += each) {
    Parameters p{c.params[i], c.params[i + 1], {}, {}, {}};
    if (c.has_biases) p.b_ih = c.params[i + 2], p.b_hh = c.params[i + 3];
    if (each > 2 + of_bias) p.w_hr = c.params[i + 2 + of_bias];
    list.push_back(std::move(p));
  }
  return list;
}

struct Hidden {
  Tensor h, c;  ///< c of an LSTM
};
/// One step; `computed`: the input is linear_ih of it already.
using Cell = Hidden (*)(T input, const Hidden& hidden, const Parameters& p, bool computed);

Hidden lstm_step(T input, const Hidden& hidden, const Parameters& p, bool computed) {
  Tensor gates = p.linear_hh(hidden.h);
  gates = ops::add_(gates, computed ? input : p.linear_ih(input), 1);
  const Tensors pieces = chunks(gates, 4);
  const Tensor in = in_place("aten::sigmoid_", pieces[0]), forget = in_place("aten::sigmoid_", pieces[1]);
  const Tensor cell = in_place("aten::tanh_", pieces[2]), out = in_place("aten::sigmoid_", pieces[3]);
  Tensor cy = ops::mul(forget, hidden.c);
  cy = ops::add_(cy, ops::mul(in, cell), 1);
  Tensor hy = ops::mul(out, ops::tanh(cy));
  hy = p.matmul_hr(hy);
  return {hy, cy};
}
Hidden gru_step(T input, const Hidden& hidden, const Parameters& p, bool computed) {
  const Tensors from_input = chunks(computed ? input : p.linear_ih(input), 3);
  const Tensors from_hidden = chunks(p.linear_hh(hidden.h), 3);
  const Tensor reset = in_place("aten::sigmoid_", ops::add_(from_hidden[0], from_input[0], 1));
  const Tensor update = in_place("aten::sigmoid_", ops::add_(from_hidden[1], from_input[1], 1));
  const Tensor fresh = in_place("aten::tanh_", ops::add(from_input[2], ops::mul_(from_hidden[2], reset), 1));
  return {ops::add_(ops::mul_(ops::sub(hidden.h, fresh, 1), update), fresh, 1), {}};
}
template <bool tanh>
Hidden simple_step(T input, const Hidden& hidden, const Parameters& p, bool computed) {
  const Tensor from_hidden = p.linear_hh(hidden.h);
  const Tensor sum = ops::add_(from_hidden, computed ? input : p.linear_ih(input), 1);
  return {tanh ? ops::tanh(sum) : ops::relu(sum), {}};
}

/// FullLayer, over steps; the last state goes into `hidden`.
Tensors run_steps(Cell cell, const Tensors& steps, Hidden& hidden, const Parameters& p, bool computed) {
  Tensors outputs;
  for (auto& step : steps) {
    hidden = cell(step, hidden, p, computed);
    outputs.push_back(hidden.h);
  }
  return outputs;
}
/// The CPU multiplies all steps by w_ih at once.
Tensors steps_of(T input, const Parameters& p) { return ops::unbind(counts_cpu() ? p.linear_ih(input) : input, 0); }

Tensor run_layer(Cell cell, T input, Hidden* hidden, const Parameters* p, bool bidirectional) {
  const bool computed = counts_cpu();
  Tensors steps = steps_of(input, p[0]);
  const Tensor forward = ops::stack(run_steps(cell, steps, hidden[0], p[0], computed), 0);
  if (!bidirectional) return forward;
  if (computed) steps = steps_of(input, p[1]);
  std::reverse(steps.begin(), steps.end());
  Tensors outputs = run_steps(cell, steps, hidden[1], p[1], computed);
  std::reverse(outputs.begin(), outputs.end());
  const Tensor reverse = ops::stack(outputs, 0);
  return ops::cat({forward, reverse}, forward.dim() - 1);
}

/// _rnn_impl: the states after it are in `hidden`.
Tensor run_layers(Cell cell, T given, std::vector<Hidden>& hidden, const RecurrentCall& c) {
  const std::vector<Parameters> parameters = gather(c);
  const std::size_t directions = c.bidirectional ? 2 : 1;
  Tensor input = c.batch_first ? ops::transpose(given, 0, 1) : given;
  for (I layer = 0; layer < c.num_layers; ++layer) {
    const std::size_t first = std::size_t(layer) * directions;
    input = run_layer(cell, input, &hidden[first], &parameters[first], c.bidirectional);
    if (c.dropout != 0 && c.train && layer + 1 < c.num_layers) input = ops::dropout(input, c.dropout, true);
  }
  return c.batch_first ? ops::transpose(input, 0, 1) : input;
}

ops::OneState one_state(Cell cell, T input, T hx, const RecurrentCall& c) {
  std::vector<Hidden> hidden;
  for (auto& h : ops::unbind(hx, 0)) hidden.push_back({h, {}});
  const Tensor output = run_layers(cell, input, hidden, c);
  Tensors last;
  for (auto& state : hidden) last.push_back(state.h);
  return {output, ops::stack(last, 0)};
}

}  // namespace

namespace ops {
TwoStates lstm_by_steps(T input, const Tensors& hx, const RecurrentCall& call) {
  std::vector<Hidden> hidden;
  {
    const Tensors h = unbind(hx[0], 0), c = unbind(hx[1], 0);
    for (std::size_t i = 0; i < h.size(); ++i) hidden.push_back({h[i], c[i]});
  }
  const Tensor output = run_layers(lstm_step, input, hidden, call);
  Tensors hy, cy;
  for (auto& state : hidden) hy.push_back(state.h), cy.push_back(state.c);
  return {output, stack(hy, 0), stack(cy, 0)};
}
OneState gru_by_steps(T input, T hx, const RecurrentCall& call) { return one_state(gru_step, input, hx, call); }
OneState rnn_by_steps(T input, T hx, const RecurrentCall& call, bool is_tanh) {
  return one_state(is_tanh ? simple_step<true> : simple_step<false>, input, hx, call);
}
OneState lstm_cell_by_steps(T input, const Tensors& hx, T w_ih, T w_hh, T b_ih, T b_hh) {
  const Hidden next = lstm_step(input, {hx[0], hx[1]}, {w_ih, w_hh, b_ih, b_hh, {}}, false);
  return {next.h, next.c};
}
Tensor gru_cell_by_steps(T input, T hx, T w_ih, T w_hh, T b_ih, T b_hh) {
  return gru_step(input, {hx, {}}, {w_ih, w_hh, b_ih, b_hh, {}}, false).h;
}
}  // namespace ops
}  // namespace memest

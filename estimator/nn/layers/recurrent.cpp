// torch.nn.RNN, LSTM, GRU and their cells (torch/nn/modules/rnn.py).
#include <fmt/format.h>

#include <unordered_set>

#include "fake/counted.h"
#include "nn/layer.h"
#include "nn/moved.h"
#include "ops/factories.h"
#include "ops/recurrent.h"
#include "ops/views.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

/// forward(input, hx=None).
struct Call {
  Tensor input;
  Value state;
};
Call call_of(const Module& m, const Values& arguments, const KeywordArguments& keywords) {
  Values given = arguments;
  given.resize(std::max<std::size_t>(2, given.size()));
  for (auto& [name, v] : keywords) {
    if (name != "input" && name != "hx") throw Error(m.type() + " takes no argument '" + name + "'", "it takes input, hx");
    given[name == "hx"] = v;
  }
  if (given.size() > 2) throw Error(fmt::format("{} takes an input and a state, {} arguments were given", m.type(), given.size()));
  if (!std::holds_alternative<Tensor>(given[0])) throw Error(m.type() + " takes a tensor, found " + describe(given[0]));
  return {std::get<Tensor>(given[0]), given[1]};
}
Tensor state_of(const Module& m, const Value& v) {
  if (!std::holds_alternative<Tensor>(v)) throw Error(m.type() + ": the state must be a tensor, found " + describe(v));
  return std::get<Tensor>(v);
}
/// (h, c), each seen through f.
template <class F>
Tensors states_of(const Module& m, const Value& v, F f) {
  auto* pair = std::get_if<std::shared_ptr<List>>(&v);
  if (!pair || (*pair)->items.size() != 2) throw Error(m.type() + ": the state must be a pair (h, c), found " + describe(v));
  return {f(state_of(m, (*pair)->items[0])), f(state_of(m, (*pair)->items[1]))};
}

struct Shape {
  I input, hidden, layers;
  bool bias, batch_first;
  double dropout;
  bool both;
  I proj = 0;
};

class RecurrentNet : public Module, public AfterMove {
 public:
  RecurrentNet(const char* type, I gates, const Shape& s) : Module(type), s_(s) {
    if (s.input < 1) throw Error("input_size must be greater than zero");
    if (s.hidden < 1) throw Error("hidden_size must be greater than zero");
    if (s.layers < 1) throw Error("num_layers must be greater than zero");
    if (!(s.dropout >= 0 && s.dropout <= 1)) throw Error(fmt::format("dropout should be a number in range [0, 1], found {}", s.dropout));
    if (s.proj < 0) throw Error("proj_size should be a positive integer or zero to disable projections");
    if (s.proj >= s.hidden) throw Error("proj_size has to be smaller than hidden_size");
    const I rows = checked_mul(gates, s.hidden);
    for (I layer = 0; layer < s.layers; ++layer)
      for (I direction = 0; direction < directions(); ++direction) {
        const std::string suffix = fmt::format("_l{}{}", layer, direction ? "_reverse" : "");
        new_parameter("weight_ih" + suffix, {rows, layer == 0 ? s.input : output() * directions()});
        new_parameter("weight_hh" + suffix, {rows, output()});
        if (s.bias) new_parameter("bias_ih" + suffix, {rows});
        if (s.bias) new_parameter("bias_hh" + suffix, {rows});
        if (s.proj) new_parameter("weight_hr" + suffix, {s.proj, s.hidden});
      }
  }
  /// flatten_parameters(): not where parameters differ in type or share memory, nor off the GPU.
  void moved() final {
    if (counts_libtorch()) return;
    const Tensors weights = flat_weights();
    std::unordered_set<const Storage*> storages;
    for (auto& w : weights) {
      if (!w || w.on_host() || w.dtype() != weights[0].dtype() || !ops::cudnn_takes_flat_weights(w.dtype())) return;
      storages.insert(w->storage.get());
    }
    if (storages.size() == weights.size()) ops::flatten_recurrent_weights(weights, I(weights.size()) / (s_.layers * directions()));
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) final {
    auto [input, state] = call_of(*this, arguments, keywords);
    if (input.dim() != 2 && input.dim() != 3)
      throw Error(fmt::format("{}: Expected input to be 2D or 3D, got {}D tensor instead", type(), input.dim()));
    const bool batched = input.dim() == 3;
    const I batch_dim = s_.batch_first ? 0 : 1;
    if (!batched) input = ops::unsqueeze(input, batch_dim);
    if (input.size(-1) != s_.input)
      throw Error(fmt::format("input.size(-1) must be equal to input_size. Expected {}, got {}", s_.input, input.size(-1)));
    if (input.dtype() != parameter(0).dtype() && !runtime().autocast.enabled)
      throw Error(
          fmt::format("RNN input dtype ({}) does not match weight dtype ({})", name_of(input.dtype()), name_of(parameter(0).dtype())));
    return run(input, state, batched, input.size(batch_dim));
  }
  virtual Value run(T input, const Value& state, bool batched, I batch) = 0;

  Tensors flat_weights() const {
    Tensors weights;
    for (auto& [name, p] : own_parameters()) weights.push_back(p);
    return weights;
  }
  Tensor zeros(T input, I batch, I width) const { return ops::zeros({s_.layers * directions(), batch, width}, input.dtype()); }
  I directions() const { return s_.both ? 2 : 1; }
  I output() const { return s_.proj ? s_.proj : s_.hidden; }
  /// Of an input without a batch: the state has one dimension less.
  Tensor with_batch(T state, bool batched) const {
    const int wanted = batched ? 3 : 2;
    if (state.dim() != wanted)
      throw Error(fmt::format("For {} input, hx should be {}-D but got {}-D tensor", batched ? "batched 3-D" : "unbatched 2-D", wanted,
                              state.dim()));
    return batched ? state : ops::unsqueeze(state, 1);
  }
  const Shape s_;
};

class OneStateNet final : public RecurrentNet {
 public:
  using Run = const Op<ops::OneState(T, T, const Tensors&, bool, I, double, bool, bool, bool)>&;
  OneStateNet(const char* type, I gates, const Shape& s, Run op) : RecurrentNet(type, gates, s), op_(op) {}

 protected:
  Value run(T input, const Value& state, bool batched, I batch) override {
    const Tensor hx = is_none(state) ? zeros(input, batch, s_.hidden) : with_batch(state_of(*this, state), batched);
    auto [output, hidden] = op_(input, hx, flat_weights(), s_.bias, s_.layers, s_.dropout, training, s_.both, s_.batch_first);
    if (!batched) {
      output = ops::squeeze_dim(output, s_.batch_first ? 0 : 1);
      hidden = ops::squeeze_dim(hidden, 1);
    }
    return make_tuple({to_value(output), to_value(hidden)});
  }

 private:
  Run op_;
};

class LSTM final : public RecurrentNet {
 public:
  explicit LSTM(const Shape& s) : RecurrentNet("LSTM", 4, s) {}

 protected:
  Value run(T input, const Value& state, bool batched, I batch) override {
    Tensors hx;
    if (is_none(state)) {
      hx.push_back(zeros(input, batch, output()));
      hx.push_back(zeros(input, batch, s_.hidden));
    } else {
      hx = states_of(*this, state, [&](T x) { return with_batch(x, batched); });
    }
    auto [output, hy, cy] = ops::lstm(input, hx, flat_weights(), s_.bias, s_.layers, s_.dropout, training, s_.both, s_.batch_first);
    if (!batched) {
      output = ops::squeeze_dim(output, s_.batch_first ? 0 : 1);
      hy = ops::squeeze_dim(hy, 1);
      cy = ops::squeeze_dim(cy, 1);
    }
    return make_tuple({to_value(output), make_tuple({to_value(hy), to_value(cy)})});
  }
};

const Layer rnn{
    "RNN(int input_size, int hidden_size, int num_layers=1, str nonlinearity='tanh', bool bias=True, bool batch_first=False, float "
    "dropout=0.0, bool bidirectional=False)",
    [](I input, I hidden, I layers, const std::string& nonlinearity, bool bias, bool batch_first, double dropout, bool both) -> ModulePtr {
      if (nonlinearity != "tanh" && nonlinearity != "relu")
        throw Error(fmt::format("Unknown nonlinearity '{}'. Select from 'tanh' or 'relu'.", nonlinearity));
      return std::make_shared<OneStateNet>("RNN", 1, Shape{input, hidden, layers, bias, batch_first, dropout, both},
                                           nonlinearity == "tanh" ? ops::rnn_tanh : ops::rnn_relu);
    }};
const Layer gru{
    "GRU(int input_size, int hidden_size, int num_layers=1, bool bias=True, bool batch_first=False, float dropout=0.0, bool "
    "bidirectional=False)",
    [](I input, I hidden, I layers, bool bias, bool batch_first, double dropout, bool both) -> ModulePtr {
      return std::make_shared<OneStateNet>("GRU", 3, Shape{input, hidden, layers, bias, batch_first, dropout, both}, ops::gru);
    }};
const Layer lstm{
    "LSTM(int input_size, int hidden_size, int num_layers=1, bool bias=True, bool batch_first=False, float dropout=0.0, bool "
    "bidirectional=False, int proj_size=0)",
    [](I input, I hidden, I layers, bool bias, bool batch_first, double dropout, bool both, I proj) -> ModulePtr {
      return std::make_shared<LSTM>(Shape{input, hidden, layers, bias, batch_first, dropout, both, proj});
    }};

// ---- cells ---------------------------------------------------------------------------------------------------------------------

class CellBase : public Module {
 public:
  CellBase(const char* type, I gates, I input, I hidden, bool bias) : Module(type), hidden_(hidden) {
    const I rows = checked_mul(gates, hidden);
    new_parameter("weight_ih", {rows, input});
    new_parameter("weight_hh", {rows, hidden});
    new_parameter("bias_ih", {rows}, bias);
    new_parameter("bias_hh", {rows}, bias);
  }

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) final {
    auto [input, state] = call_of(*this, arguments, keywords);
    if (input.dim() != 1 && input.dim() != 2)
      throw Error(fmt::format("{}: Expected input to be 1D or 2D, got {}D instead", type(), input.dim()));
    const bool batched = input.dim() == 2;
    if (!batched) input = ops::unsqueeze(input, 0);
    return run(input, state, batched);
  }
  virtual Value run(T input, const Value& state, bool batched) = 0;
  Tensor zeros(T input) const { return ops::zeros({input.size(0), hidden_}, input.dtype()); }
  static Tensor with_batch(T state, bool batched) { return batched ? state : ops::unsqueeze(state, 0); }
  static Value without_batch(T state, bool batched) { return to_value(batched ? Tensor(state) : ops::squeeze_dim(state, 0)); }

 private:
  I hidden_;
};

class OneStateCell final : public CellBase {
 public:
  using Run = const Op<Tensor(T, T, T, T, T, T)>&;
  OneStateCell(const char* type, I gates, I input, I hidden, bool bias, Run op) : CellBase(type, gates, input, hidden, bias), op_(op) {}

 protected:
  Value run(T input, const Value& state, bool batched) override {
    const Tensor hx = is_none(state) ? zeros(input) : with_batch(state_of(*this, state), batched);
    return without_batch(op_(input, hx, parameter(0), parameter(1), parameter(2), parameter(3)), batched);
  }

 private:
  Run op_;
};

class LSTMCell final : public CellBase {
 public:
  LSTMCell(I input, I hidden, bool bias) : CellBase("LSTMCell", 4, input, hidden, bias) {}

 protected:
  Value run(T input, const Value& state, bool batched) override {
    Tensors hx;
    if (is_none(state))
      hx = Tensors(2, zeros(input));  // one tensor for both
    else
      hx = states_of(*this, state, [&](T x) { return with_batch(x, batched); });
    auto [h, c] = ops::lstm_cell(input, hx, parameter(0), parameter(1), parameter(2), parameter(3));
    return make_tuple({without_batch(h, batched), without_batch(c, batched)});
  }
};

const Layer rnn_cell{"RNNCell(int input_size, int hidden_size, bool bias=True, str nonlinearity='tanh')",
                     [](I input, I hidden, bool bias, const std::string& nonlinearity) -> ModulePtr {
                       if (nonlinearity != "tanh" && nonlinearity != "relu")
                         throw Error(fmt::format("Unknown nonlinearity: {}", nonlinearity), "select from 'tanh' or 'relu'");
                       return std::make_shared<OneStateCell>("RNNCell", 1, input, hidden, bias,
                                                             nonlinearity == "tanh" ? ops::rnn_tanh_cell : ops::rnn_relu_cell);
                     }};
const Layer gru_cell{"GRUCell(int input_size, int hidden_size, bool bias=True)", [](I input, I hidden, bool bias) -> ModulePtr {
                       return std::make_shared<OneStateCell>("GRUCell", 3, input, hidden, bias, ops::gru_cell);
                     }};
const Layer lstm_cell{"LSTMCell(int input_size, int hidden_size, bool bias=True)",
                      [](I input, I hidden, bool bias) -> ModulePtr { return std::make_shared<LSTMCell>(input, hidden, bias); }};

}  // namespace
}  // namespace memest::nn

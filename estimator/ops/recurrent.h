// Recurrent nets and cells.
#pragma once
#include "ops/op.h"

namespace memest::ops {

using I = std::int64_t;
using OneState = std::tuple<Tensor, Tensor>;           ///< output, hy
using TwoStates = std::tuple<Tensor, Tensor, Tensor>;  ///< output, hy, cy
extern const Op<TwoStates(T, const Tensors&, const Tensors&, bool, I, double, bool, bool, bool)> lstm;
extern const Op<OneState(T, T, const Tensors&, bool, I, double, bool, bool, bool)> gru, rnn_tanh, rnn_relu;
extern const Op<OneState(T, const Tensors&, T, T, T, T)> lstm_cell;
extern const Op<Tensor(T, T, T, T, T, T)> gru_cell, rnn_tanh_cell, rnn_relu_cell;

/// Whether cuDNN's recurrent nets take one buffer of parameters of this type (torch.backends.cudnn.is_acceptable).
bool cudnn_takes_flat_weights(DType dtype);
/// _cudnn_rnn_flatten_weight: the parameters become parts of one buffer; `per_layer` of them belong to a layer and direction.
void flatten_recurrent_weights(const Tensors& weights, I per_layer);

}  // namespace memest::ops

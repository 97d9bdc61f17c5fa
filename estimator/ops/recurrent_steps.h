// Recurrent nets step by step, as LibTorch runs them on devices that have no kernel for the whole net: the CPU and the meta device.
#pragma once
#include "ops/recurrent.h"

namespace memest::ops {

/// What lstm.input and its kin take.
struct RecurrentCall {
  Tensors params;
  bool has_biases;
  I num_layers;
  double dropout;
  bool train, bidirectional, batch_first;
};
TwoStates lstm_by_steps(T input, const Tensors& hx, const RecurrentCall& call);
OneState gru_by_steps(T input, T hx, const RecurrentCall& call);
OneState rnn_by_steps(T input, T hx, const RecurrentCall& call, bool is_tanh);

/// One step of a cell; hy and cy.
OneState lstm_cell_by_steps(T input, const Tensors& hx, T w_ih, T w_hh, T b_ih, T b_hh);
Tensor gru_cell_by_steps(T input, T hx, T w_ih, T w_hh, T b_ih, T b_hh);

}  // namespace memest::ops

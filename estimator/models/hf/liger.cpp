// Sources: liger_kernel 0.8.5, transformers/model/loss_utils.py and ops/fused_linear_cross_entropy.py.
#include "models/hf/liger.h"

#include <bit>

#include "fake/autograd.h"
#include "fake/kernel.h"
#include "ops/workspace.h"

namespace memest::hf {
namespace {

I next_power_of_2(I n) { return I(std::bit_ceil(std::uint64_t(n))); }

/// torch.mm(a, b, out=...) and torch.addmm(out, a, b, out=out): beside the product, which has its place, the workspace.
void multiply_into(const X& a, const X& b) {
  runtime().count_flops(matmul_flops(1, a.size(0), a.size(1), b.size(1)));
  CublasWorkspace workspace(CublasWorkspace::Call::gemm);
}

/// _can_use_mm_out; gradients are off.
bool can_use_mm_out(const X& input, const X& weight) {
  const AutocastState& autocast = runtime().autocast;
  return input.dtype() == weight.dtype() && (!autocast.enabled || input.dtype() == autocast.dtype);
}

/// grad_weight += grad_logits_chunk.t() @ input_chunk
void add_weight_gradient(const X& grad_weight, const X& grad_logits_chunk, const X& input_chunk) {
  const RunSettings& settings = runtime().settings;
  const DType type = grad_logits_chunk.dtype(), into = grad_weight.dtype();
  X grad_logits_t = grad_logits_chunk.t();
  const bool adds = into == type || (into == DType::float32 && settings.torch.at_least(8));
  if (settings.device.capability() >= 80 && is_reduced_floating(type) && adds) {
    X chunk = input_chunk.to(type);
    multiply_into(grad_logits_t, chunk);
  } else {
    grad_logits_chunk.t().matmul(input_chunk).to_float();
  }
}

struct Gradients {
  X input, weight, bias;
};

/// fused_linear_cross_entropy_forward with the default arguments.
X fused_linear_cross_entropy_forward(const X& input, const X& weight, const X& target, const X& bias, Gradients& grad) {
  const I tokens = input.size(0), vocab = weight.size(0), hidden = input.size(1);
  const I inc_factor = ceil_div(vocab, hidden);
  const I chunk_size = std::min(next_power_of_2(ceil_div(tokens, inc_factor)), tokens);
  grad.input = zeros(input.sizes(), input.dtype());
  if (input.requires_grad()) {
    if (weight.requires_grad()) grad.weight = zeros(weight.sizes(), weight.dtype());
    if (bias) grad.bias = zeros(bias.sizes(), bias.dtype());
  }
  NoGrad guard;
  X loss_1d = zeros({tokens}, DType::float32);
  X target_mask = aten("ne", {Tensor(target), I{-100}});
  aten("sum", {Tensor(target_mask)});  // total_n_non_ignore
  const bool use_mm_out = can_use_mm_out(input, weight);
  X logits_storage;
  if (use_mm_out && (!bias || bias.dtype() == input.dtype())) logits_storage = empty({chunk_size, vocab}, input.dtype());
  for (I start = 0; start < tokens; start += chunk_size) {
    const I end = std::min(start + chunk_size, tokens);
    X input_chunk = input.slice(0, start, end);
    X logits_chunk;
    if (logits_storage) {
      logits_chunk = logits_storage.slice(0, std::nullopt, end - start);
      multiply_into(input_chunk, weight.t());
    } else {
      logits_chunk = input_chunk.matmul(weight.t());
      if (bias) logits_chunk = logits_chunk.add(bias);
    }
    // liger_cross_entropy_kernel writes the logits' gradient over them
    if (input.requires_grad()) {
      if (use_mm_out && logits_chunk.dtype() == grad.input.dtype())
        multiply_into(logits_chunk, weight);
      else
        logits_chunk.matmul(weight);  // copied into grad_input[start:end]
    }
    if (grad.weight) add_weight_gradient(grad.weight, logits_chunk, input_chunk);
    if (grad.bias) logits_chunk.sum(0);
  }
  logits_storage.reset();
  return leave(aten("sum", {Tensor(loss_1d)}), loss_1d, target_mask);
}

/// LigerFusedLinearCrossEntropyFunction
X fused_linear_cross_entropy(const X& input, const X& weight, const X& target, const X& bias) {
  auto fn = node("LigerFusedLinearCrossEntropyFunctionBackward", {input, weight, bias}, {}, [](Backward& w, const Tensors& grads) {
    {  // torch.equal(grad_output, torch.tensor(1.0))
      X one = empty(Dims{}, DType::float32);
      X equal = aten("eq", {w.grad[0], Tensor(one)});
      X all = aten("all", {Tensor(equal)});
    }
    for (std::size_t i = 0; i < 3; ++i)
      if (w.needs(int(i))) w.out[i] = grads[i];  // element_mul_kernel scales them in place
  });
  Gradients grad;
  X loss = fused_linear_cross_entropy_forward(input, weight, target, bias, grad);
  fn.outputs({loss}, {grad.input, grad.weight, grad.bias});
  return loss;
}

}  // namespace

X liger_causal_lm_loss(X hidden_states, const X& weight, const X& bias, X labels) {
  if (weight.dim() != 2 || weight.size(1) != hidden_states.size(-1))
    throw Error("--loss chunked multiplies with the head's weight, which is quantised", "keep the head as it is: --quant ...,skip=lm_head");
  labels = aten("constant_pad_nd", {Tensor(labels), list_of(Dims{0, 1}), I{-100}});
  X shift_labels = labels.slice(-1, 1, std::nullopt).contiguous();
  hidden_states = hidden_states.view({-1, hidden_states.size(-1)});
  shift_labels = shift_labels.view({-1});
  X loss = fused_linear_cross_entropy(hidden_states, weight, shift_labels, bias);
  return leave(std::move(loss), labels, shift_labels);
}

}  // namespace memest::hf

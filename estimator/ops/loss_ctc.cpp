// Connectionist temporal classification.
// Sources: derivatives.yaml _ctc_loss; aten/src/ATen/native/LossCTC.cpp, native/cuda/LossCTC.cu of 2.15. The kernels are PyTorch's own;
// cuDNN's take over for float32 inputs with 1-D int32 targets on the host, which is not modelled.
#include <algorithm>
#include <limits>

#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/indexing.h"
#include "ops/iterator.h"
#include "ops/loss_reduction.h"
#include "ops/pointwise.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

/// Runs a kernel that reads the lengths of a batch and the offsets of its targets.
template <class Kernel>
void with_lengths(I batch, Kernel kernel) {
  Tensor third;
  const Tensor first = empty({batch}, DType::int64), second = empty({batch}, DType::int64);
  third = empty({batch}, DType::int64);
  kernel();
}
/// _ctc_loss: the negative log likelihood of each sample.
Tensor log_likelihood(T log_probs, T targets, I longest_target) {
  auto fn = node("CtcLossBackward0", {log_probs}, {log_probs, targets}, [](Backward& w, T x, T, T, T log_alpha) {
    with_lengths(x.size(1), [&] {
      const Tensor log_beta = empty(log_alpha.sizes(), x.dtype());
      w.out[0] = empty(x.sizes(), x.dtype());
    });
  });
  const I steps = log_probs.size(0), batch = log_probs.size(1);
  Tensor log_alpha, likelihood;
  with_lengths(batch, [&] {
    log_alpha = empty({batch, steps, 2 * longest_target + 1}, log_probs.dtype());
    likelihood = empty({batch}, log_probs.dtype());
  });
  fn.outputs({likelihood, log_alpha}, {likelihood, log_alpha});
  return likelihood;
}
Tensor ctc(T log_probs, T targets, I longest_target, I reduction, bool zero_infinity) {
  if (log_probs.dim() != 2 && log_probs.dim() != 3)
    throw Error("ctc_loss: log_probs must be [T, N, C] or [T, C], found " + describe(log_probs));
  const bool batched = log_probs.dim() == 3;
  Tensor loss = log_likelihood(batched ? log_probs : ops::unsqueeze(log_probs, 1), targets, longest_target);
  if (zero_infinity) {
    const Tensor zero = empty({}, loss.dtype()), infinite = call_tensor_op("aten::eq", loss, std::numeric_limits<double>::infinity());
    loss = call_tensor_op("aten::where", infinite, zero, loss);
  }
  if (reduction != kReductionMean)
    return reduction == kReductionSum || batched ? apply_loss_reduction(loss, reduction) : ops::squeeze_dim(loss, 0);
  Tensor lengths;
  {
    const Tensor given = empty(loss.sizes(), loss.dtype());
    lengths = ops::unary("aten::clamp_min", given);
  }
  const Tensor per_target = ops::div(loss, lengths);
  return apply_loss_reduction(per_target, reduction);
}
Tensor ctc_loss(T log_probs, T targets, const Dims& input_lengths, const Dims& target_lengths, I, I reduction, bool zero_infinity) {
  const I batch = log_probs.dim() == 3 ? log_probs.size(1) : 1;
  if (input_lengths.size() != batch || target_lengths.size() != batch)
    throw Error("ctc_loss: one input length and one target length for each of the " + std::to_string(batch) + " samples are expected");
  return ctc(log_probs, targets, *std::max_element(target_lengths.begin(), target_lengths.end()), reduction, zero_infinity);
}
/// The lengths are copied to the host; which they are is not known here.
Tensor ctc_loss_tensors(T log_probs, T targets, T, T, I, I reduction, bool zero_infinity) {
  const I batch = log_probs.dim() == 3 ? std::max<I>(log_probs.size(1), 1) : 1;
  if (targets.dim() == 1) ops::note_data_dependent("aten::ctc_loss", "all targets have the same length");
  return ctc(log_probs, targets, targets.dim() > 1 ? targets.size(1) : targets.numel() / batch, reduction, zero_infinity);
}
constexpr const char* kSource = "native/LossCTC.cpp ctc_loss; native/cuda/LossCTC.cu";
const Op ctc_loss_op{
    {"aten::ctc_loss.IntList(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, int blank=0, int "
     "reduction=Mean, bool zero_infinity=False) -> Tensor",
     Autocast::none, "log_probs, targets, result0, result1", kSource},
    ctc_loss};
const Op ctc_loss_tensor_op{{"aten::ctc_loss.Tensor(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int "
                             "blank=0, int reduction=Mean, bool zero_infinity=False) -> Tensor",
                             Autocast::none, "log_probs, targets, result0, result1", kSource},
                            ctc_loss_tensors};

}  // namespace
}  // namespace memest

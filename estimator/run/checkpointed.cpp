#include "run/checkpointed.h"

#include <cmath>

#include "fake/checkpoint.h"

namespace memest::run {
namespace {

/// torch.utils.checkpoint.checkpoint_sequential: equal segments, the last one takes the rest and is not checkpointed.
Tensor checkpoint_sequential(const std::vector<std::pair<std::string, nn::ModulePtr>>& functions, std::int64_t segments, T input,
                             bool reentrant) {
  const std::int64_t count = std::int64_t(functions.size());
  if (segments > count || segments < 1)
    throw Error("--checkpoint: the model has " + std::to_string(count) + " top-level layers, " + std::to_string(segments) +
                " segments were asked for");
  auto run = [&functions](std::int64_t start, std::int64_t end) {
    return [&functions, start, end](const Tensors& inputs) {
      Tensor x = inputs[0];
      for (std::int64_t i = start; i < end; ++i) x = (*functions[std::size_t(i)].second)(x);
      return Tensors{x};
    };
  };
  const std::int64_t size = count / segments;
  Tensor x = input;
  std::int64_t end = 0;
  for (std::int64_t start = 0; start < size * (segments - 1); start += size) {
    end = start + size;
    x = reentrant ? checkpoint_reentrant(run(start, end), {x})[0] : checkpoint(run(start, end), {x})[0];
  }
  return run(end, count)({x})[0];
}

}  // namespace

nn::Outcome run_checkpointed(nn::Model& model, const Checkpointing& c, const Tensors& batch) {
  using Where = Checkpointing::Where;
  if (c.where == Where::none || (c.where == Where::full && model.checkpoints_itself())) return model.forward(batch);
  if (model.root->type() != "Sequential" || batch.size() != 1)
    throw Error("--checkpoint " + c.text() + " needs a model that is a list of layers", "checkpoint parts by name with modules=GLOB");
  const std::int64_t count = std::int64_t(model.root->children().size());
  const std::int64_t segments = c.where == Where::full       ? count
                                : c.where == Where::segments ? c.count
                                : c.where == Where::sqrt     ? std::max<std::int64_t>(1, std::llround(std::sqrt(double(count))))
                                : c.where == Where::every    ? std::max<std::int64_t>(1, count / c.count)
                                                             : 0;
  if (segments == 0) throw Error("--checkpoint " + c.text() + " is not built yet");
  return {checkpoint_sequential(model.root->children(), segments, batch[0], c.reentrant), {}};
}

}  // namespace memest::run

// Sources: derivatives.yaml embedding; aten/src/ATen/native/{Embedding.cpp,cuda/Embedding.cu}.
#include "ops/embedding.h"

#include "ops/iterator.h"

namespace memest {
namespace {

Tensor embedding(T weight, T indices, std::int64_t, bool, bool) {
  if (weight.dim() != 2) throw Error("embedding: the weight must be 2-D, found " + describe(weight));
  if (!is_integral(indices.dtype(), false))
    throw Error("embedding: the indices must be integers, found " + describe(indices),
                "an input's dtype is given as --input NAME=SHAPE:int64");
  auto fn = node("EmbeddingBackward0", {weight}, {indices}, [](Backward& w, T) { w.out[0] = empty(w.sizes(0), w.grad[0].dtype()); });
  Dims sizes = indices.sizes();
  sizes.push_back(weight.sizes()[1]);
  Tensor y = empty(sizes, weight.dtype());
  fn.outputs({y});
  return y;
}

}  // namespace

namespace ops {
const Op<Tensor(T, T, std::int64_t, bool, bool)> embedding{
    {"aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor",
     Autocast::none, "indices", "derivatives.yaml embedding; native/cuda/Embedding.cu"},
    memest::embedding};
}  // namespace ops
}  // namespace memest

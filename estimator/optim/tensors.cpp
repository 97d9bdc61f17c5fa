#include "optim/tensors.h"

#include <algorithm>

#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/reductions.h"

namespace memest::optim {
namespace {

constexpr std::int64_t kChunk = 65536;  // native/cuda/MultiTensorApply.cuh kChunkSize

Tensor iterate(std::span<const Tensor> inputs) {
  ResultType type;
  for (auto& x : inputs) type.add(x);
  return elementwise(inputs, type.get());
}

List foreach_over(const char* op, std::initializer_list<const Tensors*> lists) {
  Scoped<const char*> scope(runtime().op, op);
  List out;
  const std::size_t count = (*lists.begin())->size();
  out.reserve(count);
  Tensors inputs(lists.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t k = 0;
    for (auto* list : lists) inputs[k++] = (*list)[i];
    out.push_back(iterate(inputs));
  }
  return out;
}

}  // namespace

Tensor fresh(const char* op, Tensor a, Tensor b, Tensor c) {
  Scoped<const char*> scope(runtime().op, op);
  Tensors inputs{std::move(a)};
  if (b) inputs.push_back(std::move(b));
  if (c) inputs.push_back(std::move(c));
  Tensor y = iterate(inputs);
  return y;
}
Tensor fresh_as(const char* op, DType dtype, Tensor a, Tensor b) {
  Scoped<const char*> scope(runtime().op, op);
  Tensors inputs{std::move(a)};
  if (b) inputs.push_back(std::move(b));
  return elementwise(inputs, dtype);
}
Tensor scalar(DType dtype) { return ops::scalar_tensor(dtype); }

Tensor where_number(Tensor condition, Tensor x) {
  Tensor number = scalar(x.dtype());
  return fresh_as("aten::where", number.dtype(), std::move(condition), std::move(x));
}
Tensor where_numbers(Tensor condition) {
  Tensor first = scalar(), second = scalar();
  return fresh_as("aten::where", DType::float32, std::move(condition));
}

Tensor vector_norm(T x, const std::optional<Dims>& dims, bool keepdim) {
  Scoped<const char*> scope(runtime().op, "aten::linalg_vector_norm");
  const auto mask = reduction_mask(dims, x.dim());
  Tensor y = empty(reduced_sizes(x.sizes(), mask, keepdim), x.dtype());
  reduce_scratch(x, mask,
                 {.accumulator_size = item_size(op_math_type(x.dtype())),
                  .input_size = item_size(x.dtype()),
                  .accumulates_in_output = !is_reduced_floating(x.dtype()),
                  .output_size = item_size(x.dtype())});
  return y;
}
void read_norm(T x) { vector_norm(x); }
Tensor mean_over(T x, const Dims& dims, bool keepdim) { return ops::mean_dim(x, dims, keepdim, std::nullopt); }
Tensor max_of(Tensor x) {
  Scoped<const char*> scope(runtime().op, "aten::max");
  Tensor y = empty(Dims{}, x.dtype());
  reduce_scratch(x, reduction_mask({}, x.dim()),
                 {.accumulator_size = item_size(x.dtype()), .input_size = item_size(x.dtype()), .output_size = item_size(x.dtype())});
  return y;
}
Tensor sum_of(Tensor x) { return ops::sum(std::move(x), std::nullopt); }

List foreach (const char* op, const Tensors& a) { return foreach_over(op, {&a}); }
List foreach (const char* op, const Tensors& a, const Tensors& b) { return foreach_over(op, {&a, &b}); }
List foreach (const char* op, const Tensors& a, const Tensors& b, const Tensors& c) { return foreach_over(op, {&a, &b, &c}); }

bool fast_route(std::initializer_list<const Tensors*> lists) {
  const Tensors& first = **lists.begin();
  for (auto* list : lists)
    for (std::size_t i = 0; i < list->size(); ++i) {
      T x = (*list)[i];
      if (x.dtype() != first[0].dtype() || x.on_host() != first[0].on_host() || !is_dense(x) || !(x.sizes() == first[i].sizes()))
        return false;
      for (int d = 0; d < x.dim(); ++d)
        if (x.sizes()[d] != 1 && x.strides()[d] != first[i].strides()[d]) return false;
    }
  return true;
}

List foreach_norm(const Tensors& list) {
  List result;
  if (!fast_route({&list})) {
    for (auto& x : list) result.push_back(vector_norm(x));
    return result;
  }
  Scoped<const char*> scope(runtime().op, "aten::_foreach_norm");
  std::int64_t most = 0;
  for (auto& x : list) most = std::max(most, ceil_div(x.numel(), kChunk));
  Tensor partial = empty({checked_mul(std::int64_t(list.size()), most)}, op_math_type(list[0].dtype()));
  for (auto& x : list) result.push_back(empty(Dims{}, x.dtype()));
  return result;
}

std::vector<std::vector<std::size_t>> by_dtype(const Tensors& list) {
  std::vector<std::pair<DType, std::vector<std::size_t>>> groups;
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto it = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.first == list[i].dtype(); });
    if (it == groups.end()) it = groups.insert(groups.end(), {list[i].dtype(), {}});
    it->second.push_back(i);
  }
  std::vector<std::vector<std::size_t>> out;
  for (auto it = groups.rbegin(); it != groups.rend(); ++it) out.push_back(std::move(it->second));
  return out;
}
List picked(const Tensors& list, const std::vector<std::size_t>& positions) {
  List out;
  if (list.empty()) return out;
  for (std::size_t i : positions) out.push_back(list[i]);
  return out;
}
List gradients_of(const Tensors& parameters) {
  List out;
  for (auto& p : parameters) out.push_back(p->grad);
  return out;
}

}  // namespace memest::optim

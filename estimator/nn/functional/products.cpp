// torch.tensordot (torch/functional.py): a number of dimensions, or those of both.
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

const Function tensordot{"tensordot(Tensor a, Tensor b, Any dims=2)", [](T a, T b, const Value& dims) {
                           Dims of_a, of_b;
                           auto* both = std::get_if<std::shared_ptr<List>>(&dims);
                           if (both && (*both)->items.size() == 2) {
                             of_a = Unbox<Dims>::from((*both)->items[0]);
                             of_b = Unbox<Dims>::from((*both)->items[1]);
                           } else if (auto* count = std::get_if<I>(&dims); count && *count >= 0 && *count <= a.dim()) {
                             for (I d = 0; d < *count; ++d) of_a.push_back(d - *count), of_b.push_back(d);
                           } else {
                             throw Error("tensordot expects dims to be int or a pair of lists of int, found " + describe(dims));
                           }
                           return Unbox<Tensor>::from(call_op("aten::tensordot", {a, b, list_of(of_a), list_of(of_b)}, {}));
                         }};

}  // namespace
}  // namespace memest::nn

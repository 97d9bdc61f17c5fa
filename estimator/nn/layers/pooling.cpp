// torch.nn pooling layers (torch/nn/modules/pooling.py): each calls the function of its name.
#include "nn/layer.h"
#include "nn/simple_layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

Value result(std::tuple<Tensor, Tensor> both, bool return_indices) {
  if (return_indices) return to_value(std::move(both));
  return to_value(std::get<0>(std::move(both)));
}

#define MEMEST_POOLS(N)                                                                                                                    \
  const Layer max_pool##N##d{                                                                                                              \
      "MaxPool" #N "d(int[" #N "] kernel_size, int[" #N "]? stride=None, int[" #N "] padding=0, int[" #N                                   \
      "] dilation=1, bool return_indices=False, bool ceil_mode=False)",                                                                    \
      [](const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, const Dims& dilation, bool indices, bool ceil_mode) { \
        return simple_layer("MaxPool" #N "d", [=, s = stride.value_or(kernel)](T x) {                                                      \
          return result(ops::max_pool(N, x, kernel, s, padding, dilation, ceil_mode), indices);                                            \
        });                                                                                                                                \
      }};                                                                                                                                  \
  const Layer adaptive_avg_pool##N##d{                                                                                                     \
      "AdaptiveAvgPool" #N "d(Any output_size)", [](const Value& size) {                                                                   \
        return simple_layer("AdaptiveAvgPool" #N "d", [size](T x) { return call_function("adaptive_avg_pool" #N "d", {x, size}, {}); });   \
      }};                                                                                                                                  \
  const Layer adaptive_max_pool##N##d{"AdaptiveMaxPool" #N "d(Any output_size, bool return_indices=False)",                                \
                                      [](const Value& size, bool indices) {                                                                \
                                        return simple_layer("AdaptiveMaxPool" #N "d", [=](T x) {                                           \
                                          return call_function("adaptive_max_pool" #N "d", {x, size, indices}, {});                        \
                                        });                                                                                                \
                                      }};                                                                                                  \
  const Layer lp_pool##N##d{"LPPool" #N "d(float norm_type, int[" #N "] kernel_size, int[" #N "]? stride=None, bool ceil_mode=False)",     \
                            [](double norm, const Dims& kernel, const std::optional<Dims>& stride, bool ceil_mode) {                       \
                              return simple_layer("LPPool" #N "d",                                                                         \
                                                  [=, k = list_of(kernel), s = stride ? list_of(*stride) : Value(None{})](T x) {           \
                                                    return call_function("lp_pool" #N "d", {x, norm, k, s, ceil_mode}, {});                \
                                                  });                                                                                      \
                            }};
MEMEST_POOLS(1)
MEMEST_POOLS(2)
MEMEST_POOLS(3)
#undef MEMEST_POOLS

const Layer avg_pool1d{
    "AvgPool1d(int[1] kernel_size, int[1]? stride=None, int[1] padding=0, bool ceil_mode=False, bool count_include_pad=True)",
    [](const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, bool ceil_mode, bool include_pad) {
      return simple_layer(
          "AvgPool1d", [=, s = stride.value_or(kernel)](T x) { return ops::avg_pool(1, x, kernel, s, padding, ceil_mode, include_pad); });
    }};
#define MEMEST_AVG_POOL(N)                                                                                                                 \
  const Layer avg_pool##N##d{                                                                                                              \
      "AvgPool" #N "d(int[" #N "] kernel_size, int[" #N "]? stride=None, int[" #N                                                          \
      "] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None)",                                       \
      [](const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding, bool ceil_mode, bool include_pad, std::optional<I>) { \
        return simple_layer("AvgPool" #N "d", [=, s = stride.value_or(kernel)](T x) {                                                      \
          return ops::avg_pool(N, x, kernel, s, padding, ceil_mode, include_pad);                                                          \
        });                                                                                                                                \
      }};
MEMEST_AVG_POOL(2)
MEMEST_AVG_POOL(3)
#undef MEMEST_AVG_POOL

#define MEMEST_FRACTIONAL(N)                                                                                                           \
  const Layer fractional_max_pool##N##d{"FractionalMaxPool" #N "d(int[" #N "] kernel_size, int[" #N "]? output_size=None, float[" #N   \
                                        "]? output_ratio=None, bool return_indices=False, Any _random_samples=None)",                  \
                                        [](const Dims& kernel, const std::optional<Dims>& size,                                        \
                                           const std::optional<std::vector<double>>& ratio, bool indices, const Value&) -> ModulePtr { \
                                          if (!size == !ratio)                                                                         \
                                            throw Error("FractionalMaxPool" #N "d requires either an output_size or an output_ratio"); \
                                          return simple_layer("FractionalMaxPool" #N "d", [=](T x) {                                   \
                                            const Value out = size ? list_of(*size) : Value(None{});                                   \
                                            Values ratios;                                                                             \
                                            for (double r : ratio.value_or(std::vector<double>{})) ratios.push_back(r);                \
                                            return call_function(                                                                      \
                                                "fractional_max_pool" #N "d",                                                          \
                                                {x, list_of(kernel), out, ratio ? make_list(ratios) : Value(None{}), indices}, {});    \
                                          });                                                                                          \
                                        }};
MEMEST_FRACTIONAL(2)
MEMEST_FRACTIONAL(3)
#undef MEMEST_FRACTIONAL

/// module(input, indices, output_size=None).
class MaxUnpool final : public Module {
 public:
  MaxUnpool(const char* type, std::string function, Dims kernel, std::optional<Dims> stride, Dims padding)
      : Module(type),
        function_(std::move(function)),
        kernel_(std::move(kernel)),
        stride_(std::move(stride)),
        padding_(std::move(padding)) {}

 protected:
  Value forward(const Values& arguments, const KeywordArguments& keywords) override {
    static const Schema schema = Schema::parse("forward(Tensor input, Tensor indices, Any output_size=None)");
    std::string problem;
    auto bound = bind_arguments(schema, arguments, keywords, problem);
    if (!bound) throw Error(type() + ": " + problem);
    return call_function(
        function_,
        {(*bound)[0], (*bound)[1], list_of(kernel_), stride_ ? list_of(*stride_) : Value(None{}), list_of(padding_), (*bound)[2]}, {});
  }

 private:
  std::string function_;
  Dims kernel_;
  std::optional<Dims> stride_;
  Dims padding_;
};
#define MEMEST_UNPOOL(N)                                                                                                               \
  const Layer max_unpool##N##d{"MaxUnpool" #N "d(int[" #N "] kernel_size, int[" #N "]? stride=None, int[" #N "] padding=0)",           \
                               [](const Dims& kernel, const std::optional<Dims>& stride, const Dims& padding) -> ModulePtr {           \
                                 return std::make_shared<MaxUnpool>("MaxUnpool" #N "d", "max_unpool" #N "d", kernel, stride, padding); \
                               }};
MEMEST_UNPOOL(1)
MEMEST_UNPOOL(2)
MEMEST_UNPOOL(3)
#undef MEMEST_UNPOOL

}  // namespace
}  // namespace memest::nn

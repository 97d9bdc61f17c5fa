// Random values: none of them are made, only their memory. In place they give a gradient of zeros.
// Sources: derivatives.yaml; aten/src/ATen/native/{Distributions,DistributionTemplates,TensorFactories}.{cpp,h},
// native/cuda/{Randperm,MultinomialKernel}.cu of 2.15.
#include <fmt/format.h>

#include <cmath>

#include "ops/copy.h"
#include "ops/cub.h"
#include "ops/factories.h"
#include "ops/indexing.h"
#include "ops/iterator.h"

namespace memest {
namespace {
using I = std::int64_t;

constexpr const char* kDistributions = "derivatives.yaml; native/Distributions.cpp";

/// Random values in place: the gradient is zeros.
Tensor random_in_place(const char* name, T self) {
  auto fn = node(name, {self}, {}, [](Backward& w) { w.out[0] = empty_like(w.grad[0]); });
  fn.in_place(self);
  return self;
}
/// bernoulli_tensor_cuda_: probabilities of half types are read as float32.
void read_probabilities(T p) {
  if (is_reduced_floating(p.dtype()) && runtime().settings.kernel_scratch()) Scratch read(checked_mul(4, p.numel()));
}
const Op bernoulli_op{{"aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor", Autocast::none, "", kDistributions},
                      +[](T self) {
                        auto fn = node("BernoulliBackward0", {self}, {}, [](Backward& w) { w.out[0] = empty_like(w.grad[0]); });
                        Tensor y = empty(self.sizes(), self.dtype());
                        read_probabilities(self);
                        fn.outputs({y});
                        return y;
                      }};
const Op bernoulli_p_op{
    {"aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor", Autocast::none, "", kDistributions},
    +[](T self, double) { return empty_like(self); }};
const Op bernoulli_float_op{{"aten::bernoulli_.float(Tensor(a!) self, float p=0.5, *, Generator? generator=None) -> Tensor(a!)",
                             Autocast::none, "", kDistributions},
                            +[](T self, double) { return random_in_place("BernoulliBackward2", self); }};
const Op bernoulli_tensor_op{
    {"aten::bernoulli_.Tensor(Tensor(a!) self, Tensor p, *, Generator? generator=None) -> Tensor(a!)", Autocast::none, "", kDistributions},
    +[](T self, T p) {
      read_probabilities(p);
      return random_in_place("BernoulliBackward1", self);
    }};
const Op normal_op{{"aten::normal_(Tensor(a!) self, float mean=0, float std=1, *, Generator? generator=None) -> Tensor(a!)", Autocast::none,
                    "", kDistributions},
                   +[](T self, double, double) { return random_in_place("NormalBackward0", self); }};
const Op uniform_op{{"aten::uniform_(Tensor(a!) self, float from=0, float to=1, *, Generator? generator=None) -> Tensor(a!)",
                     Autocast::none, "", kDistributions},
                    +[](T self, double, double) { return random_in_place("UniformBackward0", self); }};
const Op exponential_op{
    {"aten::exponential_(Tensor(a!) self, float lambd=1, *, Generator? generator=None) -> Tensor(a!)", Autocast::none, "", kDistributions},
    +[](T self, double) { return random_in_place("ExponentialBackward0", self); }};
const Op random_op{{"aten::random_(Tensor(a!) self, *, Generator? generator=None) -> Tensor(a!)", Autocast::none, "", kDistributions},
                   +[](T self) { return random_in_place("RandomBackward0", self); }};

/// check_normal_tensor_std: std.min() >= 0.
void check_std(T deviation) {
  if (!runtime().settings.kernel_scratch() || deviation.numel() == 0) return;
  std::optional<Scratch> least(item_size(deviation.dtype())), fits(1);
  fits.reset();
  least.reset();
}
// normal_out_impl checks the deviations twice: the caller's and its own
Tensor normal_tensors(T mean, T deviation) {
  auto fn = node("NormalBackward3", {mean, deviation}, {}, [](Backward& w) {
    for (int i = 0; i < 2; ++i)
      if (w.needs(i)) w.out[std::size_t(i)] = ops::zeros(w.sizes(i), w.grad[0].dtype());
  });
  check_std(deviation);
  Tensor y = empty(broadcast(mean.sizes(), deviation.sizes()), mean.dtype());
  fn.outputs({y});
  if (runtime().settings.kernel_scratch() && deviation.numel() > 0) {
    Scratch least(item_size(deviation.dtype()));
    { Scratch fits(1); }
  }
  return y;
}
const Op normal_tensors_op{
    {"aten::normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor", Autocast::none, "", kDistributions},
    normal_tensors};
const Op normal_mean_op{
    {"aten::normal.Tensor_float(Tensor mean, float std=1, *, Generator? generator=None) -> Tensor", Autocast::none, "", kDistributions},
    +[](T mean, double) {
      auto fn = node("NormalBackward1", {mean}, {}, [](Backward& w) { w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype()); });
      Tensor y = empty(mean.sizes(), mean.dtype());
      fn.outputs({y});
      if (runtime().settings.kernel_scratch()) Scratch deviations(checked_mul(mean.numel(), item_size(mean.dtype())));
      return y;
    }};

/// In place: what was there has no influence, so its gradient is zeros.
Tensor drawn_(T self) {
  node("RandomBackward0", {self}, {}, [](Backward& w) { w.out[0] = empty_like(w.grad[0]); }).in_place(self);
  return self;
}
const Op cauchy_op{{"aten::cauchy_(Tensor(a!) self, float median=0, float sigma=1, *, Generator? generator=None) -> Tensor(a!)",
                    Autocast::none, "", kDistributions},
                   +[](T self, double, double) { return drawn_(self); }};
const Op geometric_op{
    {"aten::geometric_(Tensor(a!) self, float p, *, Generator? generator=None) -> Tensor(a!)", Autocast::none, "", kDistributions},
    +[](T self, double) { return drawn_(self); }};
const Op log_normal_op{{"aten::log_normal_(Tensor(a!) self, float mean=1, float std=2, *, Generator? generator=None) -> Tensor(a!)",
                        Autocast::none, "", kDistributions},
                       +[](T self, double, double) { return drawn_(self); }};
const Op poisson_op{{"aten::poisson(Tensor self, Generator? generator=None) -> Tensor", Autocast::none, "", kDistributions}, +[](T self) {
                      auto fn = node("PoissonBackward0", {self}, {}, [](Backward& w) { w.out[0] = empty(w.sizes(0), w.dtype(0)); });
                      Tensor y = empty(self.sizes(), self.dtype());
                      fn.outputs({y});
                      return y;
                    }};
const Op binomial_op{{"aten::binomial(Tensor count, Tensor prob, Generator? generator=None) -> Tensor", Autocast::none, "", kDistributions},
                     +[](T count, T prob) {
                       return elementwise({count, prob}, count.dtype());
                     }};

Tensor randint_like(T self, I, std::optional<DType> dtype, std::optional<MemoryFormat> format) {
  return empty_like(self, dtype.value_or(self.dtype()), format.value_or(MemoryFormat::preserve));
}
const Op randint_like_op{{"aten::randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? "
                          "device=None, bool? pin_memory=None, MemoryFormat? "
                          "memory_format=None) -> Tensor",
                          Autocast::none, "", "native/TensorFactories.cpp"},
                         randint_like};
const Op randint_like_low_op{{"aten::randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None, Layout? "
                              "layout=None, Device? device=None, bool? "
                              "pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
                              Autocast::none, "", "native/TensorFactories.cpp"},
                             +[](T self, I, I high, std::optional<DType> dtype, std::optional<MemoryFormat> format) {
                               return randint_like(self, high, dtype, format);
                             }};
const Op randint_op{{"aten::randint(SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? "
                     "pin_memory=None) -> Tensor",
                     Autocast::none, "", "native/TensorFactories.cpp"},
                    +[](I, const Dims& size, std::optional<DType> dtype) { return empty(size, dtype.value_or(DType::int64)); }};
const Op randint_low_op{{"aten::randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, "
                         "Device? device=None, bool? pin_memory=None) -> Tensor",
                         Autocast::none, "", "native/TensorFactories.cpp"},
                        +[](I, I, const Dims& size, std::optional<DType> dtype) { return empty(size, dtype.value_or(DType::int64)); }};

// native/cuda/Randperm.cu: a range sorted by random keys of as many bits as make equal ones unlikely
Tensor randperm(I n, std::optional<DType> dtype) {
  if (n < 0) throw Error("n must be non-negative, got " + std::to_string(n));
  Tensor y = empty({n}, dtype.value_or(DType::int64));
  if (n == 0 || !runtime().settings.kernel_scratch()) return y;
  const double count = double(n), threshold = std::log(0.9) * 12;
  const int bits = std::min(64, int(std::ceil(std::log2(count - (6 * count * count + 1) / threshold))));
  { Scratch largest(item_size(y.dtype())); }
  const int key = bits > 32 ? 8 : 4, value = item_size(y.dtype());
  std::optional<Scratch> range(checked_mul(n, value)), keys(checked_mul(n, key)), sorted_keys(checked_mul(n, key));
  { Scratch sort(cub_radix_sort(n, key, value, bits)); }
  sorted_keys.reset();
  keys.reset();
  range.reset();
  return y;
}
const Op randperm_op{
    {"aten::randperm(SymInt n, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
     Autocast::none, "", "native/cuda/Randperm.cu"},
    randperm};

// native/Distributions.cpp multinomial: one draw, and draws without replacement, are the largest of probabilities over exponential noise
Tensor multinomial(T self, I num_samples, bool replacement) {
  if (self.dim() < 1 || self.dim() > 2) throw Error("prob_dist must be 1 or 2 dim, found " + describe(self));
  if (!is_floating(self.dtype()))
    throw Error("multinomial only supports floating-point dtypes for input, got: " + std::string(name_of(self.dtype())));
  if (num_samples <= 0) throw Error("cannot sample n_sample <= 0 samples");
  Dims sizes = self.sizes();
  sizes[-1] = num_samples;
  Tensor y = empty(sizes, DType::int64);
  if (!runtime().settings.kernel_scratch()) return y;
  const int size = item_size(self.dtype());
  const Bytes all = checked_mul(self.numel(), size);
  const I rows = self.dim() == 2 ? self.sizes()[0] : 1;
  if (replacement && num_samples > 1) {  // a cumulative distribution of each row
    std::optional<Scratch> normalized(all), cumulative(all);
    if (rows == 1) Scratch scan(cub_scan(self.numel(), size));
    cumulative.reset();
    normalized.reset();
    return y;
  }
  std::optional<Scratch> most(size), least(size), below_infinity(1), above_zero(1), valid(1);
  above_zero.reset();
  below_infinity.reset();
  {
    std::optional<Scratch> sums(rows * size), zero(rows), any;
    if (self.dim() == 2) any.emplace(1);
    zero.reset();
    sums.reset();
    { Scratch negated(1); }
    Tensor noise;
    {
      CategoryScope category(Category::workspace);
      noise = empty(self.sizes(), self.dtype());
    }
    if (num_samples > 1) {
      Dims value_sizes = sizes;
      Scratch values(checked_mul(value_sizes.numel(), size));
    }
  }
  valid.reset();
  most.reset();
  least.reset();
  return y;
}
const Op multinomial_op{
    {"aten::multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor", Autocast::none,
     "", "native/Distributions.cpp multinomial; native/cuda/MultinomialKernel.cu"},
    multinomial};

}  // namespace
}  // namespace memest

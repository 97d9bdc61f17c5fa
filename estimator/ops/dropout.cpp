// The dropouts that draw a noise tensor (aten/src/ATen/native/Dropout.cpp _dropout_impl of 2.15): in place, by feature, alpha.
#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"

namespace memest {
namespace {

enum class Place { out, in };

Tensor times(T input, T noise, Place place) { return place == Place::in ? ops::mul_(input, noise) : ops::mul(input, noise); }

/// make_feature_noise: one element for each sample and channel.
Tensor feature_noise(T input) {
  if (input.dim() < 2) throw Error("feature dropout requires at least 2 dimensions in the input, found " + describe(input));
  Dims sizes = Dims::filled(input.dim(), 1);
  sizes[0] = input.size(0), sizes[1] = input.size(1);
  return empty(sizes, input.dtype());
}

template <bool Feature, bool Alpha, Place Where>
Tensor noisy(T input, double p, bool train) {
  if (!(p >= 0 && p <= 1)) throw Error("dropout probability has to be between 0 and 1, but got " + std::to_string(p));
  if (p == 0 || !train || input.numel() == 0) return input;
  if (p == 1) return times(input, ops::zeros({}, input.dtype()), Where);
  Tensor shift;
  Tensor noise = Feature ? feature_noise(input) : empty_like(input);  // bernoulli_, then div_ or mul_: in place
  if (!Alpha) return times(input, noise, Where);
  shift = ops::add_scalar(noise, -1);  // .mul_(...).add_(...)
  Tensor scaled = times(input, noise, Where);
  return ops::add_(scaled, shift, 1);
}

constexpr const char* kSource = "aten/src/ATen/native/Dropout.cpp _dropout_impl";
const Op dropout_in_place{{"aten::dropout_(Tensor(a!) self, float p, bool train) -> Tensor(a!)", Autocast::none, "noise", kSource},
                          noisy<false, false, Place::in>};
const Op feature_dropout{{"aten::feature_dropout(Tensor input, float p, bool train) -> Tensor", Autocast::none, "noise", kSource},
                         noisy<true, false, Place::out>};
const Op feature_dropout_{{"aten::feature_dropout_(Tensor(a!) self, float p, bool train) -> Tensor(a!)", Autocast::none, "noise", kSource},
                          noisy<true, false, Place::in>};
const Op alpha_dropout{{"aten::alpha_dropout(Tensor input, float p, bool train) -> Tensor", Autocast::none, "noise", kSource},
                       noisy<false, true, Place::out>};
const Op alpha_dropout_{{"aten::alpha_dropout_(Tensor(a!) self, float p, bool train) -> Tensor(a!)", Autocast::none, "noise", kSource},
                        noisy<false, true, Place::in>};
const Op feature_alpha_dropout{
    {"aten::feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor", Autocast::none, "noise", kSource},
    noisy<true, true, Place::out>};
const Op feature_alpha_dropout_{
    {"aten::feature_alpha_dropout_(Tensor(a!) self, float p, bool train) -> Tensor(a!)", Autocast::none, "noise", kSource},
    noisy<true, true, Place::in>};

}  // namespace
}  // namespace memest

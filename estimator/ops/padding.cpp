// Sources: derivatives.yaml; aten/src/ATen/native/{PadNd.cpp,ReflectionPad.cpp,ReplicationPadding.cpp},
// native/cuda/{ReflectionPad,ReplicationPadding}.cu of 2.15.
#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/iterator.h"
#include "ops/views.h"
#include "ops/vision.h"

namespace memest {
namespace {
using I = std::int64_t;

/// The input's sizes grown by (left, right) of its last dimension, then of the one before, ...
Dims padded_sizes(const char* name, T self, const Dims& pad) {
  const int n = self.dim();
  if (pad.size() % 2 != 0) throw Error(fmt::format("{}: length of pad must be even, found {}", name, to_string(pad)));
  if (pad.size() / 2 > n)
    throw Error(fmt::format("{}: length of pad should be no more than twice the number of dimensions of the input, found {} for {}", name,
                            to_string(pad), describe(self)));
  Dims sizes = self.sizes();
  for (int i = 0; i < pad.size() / 2; ++i) {
    I& size = sizes[n - 1 - i];
    size = checked_add(size, checked_add(pad[2 * i], pad[2 * i + 1]));
    if (size < 0)
      throw Error(fmt::format("{}: the input {} and the padding {} result in a negative output size", name, to_string(self.sizes()),
                              to_string(pad)));
  }
  return sizes;
}

Dims negated(const Dims& pad) {
  Dims opposite = pad;
  for (I& p : opposite) p = checked_mul(p, -1);
  return opposite;
}

/// What negative sides leave of the input.
Tensor cropped(T self, const Dims& pad) {
  Tensor x = self;
  for (int i = 0; i < pad.size() / 2; ++i) {
    const int d = self.dim() - 1 - i;
    const I left = std::max<I>(0, -pad[2 * i]), right = std::max<I>(0, -pad[2 * i + 1]), n = x.sizes()[d];
    if (left || right)
      x = share(
          x,
          [&] {
            Dims s = x.sizes();
            s[d] = n - left - right;
            return s;
          }(),
          x.strides(), x->offset + left * x.strides()[d]);
  }
  return x;
}

/// constant_pad_nd without autograd: the gradient's kernel too.
Tensor padded(T self, const Dims& pad) {
  if (std::none_of(pad.begin(), pad.end(), [](I p) { return p > 0; })) return empty_like(cropped(self, pad));
  return empty(padded_sizes("constant_pad_nd", self, pad), self.dtype(), suggest_memory_format(self));
}

Tensor constant_pad_nd(T self, const Dims& pad, const Scalar&) {
  padded_sizes("constant_pad_nd", self, pad);
  auto fn = node("ConstantPadNdBackward0", {self}, {}, [opposite = negated(pad)](Backward& w) { w.out[0] = padded(w.grad[0], opposite); });
  Tensor y = padded(self, pad);
  fn.outputs({y});
  return y;
}

enum class Border { reflect, replicate };

/// reflection_pad, replication_pad of 1 to 3 dimensions: kernels that do not read through strides take contiguous copies.
template <Border Kind, int Spatial>
Tensor border_pad(T self, const Dims& padding) {
  constexpr bool copies = Kind == Border::reflect && Spatial < 3;
  constexpr const char* names[2][3] = {{"ReflectionPad1DBackward0", "ReflectionPad2DBackward0", "ReflectionPad3DBackward0"},
                                       {"ReplicationPad1DBackward0", "ReplicationPad2DBackward0", "ReplicationPad3DBackward0"}};
  const std::string name = fmt::format("{}_pad{}d", Kind == Border::reflect ? "reflection" : "replication", Spatial);
  if (padding.size() != 2 * Spatial)
    throw Error(fmt::format("{}: padding size is expected to be {}, but got: {}", name, 2 * Spatial, padding.size()));
  if (self.dim() != Spatial + 1 && self.dim() != Spatial + 2)
    throw Error(fmt::format("{}: expected a {}D or {}D input, found {}", name, Spatial + 1, Spatial + 2, describe(self)));
  const Dims sizes = padded_sizes(name.c_str(), self, padding);
  if constexpr (Kind == Border::reflect)
    for (int i = 0; i < 2 * Spatial; ++i)
      if (padding[i] >= self.size(-1 - i / 2))
        throw Error(fmt::format(
            "{}: padding size should be less than the corresponding input dimension, but got padding {} at dimension {} of input {}", name,
            padding[i], self.dim() - 1 - i / 2, to_string(self.sizes())));
  auto fn = node(names[int(Kind)][Spatial - 1], {self}, {self}, [](Backward& w, T x) {
    w.out[0] = empty(x.sizes(), x.dtype());
    const Tensor grad = copies ? ops::contiguous_tensor(w.grad[0]) : Tensor();
  });
  Tensor y = empty(sizes, self.dtype());
  if (copies) ops::contiguous_tensor(detached(self));
  fn.outputs({y});
  return y;
}
#define MEMEST_PAD(NAME, KIND, N, SIDES)                                                                                                 \
  const Op NAME##_pad##N##d_op{{"aten::" #NAME "_pad" #N "d(Tensor self, SymInt[" #SIDES "] padding) -> Tensor", Autocast::none, "self", \
                                "derivatives.yaml " #NAME "_pad" #N "d; native/cuda/" KIND "Pad*.cu"},                                   \
                               border_pad<Border::MEMEST_BORDER_##NAME, N>};
#define MEMEST_BORDER_reflection reflect
#define MEMEST_BORDER_replication replicate
MEMEST_PAD(reflection, "Reflection", 1, 2)
MEMEST_PAD(reflection, "Reflection", 2, 4)
MEMEST_PAD(reflection, "Reflection", 3, 6)
MEMEST_PAD(replication, "Replication", 1, 2)
MEMEST_PAD(replication, "Replication", 2, 4)
MEMEST_PAD(replication, "Replication", 3, 6)
#undef MEMEST_PAD

/// _pad_circular: the middle is copied in, then each side from what is there.
Tensor pad_circular(T self, const Dims& pad) {
  const int spatial = self.dim() - 2;
  if (spatial < 1 || pad.size() != 2 * spatial)
    throw Error(fmt::format("circular padding of {} takes {} values, found {}", describe(self), 2 * std::max(spatial, 1), to_string(pad)));
  const Dims sizes = padded_sizes("_pad_circular", self, pad);
  for (int i = 0; i < pad.size(); ++i)
    if (pad[i] > self.size(-1 - i / 2)) throw Error("padding value causes wrapping around more than once: " + to_string(pad));
  Tensor out = empty(sizes, self.dtype());
  const auto side = [&](int i, int which) { return pad[2 * i + which]; };
  {
    Tensor out_slice = out, in_slice = self;
    for (int i = 0; i < spatial; ++i) {
      const I d = spatial - i + 1;
      out_slice = ops::slice(out_slice, d, std::max<I>(side(i, 0), 0), sizes[int(d)] - std::max<I>(side(i, 1), 0), 1);
      in_slice = ops::slice(in_slice, d, std::max<I>(-side(i, 0), 0), self.sizes()[int(d)] - std::max<I>(-side(i, 1), 0), 1);
    }
    ops::copy_(out_slice, in_slice, false);
  }
  auto wrap = [&](I d, I to, I from, I length) {
    const Tensor out_slice = ops::slice(out, d, to, to + length, 1);
    const Tensor in_slice = ops::slice(out, d, from, from + length, 1);
    ops::copy_(out_slice, in_slice, false);
  };
  for (int i = 0; i < spatial; ++i) {
    const I d = spatial - i + 1, left = side(i, 0), right = side(i, 1), n = sizes[int(d)];
    if (left > 0) wrap(d, 0, n - left - std::max<I>(right, 0), left);
    if (right > 0) wrap(d, n - right, std::max<I>(left, 0), right);
  }
  return out;
}
const Op pad_circular_op{
    {"aten::_pad_circular(Tensor self, SymInt[] pad) -> Tensor", Autocast::none, "", "native/PadNd.cpp _pad_circular_symint"},
    pad_circular};

Tensor pad_of(T self, const Dims& pad, const std::string& mode, std::optional<double> value) {
  if (mode == "constant") return ops::constant_pad_nd(self, pad, value.value_or(0));
  if (value && *value != 0) throw Error("padding mode \"" + mode + "\" doesn't take in value argument");
  const int spatial = pad.size() / 2;
  if (pad.size() % 2 == 0 && spatial >= 1 && spatial <= 3 && (self.dim() == spatial + 1 || self.dim() == spatial + 2)) {
    if (mode == "circular") return pad_circular_op(self, pad);
    const Op<Tensor(T, const Dims&)>* reflection[] = {&reflection_pad1d_op, &reflection_pad2d_op, &reflection_pad3d_op};
    const Op<Tensor(T, const Dims&)>* replication[] = {&replication_pad1d_op, &replication_pad2d_op, &replication_pad3d_op};
    if (mode == "reflect") return (*reflection[spatial - 1])(self, pad);
    if (mode == "replicate") return (*replication[spatial - 1])(self, pad);
    throw Error("unrecognised padding mode '" + mode + "'", "modes are constant, reflect, replicate and circular");
  }
  throw Error(fmt::format("only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now: {} padded by {} ({})",
                          describe(self), to_string(pad), mode));
}

}  // namespace

namespace ops {
const Op<Tensor(T, const Dims&, const Scalar&)> constant_pad_nd{
    {"aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor", Autocast::none, "",
     "derivatives.yaml constant_pad_nd; native/PadNd.cpp"},
    memest::constant_pad_nd};
const Op<Tensor(T, const Dims&, const std::string&, std::optional<double>)> pad{
    {"aten::pad(Tensor self, SymInt[] pad, str mode=\"constant\", float? value=None) -> Tensor", Autocast::none, "",
     "native/PadNd.cpp pad_symint"},
    memest::pad_of};
}  // namespace ops
}  // namespace memest

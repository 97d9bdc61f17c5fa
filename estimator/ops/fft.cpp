// Fourier transforms and complex parts. cuFFT's work areas are not known from shapes and not counted.
// Sources: derivatives.yaml; FunctionsManual.cpp fft_r2c_backward, fft_c2r_backward, polar_backward; aten/src/ATen/native/SpectralOps.cpp,
// native/cuda/SpectralOps.cpp of 2.15.
#include <fmt/format.h>

#include <algorithm>

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

constexpr int kMostDims = 3;  // cufft_max_ndim: dimensions of one transform

void note_work_areas() {
  runtime().diagnostics.add({Diagnostic::Severity::note, "cufft-workspace", "work areas of cuFFT are not modelled", "", ""});
}

Dims with_last(const Dims& sizes, I dim, I length) {
  Dims out = sizes;
  out[int(dim)] = length;
  return out;
}
/// Dimensions from the largest stride to the smallest.
void sort_by_stride(std::vector<I>& dims, T x) {
  std::stable_sort(dims.begin(), dims.end(), [&](I a, I b) { return x.strides()[int(a)] > x.strides()[int(b)]; });
}

/// as_cufft_embed (native/cuda/CuFFTPlanCache.h): whether cuFFT cannot read such strides, batch first. `sizes` are those of the whole
/// signal.
bool must_clone(const Dims& strides, const Dims& sizes) {
  const int signal = strides.size() - 1;
  I last = strides[signal];
  if (last <= 0 || (sizes[0] != 1 && strides[0] == 0)) return true;
  for (int i = signal - 1; i > 0; --i) {
    if (sizes[i] == 1) continue;
    if (strides[i] <= 0 || strides[i] % last != 0) return true;
    last = strides[i];
  }
  return false;
}

/// _exec_fft: the transformed dimensions are brought to the end and the others flattened, with a copy where that or cuFFT takes one. `out`
/// is laid out in the order of that.
Tensor exec_fft(T out, T self, const Dims& out_sizes, const Dims& dims) {
  NoGrad below;
  std::vector<bool> transformed(std::size_t(self.dim()), false);
  for (I d : dims) transformed[std::size_t(d)] = true;
  std::vector<I> batch;
  for (int d = 0; d < self.dim(); ++d)
    if (!transformed[std::size_t(d)]) batch.push_back(d);
  sort_by_stride(batch, self);
  Dims order, sizes{1}, signal{1}, out_batched{1};
  for (I d : batch) order.push_back(d), sizes[0] = checked_mul(sizes[0], self.sizes()[int(d)]);
  signal[0] = out_batched[0] = sizes[0];
  for (I d : dims) {
    order.push_back(d), sizes.push_back(self.sizes()[int(d)]), out_batched.push_back(out_sizes[int(d)]);
    signal.push_back(std::max(sizes.back(), out_batched.back()));
  }
  if (runtime().settings.kernel_scratch()) {
    Tensor input = ops::reshape(ops::permute(self, order), sizes);
    if (must_clone(input.strides(), signal)) input = ops::clone(input, MemoryFormat::contiguous);
  }
  const Dims batched = contiguous_strides(out_batched);
  Dims strides = out_sizes;
  I before = 1;
  for (std::size_t i = batch.size(); i-- > 0;) {
    strides[int(batch[i])] = checked_mul(before, batched[0]);
    before = checked_mul(before, out_sizes[int(batch[i])]);
  }
  for (int i = 0; i < dims.size(); ++i) strides[int(dims[i])] = batched[i + 1];
  return share(out, out_sizes, strides, out->offset);
}

/// The next dimensions to transform, at most three from the end of the sorted ones, which lose them.
Dims next_dims(std::vector<I>& left, T x) {
  sort_by_stride(left, x);
  const std::size_t count = std::min(left.size(), std::size_t(kMostDims));
  Dims dims;
  for (std::size_t i = left.size() - count; i < left.size(); ++i) dims.push_back(left[i]);
  left.resize(left.size() - count);
  return dims;
}

// _fft_c2c_cufft
Tensor complex_transform(T self, const Dims& dims) {
  note_work_areas();
  Tensor output = empty(self.sizes(), self.dtype()), working = self;
  std::vector<I> left(dims.begin(), dims.end());
  for (;;) {
    const Dims now = next_dims(left, working);
    output = exec_fft(output, working, self.sizes(), now);
    if (left.empty()) return output;
    if (working.is_same(self))
      working = std::move(output), output = empty(self.sizes(), self.dtype());
    else
      std::swap(output, working);
  }
}
Tensor fft_c2c(T self, const Dims& dims, bool) {
  auto fn = node("FftC2CBackward0", {self}, {}, [dims](Backward& w) { w.out[0] = complex_transform(w.grad[0], dims); });
  Tensor y = complex_transform(self, dims);
  fn.outputs({y});
  return y;
}

/// use_optimized_cufft_path: one plan for all dimensions.
bool at_once(const Dims& dims) { return dims.size() <= kMostDims && !(dims.size() >= 2 && dims[0] == 0 && dims[1] == 1); }

// _fft_r2c_cufft
Tensor real_transform(T self, const Dims& dims, bool onesided) {
  note_work_areas();
  const I last = dims.back();
  const Dims half_sizes = with_last(self.sizes(), last, self.sizes()[int(last)] / 2 + 1), out_sizes = onesided ? half_sizes : self.sizes();
  const DType type = complex_type(self.dtype());
  Tensor output = empty(out_sizes, type);
  if (at_once(dims)) return exec_fft(output, self, out_sizes, dims);
  output = exec_fft(output, self, half_sizes, {last});
  Tensor working = empty(out_sizes, type);
  std::vector<I> left(dims.begin(), dims.end() - 1);
  while (!left.empty()) {
    std::swap(output, working);
    const Dims now = next_dims(left, working);
    output = exec_fft(output, working, half_sizes, now);
  }
  if (!onesided && !(output.sizes() == out_sizes)) output = share(working, out_sizes, contiguous_strides(out_sizes), 0);
  return output;
}
/// `conjugated`: the result's lazy conjugate is what is returned, so the gradient is one too, which the first op that reads it resolves.
Tensor fft_r2c(T self, const Dims& dims, bool onesided, bool conjugated = false) {
  auto fn = node("FftR2CBackward0", {self}, {self}, [dims, onesided, conjugated](Backward& w, T x) {
    const int last = int(dims.back());
    Tensor full = w.grad[0], resolved;
    if (conjugated) resolved = full = ops::clone(full, std::nullopt);
    if (onesided && full.sizes()[last] < x.sizes()[last]) {
      full = ops::zeros(with_last(full.sizes(), last, x.sizes()[last]), full.dtype());
      resolved.reset();
    }
    Tensor transformed = complex_transform(full, dims);
    full.reset();
    resolved.reset();
    w.out[0] = ops::select(ops::view_as_real(transformed), transformed.dim(), 0);
  });
  Tensor y = real_transform(self, dims, onesided);
  fn.outputs({y});
  return y;
}
// _fft_c2r_cufft: the transform overwrites its input, which is always a copy
Tensor fft_c2r(T self, const Dims& dims, I length) {
  auto fn = node("FftC2RBackward0", {self}, {}, [dims](Backward& w) { w.out[0] = real_transform(w.grad[0], dims, true); });
  note_work_areas();
  const Dims out_sizes = with_last(self.sizes(), dims.back(), length);
  Tensor y = empty(out_sizes, real_type(self.dtype()));
  {
    NoGrad below;
    const bool once = at_once(dims);
    const Tensor input =
        once || dims.size() == 1 ? ops::clone(self, MemoryFormat::contiguous) : complex_transform(self, dims.slice(0, dims.size() - 1));
    y = exec_fft(y, input, out_sizes, once ? dims : Dims{dims.back()});
  }
  fn.outputs({y});
  return y;
}
constexpr const char* kFft = "derivatives.yaml; native/SpectralOps.cpp, native/cuda/SpectralOps.cpp";
const Op<Tensor(T, const Dims&, I, bool)> c2c_op{
    {"aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor", Autocast::none, "", kFft},
    +[](T self, const Dims& dim, I, bool forward) { return fft_c2c(self, dim, forward); }};
const Op<Tensor(T, const Dims&, I, bool)> r2c_op{
    {"aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor", Autocast::none, "", kFft},
    +[](T self, const Dims& dim, I, bool onesided) { return fft_r2c(self, dim, onesided); }};
/// What ifft and ihfft of real tensors call: the conjugate of the forward transform.
Tensor inverse_r2c(T x, const Dims& dims, bool onesided) {
  Scoped<const char*> scope(runtime().op, r2c_op.name());
  return fft_r2c(x, dims, onesided, true);
}
const Op<Tensor(T, const Dims&, I, I)> c2r_op{
    {"aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor", Autocast::none, "", kFft},
    +[](T self, const Dims& dim, I, I last_dim_size) { return fft_c2r(self, dim, last_dim_size); }};

// ---- what torch.fft calls -------------------------------------------------------------------------------------------------------

using MaybeInt = std::optional<I>;
using MaybeDims = std::optional<Dims>;
using Norm = std::optional<std::string>;

Tensor promoted(T x, bool to_complex) {
  DType type = is_integral(x.dtype(), true) ? DType::float32 : x.dtype();
  if (to_complex && !is_complex(type)) type = complex_type(type);
  return ops::to(x, type);
}
/// resize_fft_input: cut or padded with zeros.
Tensor resized(Tensor x, const Dims& dims, const Dims& lengths) {
  for (int i = 0; i < dims.size(); ++i) {
    const I n = lengths[i];
    if (n == -1) continue;
    if (n < 1) throw Error(fmt::format("fft: invalid number of data points ({}) specified", n));
    const I now = x.sizes()[int(dims[i])];
    if (n < now) x = ops::slice(x, dims[i], 0, n, 1);
    if (n > now) {
      Values pad(std::size_t(2 * x.dim()), Value(I{0}));
      pad[pad.size() - 2 * std::size_t(dims[i]) - 1] = n - now;
      x = Unbox<Tensor>::from(call_op("aten::constant_pad_nd", {x, make_list(pad), 0.0}, {}));
    }
  }
  return x;
}
Tensor one_dim(T self, MaybeInt n, I dim, bool forward) {
  Tensor x = promoted(self, false);
  const Dims dims{wrap_dim(dim, x.dim())};
  if (n) x = resized(std::move(x), dims, {*n});
  if (is_complex(x.dtype())) return c2c_op(x, dims, 0, forward);
  return forward ? r2c_op(x, dims, 0, false) : inverse_r2c(x, dims, false);
}
Tensor rfft(T self, MaybeInt n, I dim, bool forward) {
  Tensor x = promoted(self, false);
  if (is_complex(x.dtype())) throw Error("rfft expects a real input tensor, but got " + describe(x));
  const Dims dims{wrap_dim(dim, x.dim())};
  if (n) x = resized(std::move(x), dims, {*n});
  return forward ? r2c_op(x, dims, 0, true) : inverse_r2c(x, dims, true);
}
/// The conjugate of what the input became, resolved since the transform cannot read a lazy one; lets go of the input. Its gradient is read
/// through the same: a resolved copy where the input was resized.
Tensor conjugate(Tensor& x, T resized) {
  auto fn = node("ConjBackward0", {x}, {}, [as_it_is = x.is_same(resized)](Backward& w) {
    if (as_it_is) {
      w.out[0] = detached(w.grad[0]);
    } else {
      const Tensor resolved = ops::clone(w.grad[0], std::nullopt);
      const bool cut = w.sizes(0).numel() > resolved.numel();  // zeros around the gradient, or a copy of its part
      w.out[0] =
          cut ? empty(w.sizes(0), w.dtype(0)) : empty_strided(w.sizes(0), infer_dense_strides(w.sizes(0), resolved.strides()), w.dtype(0));
    }
  });
  x.reset();
  NoGrad below;
  Tensor y = ops::clone(resized, std::nullopt);
  fn.outputs({y});
  return y;
}
Tensor hfft(T self, MaybeInt n, I dim) {
  Tensor x = promoted(self, true), input = x;
  const Dims dims{wrap_dim(dim, x.dim())};
  const I length = n.value_or(2 * (x.sizes()[int(dims[0])] - 1));
  if (length < 1) throw Error(fmt::format("hfft: invalid number of data points ({}) specified", length));
  if (n) {
    NoGrad below;
    input = resized(std::move(input), dims, {length / 2 + 1});
  }
  const Tensor conjugated = conjugate(x, input);
  return c2r_op(conjugated, dims, 0, length);
}
Tensor irfft(T self, MaybeInt n, I dim) {
  Tensor x = promoted(self, true);
  const Dims dims{wrap_dim(dim, x.dim())};
  const I length = n.value_or(2 * (x.sizes()[int(dims[0])] - 1));
  if (length < 1) throw Error(fmt::format("irfft: invalid number of data points ({}) specified", length));
  if (n) x = resized(std::move(x), dims, {length / 2 + 1});
  return c2r_op(x, dims, 0, length);
}
struct Shape {
  Dims lengths, dims;
};
Shape canonical(T x, const MaybeDims& s, const MaybeDims& dim) {
  Shape shape;
  if (dim) {
    for (I d : *dim) shape.dims.push_back(wrap_dim(d, x.dim()));
  } else {
    for (int i = s ? x.dim() - s->size() : 0; i < x.dim(); ++i) shape.dims.push_back(wrap_dim(i, x.dim()));
  }
  if (s && s->size() != shape.dims.size()) throw Error("fft: when dim and shape are both given, they must have the same length");
  shape.lengths = s ? *s : Dims::filled(shape.dims.size(), -1);
  if (shape.dims.empty()) throw Error("fft: at least one dimension is needed");
  return shape;
}
Tensor many_dims(T self, const MaybeDims& s, const MaybeDims& dim, bool forward) {
  Tensor x = promoted(self, true);
  const Shape shape = canonical(x, s, dim);
  const Tensor input = resized(x, shape.dims, shape.lengths);  // the promoted tensor stays until the call returns
  return c2c_op(input, shape.dims, 0, forward);
}
Tensor many_real(T self, const MaybeDims& s, const MaybeDims& dim) {
  Tensor x = promoted(self, false);
  if (is_complex(x.dtype())) throw Error("rfftn expects a real-valued input tensor, but got " + describe(x));
  const Shape shape = canonical(x, s, dim);
  const Tensor input = resized(x, shape.dims, shape.lengths);  // the promoted tensor stays until the call returns
  return r2c_op(input, shape.dims, 0, true);
}
Tensor many_inverse_real(T self, const MaybeDims& s, const MaybeDims& dim) {
  Tensor x = promoted(self, true);
  Shape shape = canonical(x, s, dim);
  I length = shape.lengths.back();
  if (length == -1) length = 2 * (x.sizes()[int(shape.dims.back())] - 1);
  if (s) shape.lengths[-1] = length / 2 + 1;
  const Tensor input = resized(x, shape.dims, shape.lengths);  // the promoted tensor stays until the call returns
  return c2r_op(input, shape.dims, 0, length);
}

#define MEMEST_FFT1(NAME, EXPRESSION)                                                                                                      \
  const Op NAME##_op{{"aten::fft_" #NAME "(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor", Autocast::none, "", kFft}, \
                     +[](T self, MaybeInt n, I dim, const Norm&) { return EXPRESSION; }};
MEMEST_FFT1(fft, one_dim(self, n, dim, true))
MEMEST_FFT1(ifft, one_dim(self, n, dim, false))
MEMEST_FFT1(rfft, rfft(self, n, dim, true))
MEMEST_FFT1(ihfft, rfft(self, n, dim, false))
MEMEST_FFT1(irfft, irfft(self, n, dim))
MEMEST_FFT1(hfft, hfft(self, n, dim))
#undef MEMEST_FFT1
#define MEMEST_FFTN(NAME, EXPRESSION)                                                                                                   \
  const Op NAME##2_op {                                                                                                                 \
      {"aten::fft_" #NAME "2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor", Autocast::none, "", kFft}, \
      +[](T self, const MaybeDims& s, const Dims& given, const Norm&) {                                                                 \
        const MaybeDims dim = given;                                                                                                    \
        return EXPRESSION;                                                                                                              \
      }};                                                                                                                               \
  const Op NAME##n_op{                                                                                                                  \
      {"aten::fft_" #NAME "n(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor", Autocast::none, "", kFft},   \
      +[](T self, const MaybeDims& s, const MaybeDims& dim, const Norm&) { return EXPRESSION; }};
MEMEST_FFTN(fft, many_dims(self, s, dim, true))
MEMEST_FFTN(ifft, many_dims(self, s, dim, false))
MEMEST_FFTN(rfft, many_real(self, s, dim))
MEMEST_FFTN(irfft, many_inverse_real(self, s, dim))
#undef MEMEST_FFTN

Tensor shifted(T self, const MaybeDims& dim) {  // fftshift is a roll by half of each dimension
  Dims dims;
  if (dim)
    dims = *dim;
  else
    for (int i = 0; i < self.dim(); ++i) dims.push_back(i);
  Dims shifts;
  for (I d : dims) shifts.push_back(self.size(d) / 2);
  return Unbox<Tensor>::from(call_op("aten::roll", {self, list_of(shifts), list_of(dims)}, {}));
}
const Op fftshift_op{{"aten::fft_fftshift(Tensor self, int[1]? dim=None) -> Tensor", Autocast::none, "", kFft}, shifted};
const Op ifftshift_op{{"aten::fft_ifftshift(Tensor self, int[1]? dim=None) -> Tensor", Autocast::none, "", kFft}, shifted};
const Op fftfreq_op{{"aten::fft_fftfreq(int n, float d=1.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
                     "pin_memory=None) -> Tensor",
                     Autocast::none, "", kFft},
                    +[](I n, double, std::optional<DType> dtype) { return empty({n}, dtype.value_or(DType::float32)); }};
const Op rfftfreq_op{{"aten::fft_rfftfreq(int n, float d=1.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
                      "pin_memory=None) -> Tensor",
                      Autocast::none, "", kFft},
                     +[](I n, double, std::optional<DType> dtype) { return empty({n / 2 + 1}, dtype.value_or(DType::float32)); }};

// ---- complex tensors -----------------------------------------------------------------------------------------------------------------

Tensor polar(T abs, T angle) {
  if (abs.dtype() != angle.dtype() || !is_floating(abs.dtype()))
    throw Error("polar: expected two real tensors of one dtype, found " + describe(abs) + " and " + describe(angle));
  auto fn = node("PolarBackward0", {abs, angle}, {}, [](Backward& w, T result) {  // polar_backward
    Tensor conjugate = elementwise({w.grad[0]}, w.grad[0].dtype());
    const DType real = real_type(result.dtype());
    if (w.needs(0)) {
      Tensor sign = elementwise({result}, result.dtype());
      Tensor product = elementwise({conjugate, sign}, result.dtype());
      w.out[0] = ops::select(ops::view_as_real(product), product.dim(), 0);
    }
    if (w.needs(1)) {
      Tensor turned = elementwise({result}, result.dtype());
      Tensor product = elementwise({conjugate, turned}, result.dtype());
      w.out[1] = ops::select(ops::view_as_real(product), product.dim(), 0);
    }
    (void)real;
  });
  Tensor y = elementwise({abs, angle}, complex_type(abs.dtype()));
  fn.outputs({y}, {y});
  return y;
}
Tensor complex(T real, T imag) {
  if (real.dtype() != imag.dtype() || !is_floating(real.dtype()))
    throw Error("complex: expected two real tensors of one dtype, found " + describe(real) + " and " + describe(imag));
  // the formulas at::real(grad), at::imag(grad) name the arguments, so PyTorch's generator saves them
  auto fn = node("ComplexBackward0", {real, imag}, {imag, real}, [](Backward& w, T, T) {
    for (int i : {1, 0})
      if (w.needs(i)) w.out[std::size_t(i)] = ops::select(ops::view_as_real(w.grad[0]), w.grad[0].dim(), i);
  });
  Tensor y = elementwise({real, imag}, complex_type(real.dtype()));
  fn.outputs({y});
  return y;
}
Tensor conj(T self) {  // a view with a flag; what reads it resolves the flag
  if (!is_complex(self.dtype())) return self;
  auto fn = node("ConjBackward0", {self}, {}, [](Backward& w) { w.out[0] = detached(w.grad[0]); });
  Tensor y = make_view(self, self.sizes(), self.strides(), self->offset);
  fn.outputs({y});
  return y;
}
const Op polar_op{{"aten::polar(Tensor abs, Tensor angle) -> Tensor", Autocast::none, "result",
                   "derivatives.yaml polar; FunctionsManual.cpp polar_backward"},
                  polar};
const Op complex_op{{"aten::complex(Tensor real, Tensor imag) -> Tensor", Autocast::none, "", "derivatives.yaml complex"}, complex};
const Op conj_op{{"aten::conj(Tensor(a) self) -> Tensor(a)", Autocast::none, "", "derivatives.yaml _conj"}, conj};
const Op conj_physical_op{
    {"aten::conj_physical(Tensor self) -> Tensor", Autocast::none, "", "derivatives.yaml conj_physical"}, +[](T self) {
      if (!is_complex(self.dtype())) return self;
      auto fn = node("ConjPhysicalBackward0", {self}, {}, [](Backward& w) { w.out[0] = elementwise({w.grad[0]}, w.grad[0].dtype()); });
      Tensor y = elementwise({self}, self.dtype());
      fn.outputs({y});
      return y;
    }};

}  // namespace
}  // namespace memest

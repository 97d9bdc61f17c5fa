// Sources: aten/src/ATen/native/{Linear,LinearAlgebra}.cpp of 2.15: einsum, sumproduct_pair, tensordot and what is made of products.
#include <fmt/format.h>

#include <array>

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

Tensor summed(T x, const Dims& dims) { return ops::sum_dim(x, dims, true, std::nullopt); }

Tensor pair_product(T left_, T right_, const Dims& sum_dims) {
  if (sum_dims.empty()) return ops::mul(left_, right_);
  Tensor left = left_, right = right_;
  const int n = left.dim();
  std::vector<bool> is_summed(std::size_t(n), false);
  for (I d : sum_dims) is_summed[std::size_t(wrap_dim(d, n))] = true;
  Dims lro, lo, ro;
  I lro_size = 1, lo_size = 1, ro_size = 1, sum_size = 1;
  for (int i = 0; i < n; ++i) {
    const bool in_left = left.sizes()[i] != 1, in_right = right.sizes()[i] != 1;
    if (is_summed[std::size_t(i)]) {
      if (in_left && in_right)
        sum_size = checked_mul(sum_size, left.sizes()[i]);
      else if (in_left)
        left = summed(left, {i});
      else if (in_right)
        right = summed(right, {i});
    } else if (in_left && in_right) {
      lro.push_back(i);
      lro_size = checked_mul(lro_size, left.sizes()[i]);
    } else if (in_left) {
      lo.push_back(i);
      lo_size = checked_mul(lo_size, left.sizes()[i]);
    } else {
      ro.push_back(i);
      ro_size = checked_mul(ro_size, right.sizes()[i]);
    }
  }
  Dims out_sizes;
  for (I d : lro) out_sizes.push_back(left.sizes()[int(d)]);
  for (I d : lo) out_sizes.push_back(left.sizes()[int(d)]);
  for (int i = 0; i < sum_dims.size(); ++i) out_sizes.push_back(1);
  for (I d : ro) out_sizes.push_back(right.sizes()[int(d)]);
  const Dims out_order = lro + lo + sum_dims + ro;
  Dims back = Dims::filled(n, 0);
  for (int i = 0; i < n; ++i) back[int(out_order[i])] = i;
  left = ops::reshape(ops::permute(left, lro + lo + sum_dims + ro), {lro_size, lo_size, sum_size});
  right = ops::reshape(ops::permute(right, lro + sum_dims + ro + lo), {lro_size, sum_size, ro_size});
  Tensor product = ops::bmm(left, right);
  return ops::permute(ops::view(product, out_sizes), back);
}

/// Whether all dimensions that only b has stand before those that only a has.
bool right_comes_first(T a, T b, const Dims& sum_dims) {
  int first_of_a = -1, last_of_b = -1;
  for (int d = 0; d < a.dim(); ++d) {
    if (std::find(sum_dims.begin(), sum_dims.end(), d) != sum_dims.end()) continue;
    if (a.sizes()[d] == 1)
      last_of_b = d;
    else if (b.sizes()[d] == 1 && first_of_a < 0)
      first_of_a = d;
  }
  return first_of_a >= 0 && last_of_b >= 0 && last_of_b < first_of_a;
}

constexpr int kEllipsis = 52, kLabels = 53;
using Labels = std::vector<int>;

Error bad_equation(const std::string& equation, const std::string& what) {
  return Error(fmt::format("einsum '{}': {}", equation.substr(0, 80), what));
}

Labels parse_labels(const std::string& equation, std::string_view part) {
  Labels labels;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const char c = part[i];
    if (c == ' ') continue;
    if (c == '.') {
      if (part.substr(i, 3) != "..." || std::find(labels.begin(), labels.end(), kEllipsis) != labels.end())
        throw bad_equation(equation, "found '.' that is no part of one ellipsis");
      labels.push_back(kEllipsis);
      i += 2;
    } else if (c >= 'A' && c <= 'Z') {
      labels.push_back(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      labels.push_back(c - 'a' + 26);
    } else {
      throw bad_equation(equation, fmt::format("subscripts are letters, found '{}'", c));
    }
  }
  return labels;
}

Tensor einsum(const std::string& equation, const Tensors& operands, const std::optional<Dims>& path) {
  if (operands.empty()) throw Error("einsum(): must provide at least one operand");
  if (path && path->size() != 2 * (int(operands.size()) - 1)) throw bad_equation(equation, "the path does not fit the number of operands");
  const auto arrow = equation.find("->");
  const std::string_view text(equation);
  std::vector<Labels> op_labels;
  {
    const std::string_view lhs = text.substr(0, arrow);
    for (std::size_t start = 0;;) {
      const auto comma = lhs.find(',', start);
      op_labels.push_back(parse_labels(equation, lhs.substr(start, comma == std::string_view::npos ? comma : comma - start)));
      if (comma == std::string_view::npos) break;
      start = comma + 1;
    }
  }
  if (op_labels.size() != operands.size())
    throw bad_equation(equation, fmt::format("{} operands are named, {} were given", op_labels.size(), operands.size()));
  std::array<int, kLabels> count{};
  int ellipsis_dims = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const bool has = std::find(op_labels[i].begin(), op_labels[i].end(), kEllipsis) != op_labels[i].end();
    const int named = int(op_labels[i].size()) - int(has), rank = operands[i].dim();
    if (has ? rank < named : rank != named)
      throw bad_equation(equation, fmt::format("operand {} has {} subscripts for {}", i, named, describe(operands[i])));
    if (has) ellipsis_dims = std::max(ellipsis_dims, rank - named);
    for (int label : op_labels[i]) ++count[std::size_t(label)];
  }
  // where each label stands in the permuted operands: the output's first, then those summed over
  std::array<int, kLabels> position;
  position.fill(-1);
  int next = 0, ellipsis_at = 0;
  bool ellipsis_in_output = false;
  if (arrow == std::string::npos) {
    ellipsis_in_output = true;
    next = ellipsis_dims;
    for (int label = 0; label < kEllipsis; ++label)
      if (count[std::size_t(label)] == 1) position[std::size_t(label)] = next++;
  } else {
    for (int label : parse_labels(equation, text.substr(arrow + 2))) {
      if (label == kEllipsis) {
        ellipsis_at = next;
        next += ellipsis_dims;
        ellipsis_in_output = true;
        continue;
      }
      if (!count[std::size_t(label)] || position[std::size_t(label)] >= 0)
        throw bad_equation(equation, "the output names a subscript twice, or one that no operand has");
      position[std::size_t(label)] = next++;
    }
  }
  const int output_dims = next;
  if (!ellipsis_in_output) {
    ellipsis_at = next;
    next += ellipsis_dims;
  }
  for (int label = 0; label < kEllipsis; ++label)
    if (count[std::size_t(label)] && position[std::size_t(label)] < 0) position[std::size_t(label)] = next++;
  const int all_dims = next;

  Tensors ops_list;
  std::vector<int> users(std::size_t(all_dims), 0);  // operands in which the dimension is not 1
  for (std::size_t i = 0; i < operands.size(); ++i) {
    Tensor x = operands[i];
    const int rank = x.dim(), named = int(op_labels[i].size());
    std::vector<int> order(std::size_t(all_dims), -1);
    std::array<int, kLabels> seen;
    seen.fill(-1);
    int j = 0;
    for (int label : op_labels[i]) {
      if (label == kEllipsis) {
        for (int missing = ellipsis_dims - (rank - (named - 1)); missing > 0; --missing) x = ops::unsqueeze(x, j);
        for (int k = 0; k < ellipsis_dims; ++k) order[std::size_t(ellipsis_at + k)] = j++;
      } else if (seen[std::size_t(label)] >= 0) {  // a repeated label: the diagonal, in its first place
        const int first = seen[std::size_t(label)];
        if (x.sizes()[first] != x.sizes()[j]) throw bad_equation(equation, "a repeated subscript has two sizes: " + describe(operands[i]));
        x = ops::movedim(ops::diagonal(x, 0, first, j), {-1}, {first});
      } else {
        seen[std::size_t(label)] = j;
        order[std::size_t(position[std::size_t(label)])] = j++;
      }
    }
    for (int& d : order)
      if (d < 0) {
        x = ops::unsqueeze(x, -1);
        d = j++;
      }
    Dims dims;
    for (int d : order) dims.push_back(d);
    x = ops::permute(x, dims);
    for (int d = 0; d < all_dims; ++d) users[std::size_t(d)] += x.sizes()[d] != 1;
    ops_list.push_back(std::move(x));
  }
  for (int d = 0; d < all_dims; ++d) {
    I size = 1;
    for (auto& x : ops_list) {
      if (x.sizes()[d] != 1 && size != 1 && x.sizes()[d] != size)
        throw bad_equation(equation, fmt::format("a subscript has the sizes {} and {}", size, x.sizes()[d]));
      if (x.sizes()[d] != 1) size = x.sizes()[d];
    }
  }
  const bool several = ops_list.size() > 1;
  for (int step = 0; ops_list.size() > 1; ++step) {
    std::size_t i = 0, j = 1;
    if (path) {
      i = std::size_t((*path)[2 * step]);
      j = std::size_t((*path)[2 * step + 1]);
      if (j < i) std::swap(i, j);
      if (i == j || j >= ops_list.size()) throw bad_equation(equation, "the path names an operand that is not there");
    }
    Tensor a = std::move(ops_list[i]), b = std::move(ops_list[j]);
    ops_list.erase(ops_list.begin() + std::ptrdiff_t(j));
    ops_list.erase(ops_list.begin() + std::ptrdiff_t(i));
    Dims both, only_a, only_b;
    for (int d = output_dims; d < all_dims; ++d) {
      int& n = users[std::size_t(d)];
      if (a.sizes()[d] != 1 && b.sizes()[d] != 1) {
        if (--n == 1) both.push_back(d), n = 0;
      } else if (n == 1) {
        if (a.sizes()[d] != 1)
          only_a.push_back(d), n = 0;
        else if (b.sizes()[d] != 1)
          only_b.push_back(d), n = 0;
      }
    }
    if (!only_a.empty()) a = summed(a, only_a);
    if (!only_b.empty()) b = summed(b, only_b);
    // what only the right one has comes first in the output: they change places. Measured on 2.15.
    if (!both.empty() && right_comes_first(a, b, both)) std::swap(a, b);
    // without a path the operands are contracted from the left
    ops_list.insert(path ? ops_list.end() : ops_list.begin(), both.empty() ? ops::mul(a, b) : pair_product(a, b, both));
  }
  if (all_dims == output_dims) return ops_list[0];
  if (several) return ops::view(ops_list[0], ops_list[0].sizes().slice(0, output_dims));
  Dims rest;
  for (int d = output_dims; d < all_dims; ++d) rest.push_back(d);
  return ops::sum_dim(ops_list[0], rest, false, std::nullopt);
}
const Op einsum_op{
    {"aten::einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor", Autocast::lower, "", "native/Linear.cpp einsum"},
    einsum};

Tensor tensordot(T input1, T input2, const Dims& dims1, const Dims& dims2) {
  if (dims1.size() != dims2.size())
    throw Error("tensordot: both dimension lists should have the same length, found " + to_string(dims1) + " and " + to_string(dims2));
  Tensor a = input1, b = input2;
  I contracted = 1;
  std::vector<bool> in1(std::size_t(a.dim()), false), in2(std::size_t(b.dim()), false);
  Dims d1, d2;
  for (int i = 0; i < dims1.size(); ++i) {
    const int x = wrap_dim(dims1[i], a.dim()), y = wrap_dim(dims2[i], b.dim());
    d1.push_back(x), d2.push_back(y);
    in1[std::size_t(x)] = in2[std::size_t(y)] = true;
    const I s1 = a.sizes()[x], s2 = b.sizes()[y];
    if (s2 == 1)
      a = summed(a, {x});
    else if (s1 == 1)
      b = summed(b, {y});
    else if (s1 != s2)
      throw Error(
          fmt::format("tensordot: contracted dimensions need to match, but first has size {} in dim {} and second has size {} in dim {}",
                      s1, x, s2, y));
    else
      contracted = checked_mul(contracted, s1);
  }
  Dims free1, free2, sizes;
  I size1 = 1, size2 = 1;
  for (int i = 0; i < a.dim(); ++i)
    if (!in1[std::size_t(i)]) free1.push_back(i), sizes.push_back(a.sizes()[i]), size1 = checked_mul(size1, a.sizes()[i]);
  for (int i = 0; i < b.dim(); ++i)
    if (!in2[std::size_t(i)]) free2.push_back(i), sizes.push_back(b.sizes()[i]), size2 = checked_mul(size2, b.sizes()[i]);
  if (free1.empty() && free2.empty()) {  // all of both
    Tensor x = ops::reshape(ops::permute(a, d1), {contracted});
    Tensor y = ops::reshape(ops::permute(b, d2), {contracted});
    return ops::dot(x, y);
  }
  Tensor x = ops::reshape(ops::permute(a, free1 + d1), {size1, contracted});
  Tensor y = ops::reshape(ops::permute(b, d2 + free2), {contracted, size2});
  Tensor product = ops::mm(x, y);
  return ops::reshape(product, sizes);
}
const Op<Tensor(T, T, const Dims&, const Dims&)> tensordot_op{
    {"aten::tensordot(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor", Autocast::promote, "",
     "native/Linear.cpp tensordot"},
    tensordot};

// ---- bilinear ----------------------------------------------------------------------------------------------------------------

using Mask = std::array<bool, 4>;
/// _trilinear: the sum of products of three tensors, one slice of `unroll` after the other.
struct Trilinear {
  Mask expand1, expand2, expand3, summed;
  static constexpr int unroll = 1;

  Tensor run(Tensor i1, Tensor i2, Tensor i3) const {
    NoGrad below;
    Dims sizes, sum12, sum23;
    I count = 1;
    for (int d = 0; d < 4; ++d) {
      I size = 1;
      auto take = [&](Tensor& x, bool expanded) {
        if (expanded)
          x = ops::unsqueeze(x, d);
        else
          size = x.sizes()[d];
      };
      const auto i = std::size_t(d);
      take(i1, expand1[i]);
      take(i2, expand2[i]);
      take(i3, expand3[i]);
      sizes.push_back(summed[i] ? 1 : size);
      if (summed[i]) (expand3[i] ? sum12 : sum23).push_back(d);
      if (d == unroll) count = size;
    }
    Tensor output = ops::zeros(sizes, i1.dtype());
    for (I k = 0; k < count; ++k) {
      auto slice = [&](T x, bool expanded) { return ops::narrow(x, unroll, expanded ? 0 : k, 1); };
      Tensor buffer = pair_product(slice(i1, expand1[unroll]), slice(i2, expand2[unroll]), sum12);
      buffer = pair_product(buffer, slice(i3, expand3[unroll]), sum23);
      ops::add_(summed[unroll] ? output : ops::narrow(output, unroll, k, 1), buffer, 1);
    }
    for (int d = 3; d >= 0; --d)
      if (summed[std::size_t(d)]) output = ops::squeeze_dim(output, d);
    return output;
  }
};
Tensor trilinear(T i1, T i2, T i3, const Trilinear& t) {
  auto kept = [](T x, T a, T b) { return a.requires_grad() || b.requires_grad() ? x : Tensor(); };
  auto fn =
      node("TrilinearBackward0", {i1, i2, i3}, {kept(i1, i2, i3), kept(i2, i1, i3), kept(i3, i1, i2)}, [t](Backward& w, T a, T b, T c) {
        T g = w.grad[0];
        if (w.needs(0)) w.out[0] = Trilinear{t.summed, t.expand2, t.expand3, t.expand1}.run(g, b, c);
        if (w.needs(1)) w.out[1] = Trilinear{t.expand1, t.summed, t.expand3, t.expand2}.run(a, g, c);
        if (w.needs(2)) w.out[2] = Trilinear{t.expand1, t.expand2, t.summed, t.expand3}.run(a, b, g);
      });
  Tensor y = t.run(i1, i2, i3);
  fn.outputs({y});
  return y;
}
Tensor bilinear(T input1, T input2, T weight, T bias) {
  if (input1.dim() != input2.dim() || input1.dim() < 1 || weight.dim() != 3 || input1.size(-1) != weight.size(1) ||
      input2.size(-1) != weight.size(2))
    throw Error("bilinear(): " + describe(input1) + " and " + describe(input2) + " do not meet a weight " + describe(weight));
  Dims sizes = input1.sizes();
  sizes[-1] = weight.size(0);
  const Tensor a = ops::reshape(input1, {-1, input1.size(-1)}), b = ops::reshape(input2, {-1, input2.size(-1)});
  constexpr Trilinear shape{
      {false, true, false, true}, {true, false, false, false}, {false, true, true, false}, {false, false, true, true}};
  Tensor output = ops::reshape(trilinear(a, weight, b, shape), sizes);
  if (bias) output = ops::add(output, bias, 1);
  return output;
}
const Op bilinear_op{{"aten::bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor", Autocast::promote, "",
                      "native/Linear.cpp bilinear, _trilinear"},
                     bilinear};

Tensor inner(T self, T other) {
  if (self.dim() == 0 || other.dim() == 0) return ops::mul(self, other);
  return tensordot_op(self, other, {-1}, {-1});
}
const Op inner_op{{"aten::inner(Tensor self, Tensor other) -> Tensor", Autocast::none, "", "native/LinearAlgebra.cpp inner"}, inner};

// native/LinearAlgebra.cpp KronImpl
Tensor kron(T self, T other) {
  const int n = std::max(self.dim(), other.dim());
  Dims a, b, sizes;
  for (int i = 0; i < n; ++i) {
    const int x = i - (n - self.dim()), y = i - (n - other.dim());
    const I s = x >= 0 ? self.sizes()[x] : 1, o = y >= 0 ? other.sizes()[y] : 1;
    a.push_back(s), a.push_back(1);
    b.push_back(1), b.push_back(o);
    sizes.push_back(checked_mul(s, o));
  }
  Tensor left = ops::reshape(self, a), right = ops::reshape(other, b);
  Tensor product = ops::mul(left, right);
  return ops::view(product, sizes);
}
const Op kron_op{{"aten::kron(Tensor self, Tensor other) -> Tensor", Autocast::none, "", "native/LinearAlgebra.cpp kron"}, kron};

/// Products in the order that costs least.
class Chain {
 public:
  explicit Chain(const Tensors& matrices) : matrices_(matrices), order_(matrices.size(), std::vector<std::size_t>(matrices.size(), 0)) {
    const std::size_t n = matrices.size();
    std::vector<I> p;
    for (auto& m : matrices) p.push_back(m.sizes()[0]);
    p.push_back(matrices.back().sizes()[1]);
    std::vector<std::vector<double>> cost(n, std::vector<double>(n, 0));
    for (std::size_t length = 1; length < n; ++length)
      for (std::size_t i = 0; i + length < n; ++i) {
        const std::size_t j = i + length;
        cost[i][j] = 1e300;
        for (std::size_t k = i; k < j; ++k) {
          const double c = cost[i][k] + cost[k + 1][j] + double(p[i]) * double(p[k + 1]) * double(p[j + 1]);
          if (c < cost[i][j]) cost[i][j] = c, order_[i][j] = k;
        }
      }
  }
  Tensor multiply() const { return multiply(0, matrices_.size() - 1); }

 private:
  Tensor multiply(std::size_t i, std::size_t j) const {
    if (i == j) return matrices_[i];
    Tensor right = multiply(order_[i][j] + 1, j);  // arguments are evaluated from the right
    Tensor left = multiply(i, order_[i][j]);
    return ops::mm(left, right);
  }
  const Tensors& matrices_;
  std::vector<std::vector<std::size_t>> order_;
};
Tensor multi_dot(const Tensors& tensors) {
  if (tensors.size() < 2 || tensors.size() > 1000)
    throw Error(fmt::format("linalg.multi_dot(): expected at least 2 tensors but got {}", tensors.size()));
  Tensors matrices = tensors;
  const bool row = matrices.front().dim() == 1, column = matrices.back().dim() == 1;
  if (row) matrices.front() = ops::unsqueeze(matrices.front(), 0);
  if (column) matrices.back() = ops::unsqueeze(matrices.back(), -1);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].dim() != 2)
      throw Error("linalg.multi_dot(): all but the first and the last tensor must be matrices, found " + describe(matrices[i]));
    if (i && matrices[i - 1].sizes()[1] != matrices[i].sizes()[0])
      throw Error("linalg.multi_dot(): " + describe(matrices[i - 1]) + " and " + describe(matrices[i]) + " cannot be multiplied");
  }
  Tensor result = Chain(matrices).multiply();
  matrices.clear();
  if (row && column) return ops::view(result, {});
  if (row) return ops::squeeze_dim(result, 0);
  return column ? ops::squeeze_dim(result, 1) : result;
}
const Op<Tensor(const Tensors&)> multi_dot_op{
    {"aten::linalg_multi_dot(Tensor[] tensors) -> Tensor", Autocast::lower, "", "native/LinearAlgebra.cpp linalg_multi_dot"}, multi_dot};
const Op chain_matmul_op{{"aten::chain_matmul(Tensor[] matrices) -> Tensor", Autocast::lower, "", "native/LinearAlgebra.cpp chain_matmul"},
                         +[](const Tensors& matrices) { return matrices.size() == 1 ? matrices[0] : multi_dot_op(matrices); }};

Tensor linalg_vecdot(T x, T y, I dim) {
  if (x.dim() == 1 && y.dim() == 1) return ops::vdot(x, y);
  Tensor product = ops::mul(x, y);
  return ops::sum_dim(product, Dims{dim}, false, std::nullopt);
}
const Op vecdot_op{
    {"aten::linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor", Autocast::lower, "", "native/LinearAlgebra.cpp linalg_vecdot"},
    linalg_vecdot};

// native/LinearAlgebra.cpp linalg_matrix_power_impl: powers by squaring
Tensor matrix_power(T self, I n) {
  if (self.dim() < 2 || self.size(-1) != self.size(-2))
    throw Error("matrix_power: the input must be square matrices, found " + describe(self));
  if (n < 0) throw Error("matrix_power: an exponent of " + std::to_string(n) + " takes an inverse, which is not modelled");
  if (n == 0) {
    Tensor result = ops::clone(self, std::nullopt);
    const Tensor identity = empty({self.size(-1), self.size(-1)}, self.dtype());
    return ops::copy_(result, identity, false);
  }
  if (n == 1) return ops::clone(self, std::nullopt);
  if (n == 2) return ops::matmul(self, self);
  if (n == 3) {
    Tensor square = ops::matmul(self, self);
    return ops::matmul(square, self);
  }
  Tensor z, result;
  for (; n > 0; n /= 2) {
    z = z ? ops::matmul(z, z) : self;
    if (n % 2) result = result ? ops::matmul(result, z) : z;
  }
  return result;
}
const Op matrix_power_op{
    {"aten::matrix_power(Tensor self, int n) -> Tensor", Autocast::lower, "", "native/LinearAlgebra.cpp linalg_matrix_power"},
    matrix_power};

// FunctionsManual.cpp trace_backward
Tensor trace(T self) {
  if (self.dim() != 2) throw Error("trace: expected a matrix, but got tensor with dim " + std::to_string(self.dim()));
  auto fn = node("TraceBackward0", {self}, {}, [diagonal = std::min(self.sizes()[0], self.sizes()[1])](Backward& w) {
    w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype());
    Tensor indices = empty({diagonal}, DType::int64);
  });
  Tensor y;
  {
    NoGrad off;
    y = ops::sum(ops::diagonal(self, 0, 0, 1), std::nullopt);  // which autocast sees
  }
  fn.outputs({y});
  return y;
}
const Op trace_op{
    {"aten::trace(Tensor self) -> Tensor", Autocast::none, "", "derivatives.yaml trace; native/cuda/TriangularOps.cu trace_cuda"}, trace};

Tensor linalg_cross(T self, T other, I dim) {
  if (self.size(dim) != 3 || other.size(dim) != 3)
    throw Error("linalg.cross: inputs dimension " + std::to_string(dim) + " must have length 3, found " + describe(self) + " and " +
                describe(other));
  auto fn = node("LinalgCrossBackward0", {self, other}, {save_if(other, self), save_if(self, other)}, [](Backward& w, T o, T s) {
    if (w.needs(1)) w.out[1] = ops::binary("aten::linalg_cross", w.grad[0], s);
    if (w.needs(0)) w.out[0] = ops::binary("aten::linalg_cross", o, w.grad[0]);
  });
  Tensor y = empty(broadcast(self.sizes(), other.sizes()), self.dtype());
  fn.outputs({y});
  return y;
}
const Op<Tensor(T, T, I)> linalg_cross_op{{"aten::linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor", Autocast::none,
                                           "other, self", "derivatives.yaml linalg_cross"},
                                          linalg_cross};
const Op cross_op{{"aten::cross(Tensor self, Tensor other, int? dim=None) -> Tensor", Autocast::promote, "", "native/Cross.cpp cross"},
                  +[](T self, T other, std::optional<I> dim) {
                    int d = dim ? wrap_dim(*dim, self.dim()) : 0;
                    while (!dim && d < self.dim() - 1 && self.sizes()[d] != 3) ++d;
                    return linalg_cross_op(self, other, I{d});
                  }};

}  // namespace

namespace ops {
Tensor sumproduct_pair(T left, T right, const Dims& sum_dims) { return pair_product(left, right, sum_dims); }
}  // namespace ops
}  // namespace memest

// Fake tensors: sizes, strides, type and a counted storage, but no data (PyTorch's TensorImpl, c10/core/TensorImpl.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dims.h"
#include "base/dtype.h"
#include "fake/ref.h"
#include "trace/trace.h"

namespace memest {

enum class MemoryFormat : std::uint8_t { contiguous, preserve, channels_last, channels_last_3d };

/// Device memory. Emits an alloc event when made and a free event when its last reference goes; nothing else emits them.
/// A storage on the host, or of no bytes, emits none.
struct Storage {
  Storage(Bytes bytes, bool host);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  /// Changes what the storage is for; an event where it is on the device.
  void categorize(Category to);

  int refs = 0;
  std::uint32_t version = 0;  ///< counts in-place writes, as the version counter that a tensor shares with its views
  Bytes bytes;                ///< of the request
  BlockId block = 0;
  Category category;
  bool host;
};
inline void dispose(Storage* s) { delete s; }

class Node;
void dispose(Node* node);
struct TensorImpl;
void dispose(TensorImpl* impl);

/// A handle, as in LibTorch and Python: copies share the tensor. Undefined by default.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorImpl* impl) : impl_(impl) {}
  explicit operator bool() const { return bool(impl_); }
  bool defined() const { return bool(impl_); }
  TensorImpl* operator->() const { return impl_.get(); }
  TensorImpl* get() const { return impl_.get(); }
  void reset() { impl_.reset(); }
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  const Dims& sizes() const;
  const Dims& strides() const;
  int dim() const;
  /// Negative dimensions count from the end; throws Error where there is none such.
  std::int64_t size(std::int64_t dim) const;
  std::int64_t numel() const;
  DType dtype() const;
  bool on_host() const;
  /// Takes part in autograd: a leaf that requires grad or a result of one.
  bool requires_grad() const;

 private:
  Ref<TensorImpl> impl_;
};
using Tensors = std::vector<Tensor>;
using T = const Tensor&;  // an op's argument

struct TensorImpl {
  int refs = 0;
  DType dtype = DType::float32;
  bool requires_grad = false;   ///< set on leaves
  bool wrapped_number = false;  ///< made of a Python number: weak in type promotion
  int output_nr = 0;
  std::uint32_t attr_version = 0;  ///< of a view: the storage's version that grad_fn belongs to
  std::int64_t offset = 0;         ///< elements from the storage's start
  std::int64_t numel = 0;
  Dims sizes, strides;
  Ref<Storage> storage;
  Ref<Node> grad_fn;
  Node* accumulator = nullptr;  ///< of a leaf: its AccumulateGrad while a graph holds it
  Tensor grad;
  Tensor base;  ///< of a differentiable view: the tensor it shows, never a view itself
};

// ---- making tensors. The storage's category is the runtime's current one.
Tensor empty(const Dims& sizes, DType dtype);
Tensor empty_strided(const Dims& sizes, const Dims& strides, DType dtype);
Tensor empty(const Dims& sizes, DType dtype, MemoryFormat format);
/// at::empty_like with MemoryFormat::preserve: the same strides where x is dense, else those that TensorIterator would give.
Tensor empty_like(T x);
Tensor empty_like(T x, DType dtype);
Tensor empty_like(T x, DType dtype, MemoryFormat format);
/// On the CPU: no bytes on the device.
Tensor host_tensor(const Dims& sizes, DType dtype);
/// A Python number as PyTorch wraps it: 0-d, on the host, weak in type promotion.
Tensor wrapped_number(DType dtype);
/// Another tensor over the same storage, without history. With `view_of`, a differentiable view of it.
Tensor share(T x, const Dims& sizes, const Dims& strides, std::int64_t offset);
Tensor make_view(T x, const Dims& sizes, const Dims& strides, std::int64_t offset);
/// The same sizes and storage, no history: detach().
Tensor detached(T x);

// ---- geometry
/// at::Tensor::is_contiguous.
bool is_contiguous(T x);
bool is_contiguous(T x, MemoryFormat format);
/// Strides ordered as channels_last (at::Tensor::suggest_memory_format with the exact-match rule of c10/core/MemoryFormat.h).
bool is_channels_last_strides(const Dims& sizes, const Dims& strides);
MemoryFormat suggest_memory_format(T x);
/// is_non_overlapping_and_dense.
bool is_dense(T x);
bool is_dense(const Dims& sizes, const Dims& strides);
/// at::infer_dense_strides: dense strides in the order of the given ones.
Dims infer_dense_strides(const Dims& sizes, const Dims& strides);
/// at::detail::computeStride: strides of a view with these sizes; none where it takes a copy.
std::optional<Dims> view_strides(const Dims& old_sizes, const Dims& old_strides, const Dims& sizes);
Dims strides_of(const Dims& sizes, MemoryFormat format);

/// 0 <= dim < count (count 0 counts as 1); throws Error as PyTorch: "Dimension out of range".
int wrap_dim(std::int64_t dim, int count);
/// "float32[8, 512]", for messages.
std::string describe(T x);

inline const Dims& Tensor::sizes() const { return impl_->sizes; }
inline const Dims& Tensor::strides() const { return impl_->strides; }
inline int Tensor::dim() const { return impl_->sizes.size(); }
inline std::int64_t Tensor::size(std::int64_t dim) const { return impl_->sizes[wrap_dim(dim, impl_->sizes.size())]; }
inline std::int64_t Tensor::numel() const { return impl_->numel; }
inline DType Tensor::dtype() const { return impl_->dtype; }
inline bool Tensor::on_host() const { return impl_->storage->host; }
inline bool Tensor::requires_grad() const { return impl_ && (impl_->requires_grad || impl_->grad_fn); }

}  // namespace memest

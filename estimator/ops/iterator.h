// What at::TensorIterator decides about outputs: broadcast sizes, promoted type, strides; and what CUDA reductions take as scratch.
// Sources: aten/src/ATen/TensorIterator.cpp, native/TypeProperties.cpp, native/cuda/Reduce.cuh of 2.15.
#pragma once
#include <initializer_list>
#include <span>

#include "fake/tensor.h"
#include "ops/value.h"

namespace memest {

/// infer_size: the common sizes; throws Error as PyTorch where they do not meet.
Dims broadcast(const Dims& a, const Dims& b);
Dims broadcast(std::span<const Tensor> inputs);

/// torch.result_type: tensors with dimensions weigh more than 0-d ones, these more than Python numbers.
class ResultType {
 public:
  ResultType& add(T x);
  ResultType& add(const Scalar& number);
  DType get() const;

 private:
  std::optional<DType> dimensional_, zero_dim_, number_;
};
DType result_type(std::initializer_list<Tensor> inputs);

/// The output of an elementwise kernel: broadcast, with the strides that TensorIterator chooses. On the host where all inputs are.
Tensor elementwise(std::span<const Tensor> inputs, DType dtype);
inline Tensor elementwise(std::initializer_list<Tensor> inputs, DType dtype) {
  return elementwise(std::span(inputs.begin(), inputs.size()), dtype);
}

/// Dimensions of a reduction as a mask: none given means all.
std::vector<bool> reduction_mask(const std::optional<Dims>& dims, int count);
/// Sizes of the result.
Dims reduced_sizes(const Dims& sizes, const std::vector<bool>& mask, bool keepdim);

struct ReduceKernel {
  int accumulator_size;               ///< sizeof(arg_t)
  int input_size;                     ///< sizeof(scalar_t)
  int input_vec_size = 4;             ///< elements that one load takes along the input
  bool accumulates_in_output = true;  ///< partial results of pieces beyond 32-bit indexing go to the output
  int output_size = 4;
};
/// Runs gpu_reduce_kernel's allocations (staging buffer and semaphores of a reduction split over blocks) and frees them.
void reduce_scratch(T input, const std::vector<bool>& mask, const ReduceKernel& kernel);

/// Device memory that a kernel takes for its own time: freed when the object goes. Nothing where fake tensors are followed.
class Scratch {
 public:
  explicit Scratch(Bytes bytes);

 private:
  Tensor buffer_;
};

}  // namespace memest

// bitsandbytes 0.50 (bitsandbytes/optim/optimizer.py): block-wise 8-bit states, 32-bit ones for small parameters, paged states.
#include "ops/copy.h"
#include "ops/factories.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

constexpr std::int64_t kBlock = 256;          // Optimizer2State.init_state blocksize
constexpr std::int64_t kPagedFrom = 100'000;  // get_state_buffer: smaller ones are not paged

struct Options {
  int states;  ///< Optimizer1State or Optimizer2State
  int bits;
  std::int64_t min_8bit_size;
  bool paged;
};
struct State {
  Tensor state1, state2, absmax1, absmax2;
};

class Bitsandbytes final : public StatefulOptimizer<State> {
 public:
  Bitsandbytes(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {
    for (auto& g : groups_)
      for (auto& p : g.parameters)
        if (!is_floating(p.dtype())) throw Error("--optimizer: bitsandbytes steps floating-point parameters only");
  }

 private:
  /// get_state_buffer: managed memory, which the allocator does not see, where states are paged.
  Tensor buffer(T p, DType type) {
    if (!o_.paged || p.numel() < kPagedFrom) return new_state(p, type);
    Tensor state = host_tensor(p.sizes(), type);
    count_state(state);
    return state;
  }
  /// name2qmap[...].to(p.device): 256 float32, once for all parameters.
  void quantization_map(Tensor& map) {
    if (!map) map = new_state(Dims{256}, DType::float32);
  }
  void init(T p, State& s) override {
    if (s.state1) return;
    const bool blockwise = o_.bits == 8 && p.numel() >= o_.min_8bit_size;
    const DType type = blockwise ? DType::uint8 : DType::float32;
    if (blockwise) {
      quantization_map(dynamic_);
      if (o_.states == 2) quantization_map(udynamic_);
    }
    s.state1 = buffer(p, type);
    if (o_.states == 2) s.state2 = buffer(p, type);
    if (!blockwise) return;
    const std::int64_t blocks = ceil_div(p.numel(), kBlock);
    s.absmax1 = new_state(Dims{blocks}, DType::float32);
    if (o_.states == 2) s.absmax2 = new_state(Dims{blocks}, DType::float32);
  }

  void step(const ParameterGroup& g) override {
    for (std::size_t i = 0; i < g.parameters.size(); ++i) {
      const Tensor p = g.parameters[i];
      if (!p->grad) continue;
      init(p, states_[g.first + i]);
      // p.data = p.data.contiguous(); p.grad = p.grad.contiguous()
      if (!is_contiguous(p)) {
        CategoryScope category(Category::parameter);
        const Tensor data = ops::clone(detached(p), MemoryFormat::contiguous);
        p->storage = data->storage;
        p->strides = data->strides;
        p->offset = 0;
      }
      if (!is_contiguous(p->grad)) {
        CategoryScope category(Category::gradient);
        p->grad = ops::clone(p->grad, MemoryFormat::contiguous);
      }
    }
  }

  Options o_;
  Tensor dynamic_, udynamic_;
};

MakeOptimizer make(Options o) {
  return [o](ParameterGroups groups) { return std::make_unique<Bitsandbytes>(std::move(groups), o); };
}

constexpr const char* kTwo8 =
    "2 × 1 byte and 8 bytes for each 256 elements; parameters below min_8bit_size: 2 × float32; paged: states of 100,000 elements and more "
    "on the host";
constexpr const char* kOne8 =
    "1 byte and 4 bytes for each 256 elements; parameters below min_8bit_size: float32; paged: states of 100,000 elements and more on the "
    "host";

const OptimizerKind adam8{
    "adam-8bit(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0, int min_8bit_size=4096, bool "
    "paged=False)",
    kTwo8, [](double, const std::vector<double>& betas, double, double, std::int64_t min_size, bool paged) {
      check_betas(betas);
      return make({2, 8, min_size, paged});
    }};
const OptimizerKind adamw8{
    "adamw-8bit(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0.01, int min_8bit_size=4096, bool "
    "paged=False)",
    kTwo8, [](double, const std::vector<double>& betas, double, double, std::int64_t min_size, bool paged) {
      check_betas(betas);
      return make({2, 8, min_size, paged});
    }};
const OptimizerKind adamw32{
    "adamw-32bit(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, float weight_decay=0.01, bool paged=False)",
    "2 × float32 (bitsandbytes, optim_bits=32); paged: states of 100,000 elements and more on the host",
    [](double, const std::vector<double>& betas, double, double, bool paged) {
      check_betas(betas);
      return make({2, 32, 4096, paged});
    }};
const OptimizerKind lion8{
    "lion-8bit(float lr=0.0001, float[2] betas=[0.9, 0.99], float weight_decay=0, int min_8bit_size=4096, bool paged=False)", kOne8,
    [](double, const std::vector<double>& betas, double, std::int64_t min_size, bool paged) {
      check_betas(betas);
      return make({1, 8, min_size, paged});
    }};
const OptimizerKind lion32{"lion-32bit(float lr=0.0001, float[2] betas=[0.9, 0.99], float weight_decay=0, bool paged=False)",
                           "float32 (bitsandbytes, optim_bits=32); paged: states of 100,000 elements and more on the host",
                           [](double, const std::vector<double>& betas, double, bool paged) {
                             check_betas(betas);
                             return make({1, 32, 4096, paged});
                           }};
const OptimizerKind rmsprop8{"rmsprop-8bit(float lr=0.01, float alpha=0.99, float eps=1e-08, float weight_decay=0, int min_8bit_size=4096)",
                             kOne8, [](double, double, double, double, std::int64_t min_size) {
                               return make({1, 8, min_size, false});
                             }};
const OptimizerKind sgd8{"sgd-8bit(float lr=0.001, float momentum=0.9, float weight_decay=0, int min_8bit_size=4096)", kOne8,
                         [](double, double momentum, double, std::int64_t min_size) {
                           if (momentum == 0) throw Error("--optimizer: SGD without momentum is not supported!");
                           return make({1, 8, min_size, false});
                         }};

}  // namespace
}  // namespace memest::optim

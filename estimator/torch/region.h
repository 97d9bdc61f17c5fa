// torch.utils.checkpoint (torch/utils/checkpoint.py of 2.15, use_reentrant=False) for C++, which has none: while a region runs, holders
// take the place of what autograd saves; the first of them that backward asks for runs the region again, up to the last tensor that was
// saved.
#pragma once
#include <functional>
#include <memory>

namespace memest::plugin {

/// Thrown through the region's second run. No std::exception, so that nothing takes it for a failure.
struct StopRecomputation {};

class Region {
 public:
  /// `again` runs the region once more; it holds what the region takes.
  explicit Region(std::function<void()> again);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  struct Frame;

 private:
  std::shared_ptr<Frame> outer_;
};

}  // namespace memest::plugin

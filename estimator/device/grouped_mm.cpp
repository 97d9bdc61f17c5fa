#include "device/grouped_mm.h"

namespace memest {

bool has_grouped_mm(TorchVersion torch, const Device& device) {
  if (torch.at_least(9)) return device.major >= 8;
  return torch.at_least(8) && device.major == 9;
}
bool has_grouped_mm_kernel(const Device& device) { return device.major == 9 || device.major == 10; }

}  // namespace memest

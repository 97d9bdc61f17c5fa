// Which releases and cards multiply matrices by groups: what transformers asks before it takes torch's grouped_mm for its experts.
#pragma once
#include "device/device.h"

namespace memest {

/// transformers/integrations/moe.py _can_use_grouped_mm on CUDA: nn.functional.grouped_mm (2.10) and torch._grouped_mm of 2.9 on compute
/// capability 8.0 and up, torch._grouped_mm of 2.8 on 9.x alone.
bool has_grouped_mm(TorchVersion torch, const Device& device);
/// GroupedBlas.cpp _grouped_mm_cuda: bfloat16 in one CUTLASS kernel for all groups; otherwise one product for each group.
bool has_grouped_mm_kernel(const Device& device);

}  // namespace memest

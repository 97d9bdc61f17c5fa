// The lower bound that any allocator has: what is alive, in PyTorch's 512-byte units.
#pragma once
#include "trace/trace.h"

namespace memest {

/// max over the trace of the sum of request sizes rounded up to 512 bytes: no fragmentation, no unsplit tails.
Bytes ideal_peak(const MemoryTrace& trace);

}  // namespace memest

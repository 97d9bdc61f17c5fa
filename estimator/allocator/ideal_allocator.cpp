#include "allocator/ideal_allocator.h"

#include <algorithm>

#include "allocator/config.h"

namespace memest {

Bytes ideal_peak(const MemoryTrace& trace) {
  Bytes live = 0, peak = 0;
  for (const MemoryEvent& event : trace.events) {
    if (event.kind == MemoryEvent::Kind::alloc) peak = std::max(peak, live += round_up(event.bytes, kMinBlockSize));
    if (event.kind == MemoryEvent::Kind::free) live -= round_up(event.bytes, kMinBlockSize);
  }
  return peak;
}

}  // namespace memest

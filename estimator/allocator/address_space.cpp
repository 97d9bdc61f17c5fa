#include "allocator/address_space.h"

#include <iterator>

namespace memest {

Bytes AddressSpace::take(Bytes size) {
  size = round_up(size, kGrain);
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    const auto [address, room] = *hole;
    if (room < size) continue;
    holes_.erase(hole);
    if (room > size) holes_.emplace(address + size, room - size);
    return address;
  }
  const Bytes address = end_;
  end_ = checked_add(end_, size);
  return address;
}

void AddressSpace::give(Bytes address, Bytes size) {
  auto hole = holes_.emplace(address, round_up(size, kGrain)).first;
  if (auto next = std::next(hole); next != holes_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole != holes_.begin())
    if (auto before = std::prev(hole); before->first + before->second == hole->first) {
      before->second += hole->second;
      holes_.erase(hole);
      hole = before;
    }
  if (hole->first + hole->second == end_) {
    end_ = hole->first;
    holes_.erase(hole);
  }
}

}  // namespace memest

// Where cudaMalloc and cuMemAddressReserve place things. The driver's rule is not documented; memest hands out the lowest range that
// fits, so addresses grow from 0 and ranges given back are used again. Only ties between free blocks of equal size depend on it.
#pragma once
#include <map>

#include "base/bytes.h"

namespace memest {

class AddressSpace {
 public:
  static constexpr Bytes kGrain = 2 * kMiB;  ///< the driver's page: every range starts at a multiple and fills whole pages

  /// The lowest free range; its address.
  Bytes take(Bytes size);
  /// Gives back a range that take(size) returned.
  void give(Bytes address, Bytes size);

 private:
  std::map<Bytes, Bytes> holes_;  // address -> size, below end_; never adjacent
  Bytes end_ = 0;
};

}  // namespace memest

#include "ops/cub.h"

#include <algorithm>

#include "fake/runtime.h"

namespace memest {
namespace {
using I = std::int64_t;

/// detail::AliasTemporaries: each allocation at a multiple of 256 bytes, and 255 to align the first.
Bytes aligned(Bytes bytes) { return ceil_div(bytes, Bytes{256}) * 256; }
constexpr Bytes kSlack = 255;
constexpr I kOffset = 8;  // sizeof(OffsetT)

/// Downsweep's grid: occupancy of 8 blocks and a subscription factor of 5 for each multiprocessor.
I even_share_grid() { return I{runtime().settings.device.multiprocessors} * 40; }

}  // namespace

int bits_of(I largest) {
  int bits = 1;
  while (bits < 63 && (largest >> bits) != 0) ++bits;
  return bits;
}

Bytes cub_radix_sort(I items, int key_size, int value_size, int bits) {
  constexpr I kSingleTile = 2048;
  if (items <= kSingleTile) return 1;
  const Bytes keys = aligned(checked_mul(items, key_size)), values = value_size ? aligned(checked_mul(items, value_size)) : 0;
  if (key_size < 4) {  // upsweep, scan and downsweep with a spine of counts
    const I digits = key_size == 1 ? 64 : 128;
    return aligned((even_share_grid() * digits + 5632) * kOffset) + keys + values + kSlack;
  }
  constexpr I kDigits = 256;
  // the one-sweep policy: 384 threads with so many items of four bytes, as many bytes of larger ones
  const I tile = 384 * std::max(1, (key_size == 4 && value_size ? 17 : 21) * 4 / std::max({4, key_size, value_size}));
  const I portion = ((I{1} << 28) - 1) / tile * tile, portions = ceil_div(items, portion), passes = ceil_div(I{bits}, I{8});
  Bytes total = aligned(portions * passes * kDigits * kOffset) + aligned(ceil_div(std::min(items, portion), tile) * kDigits * 4) +
                aligned(portions * passes * 4);
  if (passes > 1) total += keys + values;
  return total + kSlack;
}

Bytes cub_segmented_sort(I items, int key_size, int value_size) {
  return aligned(checked_mul(items, key_size)) + aligned(checked_mul(items, value_size)) + kSlack;
}

namespace {
/// ScanTileState: a word for each tile, and for 32 before the first; a second allocation of one byte.
Bytes tile_state(I items, I tile, I word) { return aligned((ceil_div(items, tile) + 32) * word) + 256 + kSlack; }
}  // namespace

Bytes cub_scan(I items, int accumulator_size) {
  const I tile = accumulator_size == 8 ? 896 : accumulator_size == 4 ? 1920 : 7680, word = accumulator_size == 4 ? 8 : 16;
  return tile_state(items, tile, word);
}
Bytes cub_scan_by_key(I items, int size) {  // the second allocation is the last key of each tile
  const I tile = size == 8 ? 2240 : 3840;
  return tile_state(items, tile, 16) - 256 + aligned((ceil_div(items, tile) + 1) * size);
}
Bytes cub_unique_by_key(I items, int size) { return tile_state(items, size == 8 ? 1344 : 2816, 16); }
Bytes cub_unique(I items, int size, bool tuned) {
  return tile_state(items, !tuned ? 1280 : size == 1 ? 19840 : size == 2 ? 8064 : size == 4 ? 4608 : 1920, 8);
}
Bytes cub_select(I items) { return tile_state(items, 2304, 8); }
Bytes cub_run_length_encode(I items) { return tile_state(items, 384, 8); }
Bytes cub_reduce(I items) {
  constexpr I kSingleTile = 4096;
  return items <= kSingleTile ? 1 : aligned(even_share_grid() * 4) + kSlack;
}

}  // namespace memest

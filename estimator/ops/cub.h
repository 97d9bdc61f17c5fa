// Temporary storage that cub's device-wide algorithms ask for (CCCL 3, CUDA 13: cub/device/dispatch/*.cuh, tuning for sm_80). What differs
// with CUDA 12 is some KiB and not modelled. Bytes of one request; the sizes were checked against the CUDA build of 2.15 on 5 to 10,000,000
// items.
#pragma once
#include "base/bytes.h"

namespace memest {

/// DeviceRadixSort::SortPairs over `bits` bits of the key; value_size 0: SortKeys.
Bytes cub_radix_sort(std::int64_t items, int key_size, int value_size, int bits);
/// DeviceSegmentedRadixSort::SortPairs.
Bytes cub_segmented_sort(std::int64_t items, int key_size, int value_size);
/// DeviceScan of this accumulator: 4 bytes (float, int), 8 (int64) or 2 (half types).
Bytes cub_scan(std::int64_t items, int accumulator_size);
/// DeviceScan::InclusiveSumByKey and InclusiveScanByKey of keys and values of this size: 4 or 8.
Bytes cub_scan_by_key(std::int64_t items, int size);
/// DeviceSelect::UniqueByKey of keys and values of this size: 4 or 8.
Bytes cub_unique_by_key(std::int64_t items, int size);
/// DeviceSelect::Flagged and If.
Bytes cub_select(std::int64_t items);
/// DeviceSelect::Unique; `tuned`: of a type that cub has a tuning for (half types have none).
Bytes cub_unique(std::int64_t items, int size, bool tuned = true);
/// DeviceRunLengthEncode::Encode.
Bytes cub_run_length_encode(std::int64_t items);
/// DeviceReduce::Sum of 4-byte values.
Bytes cub_reduce(std::int64_t items);
/// Bits of the largest key.
int bits_of(std::int64_t largest);

}  // namespace memest

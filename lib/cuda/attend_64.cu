/* Attention kernels for heads of 64 channels, with chunks of all pairs. */
#include "cuda/attend_entries.h"

static constexpr uint32_t ALL =
    attend_pair(3, 2) | attend_pair(4, 4) | attend_pair(2, 2) | attend_pair(4, 2);

const attend_entry attend_entries_64[] = {
    attend_entry_of<64, 1, ALL, 8, 1>(),
    attend_entry_of<64, 2, ALL, 8, 8>(),
    attend_entry_of<64, 2, ALL, 8, 1>(),
};
const int attend_n_entry_64 = sizeof attend_entries_64 / sizeof *attend_entries_64;

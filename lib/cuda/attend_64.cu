/* Attention kernels for heads of 64 channels: with chunks of the presets' pairs, and of all. */
#include "cuda/attend_entries.h"

static constexpr uint32_t BEST = attend_pair(3, 2) | attend_pair(4, 4);
static constexpr uint32_t ALL =
    BEST | attend_pair(2, 2) | attend_pair(3, 3) | attend_pair(4, 2) | attend_pair(4, 3);

const attend_entry attend_entries_64[] = {
    attend_entry_of<64, 1, BEST, 8, 1>(),
    attend_entry_of<64, 2, BEST, 8, 8>(),
    attend_entry_of<64, 2, ALL, 8, 1>(),
};
const int attend_n_entry_64 = sizeof attend_entries_64 / sizeof *attend_entries_64;

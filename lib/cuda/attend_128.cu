/* Attention kernels for heads of 128 channels, with chunks of the presets' pairs: best-3 and best-4
 * together, best-2 and mixed ones apart, because each pair more costs moves of registers. */
#include "cuda/attend_entries.h"

static constexpr uint32_t BEST = attend_pair(3, 2) | attend_pair(4, 4);
static constexpr uint32_t OTHER = attend_pair(2, 2) | attend_pair(3, 3) | attend_pair(4, 2) |
                                  attend_pair(4, 3) | attend_pair(4, 4);

const attend_entry attend_entries_128[] = {
    attend_entry_of<128, 1, BEST, 12, 8>(), attend_entry_of<128, 1, BEST, 12, 1>(),
    attend_entry_of<128, 1, BEST, 4, 1>(), /* for 99 KiB of shared memory */
    attend_entry_of<128, 2, BEST, 8, 1>(),  attend_entry_of<128, 1, OTHER, 12, 1>(),
};
const int attend_n_entry_128 = sizeof attend_entries_128 / sizeof *attend_entries_128;

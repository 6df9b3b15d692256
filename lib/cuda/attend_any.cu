/* Attention kernels without chunks: any codec, any head, latent attention. */
#include "cuda/attend_entries.h"

const attend_entry attend_entries_any[] = {
    attend_entry_of<128, 1, 0, 8, 1>(), attend_entry_of<128, 2, 0, 8, 1>(),
    attend_entry_of<256, 2, 0, 4, 1>(), attend_entry_of<512, 2, 0, 4, 1>(),
    attend_entry_of<512, 1, 0, 4, 1>(), /* for 99 KiB of shared memory */
};
const int attend_n_entry_any = sizeof attend_entries_any / sizeof *attend_entries_any;

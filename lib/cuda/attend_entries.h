/* An entry of a table of attention kernels. */
#ifndef LK_CUDA_ATTEND_ENTRIES_H
#define LK_CUDA_ATTEND_ENTRIES_H

#include "cuda/attend_kernel.h"
#include "cuda/attend_launch.h"

template <class K>
int attend_launch_of(int n_split, int n_y, int n_z, int shared, gpu_stream stream,
                     const lk_device_attend_launch *args) {
    return gpu_launch<K>(gpu_grid{n_split, n_y, n_z}, shared, stream, *args);
}

template <int D, int HPL, uint32_t PAIRS, int WARPS, int CLUSTER>
constexpr attend_entry attend_entry_of() {
    typedef attend_kernel<D, HPL, PAIRS, WARPS, CLUSTER> K;
    return {D, K::C, WARPS, CLUSTER, PAIRS, K::shared, attend_launch_of<K>};
}

#endif

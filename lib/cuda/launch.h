/* Launches of kernels, on a card and in the emulator, from one description.
 *
 * A kernel is a struct (never an object) that says how it is launched and what one warp does:
 *
 *     struct some_kernel {
 *         typedef struct lk_some_args args;           plain data, at most 4 KiB
 *         enum { WARPS = 8, CLUSTER = 1, PER_SM = 1 }; warps of a block; blocks of a cluster, in x;
 *                                                      blocks that shall fit on a multiprocessor
 *         WF void warp(const args &a, S shared, const gpu_place &at);
 *     };
 *
 * and `gpu_launch<some_kernel>(grid, shared, stream, args)` launches it. On cards without clusters
 * (before sm_90) a kernel with CLUSTER > 1 is not launched; choose another one there. */
#ifndef LK_CUDA_LAUNCH_H
#define LK_CUDA_LAUNCH_H

#include "cuda/runtime.h"
#include "cuda/warp.h"

/* Where a warp is. x, y, z: of its block; rank: of its block in the cluster. */
struct gpu_place {
    int x, y, z, warp, rank;
};

struct gpu_grid {
    int x, y, z; /* blocks */
};

#ifdef __CUDACC__

template <class K>
__global__ void __launch_bounds__(32 * K::WARPS, K::PER_SM)
    gpu_kernel(const __grid_constant__ typename K::args a) {
    extern __shared__ __align__(128) char shared[];
#if __CUDA_ARCH__ < 900
    if (K::CLUSTER > 1) return; /* gpu_launch refuses it */
#endif
    gpu_place at = {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z,
                    (int)__shfl_sync(~0u, threadIdx.x / 32, 0), (int)blockIdx.x % K::CLUSTER};
    K::warp(a, (S)__cvta_generic_to_shared(shared), at);
}

template <class K>
static int gpu_launch(gpu_grid grid, int shared, gpu_stream stream, const typename K::args &a) {
    auto kernel = gpu_kernel<K>;
    cudaError_t error = cudaSuccess;
    if (shared > 48 << 10) /* cheap, and each card of a process needs it once */
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (!error && K::CLUSTER > 8)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error) return error;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = K::CLUSTER, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)grid.x, (unsigned)grid.y, (unsigned)grid.z);
    config.blockDim = dim3(32 * K::WARPS);
    config.dynamicSmemBytes = (size_t)shared;
    config.stream = stream;
    config.attrs = &cluster, config.numAttrs = K::CLUSTER > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, a);
}

#else

#include "cuda/runtime_emulated.h"

#include <atomic>
#include <deque>
#include <stdlib.h>
#include <string.h>

/* Run the blocks of one cluster. The memory of a block is freed when its last warp has ended, so
 * that a block of the cluster that reads it later is found. */
template <class K>
static void gpu_emulate_cluster(int x, int y, int z, int shared, const typename K::args &a) {
    char *memory[K::CLUSTER];
    std::deque<host_barrier> block;
    host_barrier cluster(K::CLUSTER * K::WARPS);
    std::atomic<int> running[K::CLUSTER];
    size_t bytes = ((size_t)shared + 127) / 128 * 128;
    for (int rank = 0; rank < K::CLUSTER; rank++) {
        memory[rank] = (char *)aligned_alloc(128, bytes > 0 ? bytes : 128);
        memset(memory[rank], 0xff, bytes);
        block.emplace_back(K::WARPS);
        running[rank] = K::WARPS;
    }
    auto run = [&](int i) {
        int rank = i / K::WARPS, warp = i % K::WARPS;
        here.block = &block[rank], here.cluster = &cluster;
        here.base = memory[rank], here.peers = memory, here.rank = rank;
        K::warp(a, memory[rank], gpu_place{x + rank, y, z, warp, rank});
        if (--running[rank] > 0) return;
        memset(memory[rank], 0xff, bytes); /* as the next block would */
        free(memory[rank]);
    };
    if (K::CLUSTER * K::WARPS == 1)
        run(0); /* it waits for nothing */
    else
        host_run(K::CLUSTER * K::WARPS, run);
}

template <class K>
static int gpu_launch(gpu_grid grid, int shared, gpu_stream stream, const typename K::args &a) {
    static_assert(sizeof(typename K::args) <= 4096, "a launch has 4 KiB of arguments");
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535)
        return GPU_BAD_LAUNCH;
    struct gpu_capability card = gpu_emulated_capability();
    if (grid.x % K::CLUSTER != 0 || shared < 0 || shared > card.max_shared ||
        (K::CLUSTER > 1 && !card.clusters))
        return GPU_BAD_LAUNCH;
    return gpu_emulated_issue(stream, [grid, shared, a] {
        for (int z = 0; z < grid.z; z++)
            for (int y = 0; y < grid.y; y++)
                for (int x = 0; x < grid.x; x += K::CLUSTER)
                    gpu_emulate_cluster<K>(x, y, z, shared, a);
    });
}

#endif
#endif

/* The jobs of bench/gpu/kernels.cpp that have a file of their own. */
#ifndef LK_BENCH_GPU_JOBS_H
#define LK_BENCH_GPU_JOBS_H

#include "gpu/bench_gpu.h"

answer run_attend(bench_card &card, const job &j);
answer run_move(bench_card &card, const job &j);
answer run_latent(bench_card &card, const job &j);
answer run_less(bench_card &card, const job &j);

#endif

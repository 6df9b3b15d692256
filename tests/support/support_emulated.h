/* Computations of lib/ for tests in C++, which cannot include its headers with atomics. */
#ifndef LK_TESTS_SUPPORT_EMULATED_H
#define LK_TESTS_SUPPORT_EMULATED_H

#include "device/commands.h"
#include "sidecar/basis.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* lk_project_add of head `head` of a group: z [n] += the first `rank` components of x [n][d_head],
 * with rows x_stride and z_stride floats apart. */
void project_on_cpu(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                    const float *x, int x_stride, int n, float *z, int z_stride);

/* lk_rope_unrotate of n rows at positions pos, pos + 1, ..., and the cosines and sines [n][n_pair]
 * [2] that it multiplies with. */
void unrotate_on_cpu(int n_pair, bool halves, int64_t pos, int n, float *x, int stride,
                     float *cos_sin);

/* LESS with the reference kernels and the networks of *less, whose addresses are the process's:
 * lk_less_psi of a key of KV head `head`, lk_less_absorb of a row into the state of a head, and
 * lk_less_read for a query of query head `head`. */
void less_psi_on_cpu(const struct lk_device_less *less, int head, const float *k, float *psi);
void less_absorb_on_cpu(const struct lk_device_less *less, float *state, const float *psi,
                        const float *v);
void less_read_on_cpu(const struct lk_device_less *less, const float *state, int head,
                      const float *q, float *mean, float *log_sum);

/* Let a cache with recipe number `recipe` (0 to N_MOVE_RECIPES - 1) take rows and age, and compare
 * what the commands of each move (cache/move_command.h) write with what the move does on the CPU.
 * execute: runs commands [n] in the memory of the process. Returns the number of moves; 0: *text
 * [cap] says what differs. */
enum { N_MOVE_RECIPES = 10 };
int check_move_commands(int recipe, void (*execute)(struct lk_device_move *move, int n), char *text,
                        size_t cap);

#endif

/* Sidecars of tiny models: random bases, LESS networks and adapters. */
#ifndef LK_TESTS_SUPPORT_SIDECAR_H
#define LK_TESTS_SUPPORT_SIDECAR_H

#include "lowkey.h"

#include <stdbool.h>
#include <stdint.h>

/* Write a sidecar for the model: in each layer, bases of all sides at full rank, of groups of up to
 * two KV heads, with means for K before RoPE; and LESS networks. False on failure. */
bool write_sidecar(const char *path, const lk_model *model, uint64_t seed);

/* Like write_sidecar, for the model in a file. */
bool write_sidecar_for(const char *path, const char *model_path, uint64_t seed);

/* Write a sidecar with random adapters of rank 3 for all weights that can have one, and with all
 * tensors of the sidecar `other`, unless it is NULL. The numbers of the adapters are uniform within
 * +-size. False on failure. */
bool write_adapters(const char *path, const lk_model *model, const char *other, float size,
                    uint64_t seed);

#endif

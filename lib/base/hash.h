/* Hashes and a random generator that are equal on every machine.
 *
 * The splitmix64 generator (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
 * Generators", 2014, figure 17), and FNV-1a, for recognizing files that belong to the same
 * inputs. */
#ifndef LK_BASE_HASH_H
#define LK_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

static const uint64_t lk_splitmix64_step = 0x9e3779b97f4a7c15u;

/* The finalizer: a hash of 64 bits. The generator hashes a state that grows by
 * lk_splitmix64_step. */
static inline uint64_t lk_splitmix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The next number of a generator. */
static inline uint64_t lk_splitmix64_next(uint64_t *state) {
    return lk_splitmix64(*state += lk_splitmix64_step);
}

/* The nth number of a generator with this seed, from 0 on. */
static inline uint64_t lk_splitmix64_nth(uint64_t seed, uint64_t nth) {
    return lk_splitmix64(seed + (nth + 1) * lk_splitmix64_step);
}

/* FNV-1a of no bytes. */
#define LK_FNV1A_INIT 0xcbf29ce484222325u

/* Hash of the bytes hashed so far, followed by data[0..size). */
static inline uint64_t lk_fnv1a(uint64_t hash, const void *data, size_t size) {
    const uint8_t *byte = data;
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): bytes of numbers */
    for (size_t i = 0; i < size; i++) hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

#endif

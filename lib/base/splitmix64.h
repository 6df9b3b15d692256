/* The splitmix64 generator (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
 * Generators", 2014, figure 17). Equal seeds give equal numbers on every machine. */
#ifndef LK_BASE_SPLITMIX64_H
#define LK_BASE_SPLITMIX64_H

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

#endif

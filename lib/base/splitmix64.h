/* Random but fixed numbers: the finaliser of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
 * Generators", 2014, figure 17). A generator is a state that grows by lk_splitmix64_step and is mixed each time. */
#ifndef LK_BASE_SPLITMIX64_H
#define LK_BASE_SPLITMIX64_H

#include <stdint.h>

static const uint64_t lk_splitmix64_step = 0x9e3779b97f4a7c15u;

static inline uint64_t lk_splitmix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif

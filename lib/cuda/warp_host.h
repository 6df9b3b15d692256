/* warp.h for C++: a lane's values are arrays of 32, and warps take turns (turns_host.h). */
#ifndef LK_CUDA_WARP_HOST_H
#define LK_CUDA_WARP_HOST_H

extern "C" {
#include "codec/f16.h"
}

#include "cuda/turns_host.h"

#include <atomic>
#include <math.h>

#define WF static inline
#define LK_LANES for (int l_ = 0; l_ < 32; l_++)

struct U {
    uint32_t x[32];
};
struct I {
    int32_t x[32];
};
struct F {
    float x[32];
    F() {}
    F(float f) { LK_LANES x[l_] = f; }
};
struct M {
    bool x[32];
};
struct P {
    const char *x[32];
};
typedef char *S;
struct U2 {
    U v[2];
};
struct U4 {
    U v[4];
};
struct I4 {
    I v[4];
};

/* ---- operators ---- */

#define LK_OF_LANES(T, op)                                                                         \
    WF T operator op(const T &a, const T &b) {                                                     \
        T r;                                                                                       \
        LK_LANES r.x[l_] = a.x[l_] op b.x[l_];                                                     \
        return r;                                                                                  \
    }
#define LK_OF_SCALAR(T, s, op)                                                                     \
    WF T operator op(const T &a, s b) {                                                            \
        T r;                                                                                       \
        LK_LANES r.x[l_] = a.x[l_] op b;                                                           \
        return r;                                                                                  \
    }
/* Integers wrap, as on a GPU: what is not a number becomes the smallest one, and is added. */
#define LK_WRAPS(op)                                                                               \
    WF I operator op(const I &a, const I &b) {                                                     \
        I r;                                                                                       \
        LK_LANES r.x[l_] = (int32_t)((uint32_t)a.x[l_] op(uint32_t) b.x[l_]);                      \
        return r;                                                                                  \
    }                                                                                              \
    WF I operator op(const I &a, int32_t b) {                                                      \
        I r;                                                                                       \
        LK_LANES r.x[l_] = (int32_t)((uint32_t)a.x[l_] op(uint32_t) b);                            \
        return r;                                                                                  \
    }
#define LK_COMPARE(T, s, op)                                                                       \
    WF M operator op(const T &a, s b) {                                                            \
        M r;                                                                                       \
        LK_LANES r.x[l_] = a.x[l_] op b;                                                           \
        return r;                                                                                  \
    }
#define LK_COMPARE_LANES(T, op)                                                                    \
    WF M operator op(const T &a, const T &b) {                                                     \
        M r;                                                                                       \
        LK_LANES r.x[l_] = a.x[l_] op b.x[l_];                                                     \
        return r;                                                                                  \
    }
LK_OF_LANES(U, +)
LK_OF_LANES(U, -)
LK_OF_LANES(U, *)
LK_OF_LANES(U, &)
LK_OF_LANES(U, |)
LK_OF_LANES(U, ^)
LK_OF_SCALAR(U, uint32_t, +)
LK_OF_SCALAR(U, uint32_t, -)
LK_OF_SCALAR(U, uint32_t, *)
LK_OF_SCALAR(U, uint32_t, /)
LK_OF_SCALAR(U, uint32_t, %)
LK_OF_SCALAR(U, uint32_t, &)
LK_OF_SCALAR(U, uint32_t, |)
LK_OF_SCALAR(U, uint32_t, ^)
LK_OF_SCALAR(U, int, <<)
LK_OF_SCALAR(U, int, >>)
LK_WRAPS(+)
LK_WRAPS(-)
LK_WRAPS(*)
LK_OF_SCALAR(I, int, >>)
LK_OF_LANES(F, +)
LK_OF_LANES(F, -)
LK_OF_LANES(F, *)
LK_OF_SCALAR(F, float, *)
LK_OF_SCALAR(F, float, +)
LK_OF_SCALAR(F, float, -)
LK_COMPARE(U, uint32_t, <)
LK_COMPARE(U, uint32_t, !=)
LK_COMPARE(U, uint32_t, ==)
LK_COMPARE(U, uint32_t, >=)
LK_COMPARE(I, int32_t, <)
LK_COMPARE(I, int32_t, >=)
LK_COMPARE(F, float, >)
LK_COMPARE(F, float, <)
LK_COMPARE_LANES(F, >)
LK_COMPARE_LANES(U, <)
WF U &operator|=(U &a, const U &b) {
    LK_LANES a.x[l_] |= b.x[l_];
    return a;
}

/* ---- lanes ---- */

WF U lane_id() {
    U r;
    LK_LANES r.x[l_] = (uint32_t)l_;
    return r;
}
WF U splat(uint32_t x) {
    U r;
    LK_LANES r.x[l_] = x;
    return r;
}
WF F splatf(float x) { return F(x); }
WF U sel(const M &m, const U &a, const U &b) {
    U r;
    LK_LANES r.x[l_] = m.x[l_] ? a.x[l_] : b.x[l_];
    return r;
}
WF F self(const M &m, const F &a, const F &b) {
    F r;
    LK_LANES r.x[l_] = m.x[l_] ? a.x[l_] : b.x[l_];
    return r;
}
WF P selp(const M &m, const P &a, const P &b) {
    P r;
    LK_LANES r.x[l_] = m.x[l_] ? a.x[l_] : b.x[l_];
    return r;
}
WF M both(const M &a, const M &b) {
    M r;
    LK_LANES r.x[l_] = a.x[l_] && b.x[l_];
    return r;
}
WF U shfl_xor(const U &a, int m) {
    U r;
    LK_LANES r.x[l_] = a.x[l_ ^ m];
    return r;
}
WF F shfl_xorf(const F &a, int m) {
    F r;
    LK_LANES r.x[l_] = a.x[l_ ^ m];
    return r;
}
WF uint32_t lanes_of(const M &m) {
    uint32_t r = 0;
    LK_LANES r |= (uint32_t)m.x[l_] << l_;
    return r;
}
WF void sync_warp() {}
#define ONE_LANE

/* ---- integers ---- */

WF U prmt(const U &a, const U &b, const U &s) {
    U r;
    LK_LANES {
        uint64_t pool = a.x[l_] | (uint64_t)b.x[l_] << 32;
        uint32_t d = 0;
        for (int i = 0; i < 4; i++) {
            uint32_t n = s.x[l_] >> 4 * i & 15, byte = (uint32_t)(pool >> 8 * (n & 7)) & 255;
            if (n & 8) byte = byte & 128 ? 255 : 0;
            d |= byte << 8 * i;
        }
        r.x[l_] = d;
    }
    return r;
}
WF U shrv(const U &a, const U &n) {
    U r;
    LK_LANES r.x[l_] = a.x[l_] >> n.x[l_];
    return r;
}
WF U shlv(const U &a, const U &n) {
    U r;
    LK_LANES r.x[l_] = a.x[l_] << n.x[l_];
    return r;
}
WF U bsel(const U &a, const U &b, uint32_t mask) {
    U r;
    LK_LANES r.x[l_] = (a.x[l_] & mask) | (b.x[l_] & ~mask);
    return r;
}
WF U opaque_u(const U &x) { return x; }
WF I as_i(const U &a) {
    I r;
    memcpy(r.x, a.x, sizeof r.x);
    return r;
}
WF U as_u(const I &a) {
    U r;
    memcpy(r.x, a.x, sizeof r.x);
    return r;
}

/* ---- floats ---- */

#define LK_OF_ONE(name, e)                                                                         \
    WF F name(const F &a_) {                                                                       \
        F r;                                                                                       \
        LK_LANES {                                                                                 \
            float a = a_.x[l_];                                                                    \
            r.x[l_] = e;                                                                           \
        }                                                                                          \
        return r;                                                                                  \
    }
#define LK_OF_TWO(name, e)                                                                         \
    WF F name(const F &a_, const F &b_) {                                                          \
        F r;                                                                                       \
        LK_LANES {                                                                                 \
            float a = a_.x[l_], b = b_.x[l_];                                                      \
            r.x[l_] = e;                                                                           \
        }                                                                                          \
        return r;                                                                                  \
    }
LK_OF_TWO(add_rn, a + b)
LK_OF_TWO(sub_rn, a - b)
LK_OF_TWO(max_, fmaxf(a, b))
LK_OF_ONE(sqrt_rn, sqrtf(a))
LK_OF_ONE(abs_, fabsf(a))
LK_OF_ONE(neg, -a)
LK_OF_ONE(exp2_, exp2f(a))
LK_OF_ONE(rcp_, 1 / a)
LK_OF_ONE(rcp_approx, 1 / a)
WF F fma_(const F &a, const F &b, const F &c) {
    F r;
    LK_LANES r.x[l_] = fmaf(a.x[l_], b.x[l_], c.x[l_]);
    return r;
}
WF F i2f(const I &a) {
    F r;
    LK_LANES r.x[l_] = (float)a.x[l_];
    return r;
}
WF F u2f(const U &x) {
    F r;
    LK_LANES r.x[l_] = (float)x.x[l_];
    return r;
}
WF F b2f(const U &x, int i) {
    F r;
    LK_LANES r.x[l_] = (float)(x.x[l_] >> 8 * i & 255);
    return r;
}
WF F s2f(const U &x, int i) {
    F r;
    LK_LANES r.x[l_] = (float)(int8_t)(x.x[l_] >> 8 * i);
    return r;
}
/* Of numbers in range. Others end the program: they come from memory that was never written. */
WF I f2i_rn(const F &a) {
    I r;
    LK_LANES {
        if (!(fabsf(a.x[l_]) < 2147483648.0f)) __builtin_trap();
        r.x[l_] = (int)rintf(a.x[l_]);
    }
    return r;
}
WF F bits_f(const U &a) {
    F r;
    memcpy(r.x, a.x, sizeof r.x);
    return r;
}
WF U f_bits(const F &a) {
    U r;
    memcpy(r.x, a.x, sizeof r.x);
    return r;
}
WF F h_lo(const U &a) {
    F r;
    LK_LANES r.x[l_] = lk_f16_to_f32((uint16_t)a.x[l_]);
    return r;
}
WF F h_hi(const U &a) {
    F r;
    LK_LANES r.x[l_] = lk_f16_to_f32((uint16_t)(a.x[l_] >> 16));
    return r;
}
WF U hmax2(const U &a, const U &b) {
    U r;
    LK_LANES {
        uint16_t h[2];
        for (int i = 0; i < 2; i++) {
            uint16_t p = (uint16_t)(a.x[l_] >> 16 * i), q = (uint16_t)(b.x[l_] >> 16 * i);
            h[i] = lk_f16_to_f32(p) > lk_f16_to_f32(q) ? p : q;
        }
        r.x[l_] = h[0] | (uint32_t)h[1] << 16;
    }
    return r;
}
WF U pack_halves(const F &lo, const F &hi) {
    U r;
    LK_LANES r.x[l_] = lk_f32_to_f16_ieee(lo.x[l_]) | (uint32_t)lk_f32_to_f16_ieee(hi.x[l_]) << 16;
    return r;
}

/* ---- global memory ---- */

WF P at(const char *base, const U &index, uint32_t stride, const U &offset) {
    P r;
    LK_LANES r.x[l_] = base + (size_t)index.x[l_] * stride + offset.x[l_];
    return r;
}
WF P at_lane(const char *p) {
    P r;
    LK_LANES r.x[l_] = p;
    return r;
}
WF P add(const P &p, uint32_t n) {
    P r;
    LK_LANES r.x[l_] = p.x[l_] + n;
    return r;
}
WF P offset(const P &p, const U &n) {
    P r;
    LK_LANES r.x[l_] = p.x[l_] + n.x[l_];
    return r;
}
WF P ldtabp(uint64_t table, const U &index) {
    P r;
    LK_LANES memcpy(&r.x[l_], (const char *)table + 8 * (size_t)index.x[l_], 8);
    return r;
}
WF F ldgf(const float *p, const U &i) {
    F r;
    LK_LANES r.x[l_] = p[i.x[l_]];
    return r;
}
WF F ldcgf(const float *p, const U &i) { return ldgf(p, i); }
WF U ldg8(const P &p) {
    U r;
    LK_LANES r.x[l_] = (uint8_t)*p.x[l_];
    return r;
}
WF U ldg16(const P &p) {
    U r;
    LK_LANES {
        uint16_t h;
        memcpy(&h, p.x[l_], 2);
        r.x[l_] = h;
    }
    return r;
}
WF U ldg32(const P &p) {
    U r;
    LK_LANES memcpy(&r.x[l_], p.x[l_], 4);
    return r;
}
WF U2 ldg64(const P &p) {
    U2 r;
    for (int i = 0; i < 2; i++) LK_LANES memcpy(&r.v[i].x[l_], p.x[l_] + 4 * i, 4);
    return r;
}
WF U4 ldg128(const P &p) {
    U4 r;
    for (int i = 0; i < 4; i++) LK_LANES memcpy(&r.v[i].x[l_], p.x[l_] + 4 * i, 4);
    return r;
}
WF void stgf(float *p, const U &i, const F &x) { LK_LANES p[i.x[l_]] = x.x[l_]; }
WF void stgf_if(const M &m, float *p, const U &i, const F &x) {
    LK_LANES if (m.x[l_]) p[i.x[l_]] = x.x[l_];
}
WF void stg32(char *b, const U &o, const U &x) { LK_LANES memcpy(b + o.x[l_], &x.x[l_], 4); }
WF uint32_t warp_ticket(uint32_t *p) {
    return ((std::atomic<uint32_t> *)p)->fetch_add(1, std::memory_order_acq_rel);
}
WF void reset_ticket(uint32_t *p) { ((std::atomic<uint32_t> *)p)->store(0); }

/* ---- shared memory ---- */

WF const void *shared_address(S s) { return s; }

WF U lds16(S s, const U &o) {
    U r;
    LK_LANES {
        uint16_t h;
        memcpy(&h, s + o.x[l_], 2);
        r.x[l_] = h;
    }
    return r;
}
WF U lds32(S s, const U &o) {
    U r;
    LK_LANES memcpy(&r.x[l_], s + o.x[l_], 4);
    return r;
}
WF U2 lds64(S s, const U &o) {
    U2 r;
    for (int i = 0; i < 2; i++) LK_LANES memcpy(&r.v[i].x[l_], s + o.x[l_] + 4 * i, 4);
    return r;
}
WF U4 lds128(S s, const U &o) {
    U4 r;
    for (int i = 0; i < 4; i++) LK_LANES memcpy(&r.v[i].x[l_], s + o.x[l_] + 4 * i, 4);
    return r;
}
WF F ldsf(S s, const U &o) { return bits_f(lds32(s, o)); }
WF void sts32(S s, const U &o, const U &x) { LK_LANES memcpy(s + o.x[l_], &x.x[l_], 4); }
WF void sts8(S s, const U &o, const U &x) { LK_LANES s[o.x[l_]] = (char)x.x[l_]; }
WF void stsf(S s, const U &o, const F &x) { sts32(s, o, f_bits(x)); }
WF void sts32_if(const M &m, S s, const U &o, const U &x) {
    LK_LANES if (m.x[l_]) memcpy(s + o.x[l_], &x.x[l_], 4);
}
WF void sts16_if(const M &m, S s, const U &o, const U &x) {
    LK_LANES if (m.x[l_]) memcpy(s + o.x[l_], &x.x[l_], 2);
}
WF void stsf_if(const M &m, S s, const U &o, const F &x) { sts32_if(m, s, o, f_bits(x)); }

/* ---- matrix units ----
 *
 * lane = 4 g + t. A: a0 row g, a1 row g + 8, columns 4 t ..; a2, a3: columns 16 + 4 t .. (2 t and
 * 8 + 2 t for halves). B: column g. C: row g and g + 8, columns 2 t and 2 t + 1. */

WF void mma_any(I4 &c, const U *const a[4], const U *const b[2], bool b_signed) {
    int A[16][32], B[32][8];
    LK_LANES {
        int g = l_ / 4, t = l_ % 4;
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < 4; k++)
                A[g + r % 2 * 8][r / 2 * 16 + 4 * t + k] = (int8_t)(a[r]->x[l_] >> 8 * k);
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < 4; k++) {
                uint8_t byte = (uint8_t)(b[r]->x[l_] >> 8 * k);
                B[r * 16 + 4 * t + k][g] = b_signed ? (int8_t)byte : byte;
            }
    }
    LK_LANES {
        int g = l_ / 4, t = l_ % 4;
        for (int r = 0; r < 4; r++) {
            int sum = 0;
            for (int k = 0; k < 32; k++) sum += A[g + r / 2 * 8][k] * B[k][2 * t + r % 2];
            c.v[r].x[l_] = (int32_t)((uint32_t)c.v[r].x[l_] + (uint32_t)sum);
        }
    }
}
WF void mma_ss(I4 &c, const U &a0, const U &a1, const U &a2, const U &a3, const U &b0,
               const U &b1) {
    const U *a[4] = {&a0, &a1, &a2, &a3}, *b[2] = {&b0, &b1};
    mma_any(c, a, b, true);
}
WF void mma_su(I4 &c, const U &a0, const U &a1, const U &a2, const U &a3, const U &b0,
               const U &b1) {
    const U *a[4] = {&a0, &a1, &a2, &a3}, *b[2] = {&b0, &b1};
    mma_any(c, a, b, false);
}
template <class FOUR>
WF void mma_f16(FOUR &c, const U &a0, const U &a1, const U &a2, const U &a3, const U &b0,
                const U &b1) {
    float A[16][16], B[16][8];
    const U *a[4] = {&a0, &a1, &a2, &a3}, *b[2] = {&b0, &b1};
    LK_LANES {
        int g = l_ / 4, t = l_ % 4;
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < 2; k++)
                A[g + r % 2 * 8][r / 2 * 8 + 2 * t + k] =
                    lk_f16_to_f32((uint16_t)(a[r]->x[l_] >> 16 * k));
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < 2; k++)
                B[r * 8 + 2 * t + k][g] = lk_f16_to_f32((uint16_t)(b[r]->x[l_] >> 16 * k));
    }
    LK_LANES {
        int g = l_ / 4, t = l_ % 4;
        for (int r = 0; r < 4; r++) {
            float sum = c.v[r].x[l_];
            for (int k = 0; k < 16; k++) sum += A[g + r / 2 * 8][k] * B[k][2 * t + r % 2];
            c.v[r].x[l_] = sum;
        }
    }
}

/* ---- barriers and copies ---- */

/* Where a warp is. */
struct host_block {
    host_barrier *block, *cluster;
    char *base, **peers; /* shared memory of its block, and of all blocks of the cluster */
    int rank;
};
inline thread_local host_block here; /* of the one that runs */

/* Call a function that lets other warps run. */
template <class WAIT> WF void host_wait(WAIT wait) {
    host_block mine = here;
    wait();
    here = mine;
}

WF void block_sync() {
    host_wait([] { here.block->wait(); });
}
WF void cluster_sync() {
    host_wait([] { here.cluster->wait(); });
}
WF S peer(S s, uint32_t rank) { return here.peers[rank] + (s - here.base); }
WF F ldsf_peer(S s, const U &o) { return ldsf(s, o); }

/* A mistake of a kernel that a GPU would not survive. */
[[noreturn]] WF void warp_fault() { __builtin_trap(); }

/* 8 bytes: pending arrivals (16 bits), expected arrivals (16), bytes to come (31), phase (1) */
typedef std::atomic<uint64_t> lk_host_barrier;
WF lk_host_barrier *barrier_at(S bar) { return (lk_host_barrier *)bar; }
WF void barrier_init(S bar, uint32_t count) {
    barrier_at(bar)->store(count | (uint64_t)count << 16, std::memory_order_relaxed);
}
WF void barrier_fence() {}
WF void barrier_change(S bar, int arrivals, int64_t bytes) {
    uint64_t x = barrier_at(bar)->load(std::memory_order_relaxed), y;
    do {
        uint32_t pending = x & 0xffff, expected = x >> 16 & 0xffff, phase = (uint32_t)(x >> 63);
        int64_t tx = (int64_t)(x >> 32 & 0x7fffffff) + bytes;
        if (!pending && arrivals) warp_fault(); /* a barrier has too many arrivals */
        pending -= (uint32_t)arrivals;
        if (!pending && !tx) pending = expected, phase ^= 1;
        y = pending | (uint64_t)expected << 16 | (uint64_t)tx << 32 | (uint64_t)phase << 63;
    } while (!barrier_at(bar)->compare_exchange_weak(x, y, std::memory_order_release,
                                                     std::memory_order_relaxed));
}
WF void barrier_arrive(S bar) { barrier_change(bar, 1, 0); }
WF void barrier_wait(S bar, uint32_t phase) {
    while (barrier_at(bar)->load(std::memory_order_acquire) >> 63 == phase) host_wait(host_yield);
}
WF void bulk(S to, const P &from, uint32_t bytes, S bar, uint32_t first, uint32_t n) {
    barrier_change(bar, 1, (int64_t)n * bytes);
    if (bytes % 16 || (size_t)to % 16) warp_fault(); /* a bulk copy is not aligned to 16 bytes */
    for (uint32_t i = 0; i < n; i++) {
        if ((size_t)from.x[first + i] % 16) warp_fault(); /* a bulk copy's source is not aligned */
        memcpy(to + (size_t)i * bytes, from.x[first + i], bytes);
        barrier_change(bar, 0, -(int64_t)bytes);
    }
}

WF void copy_init(S bar) { barrier_init(bar, 1); }
WF void copy_begin(S to, const P &from, uint32_t bytes, S bar, uint32_t first) {
    bulk(to, from, bytes, bar, first, 4);
}
WF void copy_none() {}
WF void copy_wait(S bar, uint32_t phase) { barrier_wait(bar, phase); }

#endif

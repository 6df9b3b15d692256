/* warp.h for nvcc: a lane's values are scalars, and most functions are one instruction. */
#ifndef LK_CUDA_WARP_CUDA_H
#define LK_CUDA_WARP_CUDA_H

#include <cuda_fp16.h>

#define WF static __device__ __forceinline__

typedef uint32_t U;
typedef int32_t I;
typedef float F;
typedef bool M;
typedef const char *P;
typedef uint32_t S;
struct U2 {
    U v[2];
};
struct U4 {
    U v[4];
};
struct I4 {
    I v[4];
};

/* ---- lanes ---- */

WF U lane_id() { return threadIdx.x & 31; }
WF U splat(uint32_t x) { return x; }
WF F splatf(float x) { return x; }
WF U sel(M m, U a, U b) { return m ? a : b; }
WF F self(M m, F a, F b) { return m ? a : b; }
WF P selp(M m, P a, P b) { return m ? a : b; }
WF M both(M a, M b) { return a && b; }
WF U shfl_xor(U x, int m) { return __shfl_xor_sync(~0u, x, m); }
WF F shfl_xorf(F x, int m) { return __shfl_xor_sync(~0u, x, m); }
WF uint32_t lanes_of(M m) { return __ballot_sync(~0u, m); }
WF void sync_warp() { __syncwarp(); }
#define ONE_LANE if (lane_id() == 0)

/* ---- integers ---- */

WF U prmt(U a, U b, U s) {
    U d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s));
    return d;
}
WF U shrv(U a, U n) { return a >> n; }
WF U shlv(U a, U n) { return a << n; }
/* Bits of a where mask is set, of b elsewhere. One instruction: the compiler would make more. */
WF U bsel(U a, U b, uint32_t mask) {
    U d;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
    return d;
}
WF U opaque_u(U x) { /* the compiler forgets what it knows about x */
    asm volatile("" : "+r"(x));
    return x;
}
WF I as_i(U x) { return (I)x; }
WF U as_u(I x) { return (U)x; }

/* ---- floats ---- */

WF F i2f(I x) { return (float)x; }
WF F u2f(U x) { return (float)x; }
WF F b2f(U x, int i) { return (float)(x >> 8 * i & 255u); }
WF F s2f(U x, int i) { return (float)(signed char)(x >> 8 * i); }
WF I f2i_rn(F x) { return __float2int_rn(x); }
WF F bits_f(U x) { return __uint_as_float(x); }
WF U f_bits(F x) { return __float_as_uint(x); }
WF F neg(F x) { return -x; }
WF F fma_(F a, F b, F c) { return fmaf(a, b, c); }
WF F add_rn(F a, F b) { return __fadd_rn(a, b); }
WF F sub_rn(F a, F b) { return __fsub_rn(a, b); }
WF F sqrt_rn(F a) { return __fsqrt_rn(a); }
WF F abs_(F a) { return fabsf(a); }
WF F max_(F a, F b) { return fmaxf(a, b); }
WF F exp2_(F a) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
WF F rcp_(F a) { return __frcp_rn(a); }
WF F rcp_approx(F a) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
WF F h_lo(U x) { return __half2float(__ushort_as_half((unsigned short)(x & 0xffff))); }
WF F h_hi(U x) { return __half2float(__ushort_as_half((unsigned short)(x >> 16))); }
WF U hmax2(U a, U b) {
    __half2 r = __hmax2(*(__half2 *)&a, *(__half2 *)&b);
    return *(U *)&r;
}
WF U pack_halves(F lo, F hi) {
    U d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

/* ---- global memory ---- */

WF P at(const char *base, U index, uint32_t stride, U offset) {
    return base + (size_t)index * stride + offset;
}
WF P at_lane(const char *p) { return p; } /* the same address for all lanes */
WF P add(P p, uint32_t n) { return p + n; }
WF P offset(P p, U n) { return p + n; }
/* Entry `index` of a table of addresses. */
WF P ldtabp(uint64_t table, U index) { return (const char *)__ldg((const size_t *)table + index); }
WF F ldgf(const float *p, U i) { return __ldg(p + i); }
WF F ldcgf(const float *p, U i) { return __ldcg(p + i); } /* written by other blocks */
WF U ldg8(P p) { return __ldg((const unsigned char *)p); }
WF U ldg16(P p) { return __ldg((const unsigned short *)p); }
WF U ldg32(P p) { return __ldg((const U *)p); }
WF U2 ldg64(P p) {
    uint2 r = __ldg((const uint2 *)p);
    return U2{{r.x, r.y}};
}
WF U4 ldg128(P p) {
    uint4 r = __ldg((const uint4 *)p);
    return U4{{r.x, r.y, r.z, r.w}};
}
WF void stgf(float *p, U i, F x) { p[i] = x; }
WF void stgf_if(M m, float *p, U i, F x) {
    if (m) p[i] = x;
}
WF void stg32(char *base, U offset, U x) { *(U *)(base + offset) = x; }
/* 0, 1, ... in the order of callers: who gets n sees what the ones before it wrote. By one warp. */
WF uint32_t warp_ticket(uint32_t *p) {
    uint32_t r = 0;
    __syncwarp();
    __threadfence();
    ONE_LANE r = atomicAdd(p, 1);
    r = __shfl_sync(~0u, r, 0);
    __threadfence();
    return r;
}
WF void reset_ticket(uint32_t *p) { ONE_LANE *p = 0; }

/* ---- shared memory ---- */

/* The same place as an ordinary address. */
WF const void *shared_address(S s) { return __cvta_shared_to_generic(s); }

WF U lds16(S s, U o) {
    unsigned short r;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(r) : "r"(s + o));
    return r;
}
WF U lds32(S s, U offset) {
    U r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(s + offset));
    return r;
}
WF U2 lds64(S s, U offset) {
    U2 r;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(r.v[0]), "=r"(r.v[1]) : "r"(s + offset));
    return r;
}
WF U4 lds128(S s, U offset) {
    U4 r;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "r"(s + offset));
    return r;
}
WF F ldsf(S s, U offset) { return bits_f(lds32(s, offset)); }
WF void sts32(S s, U offset, U x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(s + offset), "r"(x) : "memory");
}
WF void sts8(S s, U offset, U x) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(s + offset), "r"(x) : "memory");
}
WF void stsf(S s, U offset, F x) { sts32(s, offset, f_bits(x)); }
WF void sts32_if(M m, S s, U o, U x) {
    if (m) sts32(s, o, x);
}
WF void sts16_if(M m, S s, U o, U x) {
    if (m) asm volatile("st.shared.u16 [%0], %1;" ::"r"(s + o), "h"((unsigned short)x) : "memory");
}
WF void stsf_if(M m, S s, U o, F x) {
    if (m) stsf(s, o, x);
}

/* ---- matrix units: fragments as in the PTX manual ---- */

WF void mma_ss(I4 &c, U a0, U a1, U a2, U a3, U b0, U b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c.v[0]), "+r"(c.v[1]), "+r"(c.v[2]), "+r"(c.v[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
WF void mma_su(I4 &c, U a0, U a1, U a2, U a3, U b0, U b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c.v[0]), "+r"(c.v[1]), "+r"(c.v[2]), "+r"(c.v[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <class FOUR> WF void mma_f16(FOUR &c, U a0, U a1, U a2, U a3, U b0, U b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* ---- barriers and copies ---- */

WF void block_sync() { __syncthreads(); }

#if __CUDA_ARCH__ >= 900

/* Barriers in shared memory, 8 bytes. */
WF void barrier_init(S bar, uint32_t count) {
    ONE_LANE asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
WF void barrier_fence() {
    ONE_LANE asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
WF void barrier_arrive(S bar) {
    __syncwarp();
    ONE_LANE asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}
WF void barrier_wait(S bar, uint32_t phase) {
    asm volatile("{\n.reg .pred p;\nLAB_WAIT_%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
                 "@p bra LAB_DONE_%=;\nbra LAB_WAIT_%=;\nLAB_DONE_%=:\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
}
/* Lanes first .. first + n - 1 copy `bytes` each to consecutive places; the barrier gets one
 * arrival and the bytes. */
WF void bulk(S to, P from, uint32_t bytes, S bar, uint32_t first, uint32_t n) {
    __syncwarp();
    uint32_t i = lane_id() - first;
    if (i == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(n * bytes)
                     : "memory");
    __syncwarp();
    if (i < n)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];" ::"r"(to + i * bytes),
                     "l"(from), "r"(bytes), "r"(bar)
                     : "memory");
}

/* Clusters */
WF void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
WF S peer(S s, uint32_t rank) {
    uint32_t r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(s), "r"(rank));
    return r;
}
WF F ldsf_peer(S s, U o) {
    F r;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(r) : "r"(s + o));
    return r;
}

/* A warp's own copies, of two kinds in turn: begin A, begin B, then wait for A, begin the next A,
 * wait for B, begin the next B, and so on. copy_none stands for a begin that is left out. `bar`: a
 * barrier of each kind, set up by copy_init; phase: 0, 1, 0, ... */
WF void copy_init(S bar) {
    barrier_init(bar, 1);
    barrier_fence();
}
WF void copy_begin(S to, P from, uint32_t bytes, S bar, uint32_t first) {
    bulk(to, from, bytes, bar, first, 4);
}
WF void copy_none() {}
WF void copy_wait(S bar, uint32_t phase) { barrier_wait(bar, phase); }

#else /* before sm_90: asynchronous copies of 16 bytes by lanes, a cluster is one block */

WF void cluster_sync() { __syncthreads(); }
WF S peer(S s, uint32_t) { return s; }
WF F ldsf_peer(S s, U o) { return ldsf(s, o); }
WF void barrier_init(S bar, uint32_t count) {
    ONE_LANE asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
WF void barrier_fence() {}
WF void barrier_arrive(S bar) {
    __syncwarp();
    ONE_LANE asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared.b64 t, [%0];\n}" ::"r"(bar)
                          : "memory");
}
WF void barrier_wait(S bar, uint32_t phase) {
    asm volatile(
        "{\n.reg .pred p;\nLAB_WAIT_%=: mbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n"
        "@p bra LAB_DONE_%=;\nbra LAB_WAIT_%=;\nLAB_DONE_%=:\n}" ::"r"(bar),
        "r"(phase)
        : "memory");
}
/* The copies have ended when the function returns. */
WF void bulk(S to, P from, uint32_t bytes, S bar, uint32_t first, uint32_t n) {
    __syncwarp();
    for (uint32_t i = 0; i < n; i++) {
        P p = (P)__shfl_sync(~0u, (unsigned long long)from, first + i);
        for (uint32_t at = lane_id() * 16; at < bytes; at += 512)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * bytes + at),
                         "l"(p + at));
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    barrier_arrive(bar);
}
WF void copy_init(S) {}
WF void copy_begin(S to, P from, uint32_t bytes, S, uint32_t first) {
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        P p = (P)__shfl_sync(~0u, (unsigned long long)from, first + i);
        for (uint32_t n = lane_id() * 16; n < bytes; n += 512)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * bytes + n),
                         "l"(p + n));
    }
    asm volatile("cp.async.commit_group;");
}
WF void copy_none() { asm volatile("cp.async.commit_group;"); }
WF void copy_wait(S, uint32_t) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
}

#endif
#endif

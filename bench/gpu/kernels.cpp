/* Times the kernels of lib/cuda for scripts/bench-gpu, on a card (nvcc) or in the emulator, where
 * nothing is timed and results are compared. Reads jobs, one per line, and answers each with a line
 * of JSON:
 *
 *     card what=memcpy|copy|read|empty
 *     check
 *     attend ...             attend_job.cpp
 *     encode ..., age ...    move_job.cpp
 *     latent ..., score ...  latent_job.cpp
 *     less ...               less_job.cpp
 *
 * `us` is the median time of one launch, `sd` its standard deviation over `repeats` repetitions of
 * a graph of launches. `emulate=1` at the end of a job makes the sizes small. */
#include "gpu/jobs.h"

#include <stdio.h>
#include <string.h>

namespace {

/* ---- bandwidth of the card ---- */

/* Copy 16 bytes per lane; a block takes every n_block-th 16 KiB. */
struct copy_kernel {
    struct args {
        uint64_t to, from, bytes; /* a multiple of 16 KiB */
        int n_block;
    };
    enum { WARPS = 16, CLUSTER = 1, PER_SM = 2, PIECE = 16 << 10 };
    WF void warp(const args &a, S, const gpu_place &place) {
        U lane = lane_id() * 16u + (uint32_t)place.warp * 512u;
        for (uint64_t i = (uint64_t)place.x * PIECE; i < a.bytes; i += (uint64_t)a.n_block * PIECE)
            for (uint32_t part = 0; part < PIECE; part += WARPS * 512) {
                U4 x = ldg128(at((const char *)(a.from + i), lane, 1, splat(part)));
                for (uint32_t w = 0; w < 4; w++)
                    stg32((char *)(a.to + i), lane + (part + 4 * w), x.v[w]);
            }
    }
};

/* Read, and write a word only if the bits of what was read are unlikely ones. */
struct read_kernel {
    typedef copy_kernel::args args;
    enum { WARPS = 16, CLUSTER = 1, PER_SM = 2, PIECE = copy_kernel::PIECE };
    WF void warp(const args &a, S, const gpu_place &place) {
        U lane = lane_id() * 16u + (uint32_t)place.warp * 512u, sum = splat(0);
        for (uint64_t i = (uint64_t)place.x * PIECE; i < a.bytes; i += (uint64_t)a.n_block * PIECE)
            for (uint32_t part = 0; part < PIECE; part += WARPS * 512) {
                U4 x = ldg128(at((const char *)(a.from + i), lane, 1, splat(part)));
                sum = sum ^ x.v[0] ^ x.v[1] ^ x.v[2] ^ x.v[3];
            }
        if (lanes_of(sum == 0x12345678u) == ~0u) stg32((char *)a.to, lane, sum);
    }
};

struct empty_kernel {
    struct args {
        int nothing;
    };
    enum { WARPS = 4, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &, S, const gpu_place &) {}
};

template <class K> int launch_bytes(const bench_card &card, const buffer &to, const buffer &from) {
    int n_block = card.is.n_sm * 2;
    typename K::args a = {to.at(), from.at(), to.size, n_block};
    return gpu_launch<K>(gpu_grid{n_block, 1, 1}, 0, card.stream, a);
}

answer run_card(bench_card &card, const job &j) {
    std::string what = j.word("what");
    if (what == "empty")
        return timed(card, 64, [&](int) {
            return gpu_launch<empty_kernel>(gpu_grid{1, 1, 1}, 0, card.stream,
                                            empty_kernel::args{});
        });
    size_t size = j.emulate() ? 64 << 10 : (size_t)2 << 30;
    buffer from(size), to(size);
    if (!from.at() || !to.at()) return skipped("out of memory");
    card.fill(from, 1), card.fill(to, 0);
    answer a = timed(card, 1, [&](int) {
        if (what == "memcpy")
            return gpu_copy((void *)to.at(), (void *)from.at(), size, card.stream);
        return what == "copy" ? launch_bytes<copy_kernel>(card, to, from)
                              : launch_bytes<read_kernel>(card, to, from);
    });
    a.bytes = what == "read" ? (double)size : 2.0 * (double)size; /* read and written */
    if (what != "read" && card.last_byte(to) != 1) return failed("the copy is wrong");
    return a;
}

/* ---- jobs ---- */

answer run(bench_card &card, const job &j);

/* All jobs whose results are compared, at small sizes. */
answer run_check(bench_card &card) {
    static const char *const checks[] = {
        "attend heads=8/2 d=128 batch=2 segments=rot3/rot2:650 emulate=1",
        "attend heads=8/2 d=128 batch=2 segments=rot4/rot4:650 emulate=1",
        "attend heads=4/4 d=128 batch=1 segments=rot4/rot4:2000 emulate=1",
        "attend heads=14/2 d=64 batch=1 segments=rot3/rot2:650 emulate=1",
        "attend heads=8/2 d=128 batch=2 queries=3 emulate=1 "
        "segments=f16/f16:4,rot3/rot2:1000,rot4/rot4:224,rot8/rot8:64,f16/f16:20",
        "attend heads=4/1 d=128 batch=1 segments=kivi4/kivi4:640 emulate=1",
        "encode heads=8/2 d=128 rows=64 layers=2 k=rot3 v=rot2 emulate=1",
        "encode heads=2/2 d=128 rows=64 k=rot4 v=rot4 emulate=1",
        "encode heads=14/2 d=64 rows=32 k=rot8 v=kivi4 emulate=1",
        "age heads=2/2 d=128 rows=64 from=rot4/rot4 k=rot3 v=rot2 emulate=1",
        "latent heads=4/4 d=128 batch=1 rows=650 queries=1 k=rot4 v=rot4 k_rank=128 v_rank=384 "
        "rope=before emulate=1",
        "less heads=4/2 d=128 batch=2 part=features emulate=1",
        "less heads=4/2 d=128 batch=2 part=update emulate=1",
        "less heads=4/2 d=128 batch=2 part=read emulate=1",
        "latent heads=8/8 d=128 batch=2 rows=300 queries=1 k=rot3 v=rot4 k_rank=128 v_rank=384 "
        "rope=before fold=1 emulate=1",
    };
    answer worst;
    for (const char *check : checks) {
        job j(check);
        answer a = run(card, j);
        if (!a.skipped.empty() || !a.failed.empty() || !(a.nmse < 1e-5))
            return failed(j.line + ": " + a.skipped + a.failed + " NMSE " + std::to_string(a.nmse));
        worst.nmse = std::max(worst.nmse, a.nmse), worst.repeats++;
    }
    return worst;
}

answer run(bench_card &card, const job &j) {
    if (j.kind == "card") return run_card(card, j);
    if (j.kind == "check") return run_check(card);
    if (j.kind == "attend") return run_attend(card, j);
    if (j.kind == "encode" || j.kind == "age") return run_move(card, j);
    if (j.kind == "latent" || j.kind == "score") return run_latent(card, j);
    if (j.kind == "less") return run_less(card, j);
    return skipped("no kernels for '" + j.kind + "' yet");
}

} // namespace

int main() {
    bench_card card;
    char line[1024];
    while (fgets(line, sizeof line, stdin)) {
        job j(line);
        print(card.missing.empty() ? run(card, j) : skipped(card.missing));
    }
    return 0;
}

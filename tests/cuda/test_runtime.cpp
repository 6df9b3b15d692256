/* The emulated card's streams: commands run when the host waits, in order; events order streams;
 * graphs replay what was recorded with the arguments that it was recorded with. */
#include "cuda/launch.h"

#include <setjmp.h>
#include <stdarg.h>

extern "C" {
#include <cmocka.h>
}

namespace {

struct add_args {
    uint32_t *to;
    uint32_t n;
};

/* Add n to a number; z of the place and warps are not used. */
struct add_kernel {
    typedef add_args args;
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S, const gpu_place &) { *a.to += a.n; }
};

/* Each block of a cluster counts its warps; the first one adds up what all have counted. */
struct count_kernel {
    typedef add_args args;
    enum { WARPS = 3, CLUSTER = 4, PER_SM = 1 };
    WF void warp(const args &a, S shared, const gpu_place &at) {
        if (at.warp == 0) sts32(shared, lane_id() * 4u, splat(0));
        block_sync();
        if (at.warp == (int)a.n) sts32(shared, lane_id() * 4u, splat((uint32_t)at.rank + 1));
        cluster_sync();
        if (at.rank == 0 && at.warp == 0)
            for (uint32_t i = 0; i < 4; i++) *a.to += (uint32_t)ldsf_bits(peer(shared, i));
        cluster_sync();
    }
    static uint32_t ldsf_bits(S s) { return lds32(s, splat(0)).x[0]; }
};

struct card {
    gpu_stream stream = NULL;
    uint32_t *memory = NULL, *pinned = NULL;
    card() {
        assert_int_equal(gpu_stream_create(&stream), 0);
        assert_int_equal(gpu_alloc((void **)&memory, 64), 0);
        assert_int_equal(gpu_alloc_pinned((void **)&pinned, 64), 0);
        assert_int_equal(gpu_fill(memory, 0, 64, stream), 0);
        assert_int_equal(gpu_stream_sync(stream), 0);
    }
    ~card() {
        gpu_free(memory);
        gpu_free_pinned(pinned);
        gpu_stream_destroy(stream);
    }
    uint32_t value() {
        assert_int_equal(gpu_copy(pinned, memory, 4, stream), 0);
        assert_int_equal(gpu_stream_sync(stream), 0);
        return *pinned;
    }
    int add(uint32_t n) { return gpu_launch<add_kernel>({1, 1, 1}, 0, stream, {memory, n}); }
};

void commands_run_when_the_host_waits(void **) {
    card c;
    *c.pinned = 5;
    assert_int_equal(gpu_copy(c.memory, c.pinned, 4, c.stream), 0);
    *c.pinned = 7; /* too early: this is what is copied */
    assert_int_equal(c.add(1), 0);
    assert_int_equal(c.value(), 8);
}

void graphs_replay(void **) {
    card c;
    gpu_graph graph;
    assert_int_equal(gpu_capture_begin(c.stream), 0);
    assert_int_equal(c.add(3), 0);
    assert_int_equal(c.add(4), 0);
    assert_int_not_equal(gpu_stream_sync(c.stream), 0);
    assert_int_equal(gpu_capture_end(c.stream, &graph), 0);
    assert_int_equal(c.value(), 0);
    for (uint32_t i = 1; i <= 3; i++) {
        assert_int_equal(gpu_graph_launch(graph, c.stream), 0);
        assert_int_equal(c.value(), 7 * i);
    }
    gpu_graph_destroy(graph);
}

void events_order_streams(void **) {
    card c;
    gpu_stream second;
    gpu_event event;
    assert_int_equal(gpu_stream_create(&second), 0);
    assert_int_equal(gpu_event_create(&event), 0);
    assert_int_equal(c.add(2), 0);
    assert_int_equal(gpu_event_record(event, c.stream), 0);
    assert_int_equal(c.add(10), 0); /* after the event */
    assert_int_equal(gpu_stream_wait(second, event), 0);
    assert_int_equal(gpu_copy(c.pinned, c.memory, 4, second), 0);
    assert_int_equal(gpu_stream_sync(second), 0);
    assert_int_equal(*c.pinned, 2);
    assert_int_equal(c.value(), 12);
    gpu_event_destroy(event);
    gpu_stream_destroy(second);
}

void blocks_of_a_cluster_read_each_other(void **) {
    card c;
    for (uint32_t warp = 0; warp < 3; warp++)
        assert_int_equal(gpu_launch<count_kernel>({8, 2, 1}, 128, c.stream, {c.memory, warp}), 0);
    assert_int_equal(c.value(), 3 * 4 * (1 + 2 + 3 + 4));
}

void impossible_launches_are_refused(void **) {
    card c;
    add_args a = {c.memory, 1};
    assert_int_not_equal(gpu_launch<add_kernel>({0, 1, 1}, 0, c.stream, a), 0);
    assert_int_not_equal(gpu_launch<add_kernel>({1, 65536, 1}, 0, c.stream, a), 0);
    assert_int_not_equal(gpu_launch<add_kernel>({1, 1, 1}, 228 << 10, c.stream, a), 0);
    assert_int_not_equal(gpu_launch<count_kernel>({6, 1, 1}, 128, c.stream, a), 0);
    setenv("LOWKEY_EMULATED_SM", "86", 1); /* less shared memory, and no clusters */
    assert_int_not_equal(gpu_launch<add_kernel>({1, 1, 1}, 100 << 10, c.stream, a), 0);
    assert_int_not_equal(gpu_launch<count_kernel>({4, 1, 1}, 128, c.stream, {c.memory, 0}), 0);
    unsetenv("LOWKEY_EMULATED_SM");
    assert_int_equal(c.value(), 0);
}

} // namespace

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_run_when_the_host_waits),
        cmocka_unit_test(graphs_replay),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(blocks_of_a_cluster_read_each_other),
        cmocka_unit_test(impossible_launches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

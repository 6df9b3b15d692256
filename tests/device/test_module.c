/* Finding and opening device modules, and the memory functions of the emulated card: what goes
 * there comes back, the host cannot read it, and what does not fit is a status. */
#include "base/err.h"
#include "device/modules.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct lk_device *open_emulated(void) {
    lk_err err = {0};
    struct lk_device *device;
    if (lk_device_open("emulated", &device, &err)) fail_msg("%s", err.msg);
    return device;
}

static void a_device_is_found_by_name(void **state) {
    lk_device_info info;
    bool found = false;
    for (size_t i = 0; lk_device_list(i, &info); i++)
        if (strcmp(info.name, "emulated") == 0) {
            found = true;
            assert_true(info.memory_bytes > 0 && info.free_bytes <= info.memory_bytes);
            assert_string_equal(info.text, "emulated, sm_90, 0.2 GiB");
        }
    assert_true(found);
    char line[256];
    assert_string_equal(lk_device_missing(line, sizeof line), "");
    struct lk_device *device = open_emulated();
    assert_string_equal(device->name, "emulated");
    assert_int_equal(device->slab_bytes & (device->slab_bytes - 1), 0);
    lk_device_close(device);
}

static void names_are_checked(void **state) {
    static const char *const good[] = {"cuda0", "CUDA0", "cuda12", "emulated"};
    static const char *const bad[] = {"",       "cuda", "cuda00",    "cuda-1",
                                      "cuda1x", "gpu0", "emulated0", "cuda9999"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(lk_device_has_name(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct lk_device *device;
        lk_err err = {0};
        assert_false(lk_device_has_name(bad[i]));
        assert_int_equal(lk_device_open(bad[i], &device, &err), LK_E_ARG);
        assert_null(device);
        assert_non_null(strstr(err.msg, "no device is named"));
    }
}

static void a_missing_module_is_one_line(void **state) {
    char *modules = strdup(getenv("LOWKEY_MODULES")), line[256];
    setenv("LOWKEY_MODULES", "/nonexistent", 1);
    struct lk_device *device;
    lk_err err = {0};
    assert_int_equal(lk_device_open("cuda0", &device, &err), LK_E_UNSUPPORTED);
    assert_string_equal(err.msg, "device cuda0: liblowkey-cuda.so is not in /nonexistent: build "
                                 "lowkey with -DLOWKEY_CUDA=ON, or set LOWKEY_MODULES");
    assert_ptr_equal(lk_device_missing(line, sizeof line), line);
    assert_string_equal(line, "liblowkey-cuda.so is not in /nonexistent: build lowkey with "
                              "-DLOWKEY_CUDA=ON, or set LOWKEY_MODULES");
    lk_device_info info;
    assert_false(lk_device_list(0, &info));
    setenv("LOWKEY_MODULES", modules, 1);
    free(modules);
}

/* A file with the name of a module that is not one. */
static void a_damaged_module_is_one_line(void **state) {
    char folder[] = "/tmp/lowkey-modules-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/liblowkey-cuda.so", folder);
    FILE *file = fopen(path, "w");
    fputs("not a shared object\n", file);
    fclose(file);
    char *modules = strdup(getenv("LOWKEY_MODULES"));
    setenv("LOWKEY_MODULES", folder, 1);
    struct lk_device *device;
    lk_err err = {0};
    assert_int_equal(lk_device_open("cuda0", &device, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "device cuda0: cannot load liblowkey-cuda.so"));
    setenv("LOWKEY_MODULES", modules, 1);
    free(modules);
    unlink(path);
    rmdir(folder);
}

static void fill(unsigned char *bytes, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)(seed + i * 131 + (i >> 8) * 7);
}

/* Sizes around a section of the ring, and so much that sections are used again. The host's copy is
 * overwritten after each upload. */
static void bytes_come_back(void **state) {
    static const size_t sizes[] = {1, 31, 4096, 262143, 262144, 262145, 1 << 20, 9 << 20};
    struct lk_device *device = open_emulated();
    const struct lk_device_functions *call = device->call;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];
        unsigned char *there = malloc(n), *back = malloc(n), *expected = malloc(n);
        uint64_t at, second;
        assert_int_equal(call->alloc(device, n, &at, NULL), LK_OK);
        assert_int_equal(call->alloc(device, n, &second, NULL), LK_OK);
        assert_int_equal(at % 256, 0);
        memset(expected, 0, n);
        assert_int_equal(call->download(device, back, at, n, NULL), LK_OK);
        assert_memory_equal(back, expected, n); /* zeroed */
        for (unsigned round = 0; round < 3; round++) {
            fill(expected, n, round);
            memcpy(there, expected, n);
            assert_int_equal(call->upload(device, at, there, n, NULL), LK_OK);
            memset(there, 0xee, n);
            assert_int_equal(call->copy(device, second, at, n, NULL), LK_OK);
            assert_int_equal(call->clear(device, at, n, NULL), LK_OK);
            assert_int_equal(call->download(device, back, second, n, NULL), LK_OK);
            assert_memory_equal(back, expected, n);
        }
        memset(expected, 0, n);
        assert_int_equal(call->download(device, back, at, n, NULL), LK_OK);
        assert_memory_equal(back, expected, n);
        call->free(device, at, n);
        call->free(device, second, n);
        free(there), free(back), free(expected);
    }
    lk_device_close(device);
}

enum { MUCH = 48 << 20 };

static void too_much_memory_is_a_status(void **state) {
    struct lk_device *device = open_emulated();
    const struct lk_device_functions *call = device->call;
    uint64_t at[64], total, unused, before;
    call->memory(device, &total, &before);
    lk_err err = {0};
    int n = 0;
    lk_status status = LK_OK;
    while (!status && n < 64) status = call->alloc(device, MUCH, &at[n++], &err);
    assert_int_equal(status, LK_E_NOMEM);
    assert_string_equal(err.msg, "device memory: out of memory");
    for (int i = 0; i < n - 1; i++) call->free(device, at[i], MUCH);
    call->memory(device, &total, &unused);
    assert_int_equal(unused, before);
    assert_int_equal(call->alloc(device, MUCH, &at[0], NULL), LK_OK); /* goes on */
    call->free(device, at[0], MUCH);
    lk_device_close(device);
}

/* Cards differ in the shared memory of a block. */
static void wide_rows_are_refused_where_they_do_not_fit(void **state) {
    static const struct {
        struct lk_device_needs needs;
        bool fits[2]; /* with 227 KB, with 99 KB */
    } cases[] = {
        {{.d_head = 128, .group = 4, .move_bytes = 98 << 10}, {true, true}},
        {{.d_head = 128, .group = 4, .move_bytes = 140 << 10}, {true, false}},
        {{.d_head = 128, .group = 4, .move_bytes = 230 << 10}, {false, false}},
        {{.d_head = 128,
          .group = 4,
          .d_latent = 384,
          .restored_head = 128,
          .restored_bytes = 56 << 10},
         {true, true}},
        {{.d_head = 128,
          .group = 4,
          .d_latent = 768,
          .restored_head = 128,
          .restored_bytes = 110 << 10},
         {true, false}},
        {{.d_head = 512, .d_rope = 64, .group = 16}, {true, true}},
        {{.d_head = 128, .d_head_swa = 256, .group = 8, .shift = true}, {true, true}},
    };
    static const char *const sm[] = {"90", "120"};
    for (int card = 0; card < 2; card++) {
        setenv("LOWKEY_EMULATED_SM", sm[card], 1);
        struct lk_device *device = open_emulated();
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const char *reason = lk_device_refuses(device, &cases[i].needs);
            if (!reason != cases[i].fits[card]) fail_msg("sm_%s, case %zu", sm[card], i);
            if (reason) assert_non_null(strstr(reason, "shared memory"));
        }
        lk_device_close(device);
    }
    unsetenv("LOWKEY_EMULATED_SM");
}

static void wrong_addresses_are_a_status(void **state) {
    struct lk_device *device = open_emulated();
    const struct lk_device_functions *call = device->call;
    uint64_t at;
    char bytes[512] = {0};
    lk_err err = {0};
    assert_int_equal(call->alloc(device, 256, &at, NULL), LK_OK);
    assert_int_equal(call->upload(device, at, bytes, 257, &err), LK_E_IO);
    assert_string_equal(err.msg, "upload: invalid argument");
    assert_int_equal(call->download(device, bytes, 4096, 16, &err), LK_E_IO);
    assert_int_equal(call->download(device, bytes, at, 256, NULL), LK_OK);
    call->free(device, at, 256);
    lk_device_close(device);
}

static sigjmp_buf faulted;
static void on_fault(int number) { siglongjmp(faulted, number); }

/* A program that reads the card's memory as if it were its own does not get away with it. */
static void the_host_cannot_read_it(void **state) {
    struct lk_device *device = open_emulated();
    uint64_t at;
    assert_int_equal(device->call->alloc(device, 4096, &at, NULL), LK_OK);
    assert_int_equal(device->call->sync(device, NULL), LK_OK);
    struct sigaction action = {.sa_handler = on_fault}, old;
    sigaction(SIGSEGV, &action, &old);
    volatile bool read = false;
    if (sigsetjmp(faulted, 1) == 0) {
        (void)*(volatile char *)(uintptr_t)at;
        read = true;
    }
    sigaction(SIGSEGV, &old, NULL);
    assert_false(read);
    device->call->free(device, at, 4096);
    lk_device_close(device);
}

int main(void) {
    setenv("LOWKEY_EMULATED_MIB", "256", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_is_found_by_name),
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(a_missing_module_is_one_line),
        cmocka_unit_test(a_damaged_module_is_one_line),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(too_much_memory_is_a_status),
        cmocka_unit_test(wide_rows_are_refused_where_they_do_not_fit),
        cmocka_unit_test(wrong_addresses_are_a_status),
        cmocka_unit_test(the_host_cannot_read_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

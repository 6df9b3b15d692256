/* Conversions between f32 and f16 give the same bits as ggml's, except for the payload of NaNs,
 * which ggml drops. Not in core builds (LOWKEY_CORE), which have no ggml. */
#include "codec/f16.h"
#include "test.h"

#include <ggml.h>

static void halves_are_the_same(void **state) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = lk_f16_to_f32((uint16_t)h), y = ggml_fp16_to_fp32((ggml_fp16_t)h);
        assert_memory_equal(&x, &y, sizeof x);
    }
}

static void floats_are_the_same(void **state) {
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 509) {
        uint32_t low = (uint32_t)bits;
        float x;
        memcpy(&x, &low, sizeof x);
        uint16_t got = lk_f32_to_f16_ieee(x), expect = ggml_fp32_to_fp16(x);
        if (isnan(x)) got = (got & 0x8000) | 0x7e00;
        if (got != expect) fail_msg("float 0x%08x: 0x%04x, ggml 0x%04x", low, got, expect);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_the_same),
        cmocka_unit_test(floats_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

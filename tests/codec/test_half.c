/* Conversions between f32 and f16: every half, and many floats against an exact model and the
 * CPU. */
#include "codec/f16.h"
#include "kernels/kernels.h"
#include "test.h"

#if defined(__x86_64__)
#include <immintrin.h>
__attribute__((target("f16c"))) static float cpu_f16_to_f32(uint16_t h) { return _cvtsh_ss(h); }
__attribute__((target("f16c"))) static uint16_t cpu_f32_to_f16(float x) {
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
static bool cpu_has_f16(void) { return lk_kernels_choose("avx2"); } /* they need f16c, too */
#else /* AArch64: the functions of f16.h are the CPU's */
static float cpu_f16_to_f32(uint16_t h) { return lk_f16_to_f32(h); }
static uint16_t cpu_f32_to_f16(float x) { return lk_f32_to_f16_ieee(x); }
static bool cpu_has_f16(void) { return true; }
#endif

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The value of a finite or infinite half. */
static double exact_value(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    double value = exponent == 31 ? INFINITY
                   : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                  : ldexp(mantissa, -24);
    return h & 0x8000 ? -value : value;
}

/* The nearest half of a number, ties to even. */
static uint16_t exact_half(float x) {
    int exponent;
    double a = fabs((double)x);
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (a >= 65520) return sign | 0x7c00;
    if (a < 0x1p-14) return (uint16_t)(sign | (int)nearbyint(ldexp(a, 24)));
    frexp(a, &exponent);
    int mantissa = (int)nearbyint(ldexp(a, 11 - exponent)); /* 1024 to 2048 */
    return (uint16_t)(sign | (((exponent + 14) << 10) + mantissa - 1024));
}

static bool is_nan_half(uint32_t h) { return (h & 0x7fff) > 0x7c00; }

static void every_half_is_converted(void **state) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = lk_f16_to_f32_portable((uint16_t)h);
        if (is_nan_half(h)) {
            assert_int_equal(to_bits(x), (h & 0x8000) << 16 | 0x7fc00000 | (h & 0x3ff) << 13);
            assert_int_equal(lk_f32_to_f16_portable(x), h | 0x200);
            continue;
        }
        assert_true((double)x == exact_value((uint16_t)h) && !!signbit(x) == h >> 15);
        assert_int_equal(lk_f32_to_f16_portable(x), h);
    }
}

static void floats_round_to_nearest_even(void **state) {
    /* Every half, the midpoint after it, and the floats next to both. */
    for (uint32_t h = 0; h < 0x7c00; h++) {
        uint16_t next = (uint16_t)(h + 1);
        float x = (float)exact_value((uint16_t)h);
        float middle = next == 0x7c00 ? 65520 : (float)((x + exact_value(next)) / 2);
        uint16_t even = h & 1 ? next : (uint16_t)h;
        assert_int_equal(lk_f32_to_f16_portable(middle), even);
        assert_int_equal(lk_f32_to_f16_portable(-middle), even | 0x8000);
        assert_int_equal(lk_f32_to_f16_portable(nextafterf(middle, 0)), h);
        assert_int_equal(lk_f32_to_f16_portable(nextafterf(middle, INFINITY)), next);
        assert_int_equal(lk_f32_to_f16_portable(nextafterf(x, INFINITY)), h);
    }
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 4099) {
        float x = from_bits((uint32_t)bits);
        if (!isnan(x)) assert_int_equal(lk_f32_to_f16_portable(x), exact_half(x));
    }
}

static void all_implementations_agree(void **state) {
    if (!cpu_has_f16()) skip();
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint32_t expect = to_bits(cpu_f16_to_f32((uint16_t)h));
        assert_int_equal(to_bits(lk_f16_to_f32_portable((uint16_t)h)), expect);
        assert_int_equal(to_bits(lk_f16_to_f32((uint16_t)h)), expect);
    }
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 509) { /* NaNs too */
        float x = from_bits((uint32_t)bits);
        uint16_t expect = cpu_f32_to_f16(x);
        if (lk_f32_to_f16_portable(x) != expect || lk_f32_to_f16_ieee(x) != expect)
            fail_msg("float 0x%08x", (unsigned)bits);
    }
}

static void stored_halves_are_finite(void **state) {
    assert_int_equal(lk_f32_to_f16(INFINITY), 0x7bff);
    assert_int_equal(lk_f32_to_f16(-INFINITY), 0xfbff);
    assert_int_equal(lk_f32_to_f16(65519), 0x7bff);
    assert_int_equal(lk_f32_to_f16(3e38f), 0x7bff);
    assert_int_equal(lk_f32_to_f16(-1e6f), 0xfbff);
    assert_int_equal(lk_f32_to_f16(1), 0x3c00);
    assert_true(is_nan_half(lk_f32_to_f16(NAN)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_is_converted),
        cmocka_unit_test(floats_round_to_nearest_even),
        cmocka_unit_test(all_implementations_agree),
        cmocka_unit_test(stored_halves_are_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

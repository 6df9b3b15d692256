/* Moves of rows, warp by warp, against the codecs of lib/codec bit by bit. */
extern "C" {
#include "codec/codec.h"
#include "codec/f16.h"
#include "device/moves.h"
#include "support_emulated.h"
#include "test.h"
}
#include "cuda/move.cuh"

#include <thread>
#include <vector>

namespace {

typedef std::vector<unsigned char> bytes;

struct lk_codec rot(int bits, bool mean, bool sigma, bool trellis = false, bool uniform = false) {
    struct lk_codec codec = {};
    codec.coding = LK_ROT, codec.bits = (uint8_t)bits;
    codec.mean = mean, codec.sigma = sigma, codec.trellis = trellis;
    codec.lloyd = !trellis && !uniform && lk_codec_default_lloyd(bits);
    return codec;
}

struct lk_codec plain_codec(int coding, int bits, int group = 0, bool hadamard = false) {
    struct lk_codec codec = {};
    codec.coding = (uint8_t)coding, codec.bits = (uint8_t)bits;
    codec.group = (uint16_t)group, codec.hadamard = hadamard;
    return codec;
}

/* Codecs of one side: all that recipes can name, but for the widest options of each. */
std::vector<struct lk_codec> codecs(enum lk_side side) {
    std::vector<struct lk_codec> all = {plain_codec(LK_F16, 16), plain_codec(LK_INT8, 8)};
    for (int bits = 1; bits <= 8; bits++) {
        all.push_back(rot(bits, side == LK_K, side == LK_K));
        all.push_back(rot(bits, side == LK_V, false));
    }
    for (int bits = 2; bits <= 4; bits++) all.push_back(rot(bits, true, true, false, true));
    for (int bits = 1; bits <= 4; bits++) all.push_back(rot(bits, bits % 2, true, true));
    for (int bits = 2; bits <= 4; bits += 2)
        for (int group = 32; group <= 128; group *= 2)
            all.push_back(plain_codec(LK_KIVI, bits, group));
    for (int bits = 2; bits <= 8; bits++) all.push_back(plain_codec(LK_ASYM, bits, 0, bits % 2));
    all.push_back(plain_codec(LK_ASYM, 4, 32));
    all.push_back(plain_codec(LK_ASYM, 3, 64, true));
    all.push_back(plain_codec(LK_ASYM, 2, 128, true));
    return all;
}

struct random draw = {1};

/* Rows as they occur: channels of different size, an offset, some outliers; some rows of zeros, of
 * huge numbers, and a NaN. */
std::vector<float> draw_rows(int n, int width) {
    std::vector<float> x((size_t)n * width), offset(width), size(width);
    for (int c = 0; c < width; c++) {
        offset[c] = random_gauss(&draw);
        size[c] = expf(random_gauss(&draw));
    }
    for (int t = 0; t < n; t++)
        for (int c = 0; c < width; c++) {
            float v = offset[c] + size[c] * random_gauss(&draw);
            int kind = t % 37;
            x[(size_t)t * width + c] = kind == 5 ? 0 : kind == 11 ? v * 1e12f : kind == 17 ? 3 : v;
        }
    x[x.size() / 2] = NAN;
    return x;
}

/* A level of a cache: blocks of all parts, in any order in memory, and their table. */
struct level {
    struct lk_codec codec;
    enum lk_side side;
    int n_part, d, block_rows;
    size_t part_bytes;
    bytes memory;
    std::vector<uint64_t> table;
    std::vector<float> sigma;

    level(const struct lk_codec &c, enum lk_side s, int parts, int channels, int n_row)
        : codec(c), side(s), n_part(parts), d(channels) {
        block_rows = c.coding == LK_F16 ? 20 : lk_codec_block_rows(&codec, side);
        part_bytes = lk_codec_head_bytes(&codec, side, d, block_rows);
        int n_block = (n_row + block_rows - 1) / block_rows;
        memory.assign(part_bytes * n_part * n_block, 0x5a);
        for (int b = 0; b < n_block; b++)
            table.push_back(
                (uint64_t)(uintptr_t)(memory.data() + part_bytes * n_part * (b * 7 % n_block)));
        if (n_block % 7 == 0)
            for (int b = 0; b < n_block; b++)
                table[b] = (uint64_t)(uintptr_t)(memory.data() + part_bytes * n_part * b);
        for (int i = 0; i < n_part * d; i++) sigma.push_back(expf(0.5f * random_gauss(&draw)));
    }

    struct lk_part part(int p) const {
        return {&codec, side, d, block_rows, codec.sigma ? &sigma[(size_t)p * d] : NULL};
    }
    unsigned char *head(int p, int64_t row) {
        return (unsigned char *)(uintptr_t)table[row / block_rows] + p * part_bytes;
    }
    struct lk_device_move_rows end(int64_t first) const {
        struct lk_device_move_rows r = {};
        struct lk_part p = part(0);
        assert_null(lk_device_packing_of(&p, &r.coding));
        r.at = (uint64_t)(uintptr_t)table.data();
        r.sigma = codec.sigma ? (uint64_t)(uintptr_t)sigma.data() : 0;
        r.sigma_stride = d;
        r.part_bytes = part_bytes;
        r.first = first;
        return r;
    }

    /* What the CPU stores: rows x [n][n_part][width], width >= d, from row `first` on. */
    void encode(int64_t first, int n, const float *x, int width) {
        for (int p = 0; p < n_part; p++) {
            struct lk_part of = part(p);
            for (int i = 0; i < n;) {
                int row = (int)((first + i) % block_rows), here = block_rows - row;
                if (here > n - i) here = n - i;
                lk_codec_encode(&of, head(p, first + i), row, here,
                                x + ((size_t)i * n_part + p) * width, (size_t)n_part * width);
                i += here;
            }
        }
    }
    /* ... and reads: x [n][n_part][d]. */
    void decode(int64_t first, int n, float *x) {
        for (int p = 0; p < n_part; p++)
            for (int i = 0; i < n; i++) {
                struct lk_part of = part(p);
                lk_codec_decode(&of, head(p, first + i), (int)((first + i) % block_rows), 1,
                                x + ((size_t)i * n_part + p) * d, d);
            }
    }
    bool is_block_wise() const { return !lk_codec_row_wise(&codec, side); }
};

/* Rows x [][n_part][d] as an end of a move. */
struct lk_device_move_rows plain_end(const void *x, int coding, int n_part, int d, int64_t first) {
    struct lk_device_move_rows r = {};
    r.coding = lk_device_plain(coding, d);
    r.at = (uint64_t)(uintptr_t)x;
    r.part_bytes = d * (coding == LK_ROWS_F32 ? sizeof(float) : sizeof(uint16_t));
    r.row_bytes = n_part * r.part_bytes;
    r.first = first;
    return r;
}

/* Execute moves, with lanes in either order. Items run in two threads, so that ThreadSanitizer sees
 * which of them write to the same place. */
void run(std::vector<struct lk_device_move> moves, bool reversed) {
    int n = (int)moves.size(), n_item = lk_device_move_items(moves.data(), n);
    size_t size = (size_t)lk_device_move_shared(moves.data(), n);
    auto work = [&](int first) {
        lanes_reversed = reversed;
        for (int i = first; i < n_item; i += 2) {
            bytes shared(size, 0xff);
            execute_move(moves.data(), n, reversed ? n_item - 1 - i : i, (char *)shared.data());
        }
        lanes_reversed = false;
    };
    std::thread other(work, 1);
    work(0);
    other.join();
}

struct lk_device_move append(const struct lk_device_move_rows &from,
                             const struct lk_device_move_rows &to, int n_row, int n_part) {
    struct lk_device_move move = {};
    move.from = from, move.to = to;
    move.kind = LK_MOVE_APPEND, move.n_row = n_row, move.n_part = n_part;
    return move;
}

const char *name_of(const level &l) {
    static char text[64];
    size_t n = (size_t)snprintf(text, sizeof text, "%s d %d ", l.side == LK_K ? "K" : "V", l.d);
    lk_codec_print(&l.codec, l.side, text + n, sizeof text - n);
    return text;
}

void check_bytes(const level &got, const level &want, const char *what) {
    if (got.memory == want.memory) return;
    size_t i = 0, n = 0;
    for (size_t j = got.memory.size(); j-- > 0;)
        if (got.memory[j] != want.memory[j]) i = j, n++;
    fail_msg("%s, %s: %zu of %zu bytes differ, the first is %zu", name_of(got), what, n,
             got.memory.size(), i % got.part_bytes);
}

/* The same level in memory of its own. */
level copy_of(const level &l) {
    level copy = l;
    for (size_t b = 0; b < l.table.size(); b++)
        copy.table[b] +=
            (uint64_t)(uintptr_t)copy.memory.data() - (uint64_t)(uintptr_t)l.memory.data();
    return copy;
}

const int orders[] = {64, 80, 96, 128, 256, 8, 24, 72, 192};

/* Every codec at every number of channels that it can have. */
template <class Case> void for_all(Case run_case) {
    size_t i = 0;
    for (int d : orders)
        for (int side = 0; side < 2; side++)
            for (const struct lk_codec &codec : codecs((enum lk_side)side))
                if (!lk_codec_reject_reason(&codec, (enum lk_side)side, d) && case_runs(i++))
                    run_case(codec, (enum lk_side)side, d);
}

/* Plain rows to a level, in one move and row after row, as a prompt and a step store them. */
void encodes(void **state) {
    (void)state;
    for_all([](const struct lk_codec &codec, enum lk_side side, int d) {
        const int n_part = 3, n_row = 256;
        std::vector<float> x = draw_rows(n_row, n_part * d);
        level want(codec, side, n_part, d, n_row), got = copy_of(want);
        int first = want.is_block_wise() ? want.block_rows : 13, n = n_row - first;
        if (!want.is_block_wise()) n -= 9;
        want.encode(first, n, x.data(), d);
        run({append(plain_end(x.data(), LK_ROWS_F32, n_part, d, 0), got.end(first), n, n_part)},
            d == 64);
        check_bytes(got, want, "f32 rows");

        std::vector<uint16_t> half(x.size());
        for (size_t i = 0; i < x.size(); i++) {
            half[i] = lk_f32_to_f16(x[i]);
            x[i] = lk_f16_to_f32(half[i]);
        }
        want.encode(first, n, x.data() + 2 * n_part * d, d);
        run({append(plain_end(half.data(), LK_ROWS_F16, n_part, d, 2), got.end(first), n, n_part)},
            true);
        check_bytes(got, want, "f16 rows");
        if (want.is_block_wise()) return;
        want.encode(3, 1, x.data(), d);
        want.encode(4, 5, x.data() + n_part * d, d);
        run({append(plain_end(x.data(), LK_ROWS_F32, n_part, d, 0), got.end(3), 1, n_part)}, false);
        run({append(plain_end(x.data(), LK_ROWS_F32, n_part, d, 1), got.end(4), 5, n_part)}, false);
        check_bytes(got, want, "few rows");
    });
}

/* A level to plain rows. */
void decodes(void **state) {
    (void)state;
    for_all([](const struct lk_codec &codec, enum lk_side side, int d) {
        const int n_part = 2, n_row = 256, first = 17, n = 121;
        std::vector<float> x = draw_rows(n_row, n_part * d);
        level from(codec, side, n_part, d, n_row);
        from.encode(0, n_row, x.data(), d);
        std::vector<float> want((size_t)n * n_part * d), got(want.size());
        from.decode(first, n, want.data());
        run({append(from.end(first), plain_end(got.data(), LK_ROWS_F32, n_part, d, 0), n, n_part)},
            true);
        size_t n_other = 0;
        for (size_t i = 0; i < got.size(); i++)
            n_other +=
                memcmp(&got[i], &want[i], sizeof got[i]) && !(isnan(got[i]) && isnan(want[i]));
        if (n_other)
            fail_msg("%s: %zu of %zu decoded numbers differ", name_of(from), n_other, got.size());
    });
}

/* Rows age: from any level to any other, several moves in one list. */
void ages(void **state) {
    (void)state;
    for_all([](const struct lk_codec &codec, enum lk_side side, int d) {
        const int n_part = 2, n_row = 256;
        std::vector<struct lk_device_move> moves;
        std::vector<level> source, target, expected;
        std::vector<struct lk_codec> sources = codecs(side);
        source.reserve(8), target.reserve(8), expected.reserve(8);
        for (int i = 0; i < 5; i++) {
            struct lk_codec of = sources[(size_t)random_int(&draw, 0, (int)sources.size() - 1)];
            if (lk_codec_reject_reason(&of, side, d)) of = lk_codec_f16;
            int wide = i == 4 && d % 32 == 0 ? d + 32 : d; /* latents of a higher rank */
            if (lk_codec_reject_reason(&of, side, wide)) wide = d;
            source.emplace_back(of, side, n_part, wide, n_row);
            std::vector<float> x = draw_rows(n_row, n_part * wide);
            source[i].encode(0, n_row, x.data(), wide);
            target.emplace_back(codec, side, n_part, d, n_row);
            expected.push_back(copy_of(target[i]));
            int n = i == 1 ? 1 : 128, from = random_int(&draw, 0, 40);
            int to = expected[i].is_block_wise() ? expected[i].block_rows : 30 * i;
            if (expected[i].is_block_wise()) n = 128;
            source[i].decode(from, n, x.data());
            expected[i].encode(to, n, x.data(), wide);
            moves.push_back(append(source[i].end(from), target[i].end(to), n, n_part));
        }
        run(moves, false);
        for (int i = 0; i < 5; i++) check_bytes(target[i], expected[i], name_of(source[i]));
    });
}

/* Rows take the place of others, some of them twice, and some are left out. */
void replaces(void **state) {
    (void)state;
    for_all([](const struct lk_codec &codec, enum lk_side side, int d) {
        if (!lk_codec_can_replace(&codec, side)) return;
        const int n_part = 2, n_row = 256, n = 45, first = 7;
        std::vector<float> x = draw_rows(n_row, n_part * d);
        for (int t = 0; t < n_row; t++) x[(size_t)t * n_part * d + 3] = 1.5f; /* no range yet */
        level want(codec, side, n_part, d, n_row);
        want.encode(0, n_row, x.data(), d);
        level got = copy_of(want);
        x = draw_rows(n, n_part * d);
        std::vector<int32_t> index((size_t)n * n_part);
        for (int32_t &i : index) i = random_int(&draw, -1, 20);
        for (int i = 0; i < n; i++)
            for (int p = 0; p < n_part; p++) {
                int32_t row = index[(size_t)i * n_part + p];
                struct lk_part part = want.part(p);
                if (row >= 0)
                    lk_codec_replace(&part, want.head(p, first + row),
                                     (first + row) % want.block_rows,
                                     &x[((size_t)i * n_part + p) * d]);
            }
        struct lk_device_move move =
            append(plain_end(x.data(), LK_ROWS_F32, n_part, d, 0), got.end(first), n, n_part);
        move.kind = LK_MOVE_REPLACE;
        move.to.index = (uint64_t)(uintptr_t)index.data();
        move.to.index_stride = n_part, move.to.index_step = 1;
        run({move}, d == 128);
        check_bytes(got, want, "replaced");
    });
}

/* The rows of a prompt that a policy kept, and rows of evicted tokens. */
void selects(void **state) {
    (void)state;
    const int n_part = 3, d = 64, n_row = 256, n = 96;
    std::vector<float> x = draw_rows(n_row, n_part * d), chosen((size_t)n * n_part * d),
                       got(chosen.size());
    std::vector<int32_t> index((size_t)n * n_part);
    for (int i = 0; i < n; i++)
        for (int p = 0; p < n_part; p++) {
            index[(size_t)i * n_part + p] = i * 2 + p;
            memcpy(&chosen[((size_t)i * n_part + p) * d],
                   &x[((size_t)(i * 2 + p) * n_part + p) * d], d * sizeof(float));
        }
    struct lk_codec codec = rot(3, true, true);
    level want(codec, LK_K, n_part, d, n_row), to = copy_of(want);
    want.encode(0, n, chosen.data(), d);
    struct lk_device_move move =
        append(plain_end(x.data(), LK_ROWS_F32, n_part, d, 0), to.end(0), n, n_part);
    move.from.index = (uint64_t)(uintptr_t)index.data();
    move.from.index_stride = n_part, move.from.index_step = 1;
    run({move}, false);
    check_bytes(to, want, "selected");

    /* Reading some of them leaves the others' places as they are. */
    for (int i = 0; i < n; i += 3) index[(size_t)i * n_part] = -1;
    for (size_t i = 0; i < index.size(); i++)
        if (index[i] >= 0) index[i] = (int32_t)(i / n_part);
    want.decode(0, n, chosen.data());
    for (int i = 0; i < n; i += 3) memset(&chosen[(size_t)i * n_part * d], 0, d * sizeof(float));
    move = append(to.end(0), plain_end(got.data(), LK_ROWS_F32, n_part, d, 0), n, n_part);
    move.from.index = (uint64_t)(uintptr_t)index.data();
    move.from.index_stride = n_part, move.from.index_step = 1;
    run({move}, false);
    assert_memory_equal(got.data(), chosen.data(), got.size() * sizeof(float));
}

/* A cache's moves are commands. */
void follows_a_cache(void **state) {
    (void)state;
    auto execute = [](struct lk_device_move *move, int n) {
        run(std::vector<struct lk_device_move>(move, move + n), n % 2 == 1);
    };
    char text[256];
    for (int recipe = 0; recipe < N_MOVE_RECIPES; recipe++) {
        int n = check_move_commands(recipe, execute, text, sizeof text);
        if (n < 10) fail_msg("recipe %d, %d moves: %s", recipe, n, text);
    }
}

/* What kernels cannot do has a reason. */
void refuses(void **state) {
    (void)state;
    struct lk_device_packing out;
    struct lk_codec codec = rot(4, true, true);
    struct lk_part part = {&codec, LK_K, 104, LK_TILE, NULL};
    assert_string_equal(lk_device_packing_of(&part, &out),
                        "devices have no rotation for this number of channels");
    part.d_head = 2048;
    assert_string_equal(lk_device_packing_of(&part, &out),
                        "devices do not hold rows of more than 1024 channels");
    part.d_head = 960;
    assert_non_null(strstr(lk_device_packing_of(&part, &out), "more than 768 channels"));
    part.d_head = 1024;
    assert_null(lk_device_packing_of(&part, &out));
    codec.coding = LK_ADDED;
    assert_non_null(strstr(lk_device_packing_of(&part, &out), "a program has added"));
}

} // namespace

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes),         cmocka_unit_test(decodes), cmocka_unit_test(ages),
        cmocka_unit_test(replaces),        cmocka_unit_test(selects), cmocka_unit_test(refuses),
        cmocka_unit_test(follows_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

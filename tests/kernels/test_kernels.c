/* score and accumulate of every table against the reference, over all codecs, sides and shapes. */
#include "test_kernels.h"

#include "codec/hadamard.h"
#include "kernels/composed.h"
#include "support_baselines.h"

enum {
    MAX_ROWS = 128,
    MAX_Q = 70,
    STRIDE = LK_TILE + 5,
    HEAD_BYTES = 2 * MAX_ROWS * LK_MAX_D_HEAD
};

static const int d_heads[] = {8, 16, 40, 64, 80, 96, 120, 128, 200, 256, 584, 1024},
                 rows_in[] = {1, 7, 8, 31, 32}, queries[] = {1, 2, 3, 7, 16, 33};
enum { N_D_HEAD = 12, N_ROWS_IN = 5, N_QUERIES = 6, WIDEST_HEAD = 256 };

/* Maximum squared error (see limit_of). Scores: relative to |q|^2 |x|^2 / d_head, the squared score
 * of unrelated rows, because a single score may happen to be almost 0. Weighted sums: relative to
 * the squared result.
 *
 *   f16      rounding of floats only
 *   16 bits  within 2^-16 of the row's maximum, about 3e-5 of its rms: 1e-9. The unsigned codes of
 *            KIVI multiply that by their mean.
 *   halves   codecs without kernels are multiplied as half floats, whose rounding is 2.8e-4 of
 *            values of 1.5 rms: 4e-8
 *   8 bits   queries for rot and asym of 1 to 4 bits, with AVX-512 of 1 to 5 bits: within
 *            max |q| / 254, uniformly distributed, so (max / rms)^2 / (254^2 * 3) = 5e-5 for a
 *            maximum of 3 rms. Codes of 4 bits have an error of 1e-2 themselves, codes of 5 bits
 *            one of 2.5e-3.
 *   dither   AVX-512 dithers weights of values for these codes to 1/255 of a tile's maximum. The
 *            squared error (1/255)^2 / 6, relative to the mean square of uniformly distributed
 *            weights, 1/3, is 8e-6. AVX2 dithers to 1/127: four times that.
 *
 * The limit holds for the mean over all shapes. A single case, which may have only one score, has
 * LUCK times the limit. */
enum { LUCK = 16 };

static bool is_avx2(const struct lk_kernels *kernels) { return strcmp(kernels->name, "avx2") == 0; }
static bool is_avx512(const struct lk_kernels *kernels) {
    return strncmp(kernels->name, "avx512", 6) == 0 || strcmp(kernels->name, "amx") == 0;
}
static bool dithers(const struct lk_kernels *kernels) {
    return is_avx2(kernels) || is_avx512(kernels);
}

/* Whether these kernels multiply the codes with 8-bit queries and weights. */
static bool is_coarse(const struct lk_kernels *kernels, const struct lk_codec *codec) {
    return (codec->coding == LK_ROT || codec->coding == LK_ASYM) &&
           codec->bits <= (is_avx512(kernels) ? 5 : 4);
}

static double limit_of(const struct lk_kernels *kernels, const struct lk_codec *codec,
                       enum lk_side side) {
    bool coarse = is_coarse(kernels, codec);
    if (codec->coding == LK_ADDED) return 5e-8;
    if (codec->coding == LK_F16) return 1e-12;
    if (codec->coding == LK_KIVI) return 1e-8;
    if (coarse && side == LK_K) return 8e-5;
    return !coarse || !dithers(kernels) ? 2e-9 : is_avx2(kernels) ? 2.5e-5 : 1.2e-5;
}

/* One head's part of a block with packed rows, and the kernels' view of it. */
struct packed {
    _Alignas(32) unsigned char head[HEAD_BYTES];
    float x[MAX_ROWS * LK_MAX_D_HEAD], sigma[LK_MAX_D_HEAD];
    void *block[1];
    struct lk_rows rows;
};

/* Pack the first `filled` rows of the block. The other bytes would be NaN as f16. */
static void pack(struct packed *out, const struct lk_codec *codec, enum lk_side side, int d,
                 int block_rows, int filled) {
    for (int c = 0; c < d; c++) out->sigma[c] = expf(0.5f * gaussian());
    float offset[LK_MAX_D_HEAD];
    for (int c = 0; c < d; c++) offset[c] = gaussian();
    for (int i = 0; i < block_rows * d; i++) out->x[i] = gaussian() + offset[i % d];
    size_t bytes = lk_codec_head_bytes(codec, side, d, block_rows);
    assert_true(bytes <= HEAD_BYTES);
    memset(out->head, 0xff, bytes);
    const float *sigma = codec->sigma ? out->sigma : NULL;
    if (!lk_codec_row_wise(codec, side)) filled = block_rows;
    lk_codec_encode(&(struct lk_part){codec, side, d, block_rows, sigma}, out->head, 0, filled,
                    out->x, d);
    out->block[0] = out->head;
    out->rows = (struct lk_rows){.codec = codec,
                                 .block = out->block,
                                 .sigma = sigma,
                                 .d_head = d,
                                 .block_rows = block_rows,
                                 .prefetch = {.block = out->block, .n_block = 1, .n_piece = 1}};
}

static void score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                  const struct lk_queries *q, float *s, size_t stride) {
    struct lk_kernels_state before;
    lk_kernels_enter(kernels, &before);
    lk_kernels_score(kernels, rows, q, s, stride);
    lk_kernels_leave(kernels, &before);
}

static void accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows, const float *p,
                       size_t stride, int n_q, float *acc) {
    struct lk_kernels_state before;
    lk_kernels_enter(kernels, &before);
    lk_kernels_accumulate(kernels, rows, p, stride, n_q, acc);
    lk_kernels_leave(kernels, &before);
}

/* Sum over queries and rows of |q|^2 |x|^2 / d_head, in the codec's domain (rotations keep
 * lengths). */
static double usual_scores(const struct packed *packed, const float *q, int n_q) {
    const struct lk_rows *rows = &packed->rows;
    int d = rows->d_head;
    double qq = 0, xx = 0;
    for (int i = 0; i < n_q * d; i++) qq += (double)q[i] * q[i];
    for (int i = 0; i < rows->n * d; i++) {
        double x = packed->x[rows->row0 * d + i] / (rows->sigma ? rows->sigma[i % d] : 1);
        xx += x * x;
    }
    return qq * xx / d;
}

/* Errors of all cases of a codec, as shares of their limits. */
struct shares {
    double sum;
    int n_case;
};

static void check_scores(const struct packed *packed, int n_q, struct shares *shares) {
    static float q[MAX_Q * LK_MAX_D_HEAD], got[MAX_Q * STRIDE], expect[MAX_Q * STRIDE];
    static _Alignas(64) unsigned char mem[MAX_Q * LK_MAX_D_HEAD * 6];
    const struct lk_rows *rows = &packed->rows;
    for (int i = 0; i < n_q * rows->d_head; i++) q[i] = gaussian();
    struct lk_queries queries;
    assert_true(lk_queries_bytes(n_q, rows->d_head) <= sizeof mem);
    lk_queries_prepare(&queries, q, n_q, rows->d_head, mem);
    lk_kernels_score(&lk_kernels_reference, rows, &queries, expect, STRIDE);
    double usual = usual_scores(packed, q, n_q);
    double coarser =
        /* Queries of many channels are quantized more coarsely. */
        LK_MAX_X16 / (double)lk_max_x16(rows->d_head);
    for (int k = 0; k < N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
        if (!kernels) continue;
        for (int i = 0; i < n_q * STRIDE; i++) got[i] = 1e30f;
        score(kernels, rows, &queries, got, STRIDE);
        for (int i = 0; i < n_q; i++)
            for (int t = LK_TILE; t < STRIDE; t++) assert_true(got[i * STRIDE + t] == 1e30f);
        double limit = limit_of(kernels, rows->codec, LK_K);
        double nmse =
            compare(got, expect, n_q, STRIDE, rows->n).error / usual / (coarser * coarser);
        if (!(nmse <= LUCK * limit))
            fail_msg("%s: score: coding %d, %d bits, %d channels, %d rows, %d queries: %g",
                     kernels->name, rows->codec->coding, rows->codec->bits, rows->d_head, rows->n,
                     n_q, nmse);
        shares->sum += nmse / limit, shares->n_case++;
    }
}

static void check_sums(const struct packed *packed, int n_q, struct shares *shares) {
    static float p[MAX_Q * STRIDE], before[(MAX_Q + 1) * LK_MAX_D_HEAD],
        got[(MAX_Q + 1) * LK_MAX_D_HEAD], expect[(MAX_Q + 1) * LK_MAX_D_HEAD];
    const struct lk_rows *rows = &packed->rows;
    int d = rows->d_head;
    size_t bytes = (size_t)(n_q + 1) * d * sizeof(float);
    for (int i = 0; i < n_q; i++)
        for (int t = 0; t < STRIDE; t++)
            p[i * STRIDE + t] = t < rows->n ? expf(-8 * (float)uniform()) : 0;
    for (int i = 0; i < (n_q + 1) * d; i++) before[i] = gaussian();
    memcpy(expect, before, bytes);
    lk_kernels_accumulate(&lk_kernels_reference, rows, p, STRIDE, n_q, expect);
    for (int k = 0; k < N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
        if (!kernels) continue;
        memcpy(got, before, bytes);
        accumulate(kernels, rows, p, STRIDE, n_q, got);
        assert_memory_equal(got + n_q * d, expect + n_q * d, d * sizeof(float));
        struct difference difference = compare(got, expect, n_q, d, d);
        double nmse = difference.error / difference.all,
               limit = limit_of(kernels, rows->codec, LK_V);
        if (!(nmse <= LUCK * limit))
            fail_msg("%s: accumulate: coding %d, %d bits, %d channels, %d rows, %d queries: %g",
                     kernels->name, rows->codec->coding, rows->codec->bits, d, rows->n, n_q, nmse);
        shares->sum += nmse / limit, shares->n_case++;
    }
}

static void check_codec(const struct lk_codec *codec, enum lk_side side, int block_rows) {
    static struct packed packed;
    struct shares shares = {0};
    size_t step = case_step() < 4 ? case_step() : 4; /* a mean of fewer shapes would be luck */
    for (int a = 0; a < N_D_HEAD; a++) {
        bool is_full = false; /* such a block serves every number of rows */
        if (lk_codec_reject_reason(codec, side, d_heads[a])) continue;
        for (int b = 0; b < N_ROWS_IN; b++) {
            if ((size_t)(codec->bits + a + b) % step) continue;
            int n = rows_in[b] < block_rows ? rows_in[b] : block_rows;
            if (!is_full) pack(&packed, codec, side, d_heads[a], block_rows, n);
            is_full = !lk_codec_row_wise(codec, side);
            int last = (block_rows - 1) / LK_TILE * LK_TILE; /* visit every tile of a block */
            for (int c = 0; c < N_QUERIES; c++) {
                if (d_heads[a] > WIDEST_HEAD && (b % 2 == 0 || c % 3 == 2)) continue; /* slow */
                packed.rows.row0 = codec->coding == LK_F16 ? 0 : c * LK_TILE % (last + LK_TILE);
                packed.rows.n = n;
                (side == LK_K ? check_scores : check_sums)(&packed, queries[c], &shares);
            }
        }
    }
    char name[64];
    lk_codec_print(codec, side, name, sizeof name);
    print_message("%c %-24s squared error %2.0f %% of its limit\n", side == LK_K ? 'K' : 'V', name,
                  shares.n_case ? 100 * shares.sum / shares.n_case : 0);
    assert_true(shares.sum <= shares.n_case);
}

static void f16_agrees(void **state) {
    struct lk_codec codec = {.coding = LK_F16, .bits = 16};
    for (int side = LK_K; side <= LK_V; side++)
        for (int rows = 1; rows <= LK_TILE; rows += rows == 1 ? 3 : rows == 4 ? 28 : 1)
            check_codec(&codec, side, rows);
}

static void int8_agrees(void **state) {
    struct lk_codec codec = {.coding = LK_INT8, .bits = 8};
    for (int side = LK_K; side <= LK_V; side++) check_codec(&codec, side, LK_TILE);
}

static void kivi_agrees(void **state) {
    for (int side = LK_K; side <= LK_V; side++)
        for (int bits = 2; bits <= 4; bits += 2)
            for (int group = 32; group <= 128; group *= 2) {
                struct lk_codec codec = {.coding = LK_KIVI, .bits = bits, .group = group};
                check_codec(&codec, side, lk_codec_block_rows(&codec, side));
            }
}

static void asym_agrees(void **state) {
    static const struct lk_codec forms[] = {{.group = 0},
                                            {.hadamard = true},
                                            {.group = 32},
                                            {.group = 128, .hadamard = true},
                                            {.group = 64}};
    for (int side = LK_K; side <= LK_V; side++)
        for (int bits = 2; bits <= 8; bits++)
            for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
                struct lk_codec codec = forms[i];
                codec.coding = LK_ASYM;
                codec.bits = (uint8_t)bits;
                check_codec(&codec, side, LK_TILE);
            }
}

/* Of rows, of blocks, and of rows whose values may have any size. */
static void added_codecs_agree(void **state) {
    static const char *const words[] = {"hqq4", "kvquant3", "kvarn2", "nf4"};
    for (int side = LK_K; side <= LK_V; side++)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            struct lk_codec codec = baseline_codec(words[i]);
            check_codec(&codec, side, lk_codec_block_rows(&codec, side));
        }
}

static void rot_agrees(void **state) {
    for (int side = LK_K; side <= LK_V; side++)
        for (int bits = 1; bits <= 8; bits++)
            for (int flags = 0; flags < 8; flags++) {
                struct lk_codec codec = {.coding = LK_ROT,
                                         .bits = bits,
                                         .mean = flags & 1,
                                         .sigma = flags & 2,
                                         .lloyd = flags & 4};
                if (!lk_codec_reject_reason(&codec, side, 64)) check_codec(&codec, side, LK_TILE);
                codec.trellis = !codec.lloyd;
                if (codec.trellis && bits <= 4) check_codec(&codec, side, LK_TILE);
            }
}

/* Rows of wide latents, and rows and queries whose products have the largest sums. */
static void wide_rows_agree(void **state) {
    static const int widths[] = {1032, 2048, 4096, LK_MAX_D_HEAD};
    static const struct lk_codec codecs[] = {
        {.coding = LK_F16, .bits = 16},
        {.coding = LK_INT8, .bits = 8},
        {.coding = LK_KIVI, .bits = 4, .group = 64},
        {.coding = LK_ROT, .bits = 2, .lloyd = true},
        {.coding = LK_ROT, .bits = 3, .lloyd = true, .mean = true},
        {.coding = LK_ROT, .bits = 4, .lloyd = true},
        {.coding = LK_ROT, .bits = 3, .trellis = true, .mean = true},
        {.coding = LK_ROT, .bits = 8, .mean = true}};
    static struct packed packed;
    static float q[3 * LK_MAX_D_HEAD], s[2][3 * STRIDE];
    static _Alignas(64) unsigned char mem[3 * (LK_MAX_D_HEAD * 6 + 64)];
    for (size_t i = 0; i < 4 * sizeof codecs / sizeof *codecs; i++) {
        const struct lk_codec *codec = &codecs[i / 4];
        int d = widths[i % 4];
        struct shares shares = {0};
        for (int side = LK_K; side <= LK_V; side++) {
            if (lk_codec_reject_reason(codec, side, d)) continue;
            pack(&packed, codec, side, d, lk_codec_block_rows(codec, side), LK_TILE);
            packed.rows.n = LK_TILE;
            (side == LK_K ? check_scores : check_sums)(&packed, 3, &shares);
            if (side == LK_V) continue;
            /* All codes and all queries at their maximum, of either sign. */
            int block_rows = packed.rows.block_rows;
            for (int t = 0; t < block_rows; t++) {
                float *row = packed.x + t * d;
                for (int c = 0; c < d; c++) row[c] = t % 2 ? -1 : 1;
                if (codec->coding == LK_ROT) lk_unrotate(row, d);
            }
            lk_codec_encode(&(struct lk_part){codec, side, d, block_rows, NULL}, packed.head, 0,
                            block_rows, packed.x, d);
            for (int c = 0; c < 3 * d; c++) q[c] = c < d ? 1 : c < 2 * d ? -1 : c % 2;
            struct lk_queries queries;
            lk_queries_prepare(&queries, q, 3, d, mem);
            lk_kernels_score(&lk_kernels_reference, &packed.rows, &queries, s[1], STRIDE);
            for (int k = 0; k < N_TABLE; k++) {
                const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
                if (!kernels) continue;
                score(kernels, &packed.rows, &queries, s[0], STRIDE);
                for (int j = 0; j < 3 * STRIDE; j++)
                    if (j % STRIDE < LK_TILE && !(fabsf(s[0][j] - s[1][j]) <= 2e-3f * (float)d))
                        fail_msg("%s, coding %d, %d bits, %d channels: %g, not %g", kernels->name,
                                 codec->coding, codec->bits, d, s[0][j], s[1][j]);
            }
        }
    }
}

/* Runs of tiles over separate blocks, longer than the rows that share a step of weights, for few
 * and many queries. */
static void runs_of_blocks(void **state) {
    enum { BLOCKS = 11, ROWS = BLOCKS * LK_TILE };
    static struct packed packed[BLOCKS];
    static float q[17 * LK_MAX_D_HEAD], s[2][17 * ROWS], p[17 * ROWS], acc[2][17 * LK_MAX_D_HEAD];
    static _Alignas(64) unsigned char mem[17 * LK_MAX_D_HEAD * 6];
    static const struct lk_codec codecs[] = {
        {.coding = LK_F16, .bits = 16},
        {.coding = LK_INT8, .bits = 8},
        {.coding = LK_ROT, .bits = 2, .lloyd = true, .mean = true},
        {.coding = LK_ROT, .bits = 3, .lloyd = true},
        {.coding = LK_ROT, .bits = 6, .mean = true},
        {.coding = LK_ROT, .bits = 8},
        {.coding = LK_ASYM, .bits = 3, .hadamard = true},
        {.coding = LK_ASYM, .bits = 4},
        {.coding = LK_ASYM, .bits = 8}};
    static const int widths[] = {40, 64, 96, 128, 200}, numbers[] = {1, 3, 5, 9, 17};
    double share[2] = {0, 0}; /* of the codec's limits */
    int n_case = 0;
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0] * 5; c++) {
        const struct lk_codec *codec = &codecs[c / 5];
        int d = widths[c % 5];
        void *block[BLOCKS];
        if (c % 5 == 0) share[LK_K] = share[LK_V] = n_case = 0;
        assert_null(lk_codec_reject_reason(codec, LK_K, d));
        for (int side = LK_K; side <= LK_V; side++) {
            for (int b = 0; b < BLOCKS; b++)
                pack(&packed[b], codec, side, d, LK_TILE, LK_TILE), block[b] = packed[b].head;
            for (int i = 0; i < 5; i++) {
                int n_q = numbers[i], n = i == 0   ? LK_TILE + 1
                                          : i == 1 ? 3 * LK_TILE
                                                   : ROWS - 5 * i;
                struct lk_rows rows = {
                    .codec = codec,
                    .block = block,
                    .d_head = d,
                    .block_rows = LK_TILE,
                    .n = n,
                    .prefetch = {.block = block, .n_block = BLOCKS, .n_piece = 1}};
                struct lk_queries queries;
                for (int k = 0; k < n_q * d; k++) q[k] = gaussian();
                for (int k = 0; k < n_q * ROWS; k++)
                    p[k] = k % ROWS < n ? expf(-8 * (float)uniform()) : 0;
                lk_queries_prepare(&queries, q, n_q, d, mem);
                for (int k = -1; k < N_TABLE; k++) {
                    const struct lk_kernels *kernels =
                        k < 0 ? &lk_kernels_reference : lk_kernels_choose(tables[k]);
                    if (!kernels) continue;
                    memset(acc[k >= 0], 0, sizeof acc[0]);
                    if (side == LK_K)
                        score(kernels, &rows, &queries, s[k >= 0], ROWS);
                    else
                        accumulate(kernels, &rows, p, ROWS, n_q, acc[k >= 0]);
                    if (k < 0) continue;
                    struct difference found = side == LK_K ? compare(s[1], s[0], n_q, ROWS, n)
                                                           : compare(acc[1], acc[0], n_q, d, d);
                    double nmse = found.error / found.all, limit = limit_of(kernels, codec, side);
                    if (!(nmse <= LUCK * limit))
                        fail_msg("%s: coding %d, %d bits, %d channels, %d queries, %d rows: %g",
                                 kernels->name, codec->coding, codec->bits, d, n_q, n, nmse);
                    share[side] += nmse / limit, n_case += side;
                }
            }
        }
        assert_true(c % 5 < 4 || (share[LK_K] <= 4 * n_case &&
                                  /* A mean makes scores small compared with |q| |x|. */
                                  share[LK_V] <= n_case));
    }
}

/* Every number of queries up to more than any kernel handles at once. */
static void any_number_of_queries(void **state) {
    static struct packed packed;
    static const struct lk_codec codecs[] = {{.coding = LK_F16, .bits = 16},
                                             {.coding = LK_INT8, .bits = 8},
                                             {.coding = LK_KIVI, .bits = 2, .group = 32},
                                             {.coding = LK_ROT, .bits = 3, .lloyd = true},
                                             {.coding = LK_ROT, .bits = 7},
                                             {.coding = LK_ASYM, .bits = 3},
                                             {.coding = LK_ASYM, .bits = 2, .group = 32}};
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++)
        for (int side = LK_K; side <= LK_V; side++) {
            struct lk_codec codec = codecs[c];
            codec.mean = codec.coding == LK_ROT && side == LK_K;
            struct shares shares = {0};
            pack(&packed, &codec, side, 96, LK_TILE, LK_TILE);
            packed.rows.n = LK_TILE;
            for (int n_q = 1; n_q <= MAX_Q; n_q++)
                (side == LK_K ? check_scores : check_sums)(&packed, n_q, &shares);
            assert_true(shares.sum <= shares.n_case);
        }
}

/* Rows after the first 32 of an f16 block: whole tiles, and the shorter last one. */
static void f16_tiles_of_a_long_block(void **state) {
    static struct packed packed;
    struct lk_codec codec = {.coding = LK_F16, .bits = 16};
    struct shares shares = {0};
    pack(&packed, &codec, LK_K, 64, 70, 70);
    for (int row0 = 0; row0 < 70; row0 += LK_TILE) {
        packed.rows.row0 = row0;
        packed.rows.n = 70 - row0 < LK_TILE ? 70 - row0 : LK_TILE;
        check_scores(&packed, 3, &shares);
        check_sums(&packed, 3, &shares);
    }
    assert_true(shares.sum <= shares.n_case);
}

/* The reference's scores equal dot products with decoded rows, in the original domain. */
static void reference_scores_decoded_rows(void **state) {
    static struct packed packed;
    struct lk_codec codec = {.coding = LK_ROT, .bits = 3, .mean = true, .sigma = true};
    enum { D = 96 };
    pack(&packed, &codec, LK_K, D, LK_TILE, LK_TILE);
    packed.rows.n = LK_TILE;
    static float x[LK_TILE * D];
    float q[D], in_domain[D], s[LK_TILE], acc[D] = {0}, p[LK_TILE], out[D], expect[D] = {0};
    _Alignas(64) unsigned char mem[6 * LK_MAX_D_HEAD];
    lk_codec_decode(&(struct lk_part){&codec, LK_K, D, LK_TILE, packed.sigma}, packed.head, 0,
                    LK_TILE, x, D);
    for (int c = 0; c < D; c++) q[c] = gaussian();
    lk_codec_transform_query(&codec, D, packed.sigma, q, in_domain);
    struct lk_queries queries;
    lk_queries_prepare(&queries, in_domain, 1, D, mem);
    lk_kernels_score(&lk_kernels_reference, &packed.rows, &queries, s, LK_TILE);
    for (int t = 0; t < LK_TILE; t++) {
        double sum = 0;
        for (int c = 0; c < D; c++) sum += (double)q[c] * x[t * D + c];
        assert_true(fabs(sum - s[t]) < 1e-3);
        p[t] = (float)uniform();
    }
    pack(&packed, &codec, LK_V, D, LK_TILE, LK_TILE);
    packed.rows.n = LK_TILE;
    lk_codec_decode(&(struct lk_part){&codec, LK_V, D, LK_TILE, packed.sigma}, packed.head, 0,
                    LK_TILE, x, D);
    lk_kernels_accumulate(&lk_kernels_reference, &packed.rows, p, LK_TILE, 1, acc);
    lk_codec_restore_output(&codec, D, packed.sigma, acc, out);
    for (int c = 0; c < D; c++) {
        for (int t = 0; t < LK_TILE; t++) expect[c] += p[t] * x[t * D + c];
        assert_true(fabsf(expect[c] - out[c]) < 1e-3f);
    }
}

/* difference: what all tokens but token 5 add to a sum in which token 5 has a much larger weight.
 * expect: their sum without token 5. */
static void small_sums(const struct lk_kernels *kernels, const struct packed *packed, int d,
                       float *difference, float *expect) {
    float p[LK_TILE], one[LK_TILE] = {0}, without[LK_MAX_D_HEAD] = {0};
    for (int t = 0; t < LK_TILE; t++) p[t] = t == 5 ? 1.0f : 0.001f;
    one[5] = 1;
    memset(difference, 0, d * sizeof *difference);
    memset(expect, 0, d * sizeof *expect);
    accumulate(kernels, &packed->rows, p, LK_TILE, 1, difference);
    accumulate(kernels, &packed->rows, one, LK_TILE, 1, without);
    p[5] = 0;
    lk_kernels_accumulate(&lk_kernels_reference, &packed->rows, p, LK_TILE, 1, expect);
    for (int c = 0; c < d; c++) difference[c] -= without[c];
}

/* One large weight must not round the many small ones of a tile to 0. Each of them counts; with
 * dithering, their sum does. The error stays small compared with that of the large one's code. */
static void small_weights_count(void **state) {
    static struct packed packed;
    enum { D = 64 };
    for (int k = 0; k < 2 * N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k / 2]);
        struct lk_codec codec = {.coding = LK_ROT, .bits = k % 2 ? 6 : 4};
        float sum[D], expect[D], decoded[D];
        if (!kernels) continue;
        pack(&packed, &codec, LK_V, D, LK_TILE, LK_TILE);
        packed.rows.n = LK_TILE;
        small_sums(kernels, &packed, D, sum, expect);
        struct difference small = compare(sum, expect, 1, D, D);
        if (codec.bits > 4 || !dithers(kernels)) assert_true(small.error < 1e-2 * small.all);
        lk_codec_decode(&(struct lk_part){&codec, LK_V, D, LK_TILE, NULL}, packed.head, 5, 1,
                        decoded, D);
        assert_true(small.error < 0.1 * compare(decoded, packed.x + 5 * D, 1, D, D).error);
        for (int t = 1; t < LK_TILE; t++) memcpy(packed.x + t * D, packed.x, D * sizeof(float));
        lk_codec_encode(&(struct lk_part){&codec, LK_V, D, LK_TILE, NULL}, packed.head, 0, LK_TILE,
                        packed.x, D);
        small_sums(kernels, &packed, D, sum, expect);
        struct difference together = compare(sum, expect, 1, D, D);
        assert_true(together.error < 1e-2 * together.all);
    }
}

static void zero_and_tiny_inputs(void **state) {
    static struct packed packed;
    enum { D = 64 };
    float q[2 * D], s[2 * LK_TILE], p[2 * LK_TILE], acc[2 * D];
    _Alignas(64) unsigned char mem[12 * LK_MAX_D_HEAD];
    static const float sizes[] = {0, 1e-44f, 1e-38f, 1e-20f};
    for (int bits = 1; bits <= 8; bits++)
        for (int k = 0; k < 4 * N_TABLE; k++) {
            const struct lk_kernels *kernels = lk_kernels_choose(tables[k / 4]);
            if (!kernels) continue;
            float size = sizes[k % 4];
            struct lk_codec codec = {.coding = LK_ROT, .bits = bits, .mean = bits & 1};
            pack(&packed, &codec, LK_K, D, LK_TILE, LK_TILE);
            packed.rows.n = LK_TILE;
            for (int c = 0; c < 2 * D; c++) {
                q[c] = size * gaussian();
                acc[c] = 0;
            }
            for (int t = 0; t < 2 * LK_TILE; t++) p[t] = size;
            struct lk_queries queries;
            lk_queries_prepare(&queries, q, 2, D, mem);
            score(kernels, &packed.rows, &queries, s, LK_TILE);
            for (int t = 0; t < 2 * LK_TILE; t++) assert_true(fabsf(s[t]) <= 1e3f * size);
            pack(&packed, &codec, LK_V, D, LK_TILE, LK_TILE);
            packed.rows.n = LK_TILE;
            accumulate(kernels, &packed.rows, p, LK_TILE, 2, acc);
            for (int c = 0; c < 2 * D; c++) assert_true(fabsf(acc[c]) <= 1e3f * size);
        }
}

/* All codes maximum or minimum, and operands of equal magnitude: the largest values that sums in 16
 * bits can have. */
static void largest_sums(void **state) {
    static struct packed packed;
    enum { D = 128, N = 3 };
    static float q[N * D], p[N * LK_TILE], got[N * D], expect[N * D];
    static _Alignas(64) unsigned char mem[N * LK_MAX_D_HEAD * 6];
    for (int bits = 1; bits <= 8; bits++)
        for (int k = 0; k < 4 * N_TABLE; k++) {
            const struct lk_kernels *kernels = lk_kernels_choose(tables[k / 4]);
            struct lk_queries queries;
            if (!kernels) continue;
            struct lk_codec codec = {
                .coding = LK_ROT, .bits = bits, .lloyd = lk_codec_default_lloyd(bits)};
            int code = k % 2 ? 0xff : 0, d = k % 4 < 2 ? D : 80;
            pack(&packed, &codec, LK_K, d, LK_TILE, LK_TILE);
            packed.rows.n = LK_TILE;
            memset(packed.head, code, LK_TILE * d * bits / 8);
            for (int c = 0; c < N * d; c++) q[c] = c < d ? 1 : c < 2 * d ? -1 : c % 4 < 2 ? 1 : -1;
            lk_queries_prepare(&queries, q, N, d, mem);
            score(kernels, &packed.rows, &queries, got, LK_TILE);
            lk_kernels_score(&lk_kernels_reference, &packed.rows, &queries, expect, LK_TILE);
            struct difference scores = compare(got, expect, N, LK_TILE, LK_TILE);
            assert_true(scores.error <= 1e-8 * scores.all);
            pack(&packed, &codec, LK_V, d, LK_TILE, LK_TILE);
            packed.rows.n = LK_TILE;
            memset(packed.head, code, LK_TILE * d * bits / 8);
            for (int t = 0; t < N * LK_TILE; t++)
                p[t] = t < LK_TILE ? 1 : t < 2 * LK_TILE ? t % 2 : t % 4 < 2;
            for (int c = 0; c < N * d; c++) got[c] = expect[c] = 0;
            accumulate(kernels, &packed.rows, p, LK_TILE, N, got);
            lk_kernels_accumulate(&lk_kernels_reference, &packed.rows, p, LK_TILE, N, expect);
            struct difference sums = compare(got, expect, N, d, d);
            assert_true(sums.error <= 1e-4 * sums.all);
        }
}

/* All scores of a query that is not finite are NaN. The other query's scores are not affected. */
static void queries_not_finite(void **state) {
    static struct packed packed;
    enum { D = 80 };
    float q[2 * D], s[2 * LK_TILE], expect[LK_TILE];
    _Alignas(64) unsigned char mem[12 * LK_MAX_D_HEAD];
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int bits = 1; bits <= 8; bits++)
        for (int k = 0; k < 3 * N_TABLE; k++) {
            const struct lk_kernels *kernels = lk_kernels_choose(tables[k / 3]);
            if (!kernels || kernels == &lk_kernels_reference) continue;
            struct lk_codec codec = {.coding = LK_ROT, .bits = bits};
            struct lk_queries queries;
            pack(&packed, &codec, LK_K, D, LK_TILE, LK_TILE);
            packed.rows.n = LK_TILE;
            for (int c = 0; c < 2 * D; c++) q[c] = gaussian();
            lk_queries_prepare(&queries, q + D, 1, D, mem);
            score(kernels, &packed.rows, &queries, expect, LK_TILE);
            q[bits] = bad[k % 3];
            lk_queries_prepare(&queries, q, 2, D, mem);
            score(kernels, &packed.rows, &queries, s, LK_TILE);
            for (int t = 0; t < LK_TILE; t++)
                assert_true(isnan(s[t]) && s[LK_TILE + t] == expect[t]);
        }
}

static void tables_are_chosen_by_name(void **state) {
    assert_non_null(lk_kernels_choose(NULL));
    assert_ptr_equal(lk_kernels_choose("reference"), &lk_kernels_reference);
    assert_ptr_equal(lk_kernels_choose(lk_kernels_choose(NULL)->name), lk_kernels_choose(NULL));
    assert_null(lk_kernels_choose("abacus"));
    assert_true((lk_kernels_slow_reason() == NULL) ==
                (lk_kernels_choose(NULL) != &lk_kernels_reference));
    char names[100];
    lk_kernels_names(names, sizeof names);
    assert_int_equal(
        strncmp(names, lk_kernels_choose(NULL)->name, strlen(lk_kernels_choose(NULL)->name)), 0);
    assert_non_null(strstr(names, "reference"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_chosen_by_name),
        cmocka_unit_test(f16_agrees),
        cmocka_unit_test(int8_agrees),
        cmocka_unit_test(kivi_agrees),
        cmocka_unit_test(asym_agrees),
        cmocka_unit_test(added_codecs_agree),
        cmocka_unit_test(rot_agrees),
        cmocka_unit_test(wide_rows_agree),
        cmocka_unit_test(runs_of_blocks),
        cmocka_unit_test(any_number_of_queries),
        cmocka_unit_test(f16_tiles_of_a_long_block),
        cmocka_unit_test(reference_scores_decoded_rows),
        cmocka_unit_test(small_weights_count),
        cmocka_unit_test(zero_and_tiny_inputs),
        cmocka_unit_test(largest_sums),
        cmocka_unit_test(queries_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

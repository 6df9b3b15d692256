/* Sidecars: written data is read back bit for bit. Damaged and foreign files are rejected with a
 * message that says why. All memory is in the ledger and is freed. */
#include "base/ledger.h"
#include "sidecar/sidecar_write.h"
#include "test.h"

#include "gguf.h"

#include <unistd.h>

static char path[] = "/tmp/lowkey-sidecar-XXXXXX";

enum { LAYERS = 3, HEADS = 4, D = 8, GROUPS = 2, WIDTH = HEADS / GROUPS * D, COMP = 12 };

static const struct lk_sidecar_info info = {.method = "palu",
                                            .options = "group 2, whitened",
                                            .model = {0x123456789abcdef0u, LAYERS, HEADS, D},
                                            .calibration_hash = 77,
                                            .calibration_tokens = 4096};

/* The data of one basis. */
struct basis_data {
    float down[GROUPS * COMP * WIDTH], up[GROUPS * COMP * WIDTH], mean[GROUPS * WIDTH],
        error[GROUPS * COMP];
    int32_t rank[GROUPS];
};

static struct lk_basis random_basis(struct basis_data *n, struct random *r, bool all_parts) {
    for (size_t i = 0; i < sizeof n->down / sizeof(float); i++) {
        n->down[i] = random_gauss(r);
        n->up[i] = random_gauss(r);
    }
    for (size_t i = 0; i < sizeof n->mean / sizeof(float); i++) n->mean[i] = random_gauss(r);
    for (size_t i = 0; i < sizeof n->error / sizeof(float); i++) n->error[i] = random_uniform(r);
    for (int g = 0; g < GROUPS; g++) n->rank[g] = random_int(r, 1, COMP);
    return (struct lk_basis){.n_group = GROUPS,
                             .width = WIDTH,
                             .n_comp = COMP,
                             .down = {.f32 = n->down},
                             .up = {.f32 = all_parts ? n->up : n->down},
                             .mean = all_parts ? n->mean : NULL,
                             .rank = n->rank,
                             .error = n->error};
}

static struct basis_data written[2];
static float kernel[3 * 5 * 7];
static const uint16_t halves[3 * 1 * 1] = {0x3c00, 0x7bff, 0x8001}; /* needs padding */

/* K of layer 0 with all parts, V of layer 2 with only the required ones, and tensors of another
 * method. */
static void write_sidecar(void) {
    struct lk_ledger ledger = {0};
    struct random r = {1};
    struct lk_sidecar_builder *builder;
    lk_err err = {0};
    struct lk_basis k = random_basis(&written[0], &r, true),
                    v = random_basis(&written[1], &r, false);
    for (size_t i = 0; i < sizeof kernel / sizeof *kernel; i++) kernel[i] = random_gauss(&r);
    struct lk_sidecar_tensor other = {.name = "blk.1.less.phi", .ne = {7, 5, 3}, .data = kernel};
    assert_int_equal(lk_sidecar_builder_new(&builder, &info, &ledger, &err), LK_OK);
    assert_int_equal(lk_sidecar_builder_add_basis(builder, 0, LK_BASIS_K, &k, &err), LK_OK);
    assert_int_equal(lk_sidecar_builder_add_basis(builder, 2, LK_BASIS_V, &v, &err), LK_OK);
    assert_int_equal(lk_sidecar_builder_add(builder, &other, &err), LK_OK);
    assert_int_equal(lk_sidecar_builder_add(builder, &other, &err), LK_E_ARG);
    struct lk_sidecar_tensor small = {
        .name = "blk.1.less.w1", .ne = {3, 1, 1}, .type = LK_SIDECAR_F16, .data = (void *)halves};
    assert_int_equal(lk_sidecar_builder_add(builder, &small, &err), LK_OK);
    assert_non_null(strstr(err.msg, "already"));
    assert_int_equal(lk_sidecar_builder_add_basis(builder, LAYERS, LK_BASIS_V, &v, &err), LK_E_ARG);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(lk_sidecar_builder_write(builder, f, &err), LK_OK);
    assert_int_equal(fclose(f), 0);
    lk_sidecar_builder_free(builder);
    for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(&ledger, i), 0);
}

static lk_status try_open(const struct lk_sidecar_model *model, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_sidecar *s = NULL;
    lk_status status = lk_sidecar_open(&s, path, model, &ledger, err);
    if (status == LK_OK)
        lk_sidecar_close(s);
    else
        assert_null(s);
    for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(&ledger, i), 0);
    return status;
}

static void expect(lk_status expected, const char *words) {
    lk_err err = {0};
    lk_status status = try_open(NULL, &err);
    if (status != expected || !strstr(err.msg, words))
        fail_msg("%s \"%s\", expected %s with \"%s\"", lk_status_name(status), err.msg,
                 lk_status_name(expected), words);
    assert_null(strchr(err.msg, '\n'));
}

static void assert_same(const struct lk_basis *b, const struct basis_data *n, bool all_parts) {
    assert_int_equal(b->n_group, GROUPS);
    assert_int_equal(b->width, WIDTH);
    assert_int_equal(b->n_comp, COMP);
    assert_memory_equal(b->down.f32, n->down, sizeof n->down);
    assert_memory_equal(b->up.f32, all_parts ? n->up : n->down, sizeof n->up);
    assert_memory_equal(b->rank, n->rank, sizeof n->rank);
    assert_memory_equal(b->error, n->error, sizeof n->error);
    if (all_parts)
        assert_memory_equal(b->mean, n->mean, sizeof n->mean);
    else
        assert_null(b->mean);
}

static void test_read_back(void **state) {
    struct lk_ledger ledger = {0};
    struct lk_sidecar *s = NULL;
    lk_err err = {0};
    const void *found;
    write_sidecar();
    if (lk_sidecar_open(&s, path, &info.model, &ledger, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_memory_equal(&s->info, &info, sizeof info);
    assert_same(&s->basis[LK_BASIS_K][0], &written[0], true);
    assert_same(&s->basis[LK_BASIS_V][2], &written[1], false);
    assert_ptr_equal(s->basis[LK_BASIS_V][2].up.any, s->basis[LK_BASIS_V][2].down.any);
    for (int side = 0; side < LK_N_BASIS; side++)
        for (int layer = 0; layer < LAYERS; layer++)
            assert_int_equal(s->basis[side][layer].n_group != 0,
                             (side == LK_BASIS_K && layer == 0) ||
                                 (side == LK_BASIS_V && layer == 2));
    assert_int_equal(lk_sidecar_find(s, "blk.1.less.phi", LK_SIDECAR_F32, 7, 5, 3, &found, &err),
                     LK_OK);
    assert_memory_equal(found, kernel, sizeof kernel);
    assert_int_equal(lk_sidecar_find(s, "blk.1.less.psi", LK_SIDECAR_F32, 7, 5, 3, &found, &err),
                     LK_OK);
    assert_null(found);
    assert_int_equal(lk_sidecar_find(s, "blk.1.less.phi", LK_SIDECAR_F32, 7, 3, 5, &found, &err),
                     LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "blk.1.less.phi"));
    assert_int_equal(lk_sidecar_find(s, "blk.1.less.w1", LK_SIDECAR_F16, 3, 1, 1, &found, &err),
                     LK_OK);
    assert_memory_equal(found, halves, sizeof halves);
    assert_int_equal(lk_sidecar_find(s, "blk.1.less.w1", LK_SIDECAR_F32, 3, 1, 1, &found, &err),
                     LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "of f16, expected [3, 1, 1] of f32"));
    /* Matrices stay in the file. */
    assert_true(s->bytes >= sizeof kernel && s->bytes < sizeof kernel + sizeof written[0].down);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_WEIGHTS), s->bytes);
    lk_sidecar_close(s);
    for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(&ledger, i), 0);
}

/* The fingerprint of the file at `path`. */
static uint64_t read_fingerprint(void) {
    struct lk_ledger ledger = {0};
    struct lk_sidecar *s = NULL;
    lk_err err = {0};
    if (lk_sidecar_open(&s, path, &info.model, &ledger, &err) != LK_OK) fail_msg("%s", err.msg);
    uint64_t fingerprint = s->fingerprint;
    lk_sidecar_close(s);
    return fingerprint;
}

/* Saved sessions name their sidecar by it: it depends on every tensor, and on nothing else. */
static void test_fingerprint(void **state) {
    write_sidecar();
    uint64_t first = read_fingerprint();
    assert_int_not_equal(first, 0);
    write_sidecar();
    assert_true(read_fingerprint() == first);
    FILE *f = fopen(path, "rb+");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    /* One bit of the last tensor, which is padded, and of one before it. */
    const long at[] = {size - 64, size - 64 - 256};
    for (int i = 0; i < 2; i++) {
        fseek(f, at[i], SEEK_SET);
        int byte = fgetc(f);
        fseek(f, at[i], SEEK_SET);
        fputc(byte ^ 1, f);
        fflush(f);
        assert_true(read_fingerprint() != first);
        fseek(f, at[i], SEEK_SET);
        fputc(byte, f);
        fflush(f);
        assert_true(read_fingerprint() == first);
    }
    fclose(f);
}

/* A basis of bytes has a scale for each row. Half floats need none. */
static void test_types(void **state) {
    for (int scaled = 0; scaled < 2; scaled++)
        for (int type = 0; type < LK_N_BASIS_TYPE; type++) {
            struct lk_ledger ledger = {0};
            struct random r = {9};
            struct basis_data n;
            struct lk_basis b = random_basis(&n, &r, true);
            int8_t bytes[GROUPS * COMP * WIDTH];
            uint16_t half[GROUPS * COMP * WIDTH];
            float scale[GROUPS * COMP];
            for (int i = 0; i < GROUPS * COMP * WIDTH; i++) {
                bytes[i] = (int8_t)random_int(&r, -127, 127);
                half[i] = (uint16_t)random_int(&r, 0, 0x7bff);
            }
            for (int i = 0; i < GROUPS * COMP; i++) scale[i] = random_uniform(&r);
            b.type = type;
            if (type == LK_BASIS_Q8) b.down.q8 = b.up.q8 = bytes;
            if (type == LK_BASIS_F16) b.down.f16 = b.up.f16 = half;
            if (scaled) b.down.scale = b.up.scale = scale;
            struct lk_sidecar_builder *builder;
            assert_int_equal(lk_sidecar_builder_new(&builder, &info, &ledger, NULL), LK_OK);
            assert_int_equal(lk_sidecar_builder_add_basis(builder, 1, LK_BASIS_KPRE, &b, NULL),
                             LK_OK);
            FILE *f = fopen(path, "wb");
            assert_non_null(f);
            assert_int_equal(lk_sidecar_builder_write(builder, f, NULL), LK_OK);
            fclose(f);
            lk_sidecar_builder_free(builder);
            if (scaled != (type == LK_BASIS_Q8)) {
                expect(LK_E_FORMAT, "the shapes of the tensors blk.1.kpre.* do not agree");
                continue;
            }
            struct lk_sidecar *s;
            assert_int_equal(lk_sidecar_open(&s, path, &info.model, &ledger, NULL), LK_OK);
            const struct lk_basis *got = &s->basis[LK_BASIS_KPRE][1];
            assert_int_equal(got->type, type);
            assert_memory_equal(got->down.any, b.down.any,
                                lk_basis_numbers_bytes(type, GROUPS * COMP * WIDTH));
            if (scaled) assert_memory_equal(got->up.scale, scale, sizeof scale);
            if (!scaled) assert_null(got->up.scale);
            lk_sidecar_close(s);
        }
}

static void test_other_model(void **state) {
    struct lk_sidecar_model model = info.model;
    lk_err err = {0};
    model.fingerprint++;
    assert_int_equal(try_open(&model, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "another model"));
    assert_non_null(strstr(err.msg, "123456789abcdef0"));
    model = info.model;
    model.d_head = 16;
    assert_int_equal(try_open(&model, &err), LK_E_FORMAT);
}

/* Files truncated at many lengths. */
static void test_truncated(void **state) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    fclose(f);
    /* The padding of the last tensor may be missing. */
    for (long at = size - 32; at >= 0; at -= at > 2048 ? 509 : 1) {
        lk_err err = {0};
        assert_int_equal(truncate(path, at), 0);
        lk_status status = try_open(NULL, &err);
        if (status != LK_E_FORMAT)
            fail_msg("cut at %ld of %ld: %s \"%s\"", at, size, lk_status_name(status), err.msg);
    }
}

/* Any failing allocation gives LK_E_NOMEM and leaks nothing. */
static void test_no_memory(void **state) {
    write_sidecar();
    bool done = false;
    for (int n = 1; !done; n++) {
        struct lk_ledger ledger = {.fail_at = n};
        struct lk_sidecar *s = NULL;
        lk_err err = {0};
        lk_status status = lk_sidecar_open(&s, path, NULL, &ledger, &err);
        done = status == LK_OK;
        if (!done)
            assert_int_equal(status, LK_E_NOMEM);
        else
            assert_true(n > 5);
        lk_sidecar_close(s);
        for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(&ledger, i), 0);
    }
}

/* ---- wrong contents ---- */

struct damage {
    const char *words;
    lk_status status;
    void (*edit)(struct lk_basis *basis, struct basis_data *n, struct lk_sidecar_info *info);
};

static void set_rank_zero(struct lk_basis *b, struct basis_data *n, struct lk_sidecar_info *i) {
    (void)b, (void)i, n->rank[1] = 0;
}
static void set_rank_too_large(struct lk_basis *b, struct basis_data *n,
                               struct lk_sidecar_info *i) {
    (void)b, (void)i, n->rank[0] = COMP + 1;
}
static void set_nan(struct lk_basis *b, struct basis_data *n, struct lk_sidecar_info *i) {
    (void)b, (void)i, n->up[9] = NAN;
}
static void set_infinity(struct lk_basis *b, struct basis_data *n, struct lk_sidecar_info *i) {
    (void)b, (void)i, n->down[0] = -INFINITY;
}
static void set_negative_error(struct lk_basis *b, struct basis_data *n,
                               struct lk_sidecar_info *i) {
    (void)b, (void)i, n->error[3] = -1;
}
static void split_a_head(struct lk_basis *b, struct basis_data *n, struct lk_sidecar_info *i) {
    (void)n, (void)i, b->width = WIDTH - 4, b->n_comp = 4;
}
static void set_too_many_components(struct lk_basis *b, struct basis_data *n,
                                    struct lk_sidecar_info *i) {
    (void)n, (void)i, b->width = D, b->n_comp = COMP;
}
static void drop_a_group(struct lk_basis *b, struct basis_data *n, struct lk_sidecar_info *i) {
    (void)n, (void)i, b->n_group = 1;
}
static void set_no_heads(struct lk_basis *b, struct basis_data *n, struct lk_sidecar_info *i) {
    (void)b, (void)n, i->model.n_head_kv = 0;
}

static const struct damage damages[] = {
    {"blk.1.k.rank is 0", LK_E_FORMAT, set_rank_zero},
    {"blk.1.k.rank is 13", LK_E_FORMAT, set_rank_too_large},
    {"blk.1.k.up of the sidecar has a value that is not finite", LK_E_FORMAT, set_nan},
    {"blk.1.k.down of the sidecar has a value that is not finite", LK_E_FORMAT, set_infinity},
    {"blk.1.k.error has a negative value", LK_E_FORMAT, set_negative_error},
    {"expected groups of whole heads with a total width of 32", LK_E_FORMAT, split_a_head},
    {"expected groups of whole heads with a total width of 32", LK_E_FORMAT,
     set_too_many_components},
    {"expected groups of whole heads with a total width of 32", LK_E_FORMAT, drop_a_group},
    {"n_head_kv is 0", LK_E_FORMAT, set_no_heads},
};

static void test_wrong_contents(void **state) {
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        struct lk_ledger ledger = {0};
        struct random r = {i + 2};
        struct basis_data n;
        struct lk_sidecar_info bad = info;
        struct lk_basis basis = random_basis(&n, &r, true);
        damages[i].edit(&basis, &n, &bad);
        struct lk_sidecar_builder *builder;
        assert_int_equal(lk_sidecar_builder_new(&builder, &bad, &ledger, NULL), LK_OK);
        assert_int_equal(lk_sidecar_builder_add_basis(builder, 1, LK_BASIS_K, &basis, NULL), LK_OK);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(lk_sidecar_builder_write(builder, f, NULL), LK_OK);
        fclose(f);
        lk_sidecar_builder_free(builder);
        expect(damages[i].status, damages[i].words);
    }
}

/* Write keys and a tensor with gguf directly. */
static void write_gguf(const char *type, uint32_t version, const char *tensor, enum ggml_type kind,
                       int64_t ne3) {
    struct gguf_context *gguf = gguf_init_empty();
    static float zero[256];
    if (type) gguf_set_val_str(gguf, "general.type", type);
    gguf_set_val_u32(gguf, "lowkey.sidecar.version", version);
    gguf_set_val_str(gguf, "lowkey.sidecar.method", "palu");
    gguf_set_val_str(gguf, "lowkey.sidecar.options", "");
    gguf_set_val_u64(gguf, "lowkey.sidecar.model_fingerprint", 1);
    gguf_set_val_u32(gguf, "lowkey.sidecar.n_layer", 2);
    gguf_set_val_u32(gguf, "lowkey.sidecar.n_head_kv", 1);
    gguf_set_val_u32(gguf, "lowkey.sidecar.d_head", 4);
    gguf_set_val_u64(gguf, "lowkey.sidecar.calibration_hash", 1);
    gguf_set_val_u64(gguf, "lowkey.sidecar.calibration_tokens", 1);
    if (tensor) {
        struct ggml_context *ctx =
            ggml_init((struct ggml_init_params){.mem_size = 4096, .no_alloc = true});
        struct ggml_tensor *t = ggml_new_tensor_4d(ctx, kind, 4, 4, 1, ne3);
        t->data = zero;
        ggml_set_name(t, tensor);
        gguf_add_tensor(gguf, t);
        assert_true(gguf_write_to_file(gguf, path, false));
        ggml_free(ctx);
    } else {
        assert_true(gguf_write_to_file(gguf, path, false));
    }
    gguf_free(gguf);
}

static void test_wrong_files(void **state) {
    write_gguf(NULL, 1, "x", GGML_TYPE_F32, 1);
    expect(LK_E_FORMAT, "not a sidecar");
    write_gguf("model", 1, "x", GGML_TYPE_F32, 1);
    expect(LK_E_FORMAT, "not a sidecar");
    write_gguf("sidecar", 2, "x", GGML_TYPE_F32, 1);
    expect(LK_E_UNSUPPORTED, "version 2");
    write_gguf("sidecar", 1, NULL, GGML_TYPE_F32, 1);
    expect(LK_E_FORMAT, "no tensors");
    write_gguf("sidecar", 1, "x", GGML_TYPE_I16, 1);
    expect(LK_E_FORMAT, "type i16");
    write_gguf("sidecar", 1, "x", GGML_TYPE_F32, 2);
    expect(LK_E_FORMAT, "three dimensions");
    write_gguf("sidecar", 1, "blk.1.v.down", GGML_TYPE_F32, 1);
    expect(LK_E_FORMAT, "has no tensor blk.1.v.rank");
    write_gguf("sidecar", 1, "blk.0.k.error", GGML_TYPE_F32, 1);
    expect(LK_E_FORMAT, "has no tensor blk.0.k.down");
    /* Names that do not belong to a basis are ignored. */
    const char *const foreign[] = {"blk.2.v.down", "blk.99999999999.v.down", "blk..v.down",
                                   "blk.0",        "blk.0.q.down",           "blk.0.v.down2"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        write_gguf("sidecar", 1, foreign[i], GGML_TYPE_F32, 1);
        lk_err err = {0};
        if (try_open(NULL, &err) != LK_OK) fail_msg("%s: %s", foreign[i], err.msg);
    }
    unlink(path);
    expect(LK_E_IO, "cannot open");
}

int main(void) {
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_back),      cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_types),          cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_truncated),      cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_wrong_contents), cmocka_unit_test(test_wrong_files),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}

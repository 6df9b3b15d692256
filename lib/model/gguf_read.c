/* Mapping a GGUF file, and reading its keys by type. */
#define _DEFAULT_SOURCE /* madvise */
#include "model/gguf_read.h"

#include "base/cxx_call.h"
#include "model/gguf_check.h"

#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- mapping ---- */

lk_status lk_mapping_open(struct lk_mapping *out, const char *path, lk_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    lk_status status = LK_OK;
    void *data = MAP_FAILED;
    if (fstat(fd, &info) != 0) {
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = lk_fail(err, LK_E_IO, "%s is not a regular file", path);
    } else if (info.st_size == 0) {
        status = lk_fail(err, LK_E_FORMAT, "%s is empty", path);
    } else {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = lk_fail(err, LK_E_IO, "cannot map %s: %s", path, strerror(errno));
    }
    close(fd);
    if (status) return status;
    out->data = data;
    out->size = (size_t)info.st_size;
    return LK_OK;
}

void lk_mapping_close(struct lk_mapping *map) {
    if (map->data) munmap(map->data, map->size);
    map->data = NULL;
    map->size = 0;
}

void lk_mapping_drop_pages(const struct lk_mapping *map, const void *data, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (size_t)((const uint8_t *)data - map->data);
    size_t end = (begin + size) / page * page;
    begin = (begin + page - 1) / page * page;
    if (begin < end) madvise(map->data + begin, end - begin, MADV_DONTNEED);
}

void lk_advise_huge_pages(void *data, size_t size) {
#ifdef MADV_HUGEPAGE
    enum { HUGE_PAGE = 2 << 20 }; /* on most systems; smaller regions may not contain one */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (page - (uintptr_t)data % page) % page;
    if (size >= 2 * HUGE_PAGE)
        madvise((uint8_t *)data + before, (size - before) / page * page, MADV_HUGEPAGE);
#else
    (void)data, (void)size;
#endif
}

enum { KEY_CAP = 128 };

static const char *full_key(const struct lk_gguf_reader *r, const char *key, char buf[KEY_CAP]) {
    snprintf(buf, KEY_CAP, "%s%s", key[0] == '.' ? r->arch : "", key);
    return buf;
}

int64_t lk_gguf_find_key(const struct lk_gguf_reader *r, const char *key) {
    char name[KEY_CAP];
    return gguf_find_key(r->gguf, full_key(r, key, name));
}

/* The bytes of a file and what ggml makes of them. */
struct parsing {
    const struct lk_mapping *map;
    struct gguf_context *gguf;
};

/* May throw. */
static void parse_gguf(void *arg) {
    struct parsing *p = arg;
    struct gguf_init_params params = {.no_alloc = true};
    p->gguf = gguf_init_from_buffer(p->map->data, p->map->size, params);
}

lk_status lk_gguf_parse(struct gguf_context **gguf, const struct lk_mapping *map, const char *path,
                        lk_err *err) {
    struct parsing p = {.map = map};
    lk_status status = lk_cxx_call(parse_gguf, &p, err);
    *gguf = p.gguf;
    if (status || p.gguf) return status;
    return lk_fail(err, LK_E_FORMAT, "ggml cannot parse the GGUF file %s", path);
}

lk_status lk_gguf_open(struct lk_mapping *map, struct lk_gguf_reader *r, const char *path,
                       struct lk_ledger *ledger, lk_err *err) {
    lk_status status = lk_mapping_open(map, path, err);
    if (!status) status = lk_gguf_check(map->data, map->size, ledger, err);
    return status ? status : lk_gguf_parse(&r->gguf, map, path, err);
}

/* Find a key. *id is -1 if the key is absent and optional. */
static lk_status find_key(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                          int64_t *id, lk_err *err) {
    char name[KEY_CAP];
    *id = gguf_find_key(r->gguf, full_key(r, key, name));
    if (*id < 0 && need == LK_REQUIRED)
        return lk_fail(err, LK_E_FORMAT, "the file has no key %s", name);
    return LK_OK;
}

static lk_status fail_wrong_type(const struct lk_gguf_reader *r, int64_t id, const char *expected,
                                 lk_err *err) {
    return lk_fail(err, LK_E_FORMAT, "key %s has type %s, expected %s", gguf_get_key(r->gguf, id),
                   gguf_type_name(gguf_get_kv_type(r->gguf, id)), expected);
}

/* Integer i of an array; false if `type` is not an integer type. */
static bool get_integer(enum gguf_type type, const void *data, size_t i, int64_t *out) {
    switch (type) {
    case GGUF_TYPE_UINT8: *out = ((const uint8_t *)data)[i]; return true;
    case GGUF_TYPE_INT8: *out = ((const int8_t *)data)[i]; return true;
    case GGUF_TYPE_UINT16: *out = ((const uint16_t *)data)[i]; return true;
    case GGUF_TYPE_INT16: *out = ((const int16_t *)data)[i]; return true;
    case GGUF_TYPE_UINT32: *out = ((const uint32_t *)data)[i]; return true;
    case GGUF_TYPE_INT32: *out = ((const int32_t *)data)[i]; return true;
    case GGUF_TYPE_INT64: *out = ((const int64_t *)data)[i]; return true;
    case GGUF_TYPE_UINT64: {
        uint64_t value = ((const uint64_t *)data)[i];
        *out = value > INT64_MAX ? INT64_MAX : (int64_t)value;
        return true;
    }
    default: return false;
    }
}

static lk_status check_range(const struct lk_gguf_reader *r, int64_t id, int64_t value, int64_t lo,
                             int64_t hi, lk_err *err) {
    if (value >= lo && value <= hi) return LK_OK;
    return lk_fail(err, LK_E_FORMAT, "key %s is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                   gguf_get_key(r->gguf, id), value, lo, hi);
}

lk_status lk_gguf_read_int(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                           int64_t lo, int64_t hi, int32_t *out, lk_err *err) {
    int64_t id, value = 0, other;
    lk_status status = find_key(r, key, need, &id, err);
    if (status || id < 0) return status;
    enum gguf_type type = gguf_get_kv_type(r->gguf, id);
    if (type == GGUF_TYPE_ARRAY) {
        type = gguf_get_arr_type(r->gguf, id);
        size_t n = gguf_get_arr_n(r->gguf, id);
        const void *data =
            type == GGUF_TYPE_STRING || n == 0 ? NULL : gguf_get_arr_data(r->gguf, id);
        if (!data || !get_integer(type, data, 0, &value))
            return fail_wrong_type(r, id, "an integer", err);
        for (size_t i = 1; i < n; i++) {
            get_integer(type, data, i, &other);
            if (other != value) {
                return lk_fail(
                    err, LK_E_UNSUPPORTED,
                    "key %s differs between layers; only models with equal layers are supported",
                    gguf_get_key(r->gguf, id));
            }
        }
    } else if (type == GGUF_TYPE_STRING ||
               !get_integer(type, gguf_get_val_data(r->gguf, id), 0, &value)) {
        return fail_wrong_type(r, id, "an integer", err);
    }
    status = check_range(r, id, value, lo, hi, err);
    if (!status) *out = (int32_t)value;
    return status;
}

lk_status lk_gguf_read_layers(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                              int64_t lo, int64_t hi, int n, int32_t *out, lk_err *err) {
    int64_t id, value = 0;
    int32_t one = 0;
    lk_status status = find_key(r, key, need, &id, err);
    if (status || id < 0) return status;
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_ARRAY) {
        status = lk_gguf_read_int(r, key, need, lo, hi, &one, err);
        for (int i = 0; !status && i < n; i++) out[i] = one;
        return status;
    }
    enum gguf_type type = gguf_get_arr_type(r->gguf, id);
    if (gguf_get_arr_n(r->gguf, id) != (size_t)n)
        return lk_fail(err, LK_E_FORMAT, "key %s is not a list of %d numbers",
                       gguf_get_key(r->gguf, id), n);
    const void *data = type == GGUF_TYPE_STRING ? NULL : gguf_get_arr_data(r->gguf, id);
    for (int i = 0; !status && i < n; i++) {
        if (!data || !get_integer(type, data, (size_t)i, &value))
            return fail_wrong_type(r, id, "integers", err);
        status = check_range(r, id, value, lo, hi, err);
        if (!status) out[i] = (int32_t)value;
    }
    return status;
}

lk_status lk_gguf_read_float(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                             float *out, lk_err *err) {
    int64_t id;
    lk_status status = find_key(r, key, need, &id, err);
    if (status || id < 0) return status;
    enum gguf_type type = gguf_get_kv_type(r->gguf, id);
    if (type != GGUF_TYPE_FLOAT32 && type != GGUF_TYPE_FLOAT64)
        return fail_wrong_type(r, id, "a floating-point number", err);
    float value = type == GGUF_TYPE_FLOAT32 ? gguf_get_val_f32(r->gguf, id)
                                            : (float)gguf_get_val_f64(r->gguf, id);
    if (!isfinite(value))
        return lk_fail(err, LK_E_FORMAT, "key %s is not a finite number",
                       gguf_get_key(r->gguf, id));
    *out = value;
    return LK_OK;
}

lk_status lk_gguf_read_bool(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                            bool *out, lk_err *err) {
    int64_t id;
    lk_status status = find_key(r, key, need, &id, err);
    if (status || id < 0) return status;
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_BOOL)
        return fail_wrong_type(r, id, "true or false", err);
    *out = gguf_get_val_bool(r->gguf, id);
    return LK_OK;
}

lk_status lk_gguf_read_str(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                           const char **out, lk_err *err) {
    int64_t id;
    lk_status status = find_key(r, key, need, &id, err);
    if (status || id < 0) return status;
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_STRING)
        return fail_wrong_type(r, id, "a string", err);
    *out = gguf_get_val_str(r->gguf, id);
    return LK_OK;
}

/* GGUF files: checking their raw bytes, mapping them, and reading keys by type. */
#include "model/gguf_read.h"

#include "base/cxx_call.h"
#include "base/os.h"

#include "ggml.h"
#include "gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a hash set with open addressing, which never grows ---- */

struct lk_strset_slot {
    const char *text; /* NULL: free */
    size_t len;
};

bool lk_strset_alloc(struct lk_strset *set, struct lk_ledger *ledger, size_t n) {
    set->ledger = ledger;
    set->n_slot = 16;
    while (set->n_slot < 2 * n) set->n_slot *= 2; /* at most half full: short probes */
    set->slot = lk_alloc(ledger, LK_FOR_OTHER, set->n_slot * sizeof *set->slot);
    return set->slot != NULL;
}

void lk_strset_free(struct lk_strset *set) {
    lk_release(set->ledger, LK_FOR_OTHER, set->slot, set->n_slot * sizeof *set->slot);
    set->slot = NULL;
}

/* The slot that holds the text, or the free slot to put it in. */
static struct lk_strset_slot *find_slot(const struct lk_strset *set, const char *text, size_t len) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < len; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211u;
    size_t at = (size_t)(hash ^ hash >> 32) & (set->n_slot - 1);
    for (;; at = (at + 1) & (set->n_slot - 1)) {
        struct lk_strset_slot *slot = &set->slot[at];
        if (!slot->text) return slot;
        if (slot->len == len && memcmp(slot->text, text, len) == 0) return slot;
    }
}

bool lk_strset_add(struct lk_strset *set, const char *text, size_t len) {
    struct lk_strset_slot *slot = find_slot(set, text, len);
    if (slot->text) return false;
    slot->text = text;
    slot->len = len;
    return true;
}

bool lk_strset_has(const struct lk_strset *set, const char *text, size_t len) {
    return find_slot(set, text, len)->text != NULL;
}

enum {
    MAX_TENSORS = 1 << 16, /* far above any model; limits what a damaged count can allocate */
    MAX_KEYS = 1 << 16,
    MAX_KEY_LEN = 1024,
};

struct cursor {
    const uint8_t *data;
    size_t size, at;
    uint64_t alignment;
    lk_err *err;
};

struct span {
    const char *text;
    size_t len;
};

/* The next n bytes, or NULL at the end of the file. */
static const uint8_t *read_bytes(struct cursor *c, uint64_t n) {
    if (n > c->size - c->at) return NULL;
    const uint8_t *here = c->data + c->at;
    c->at += (size_t)n;
    return here;
}

static bool read_u32(struct cursor *c, uint32_t *out) {
    const uint8_t *p = read_bytes(c, 4);
    if (p) memcpy(out, p, 4);
    return p != NULL;
}

static bool read_u64(struct cursor *c, uint64_t *out) {
    const uint8_t *p = read_bytes(c, 8);
    if (p) memcpy(out, p, 8);
    return p != NULL;
}

static bool read_string(struct cursor *c, struct span *out) {
    uint64_t len;
    if (!read_u64(c, &len)) return false;
    out->text = (const char *)read_bytes(c, len);
    out->len = (size_t)len;
    return out->text != NULL;
}

static lk_status fail_truncated(const struct cursor *c, const char *where) {
    return lk_fail(c->err, LK_E_FORMAT,
                   "the file ends at byte %zu inside %s; it is cut off or damaged", c->size, where);
}

/* Bytes of a fixed-size value, 0 for strings, arrays and unknown types. */
static size_t scalar_bytes(uint32_t type) {
    switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL: return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16: return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32: return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64: return 8;
    default: return 0;
    }
}

/* n values of one type, n = 1 for a plain value. */
static lk_status check_values(struct cursor *c, struct span key, uint32_t type, uint64_t n) {
    char name[64];
    lk_printable(name, key.text, key.len);
    if (type == GGUF_TYPE_STRING) {
        for (uint64_t i = 0; i < n; i++) {
            struct span text;
            if (!read_string(c, &text)) return fail_truncated(c, name);
        }
        return LK_OK;
    }
    size_t each = scalar_bytes(type);
    if (!each)
        return lk_fail(c->err, LK_E_FORMAT, "key %s has the unknown value type %" PRIu32, name,
                       type);
    if (n > UINT64_MAX / each) return fail_truncated(c, name);
    const uint8_t *values = read_bytes(c, n * each);
    if (!values) return fail_truncated(c, name);
    for (uint64_t i = 0; type == GGUF_TYPE_BOOL && i < n; i++) {
        if (values[i] > 1)
            return lk_fail(c->err, LK_E_FORMAT, "key %s holds %d, expected 0 or 1", name,
                           values[i]);
    }
    return LK_OK;
}

/* The alignment decides where every tensor starts, and mapped tensors are used in place. */
static lk_status check_alignment(struct cursor *c, uint32_t type, const uint8_t *value) {
    uint32_t alignment = 0;
    if (type != GGUF_TYPE_UINT32)
        return lk_fail(c->err, LK_E_FORMAT, "general.alignment is not an unsigned 32-bit number");
    memcpy(&alignment, value, 4);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        return lk_fail(c->err, LK_E_FORMAT, "general.alignment is %" PRIu32 ", not a power of two",
                       alignment);
    }
    if (alignment < 32 || alignment > 1 << 20) {
        return lk_fail(c->err, LK_E_UNSUPPORTED,
                       "general.alignment is %" PRIu32 "; 32 to 1048576 are supported", alignment);
    }
    c->alignment = alignment;
    return LK_OK;
}

static lk_status check_key(struct cursor *c, uint64_t index, struct lk_strset *seen) {
    struct span key;
    uint32_t type;
    char name[64], where[64];
    snprintf(where, sizeof where, "key %" PRIu64, index);
    if (!read_string(c, &key)) return fail_truncated(c, where);
    lk_printable(name, key.text, key.len);
    if (key.len == 0 || key.len > MAX_KEY_LEN || memchr(key.text, 0, key.len)) {
        return lk_fail(c->err, LK_E_FORMAT, "key %" PRIu64 " has an invalid name of %zu bytes",
                       index, key.len);
    }
    if (!lk_strset_add(seen, key.text, key.len))
        return lk_fail(c->err, LK_E_FORMAT, "key %s occurs twice", name);
    if (!read_u32(c, &type)) return fail_truncated(c, name);
    if (type != GGUF_TYPE_ARRAY) {
        size_t at = c->at;
        lk_status status = check_values(c, key, type, 1);
        bool is_alignment = key.len == strlen("general.alignment") &&
                            memcmp(key.text, "general.alignment", key.len) == 0;
        return !status && is_alignment ? check_alignment(c, type, c->data + at) : status;
    }
    uint64_t n;
    if (!read_u32(c, &type) || !read_u64(c, &n)) return fail_truncated(c, name);
    return check_values(c, key, type, n);
}

/* Bytes of a tensor, 0 if its shape or type is invalid. */
static uint64_t tensor_bytes(const uint64_t *ne, uint32_t n_dims, uint32_t type) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        if (ne[i] == 0 || ne[i] > (uint64_t)INT64_MAX / 64 / n) return 0;
        n *= ne[i];
    }
    if (type >= GGML_TYPE_COUNT) return 0;
    uint64_t block = (uint64_t)ggml_blck_size((enum ggml_type)type),
             bytes = ggml_type_size((enum ggml_type)type);
    if (block == 0 || bytes == 0 || ne[0] % block != 0 || n / block > (uint64_t)INT64_MAX / bytes)
        return 0;
    return n / block * bytes;
}

/* One entry of the tensor table. GGUF requires that tensors follow each other with no gaps except
 * padding, so they cannot overlap. *end: where the data of the tensors read so far ends. */
static lk_status check_tensor(struct cursor *c, uint64_t index, struct lk_strset *seen,
                              uint64_t *end) {
    struct span span;
    char name[64], where[64];
    uint32_t n_dims, type;
    uint64_t ne[GGML_MAX_DIMS] = {1, 1, 1, 1}, offset;
    snprintf(where, sizeof where, "the description of tensor %" PRIu64, index);
    if (!read_string(c, &span)) return fail_truncated(c, where);
    lk_printable(name, span.text, span.len);
    if (span.len == 0 || span.len >= GGML_MAX_NAME || memchr(span.text, 0, span.len)) {
        return lk_fail(c->err, LK_E_FORMAT, "tensor %" PRIu64 " has an invalid name of %zu bytes",
                       index, span.len);
    }
    if (!lk_strset_add(seen, span.text, span.len))
        return lk_fail(c->err, LK_E_FORMAT, "tensor %s occurs twice", name);
    if (!read_u32(c, &n_dims)) return fail_truncated(c, where);
    if (n_dims < 1 || n_dims > GGML_MAX_DIMS) {
        return lk_fail(c->err, LK_E_FORMAT,
                       "tensor %s has %" PRIu32 " dimensions, expected 1 to %d", name, n_dims,
                       GGML_MAX_DIMS);
    }
    for (uint32_t i = 0; i < n_dims; i++) {
        if (!read_u64(c, &ne[i])) return fail_truncated(c, where);
    }
    if (!read_u32(c, &type) || !read_u64(c, &offset)) return fail_truncated(c, where);
    uint64_t bytes = tensor_bytes(ne, n_dims, type);
    if (!bytes) {
        return lk_fail(c->err, LK_E_FORMAT,
                       "tensor %s has the invalid shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64
                       ", %" PRIu64 "] for type %" PRIu32,
                       name, ne[0], ne[1], ne[2], ne[3], type);
    }
    uint64_t expected = (*end + c->alignment - 1) / c->alignment * c->alignment;
    if (offset != expected) {
        return lk_fail(c->err, LK_E_FORMAT,
                       "tensor %s starts at offset %" PRIu64 ", expected %" PRIu64, name, offset,
                       expected);
    }
    if (bytes > c->size || offset > c->size - bytes) {
        return lk_fail(c->err, LK_E_FORMAT,
                       "tensor %s needs %" PRIu64
                       " bytes, more than the file of %zu bytes has; it is cut off or damaged",
                       name, bytes, c->size);
    }
    *end = offset + bytes;
    return LK_OK;
}

static lk_status check_header(struct cursor *c, uint64_t *n_tensors, uint64_t *n_keys) {
    const uint8_t *magic = read_bytes(c, 4);
    uint32_t version;
    if (!magic || memcmp(magic, GGUF_MAGIC, 4) != 0)
        return lk_fail(c->err, LK_E_FORMAT, "not a GGUF file: it does not start with \"GGUF\"");
    if (!read_u32(c, &version) || !read_u64(c, n_tensors) || !read_u64(c, n_keys))
        return fail_truncated(c, "the header");
    if (version < 2 || version > GGUF_VERSION) {
        return lk_fail(c->err, LK_E_UNSUPPORTED,
                       "GGUF version %" PRIu32
                       " is not supported; supported: 2 and 3, little-endian",
                       version);
    }
    if (*n_tensors > MAX_TENSORS || *n_keys > MAX_KEYS) {
        return lk_fail(c->err, LK_E_FORMAT,
                       "the header claims %" PRIu64 " tensors and %" PRIu64
                       " keys; the file is damaged",
                       *n_tensors, *n_keys);
    }
    return LK_OK;
}

static lk_status check_body(struct cursor *c, struct lk_strset *keys, uint64_t n_keys,
                            struct lk_strset *names, uint64_t n_tensors) {
    uint64_t end = 0;
    lk_status status = LK_OK;
    for (uint64_t i = 0; !status && i < n_keys; i++) status = check_key(c, i, keys);
    for (uint64_t i = 0; !status && i < n_tensors; i++) status = check_tensor(c, i, names, &end);
    if (status || n_tensors == 0) return status;
    uint64_t start = (c->at + c->alignment - 1) / c->alignment * c->alignment;
    if (start > c->size || end > c->size - start) {
        return lk_fail(c->err, LK_E_FORMAT,
                       "the file has %zu bytes but its tensors need %" PRIu64 "; it is cut off",
                       c->size, start + end);
    }
    return LK_OK;
}

lk_status lk_gguf_check(const uint8_t *data, size_t size, struct lk_ledger *ledger, lk_err *err) {
    struct cursor c = {.data = data, .size = size, .alignment = GGUF_DEFAULT_ALIGNMENT, .err = err};
    uint64_t n_tensors = 0, n_keys = 0;
    lk_status status = check_header(&c, &n_tensors, &n_keys);
    if (status) return status;
    struct lk_strset keys = {.ledger = ledger}, names = {.ledger = ledger};
    if (!lk_strset_alloc(&keys, ledger, (size_t)n_keys) ||
        !lk_strset_alloc(&names, ledger, (size_t)n_tensors)) {
        status = lk_fail(err, LK_E_NOMEM, "not enough memory to check the file");
    } else {
        status = check_body(&c, &keys, n_keys, &names, n_tensors);
    }
    lk_strset_free(&keys);
    lk_strset_free(&names);
    return status;
}

/* ---- mapping ---- */

lk_status lk_mapping_open(struct lk_mapping *out, const char *path, lk_err *err) {
    int fd = lk_os_open(path, LK_OS_READ, 0);
    if (fd < 0) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    lk_status status = LK_OK;
    void *data = NULL;
    if (fstat(fd, &info) != 0) {
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = lk_fail(err, LK_E_IO, "%s is not a regular file", path);
    } else if (info.st_size == 0) {
        status = lk_fail(err, LK_E_FORMAT, "%s is empty", path);
    } else {
        data = lk_os_map_file(fd, (size_t)info.st_size);
        if (!data) status = lk_fail(err, LK_E_IO, "cannot map %s: %s", path, strerror(errno));
    }
    close(fd);
    if (status) return status;
    out->data = data;
    out->size = (size_t)info.st_size;
    return LK_OK;
}

void lk_mapping_close(struct lk_mapping *map) {
    if (map->data) lk_os_unmap(map->data, map->size);
    map->data = NULL;
    map->size = 0;
}

void lk_mapping_drop_pages(const struct lk_mapping *map, const void *data, size_t size) {
    size_t page = lk_os_page_size();
    size_t begin = (size_t)((const uint8_t *)data - map->data);
    size_t end = (begin + size) / page * page;
    begin = (begin + page - 1) / page * page;
    if (begin < end) lk_os_discard(map->data + begin, end - begin);
}

void lk_advise_huge_pages(void *data, size_t size) {
    enum { HUGE_PAGE = 2 << 20 }; /* on most systems; smaller regions may not contain one */
    size_t page = lk_os_page_size(), before = (page - (uintptr_t)data % page) % page;
    if (size >= 2 * HUGE_PAGE)
        lk_os_advise_huge((uint8_t *)data + before, (size - before) / page * page);
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

/* Parse a mapped file that lk_gguf_check has accepted. *gguf is NULL after a failure; free it with
 * gguf_free. Errors: LK_E_FORMAT, LK_E_NOMEM. */
static lk_status gguf_parse(struct gguf_context **gguf, const struct lk_mapping *map,
                            const char *path, lk_err *err) {
    struct parsing p = {.map = map};
    lk_status status = lk_cxx_call(parse_gguf, &p, err);
    *gguf = p.gguf;
    if (status || p.gguf) return status;
    return lk_fail(err, LK_E_FORMAT, "ggml cannot parse the GGUF file %s", path);
}

static lk_status open_file(struct lk_mapping *map, struct gguf_context **gguf, const char *path,
                           struct lk_ledger *ledger, lk_err *err) {
    lk_status status = lk_mapping_open(map, path, err);
    if (!status) status = lk_gguf_check(map->data, map->size, ledger, err);
    return status ? status : gguf_parse(gguf, map, path, err);
}

/* ---- models in several files ----
 *
 * Each part is a GGUF file with some of the tensors; the first one has the metadata. They become
 * one file in memory, because ggml requires the tensors of a file one after the other. */

enum {
    MAX_PARTS = 999,
    PART_SUFFIX = 20,       /* "-00001-of-00003.gguf" */
    SMALL_TENSOR = 1 << 20, /* bytes; a header is read with the norms, which identify the model */
};

static const char split_count[] = "split.count", split_no[] = "split.no";

bool lk_gguf_part_path(const char *path, int part, char *out, size_t cap) {
    static const char digits[] = "0123456789";
    size_t len = strlen(path);
    const char *end = len > PART_SUFFIX ? path + len - PART_SUFFIX : "";
    if (end[0] != '-' || strspn(end + 1, digits) != 5 || strncmp(end + 6, "-of-", 4) != 0 ||
        strspn(end + 10, digits) != 5 || strcmp(end + 15, ".gguf") != 0)
        return false;
    int n = snprintf(out, cap, "%.*s-%05d%s", (int)(end - path), path, part, end + 6);
    return n > 0 && (size_t)n < cap;
}

struct parts {
    int n;
    struct lk_mapping *map;      /* [n] */
    struct gguf_context **gguf;  /* [n] */
    struct ggml_context *tensor; /* of all parts, without data */
    struct gguf_context *whole;
    bool is_repeated; /* two parts have a tensor of the same name */
};

/* The header of the whole model. May throw. */
static void add_parts(void *arg) {
    struct parts *p = arg;
    size_t n_tensor = 1;
    for (int i = 0; i < p->n; i++) n_tensor += (size_t)gguf_get_n_tensors(p->gguf[i]);
    p->tensor = ggml_init(
        (struct ggml_init_params){.mem_size = n_tensor * ggml_tensor_overhead(), .no_alloc = true});
    p->whole = gguf_init_empty();
    if (!p->tensor || !p->whole) return;
    gguf_set_kv(p->whole, p->gguf[0]);
    gguf_remove_key(p->whole, split_count);
    gguf_remove_key(p->whole, split_no);
    gguf_remove_key(p->whole, "split.tensors.count");
    gguf_remove_key(p->whole, "general.alignment"); /* the new one has the default */
    for (int i = 0; i < p->n; i++)
        for (int64_t k = 0; k < gguf_get_n_tensors(p->gguf[i]); k++) {
            const char *name = gguf_get_tensor_name(p->gguf[i], k);
            p->is_repeated |= gguf_find_tensor(p->whole, name) >= 0;
            if (p->is_repeated) return;
            struct ggml_tensor *t =
                ggml_new_tensor(p->tensor, gguf_get_tensor_type(p->gguf[i], k), GGML_MAX_DIMS,
                                gguf_get_tensor_ne(p->gguf[i], k));
            ggml_set_name(t, name);
            gguf_add_tensor(p->whole, t);
        }
}

/* Copy header and data into memory of its own. header_only: without large tensors. */
static lk_status copy_parts(const struct parts *p, bool header_only, struct lk_mapping *out,
                            lk_err *err) {
    size_t n_meta = gguf_get_meta_size(p->whole), align = gguf_get_alignment(p->whole);
    int64_t n = gguf_get_n_tensors(p->whole), id = 0;
    size_t size = n_meta;
    if (n > 0)
        size += gguf_get_tensor_offset(p->whole, n - 1) +
                (gguf_get_tensor_size(p->whole, n - 1) + align - 1) / align * align;
    void *data = lk_os_map_zeros(size);
    if (!data)
        return lk_fail(err, LK_E_NOMEM, "out of memory for a model of %zu MiB in %d files",
                       size >> 20, p->n);
    out->data = data;
    out->size = size;
    gguf_get_meta_data(p->whole, data);
    for (int i = 0; i < p->n; i++) {
        const struct lk_mapping *from = &p->map[i];
        for (int64_t k = 0; k < gguf_get_n_tensors(p->gguf[i]); k++, id++) {
            if (header_only && gguf_get_tensor_size(p->gguf[i], k) > SMALL_TENSOR) continue;
            memcpy(out->data + n_meta + gguf_get_tensor_offset(p->whole, id),
                   from->data + gguf_get_data_offset(p->gguf[i]) +
                       gguf_get_tensor_offset(p->gguf[i], k),
                   gguf_get_tensor_size(p->gguf[i], k));
        }
        lk_mapping_drop_pages(from, from->data, from->size);
    }
    return LK_OK;
}

static lk_status open_part(struct parts *p, int i, const char *path, struct lk_ledger *ledger,
                           lk_err *err) {
    char name[4096];
    int32_t number = -1, count = 0;
    if (!lk_gguf_part_path(path, i + 1, name, sizeof name))
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model is split into %d files, and the name of this one does not end in "
                       "-00001-of-%05d.gguf: rename the files, or merge them with llama-gguf-split "
                       "--merge",
                       p->n, p->n);
    lk_status status = open_file(&p->map[i], &p->gguf[i], name, ledger, err);
    struct lk_gguf_reader r = {.gguf = p->gguf[i]};
    if (!status) status = lk_gguf_read_int(&r, split_count, LK_REQUIRED, 0, INT32_MAX, &count, err);
    if (!status) status = lk_gguf_read_int(&r, split_no, LK_REQUIRED, 0, INT32_MAX, &number, err);
    if (status || (number == i && count == p->n)) return status;
    return lk_fail(err, LK_E_FORMAT, "%s is not part %d of %d of the model", name, i + 1, p->n);
}

/* Replace the part that was opened by the whole model. */
static lk_status open_parts(struct lk_mapping *map, struct lk_gguf_reader *r, const char *path,
                            int n, struct lk_ledger *ledger, lk_err *err) {
    size_t n_map = (size_t)n * sizeof(struct lk_mapping), n_gguf = (size_t)n * sizeof(void *);
    struct parts p = {.n = n,
                      .map = lk_alloc(ledger, LK_FOR_OTHER, n_map),
                      .gguf = lk_alloc(ledger, LK_FOR_OTHER, n_gguf)};
    struct lk_mapping whole = {0};
    lk_status status =
        p.map && p.gguf ? LK_OK : lk_fail(err, LK_E_NOMEM, "out of memory for %d files", n);
    for (int i = 0; !status && i < n; i++) status = open_part(&p, i, path, ledger, err);
    if (!status) status = lk_cxx_call(add_parts, &p, err);
    if (!status && p.is_repeated)
        status = lk_fail(err, LK_E_FORMAT, "two parts of the model have the same tensor");
    if (!status && (!p.tensor || !p.whole))
        status = lk_fail(err, LK_E_NOMEM, "out of memory for %d files", n);
    if (!status) status = copy_parts(&p, r->header_only, &whole, err);
    for (int i = 0; p.map && p.gguf && i < n; i++) {
        if (p.gguf[i]) gguf_free(p.gguf[i]);
        lk_mapping_close(&p.map[i]);
    }
    if (p.whole) gguf_free(p.whole);
    if (p.tensor) ggml_free(p.tensor);
    lk_release(ledger, LK_FOR_OTHER, p.map, n_map);
    lk_release(ledger, LK_FOR_OTHER, p.gguf, n_gguf);
    if (status) return status;
    gguf_free(r->gguf);
    r->gguf = NULL;
    lk_mapping_close(map);
    *map = whole;
    status = lk_gguf_check(map->data, map->size, ledger, err);
    return status ? status : gguf_parse(&r->gguf, map, path, err);
}

lk_status lk_gguf_open(struct lk_mapping *map, struct lk_gguf_reader *r, const char *path,
                       struct lk_ledger *ledger, lk_err *err) {
    int32_t n = 1;
    lk_status status = open_file(map, &r->gguf, path, ledger, err);
    if (!status) status = lk_gguf_read_int(r, split_count, LK_OPTIONAL, 0, MAX_PARTS, &n, err);
    return status || n <= 1 ? status : open_parts(map, r, path, n, ledger, err);
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

/* A device that computes on the CPU. Its memory is one range of addresses, which is accessible
 * while a command runs. */
#include "pretend/pretend.h"

#include "attention/attention.h"
#include "base/os.h"
#include "cache/cache.h"

#include <pthread.h>
#include <string.h>

enum {
    UNIT = 4096,                /* of allocations; addresses are multiples of it */
    SLAB_BYTES = LK_SLAB_BYTES, /* as in RAM, so that as many bytes are counted */
    MAX_D = LK_MAX_D_HEAD,      /* channels of a part */
};

static const size_t memory_bytes = (size_t)1 << 32; /* reserved as addresses; used as needed */

/* A free range of the memory, at its start; ranges are in order of address. */
struct range {
    size_t size;
    struct range *next;
};

struct pretend {
    struct lk_device device;
    struct lk_ledger *ledger;
    const struct lk_kernels *kernels;
    pthread_mutex_t lock; /* held while a command runs */
    char *memory;         /* [memory_bytes] */
    size_t end;           /* bytes from here on were never used */
    struct range *unused; /* below `end` */
    float *scratch;       /* scratch_floats() */
};

static struct pretend *of(struct lk_device *device) { return device->self; }

static void *pointer(uint64_t at) { return (void *)(uintptr_t)at; }

/* Every command runs between these two. */
static void enter(struct pretend *p) {
    pthread_mutex_lock(&p->lock);
    if (p->end) lk_os_allow(p->memory, p->end, true);
}

static lk_status leave(struct pretend *p) {
    if (p->end) lk_os_allow(p->memory, p->end, false);
    pthread_mutex_unlock(&p->lock);
    return LK_OK;
}

/* ---- memory ---- */

static size_t whole_units(size_t size) { return (size + UNIT - 1) / UNIT * UNIT; }

/* Take `size` bytes from the end of a free range; NULL if none is large enough. */
static char *take_unused(struct pretend *p, size_t size) {
    for (struct range **r = &p->unused; *r; r = &(*r)->next) {
        if ((*r)->size < size) continue;
        char *at = (char *)*r + (*r)->size - size;
        (*r)->size -= size;
        if ((*r)->size == 0) *r = (*r)->next;
        return at;
    }
    return NULL;
}

static lk_status pretend_alloc(struct lk_device *device, size_t size, uint64_t *at, lk_err *err) {
    struct pretend *p = of(device);
    size_t need = whole_units(size);
    enter(p);
    char *memory = take_unused(p, need);
    if (!memory && need <= memory_bytes - p->end) {
        memory = p->memory + p->end;
        p->end += need;
        lk_os_allow(memory, need, true);
    }
    if (memory) memset(memory, 0, need);
    *at = (uint64_t)(uintptr_t)memory;
    leave(p);
    if (memory) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "the pretend device has no memory for %zu bytes", size);
}

/* Join a range with the next one if they are adjacent. */
static void join_next(struct range *r) {
    if (!r->next || (char *)r + r->size != (char *)r->next) return;
    r->size += r->next->size;
    r->next = r->next->next;
}

static void pretend_free(struct lk_device *device, uint64_t at, size_t size) {
    struct pretend *p = of(device);
    struct range *one = pointer(at), *before = NULL;
    enter(p);
    for (struct range *r = p->unused; r && r < one; r = r->next) before = r;
    *one = (struct range){whole_units(size), before ? before->next : p->unused};
    *(before ? &before->next : &p->unused) = one;
    join_next(one);
    if (before) join_next(before);
    leave(p);
}

static lk_status pretend_upload(struct lk_device *device, uint64_t to, const void *from,
                                size_t size, lk_err *err) {
    (void)err;
    enter(of(device));
    memcpy(pointer(to), from, size);
    return leave(of(device));
}

static lk_status pretend_download(struct lk_device *device, void *to, uint64_t from, size_t size,
                                  lk_err *err) {
    (void)err;
    enter(of(device));
    memcpy(to, pointer(from), size);
    return leave(of(device));
}

static lk_status pretend_copy(struct lk_device *device, uint64_t to, uint64_t from, size_t size,
                              lk_err *err) {
    (void)err;
    enter(of(device));
    memcpy(pointer(to), pointer(from), size);
    return leave(of(device));
}

static lk_status pretend_clear(struct lk_device *device, uint64_t to, size_t size, lk_err *err) {
    (void)err;
    enter(of(device));
    memset(pointer(to), 0, size);
    return leave(of(device));
}

/* ---- commands ---- */

/* Floats of scratch for any command. */
static size_t scratch_floats(void) {
    size_t attention = lk_attn_scratch_floats(MAX_D), moves = lk_moves_scratch_floats(MAX_D);
    return attention > moves ? attention : moves;
}

/* Channels of the widest part of a move's source and target. */
static int widest_part(const struct lk_move *m) {
    const struct lk_kv *kv = m->kv;
    int d = kv->d_head;
    if (kv->level[m->to].d_part > d) d = kv->level[m->to].d_part;
    if (!m->x && kv->level[m->from].d_part > d) d = kv->level[m->from].d_part;
    return d;
}

static lk_status pretend_move(struct lk_device *device, const struct lk_device_move *move,
                              const struct lk_move *host, size_t n, lk_err *err) {
    struct pretend *p = of(device);
    (void)move, (void)err;
    enter(p);
    /* In another order than the list's: they are independent. */
    for (size_t i = n; i-- > 0;)
        lk_move_execute(&host[i], p->kernels, p->scratch, widest_part(&host[i]));
    return leave(p);
}

/* A call in the pretend device's own scratch, by one thread. */
static struct lk_attn own_call(const struct pretend *p, const struct lk_attn *host) {
    struct lk_attn call = *host;
    call.scratch = p->scratch;
    return call;
}

static lk_status pretend_attend(struct lk_device *device, const struct lk_device_attend *command,
                                const struct lk_attn *host, size_t n, lk_err *err) {
    struct pretend *p = of(device);
    (void)command, (void)err;
    enter(p);
    for (size_t i = 0; i < n; i++) {
        struct lk_attn call = own_call(p, &host[i]);
        lk_attn_items(&call, 0, 1);
    }
    return leave(p);
}

static lk_status pretend_score(struct lk_device *device, const struct lk_device_weigh *weigh,
                               size_t n, const struct lk_attn *host, bool last, uint64_t scores,
                               lk_err *err) {
    struct pretend *p = of(device);
    struct lk_attn call = own_call(p, host);
    (void)weigh, (void)n, (void)err;
    enter(p);
    lk_attn_accumulate_scores(&call, lk_attn_ranges(&call, call.k, call.v),
                              last ? LK_SCORES_LAST : LK_SCORES_ALL, pointer(scores), 0, 1);
    return leave(p);
}

static lk_status pretend_sync(struct lk_device *device, lk_err *err) {
    (void)device, (void)err;
    return LK_OK;
}

static lk_status pretend_follow(struct lk_device *device, void *stream, lk_err *err) {
    (void)device;
    if (!stream) return LK_OK;
    return lk_fail(err, LK_E_UNSUPPORTED, "the pretend device has no streams");
}

/* ---- the device ---- */

/* It attends as the CPU does. */
static const char *pretend_refuses(const struct lk_device *device,
                                   const struct lk_device_needs *needs) {
    (void)device;
    return needs->divided ? "several processes share the rows, which lie in their own memory"
                          : NULL;
}

static void pretend_memory(const struct lk_device *device, uint64_t *total, uint64_t *unused) {
    const struct pretend *p = device->self;
    *total = memory_bytes;
    *unused = memory_bytes - p->end;
}

static void pretend_close(struct lk_device *device) {
    struct pretend *p = of(device);
    lk_release(p->ledger, LK_FOR_SCRATCH, p->scratch, scratch_floats() * sizeof(float));
    lk_os_unmap(p->memory, memory_bytes);
    pthread_mutex_destroy(&p->lock);
    lk_release(p->ledger, LK_FOR_OTHER, p, sizeof *p);
}

static const struct lk_device_functions functions = {.alloc = pretend_alloc,
                                                     .free = pretend_free,
                                                     .upload = pretend_upload,
                                                     .download = pretend_download,
                                                     .copy = pretend_copy,
                                                     .clear = pretend_clear,
                                                     .move = pretend_move,
                                                     .attend = pretend_attend,
                                                     .score = pretend_score,
                                                     .sync = pretend_sync,
                                                     .follow = pretend_follow,
                                                     .refuses = pretend_refuses,
                                                     .memory = pretend_memory,
                                                     .close = pretend_close};

lk_status lk_pretend_open(struct lk_device **out, struct lk_ledger *ledger, lk_err *err) {
    struct pretend *p = lk_alloc(ledger, LK_FOR_OTHER, sizeof *p);
    void *memory = p ? lk_os_reserve(memory_bytes) : NULL;
    float *scratch = lk_alloc(ledger, LK_FOR_SCRATCH, scratch_floats() * sizeof *scratch);
    if (!memory || !scratch) {
        if (memory) lk_os_unmap(memory, memory_bytes);
        lk_release(ledger, LK_FOR_SCRATCH, scratch, scratch_floats() * sizeof *scratch);
        lk_release(ledger, LK_FOR_OTHER, p, sizeof *p);
        return lk_fail(err, LK_E_NOMEM, "no memory for the pretend device");
    }
    *p = (struct pretend){.device = {.call = &functions,
                                     .name = LK_PRETEND_NAME,
                                     .text = "the CPU, in memory of its own, for tests",
                                     .slab_bytes = SLAB_BYTES,
                                     .uses_host = true,
                                     .self = p},
                          .ledger = ledger,
                          .kernels = lk_kernels_choose(NULL),
                          .memory = memory,
                          .scratch = scratch};
    pthread_mutex_init(&p->lock, NULL);
    *out = &p->device;
    return LK_OK;
}

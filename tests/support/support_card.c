/* A backend of ggml's on the emulated card. */
#include "support_card.h"

#include "cuda/runtime_emulated.h"
#include "test.h"

#include "ggml-cpu.h"
#include "ggml_interface.h"

#include <assert.h>
#include <dlfcn.h>

static const struct gpu_emulated_card *card;
static bool is_open;
static gpu_stream loading; /* of calls that are not in the stream of a backend */
static struct card_copies copies;
static struct ggml_backend_device the_device;

/* ---- commands of a stream ---- */

struct copy {
    void *to;
    const void *from;
    size_t size;
    char bytes[]; /* what the host had when the command was issued, if it is the source */
};

static void run_copy(void *user) {
    struct copy *c = user;
    memcpy(c->to, c->from, c->size);
    free(c);
}

static void issue_set(gpu_stream stream, void *to, const void *from, size_t size) {
    struct copy *c = malloc(sizeof *c + size);
    *c = (struct copy){to, c->bytes, size};
    memcpy(c->bytes, from, size);
    card->issue(stream, run_copy, c);
}

static void issue_get(gpu_stream stream, void *to, const void *from, size_t size) {
    struct copy *c = malloc(sizeof *c);
    *c = (struct copy){to, from, size};
    card->issue(stream, run_copy, c);
}

static void run_graph(void *user) {
    struct ggml_cgraph *graph = user;
    struct ggml_cplan plan = ggml_graph_plan(graph, 1, NULL);
    plan.work_data = malloc(plan.work_size + 1);
    enum ggml_status status = ggml_graph_compute(graph, &plan);
    assert(status == GGML_STATUS_SUCCESS);
    (void)status;
    free(plan.work_data);
}

/* ---- buffers ---- */

static void buffer_free(ggml_backend_buffer_t buffer) {
    card->stream_sync(loading);
    card->free(buffer->context);
}
static void *buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }
static void buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor *t, const void *data,
                       size_t at, size_t size) {
    (void)buffer;
    issue_set(loading, (char *)t->data + at, data, size);
    card->stream_sync(loading);
}
static void buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor *t, void *data,
                       size_t at, size_t size) {
    (void)buffer;
    issue_get(loading, data, (const char *)t->data + at, size);
    card->stream_sync(loading);
}
static void set_bytes(void *to, uint8_t value, size_t size) {
    char *bytes = malloc(size + 1);
    memset(bytes, value, size);
    issue_set(loading, to, bytes, size);
    free(bytes);
    card->stream_sync(loading);
}
static void buffer_fill(ggml_backend_buffer_t buffer, struct ggml_tensor *t, uint8_t value,
                        size_t at, size_t size) {
    (void)buffer;
    set_bytes((char *)t->data + at, value, size);
}
static void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    set_bytes(buffer->context, value, buffer->size);
}

static const char *type_name(ggml_backend_buffer_type_t type) {
    (void)type;
    return "emulated";
}
static size_t type_alignment(ggml_backend_buffer_type_t type) {
    (void)type;
    return 128;
}
static ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t type, size_t size) {
    static const struct buffer_functions call = {.free = buffer_free,
                                                 .base = buffer_base,
                                                 .fill = buffer_fill,
                                                 .set = buffer_set,
                                                 .get = buffer_get,
                                                 .clear = buffer_clear};
    void *memory;
    if (card->alloc(&memory, size)) return NULL;
    return ggml_backend_buffer_init(type, call, memory, size);
}
static struct ggml_backend_buffer_type the_type = {
    .name = type_name, .alloc = type_alloc, .alignment = type_alignment, .device = &the_device};

/* ---- the backend ---- */

static void backend_set(ggml_backend_t backend, struct ggml_tensor *t, const void *data, size_t at,
                        size_t size) {
    copies.n_set++;
    issue_set(backend->context, (char *)t->data + at, data, size);
}
static void backend_get(ggml_backend_t backend, const struct ggml_tensor *t, void *data, size_t at,
                        size_t size) {
    copies.n_get++;
    issue_get(backend->context, data, (const char *)t->data + at, size);
}
static void backend_wait(ggml_backend_t backend) {
    copies.n_wait++;
    card->stream_sync(backend->context);
}
static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
    card->issue(backend->context, run_graph, graph);
    return GGML_STATUS_SUCCESS;
}
static void backend_free(ggml_backend_t backend) {
    card->stream_sync(backend->context);
    card->stream_destroy(backend->context);
    free(backend);
}
static const char *backend_name(ggml_backend_t backend) {
    (void)backend;
    return "emulated";
}

/* ---- the device ---- */

static const char *device_name(ggml_backend_dev_t dev) {
    (void)dev;
    return "emulated";
}
static void device_memory(ggml_backend_dev_t dev, size_t *unused, size_t *total) {
    (void)dev;
    *unused = *total = 0; /* it does not tell */
}
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t dev) {
    (void)dev;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}
static void device_properties(ggml_backend_dev_t dev, struct ggml_backend_dev_props *props) {
    *props = (struct ggml_backend_dev_props){
        .name = device_name(dev), .description = device_name(dev), .type = device_type(dev)};
    props->caps.async = true;
}
static ggml_backend_t device_open(ggml_backend_dev_t dev, const char *params) {
    static uint8_t guid[16] = "lowkey-emulated";
    struct ggml_backend *backend = calloc(1, sizeof *backend);
    gpu_stream stream;
    (void)params;
    if (!backend || card->stream_create(&stream)) return NULL;
    *backend = (struct ggml_backend){.guid = &guid,
                                     .name = backend_name,
                                     .free = backend_free,
                                     .set = backend_set,
                                     .get = backend_get,
                                     .synchronize = backend_wait,
                                     .compute = backend_compute,
                                     .device = dev,
                                     .context = stream};
    return backend;
}
static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t dev) {
    (void)dev;
    return &the_type;
}
static bool device_supports(ggml_backend_dev_t dev, const struct ggml_tensor *op) {
    (void)dev;
    return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}
static bool device_supports_type(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) {
    (void)dev;
    return type == &the_type;
}

/* ---- the registry ---- */

static const char *reg_name(ggml_backend_reg_t reg) {
    (void)reg;
    return "emulated";
}
static size_t reg_count(ggml_backend_reg_t reg) {
    (void)reg;
    return 1;
}
static ggml_backend_dev_t reg_device(ggml_backend_reg_t reg, size_t index) {
    (void)reg, (void)index;
    return &the_device;
}
static void *stream_of(ggml_backend_t backend) { return backend->context; }
static void *reg_function(ggml_backend_reg_t reg, const char *name) {
    (void)reg;
    return strcmp(name, "lk_cuda_stream") == 0 ? (void *)stream_of : NULL;
}
static struct ggml_backend_reg the_registry = {.version = GGML_INTERFACE_VERSION,
                                               .name = reg_name,
                                               .count = reg_count,
                                               .device = reg_device,
                                               .function = reg_function};
static struct ggml_backend_device the_device = {.name = device_name,
                                                .description = device_name,
                                                .memory = device_memory,
                                                .type = device_type,
                                                .properties = device_properties,
                                                .open = device_open,
                                                .buffer_type = device_buffer_type,
                                                .supports = device_supports,
                                                .supports_buft = device_supports_type,
                                                .reg = &the_registry};

bool open_card(void) {
    char path[4096];
    const char *folder = getenv("LOWKEY_MODULES");
    if (!ggml_interface_fits() || !folder) return false;
    snprintf(path, sizeof path, "%s/liblowkey-emulated.so", folder);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    card = module ? dlsym(module, "lk_emulated_card") : NULL;
    if (!card || card->stream_create(&loading)) return false;
    ggml_backend_register(&the_registry);
    return is_open = true;
}

void need_card(void) {
    if (is_open) return;
    print_message(
        "skipped: this build of ggml has other tables than tests/support/ggml_interface.h\n");
    skip();
}

struct card_copies take_card_copies(void) {
    struct card_copies taken = copies;
    copies = (struct card_copies){0};
    return taken;
}

/* Finds and opens devices of ggml. */
#include "model/ggml_device.h"

#include "base/cxx_call.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char rpc_prefix[] = "rpc:";

bool lk_ggml_device_is_cpu(const char *name) { return !name || strcasecmp(name, "cpu") == 0; }

/* The i-th device that is not the CPU, or NULL. */
static ggml_backend_dev_t find_other(size_t i) {
    for (size_t k = 0; k < ggml_backend_dev_count(); k++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(k);
        if (ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU && i-- == 0) return dev;
    }
    return NULL;
}

/* An opening, in calls of ggml that may throw. */
struct opening {
    const char *name;
    bool computes;
    ggml_backend_dev_t dev;
    ggml_backend_t backend;
    ggml_backend_buffer_type_t buft;
    void *stream;
    bool has_stream, lacks_rpc;
};

typedef ggml_backend_reg_t (*add_server)(const char *endpoint);

/* The first device of an RPC server. */
static ggml_backend_dev_t find_remote(struct opening *o, const char *endpoint) {
    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    add_server add =
        rpc ? (add_server)ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server")
            : NULL;
    o->lacks_rpc = !add;
    ggml_backend_reg_t server = add ? add(endpoint) : NULL;
    return server ? ggml_backend_reg_dev_get(server, 0) : NULL;
}

/* What scripts/deps adds to ggml's CUDA backend. */
typedef void *(*get_stream)(ggml_backend_t backend);
static get_stream stream_function(ggml_backend_dev_t dev) {
    return (get_stream)ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev),
                                                         "lk_cuda_stream");
}

static void open_device(void *arg) {
    struct opening *o = arg;
    if (strncasecmp(o->name, rpc_prefix, sizeof rpc_prefix - 1) == 0)
        o->dev = find_remote(o, o->name + sizeof rpc_prefix - 1);
    for (size_t i = 0; !o->dev && !o->lacks_rpc && find_other(i); i++)
        if (strcasecmp(ggml_backend_dev_name(find_other(i)), o->name) == 0) o->dev = find_other(i);
    if (!o->dev) return;
    o->buft = ggml_backend_dev_buffer_type(o->dev);
    if (o->computes) o->backend = ggml_backend_dev_init(o->dev, NULL);
    get_stream get = stream_function(o->dev);
    o->has_stream = get;
    if (o->backend && get) o->stream = get(o->backend);
}

static lk_status fail_unknown(const char *name, lk_err *err) {
    char list[200] = "cpu";
    for (size_t i = 0; find_other(i); i++) {
        size_t len = strlen(list);
        snprintf(list + len, sizeof list - len, ", %s", ggml_backend_dev_name(find_other(i)));
    }
    return lk_fail(err, LK_E_ARG, "there is no device '%.60s'; devices: %s, rpc:HOST:PORT", name,
                   list);
}

/* "rpc:" must be followed by a host and a port: ggml does not check them. */
static bool is_endpoint(const char *name) {
    const char *colon = strrchr(name, ':');
    size_t n_digit = colon ? strspn(colon + 1, "0123456789") : 0;
    return colon >= name + sizeof rpc_prefix && n_digit > 0 && n_digit <= 5 && !colon[1 + n_digit];
}

lk_status lk_ggml_device_open(struct lk_ggml_device **out, const char *name, uint64_t max_bytes,
                              bool computes, struct lk_ledger *ledger, lk_err *err) {
    struct opening o = {.name = name, .computes = computes};
    lk_err why = {0};
    bool remote = strncasecmp(name, rpc_prefix, sizeof rpc_prefix - 1) == 0;
    lk_redirect_logs();
    if (remote && !is_endpoint(name))
        return lk_fail(err, LK_E_ARG, "'%.60s' is not rpc:HOST:PORT", name);
    lk_status status = lk_cxx_call(open_device, &o, &why);
    if (status)
        return lk_fail(err, status == LK_E_NOMEM ? status : LK_E_IO,
                       "the device %.60s cannot be opened: %.200s", name, why.msg);
    if (o.lacks_rpc)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "this build of ggml has no RPC; scripts/deps adds it");
    if (!o.dev) return fail_unknown(name, err);
    if (computes && !o.backend)
        return lk_fail(err, LK_E_IO, "the device %.60s cannot be opened", name);
    struct lk_ggml_device *device = lk_alloc(ledger, LK_FOR_OTHER, sizeof *device);
    if (!device) {
        if (o.backend) ggml_backend_free(o.backend);
        return lk_fail(err, LK_E_NOMEM, "out of memory for a device");
    }
    snprintf(device->name, sizeof device->name, "%s", name);
    device->backend = o.backend;
    device->buft = o.buft;
    device->stream = o.stream;
    device->has_stream = o.has_stream;
    device->is_host = ggml_backend_buft_is_host(o.buft);
    device->ledger.limit = max_bytes;
    *out = device;
    return LK_OK;
}

/* May throw. */
static void free_backend(void *arg) { ggml_backend_free(arg); }

void lk_ggml_device_free(struct lk_ggml_device *device, struct lk_ledger *ledger) {
    if (!device) return;
    if (device->backend) lk_cxx_call(free_backend, device->backend, NULL);
    lk_release(ledger, LK_FOR_OTHER, device, sizeof *device);
}

/* ---- for users ---- */

/* The arguments of describe. */
struct description {
    ggml_backend_dev_t dev;
    lk_device_info *out;
};

/* May throw: the device is asked for its memory. */
static void describe(void *arg) {
    const struct description *d = arg;
    size_t unused = 0, total = 0;
    snprintf(d->out->name, sizeof d->out->name, "%s", ggml_backend_dev_name(d->dev));
    snprintf(d->out->text, sizeof d->out->text, "%s", ggml_backend_dev_description(d->dev));
    ggml_backend_dev_memory(d->dev, &unused, &total);
    d->out->memory_bytes = total;
    d->out->free_bytes = unused;
}

bool lk_weight_device_list(size_t index, lk_device_info *out) {
    lk_device_info info = {.name = ""};
    struct description d = {.out = &info};
    lk_redirect_logs();
    d.dev = find_other(index);
    if (!d.dev) return false;
    lk_cxx_call(describe, &d, NULL);
    *out = info;
    return true;
}

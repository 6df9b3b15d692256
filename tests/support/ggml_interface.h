/* The tables that a backend of ggml consists of, as far as a test fills them. ggml does not install
 * them; ggml_interface_fits says whether the ggml at hand has this order of functions. A function
 * that is not named here is an address that stays NULL. */
#ifndef LK_TESTS_GGML_INTERFACE_H
#define LK_TESTS_GGML_INTERFACE_H

#include "ggml-backend.h"

#include <stdbool.h>
#include <stdint.h>

enum { GGML_INTERFACE_VERSION = 2 };

struct ggml_backend_buffer_type {
    const char *(*name)(ggml_backend_buffer_type_t buft);
    ggml_backend_buffer_t (*alloc)(ggml_backend_buffer_type_t buft, size_t size);
    size_t (*alignment)(ggml_backend_buffer_type_t buft);
    void *unused[3];
    ggml_backend_dev_t device;
    void *context;
};

struct buffer_functions {
    void (*free)(ggml_backend_buffer_t buffer);
    void *(*base)(ggml_backend_buffer_t buffer);
    void *unused_1;
    void (*fill)(ggml_backend_buffer_t buffer, struct ggml_tensor *t, uint8_t value, size_t at,
                 size_t size);
    void (*set)(ggml_backend_buffer_t buffer, struct ggml_tensor *t, const void *data, size_t at,
                size_t size);
    void (*get)(ggml_backend_buffer_t buffer, const struct ggml_tensor *t, void *data, size_t at,
                size_t size);
    void *unused_2[3];
    void (*clear)(ggml_backend_buffer_t buffer, uint8_t value);
    void *unused_3;
};

struct ggml_backend_buffer {
    struct buffer_functions call;
    ggml_backend_buffer_type_t buft;
    void *context;
    size_t size;
    int usage;
};

ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t buft,
                                               struct buffer_functions call, void *context,
                                               size_t size);

struct ggml_backend {
    uint8_t (*guid)[16];
    const char *(*name)(ggml_backend_t backend);
    void (*free)(ggml_backend_t backend);
    void (*set)(ggml_backend_t backend, struct ggml_tensor *t, const void *data, size_t at,
                size_t size);
    void (*get)(ggml_backend_t backend, const struct ggml_tensor *t, void *data, size_t at,
                size_t size);
    void *unused_1[3];
    void (*synchronize)(ggml_backend_t backend);
    void *unused_2[4];
    enum ggml_status (*compute)(ggml_backend_t backend, struct ggml_cgraph *graph);
    void *unused_3[3];
    ggml_backend_dev_t device;
    void *context;
};

struct ggml_backend_device {
    const char *(*name)(ggml_backend_dev_t dev);
    const char *(*description)(ggml_backend_dev_t dev);
    void (*memory)(ggml_backend_dev_t dev, size_t *unused, size_t *total);
    enum ggml_backend_dev_type (*type)(ggml_backend_dev_t dev);
    void (*properties)(ggml_backend_dev_t dev, struct ggml_backend_dev_props *props);
    ggml_backend_t (*open)(ggml_backend_dev_t dev, const char *params);
    ggml_backend_buffer_type_t (*buffer_type)(ggml_backend_dev_t dev);
    void *unused_1[2];
    bool (*supports)(ggml_backend_dev_t dev, const struct ggml_tensor *op);
    bool (*supports_buft)(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft);
    void *unused_2[4];
    ggml_backend_reg_t reg;
    void *context;
};

struct ggml_backend_reg {
    int version;
    const char *(*name)(ggml_backend_reg_t reg);
    size_t (*count)(ggml_backend_reg_t reg);
    ggml_backend_dev_t (*device)(ggml_backend_reg_t reg, size_t index);
    void *(*function)(ggml_backend_reg_t reg, const char *name);
    void *context;
};

/* The number is the first of a registry's members in all versions. */
static inline bool ggml_interface_fits(void) {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    return cpu && cpu->version == GGML_INTERFACE_VERSION;
}

#endif

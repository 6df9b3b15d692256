/* lowkey info: properties of a model and of this machine. */
#include "base/cpus.h"
#include "cmd.h"
#include "common.h"
#include "output.h"
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static json_t *tuned_json(const lk_model *model) {
    json_t *list = json_array();
    lk_preset preset;
    for (size_t i = 0; lk_model_tuned(model, i, &preset); i++)
        json_array_append_new(list, json_string(preset.name));
    return list;
}

/* The devices of a list: lk_device_list, or lk_weight_device_list. */
static json_t *devices_json(bool (*list_device)(size_t index, lk_device_info *out)) {
    json_t *list = json_array();
    lk_device_info d;
    for (size_t i = 0; list_device(i, &d); i++)
        json_array_append_new(list, json_pack("{s:s s:s s:I s:I}", "name", d.name, "text", d.text,
                                              "memory_bytes", (json_int_t)d.memory_bytes,
                                              "free_bytes", (json_int_t)d.free_bytes));
    return list;
}

static int print_json(const lk_model *model, const lk_model_info *m, const char *name) {
    struct lk_cpus cpus = lk_cpus_read("");
    char identity[17];
    snprintf(identity, sizeof identity, "%016" PRIx64, m->identity);
    return json_print(
        json_pack("{s:s s:s s:s? s:s s:o s:I s:I s:I s:i s:i s:i s:i s:i s:i s:i s:i s:i "
                  "s:s? s:i s:i s:i s:f s:s? s:o s:o s:s? s:i s:s? s:i s:s? s:I}",
                  "version", lk_version(), "model", name, "arch", m->arch, "identity", identity,
                  "tuned", tuned_json(model), "n_param", (json_int_t)m->n_param, "file_bytes",
                  (json_int_t)m->file_bytes, "weight_bytes", (json_int_t)m->weight_bytes, "n_layer",
                  m->n_layer, "n_cached", m->n_cached, "n_embd", m->n_embd, "n_head", m->n_head,
                  "n_head_kv", m->n_head_kv, "d_head", m->d_head, "n_vocab", m->n_vocab,
                  "n_ctx_train", m->n_ctx_train, "n_swa", m->n_swa, "kernels", m->kernels,
                  "n_threads", m->n_threads, "n_cores", cpus.online, "n_allowed", cpus.allowed,
                  "cpu_quota", cpus.quota, "lacks", m->kernels_lack, "devices",
                  devices_json(lk_device_list), "weight_devices",
                  devices_json(lk_weight_device_list), "device", m->device, "device_layers",
                  m->n_device_layers, "prompt_lack", m->prompt_lack, "device_recurrent",
                  m->n_device_recurrent, "recurrence_lack", m->recurrence_lack,
                  "device_weight_bytes", (json_int_t)m->device_weight_bytes),
        false);
}

/* "1 of 8 cores; affinity allows 2; quota of the control group 1.5" */
static void print_threads(struct table *table, const lk_model_info *m) {
    struct lk_cpus cpus = lk_cpus_read("");
    char allowed[48] = "", quota[48] = "";
    if (cpus.allowed < cpus.online)
        snprintf(allowed, sizeof allowed, "; affinity allows %d", cpus.allowed);
    if (cpus.quota > 0.0)
        snprintf(quota, sizeof quota, "; quota of the control group %.4g", cpus.quota);
    table_cell(table, "threads");
    table_cell(table, "%d of %d cores%s%s", m->n_threads, cpus.online, allowed, quota);
}

static void print_devices(struct table *table) {
    char line[300], bytes[NUMBER_BUF];
    lk_device_info d;
    for (size_t i = 0; lk_device_list(i, &d); i++) {
        table_cell(table, i ? "" : "devices");
        table_cell(table, "%s: %s, %s free", d.name, d.text, format_bytes(bytes, d.free_bytes));
    }
    if (!*lk_device_missing(line, sizeof line)) return;
    table_cell(table, "devices");
    table_cell(table, "none: %s", line);
}

static void print_table(const lk_model *model, const lk_model_info *m, const char *name) {
    char a[NUMBER_BUF], b[NUMBER_BUF];
    struct table table = table_new("ll");
    table_cell(&table, "model");
    table_cell(&table, "%s (%s)", name, m->arch);
    table_cell(&table, "parameters");
    table_cell(&table, "%s", format_count(a, m->n_param));
    table_cell(&table, "file");
    table_cell(&table, "%s", format_bytes(a, m->file_bytes));
    table_cell(&table, "weight copies");
    table_cell(&table, "%s%s", format_bytes(a, m->weight_bytes),
               m->weight_bytes ? " (repacked or dequantized)" : ": used as stored in the file");
    if (m->device) {
        table_cell(&table, "on the device");
        table_cell(&table, "%s of weights, %d of %d layers: %s",
                   format_bytes(a, m->device_weight_bytes), m->n_device_layers, m->n_layer,
                   m->device);
        table_cell(&table, "prompts");
        table_cell(&table, "attend %s%s", m->prompt_lack ? "in RAM: " : "on the device",
                   m->prompt_lack ? m->prompt_lack : "");
        if (m->n_device_recurrent || m->recurrence_lack) {
            table_cell(&table, "recurrences");
            table_cell(&table, "%s%s", m->recurrence_lack ? "in RAM: " : "on the device",
                       m->recurrence_lack ? m->recurrence_lack : "");
        }
    }
    if (m->sidecar_method) {
        table_cell(&table, "sidecar");
        table_cell(&table, "%s, %s", m->sidecar_method, format_bytes(a, m->sidecar_file_bytes));
    }
    table_cell(&table, "layers");
    table_cell(&table, "%d of width %d", m->n_layer, m->n_embd);
    if (m->n_cached < m->n_layer) {
        table_cell(&table, "layers with a cache");
        table_cell(&table, "%d; the others are recurrent, or share one of these", m->n_cached);
    }
    table_cell(&table, "heads");
    if (m->d_rope > 0)
        table_cell(&table, "%d query, one latent of %d channels and %d rotary ones", m->n_head,
                   m->d_head, m->d_rope);
    else
        table_cell(&table, "%d query, %d KV, of %d channels", m->n_head, m->n_head_kv, m->d_head);
    table_cell(&table, "vocabulary");
    table_cell(&table, "%s tokens", format_count(a, (uint64_t)m->n_vocab));
    table_cell(&table, "trained context");
    table_cell(&table, "%s tokens", format_count(a, (uint64_t)m->n_ctx_train));
    if (m->n_swa > 0) {
        table_cell(&table, "sliding window");
        table_cell(&table, "%s tokens in some layers", format_count(a, (uint64_t)m->n_swa));
    }
    /* An upper bound: layers with a sliding window hold less. */
    uint64_t per_token = sizeof(uint16_t) * m->n_value;
    table_cell(&table, "f16 cache");
    table_cell(&table, "%s per token%s", format_bytes(b, per_token),
               m->n_swa > 0 ? " at most" : "");
    table_cell(&table, "kernels");
    table_cell(&table, "%s%s%s", m->kernels, m->kernels_lack ? ": " : "",
               m->kernels_lack ? m->kernels_lack : "");
    lk_preset tuned;
    for (size_t i = 0; lk_model_tuned(model, i, &tuned); i++) {
        table_cell(&table, i ? "" : "tuned recipes");
        table_cell(&table, "%s: %s", tuned.name, tuned.note);
    }
    print_threads(&table, m);
    print_devices(&table);
    lk_device_info device;
    for (size_t i = 0; lk_weight_device_list(i, &device); i++) {
        table_cell(&table, i ? "" : "devices for weights");
        table_cell(&table, "%s: %s, %s free", device.name, device.text,
                   format_bytes(a, device.free_bytes));
    }
    table_cell(&table, "lowkey");
    table_cell(&table, "%s", lk_version());
    table_print(&table, stdout, false);
}

int cmd_info(const struct command *command, int argc, char **argv) {
    struct model_args args = {.header_only = true};
    bool json = false;
    lk_model *model = NULL;
    const struct opt_group groups[] = {
        model_options(&args, MODEL_SHOWN),
        {"Output", {{0, "json", NULL, "print JSON", OPT_FLAG, &json}}},
    };
    int result = args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
    if (result != ARGS_RUN) return result;
    int status = model_open(&args, false, &model);
    if (status) return status;
    lk_model_info info = lk_model_get_info(model);
    char *name = model_name(model);
    if (json)
        status = print_json(model, &info, name);
    else
        print_table(model, &info, name);
    free(name);
    lk_model_free(model);
    return status;
}

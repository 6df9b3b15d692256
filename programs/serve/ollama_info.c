/* Replies about the server and its model in ollama's form. */
#include "serve/ollama_info.h"

#include "serve/json_text.h"
#include "serve/ollama.h"

#include <stdio.h>

/* The version of ollama whose API this is. Clients compare it with what they need. */
static const char api_version[] = "0.12.0";

json_t *lk_ollama_version_json(void) {
    return json_pack("{s:s, s:s}", "version", api_version, "lowkey", lk_version());
}

/* "135M", "1.5B" */
static json_t *parameter_size(uint64_t n) {
    if (n >= 1000000000) return json_sprintf("%.1fB", (double)n / 1e9);
    return json_sprintf("%.0fM", (double)n / 1e6);
}

static json_t *details_json(const lk_model_info *info) {
    return json_pack("{s:s, s:s, s:s, s:[s], s:o, s:s}", "parent_model", "", "format", "gguf",
                     "family", info->arch, "families", info->arch, "parameter_size",
                     parameter_size(info->n_param), "quantization_level", "");
}

/* The fields that lists of models share. */
static json_t *model_json(const struct lk_server *server, const char *name) {
    const struct lk_server_opts *o = &server->opts;
    lk_model_info info = lk_model_get_info(o->model);
    return json_pack("{s:s, s:s, s:o, s:I, s:s, s:o}", "name", name, "model", name, "modified_at",
                     lk_ollama_time(server->started), "size", (json_int_t)info.file_bytes, "digest",
                     "", "details", details_json(&info));
}

json_t *lk_ollama_tags_json(const struct lk_server *server) {
    const struct lk_server_opts *o = &server->opts;
    json_t *list = json_pack("[o]", model_json(server, o->id));
    for (size_t i = 0; i < o->n_alias; i++)
        json_array_append_new(list, model_json(server, o->alias[i]));
    return json_pack("{s:o}", "models", list);
}

/* The model never expires: it is loaded as long as the server runs. */
json_t *lk_ollama_ps_json(const struct lk_server *server) {
    const int64_t year_2100 = INT64_C(4102444800);
    json_t *model = model_json(server, server->opts.id);
    json_object_set_new(model, "expires_at", lk_ollama_time(year_2100));
    json_object_set_new(model, "size_vram", json_integer(0));
    json_object_set_new(model, "context_length", json_integer(server->opts.n_ctx));
    return json_pack("{s:[o]}", "models", model);
}

/* Set "ARCH.NAME", as in a GGUF file. */
static void set_arch_key(json_t *to, const char *arch, const char *name, int32_t value) {
    char key[100];
    snprintf(key, sizeof key, "%.60s.%s", arch, name);
    json_object_set_new(to, key, json_integer(value));
}

bool lk_ollama_show(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                    struct lk_api_error *error) {
    lk_model_info info = lk_model_get_info(opts->model);
    const char *chat_template = lk_model_chat_template(opts->model);
    json_t *keys = json_pack("{s:s, s:I}", "general.architecture", info.arch,
                             "general.parameter_count", (json_int_t)info.n_param);
    (void)body;
    (void)error;
    /* Clients cut prompts at this length, so it is that of a session here. */
    set_arch_key(keys, info.arch, "context_length", opts->n_ctx);
    set_arch_key(keys, info.arch, "embedding_length", info.n_embd);
    set_arch_key(keys, info.arch, "block_count", info.n_layer);
    set_arch_key(keys, info.arch, "attention.head_count", info.n_head);
    set_arch_key(keys, info.arch, "attention.head_count_kv", info.n_head_kv);
    lk_buf_add_json(out, json_pack("{s:s, s:o, s:s, s:o, s:o, s:o}", "modelfile", "", "parameters",
                                   json_sprintf("num_ctx %d", opts->n_ctx), "template",
                                   chat_template ? chat_template : "", "details",
                                   details_json(&info), "model_info", keys, "capabilities",
                                   json_pack("[s,s]", "completion", "tools")));
    return true;
}

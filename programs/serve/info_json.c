/* The replies of /v1/models and /slots. */
#include "serve/info_json.h"

#include "serve/request.h"

#include <stdlib.h>
#include <string.h>

/* Bits per value of a codec, from its name, e.g. "rot3(nomean)"; 0 of "none". */
static int codec_bits(const char *codec) {
    const char *digit = strpbrk(codec, "0123456789");
    return digit ? (int)strtol(digit, NULL, 10) : 0;
}

/* The preset that a recipe's text names, in full. False: it is none. */
static bool find_preset(const lk_recipe *recipe, lk_preset *out, bool *tuned) {
    const char *name = lk_recipe_text(recipe);
    *tuned = false;
    for (size_t i = 0; lk_recipe_preset(i, out); i++)
        if (strcmp(out->name, name) == 0) return true;
    *tuned = true;
    for (size_t i = 0; lk_recipe_tuned(i, out); i++)
        if (strcmp(out->name, name) == 0) return true;
    return false;
}

/* Of a tuned recipe, whose name ends with its size. */
static const char *tuned_loss(const char *name) {
    const char *size = strrchr(name, '-');
    return size && strtol(size + 1, NULL, 10) >= 4 ? "minimal" : "small";
}

/* What a recipe loses, from "none" to "forgets": "minimal" is a KL of about 0.003 and less on the
 * models of docs/results/quality.md and docs/tuning.md, "small" of 0.02 and less. The smallest
 * level says nothing about a tuned recipe, where many layers have more bits. Of others the codec of
 * K decides: errors of K change what attention reads, errors of V average out. */
static const char *recipe_loss(const lk_recipe *recipe) {
    lk_preset preset;
    bool tuned, named = find_preset(recipe, &preset, &tuned);
    if (strstr(named ? preset.text : lk_recipe_text(recipe), "read ")) return "forgets";
    if (named && tuned) return tuned_loss(preset.name);
    lk_recipe_level level;
    int k_bits = 16, v_bits = 16;
    bool is_latent = false, is_rotated = true;
    for (size_t i = 0; lk_recipe_get_level(recipe, i, &level); i++) {
        int k = codec_bits(level.k_codec), v = codec_bits(level.v_codec);
        if (k == 0) return "forgets";
        is_latent |= strstr(level.k_codec, "latent") || strstr(level.v_codec, "latent");
        is_rotated &= k > 4 || strstr(level.k_codec, "rot");
        k_bits = k < k_bits ? k : k_bits;
        v_bits = v < v_bits ? v : v_bits;
    }
    if (lk_recipe_evicts(recipe)) return "forgets";
    if (is_latent || k_bits < 3 || v_bits < 2) return "large";
    if (k_bits >= 16 && v_bits >= 16) return "none";
    return k_bits >= 4 && v_bits >= 4 && is_rotated ? "minimal" : "small";
}

/* A recipe that requests may select: its name, its text, the note of a preset, and its loss. */
static json_t *recipe_json(const struct lk_server_opts *opts, size_t i) {
    const lk_recipe *recipe = opts->recipe[i];
    const char *name = lk_server_recipe_name(opts, i), *text = lk_recipe_text(recipe);
    lk_preset preset;
    bool tuned, named = find_preset(recipe, &preset, &tuned), other = strcmp(name, text) != 0;
    const char *note = other ? "tuned for this model" : named ? preset.note : "";
    return json_pack("{s:s, s:s, s:s, s:s}", "name", name, "text", named ? preset.text : text,
                     "note", note, "loss", other ? tuned_loss(name) : recipe_loss(recipe));
}

const char *lk_served_state_name(const struct lk_server *server, struct lk_served *served) {
    enum lk_served_state state = lk_models_state(server->models, served);
    if (state == LK_SERVED_LOADED) return "loaded";
    return state == LK_SERVED_LOADING ? "loading" : "not-loaded";
}

json_t *lk_model_json(const struct lk_server *server, struct lk_served *served, const char *name) {
    lk_model_info info = lk_served_info(served);
    int32_t n_ctx = lk_served_n_ctx(served);
    json_t *recipes = json_array();
    if (lk_models_use_loaded(server->models, served)) {
        const struct lk_server_opts *o = &served->opts;
        for (size_t i = 0; i < o->n_recipe; i++) json_array_append_new(recipes, recipe_json(o, i));
        lk_models_release(server->models, served);
    }
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:{s:s?, s:I, s:i, s:i, s:i, s:o}}", "id", name,
                  "object", "model", "created", (json_int_t)server->started, "owned_by", "lowkey",
                  "type", "llm", "state", lk_served_state_name(server, served), "meta", "arch",
                  info.arch, "n_params", (json_int_t)info.n_param, "n_vocab", info.n_vocab, "n_ctx",
                  n_ctx, "n_ctx_train", info.n_ctx_train, "kv", recipes);
    /* The names under which clients look for the context: vLLM's, OpenRouter's, LM Studio's. */
    static const char *const context[] = {"max_model_len",         "context_length",
                                          "context_window",        "max_context_length",
                                          "loaded_context_length", "n_ctx"};
    for (size_t i = 0; i < sizeof context / sizeof context[0]; i++)
        json_object_set_new(json, context[i], json_integer(n_ctx));
    return json;
}

json_t *lk_codex_model_json(const struct lk_served *served, const char *name) {
    int32_t n_ctx = lk_served_n_ctx(served);
    return json_pack("{s:s, s:s, s:s, s:s, s:n, s:[], s:s, s:s, s:b, s:i, s:b, s:i, s:i, s:[s]}",
                     "slug", name, "name", name, "model", name, "display_name", name, "description",
                     "supported_reasoning_levels", "visibility", "list", "shell_type",
                     "shell_command", "supported_in_api", 1, "priority", 0,
                     "supports_parallel_tool_calls", 1, "context_window", n_ctx,
                     "max_context_window", n_ctx, "input_modalities", "text");
}

static json_t *level_json(const lk_level_stats *level) {
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I}", "name", level->name, "k",
                     level->k_codec, "v", level->v_codec, "k_rows", (json_int_t)level->k_rows,
                     "v_rows", (json_int_t)level->v_rows, "k_bytes", (json_int_t)level->k_bytes,
                     "v_bytes", (json_int_t)level->v_bytes);
}

static const char *slot_state(const struct lk_slot_snapshot *s) {
    if (s->loading) return "loading";
    if (s->saving) return "saving";
    if (!s->busy) return "idle";
    return s->prefill ? "prefill" : "decoding";
}

static json_t *slot_json(const struct lk_slot_snapshot *s, const struct lk_server_opts *o) {
    json_t *levels = json_array();
    for (size_t i = 0; i < s->n_level; i++) json_array_append_new(levels, level_json(&s->level[i]));
    return json_pack(
        "{s:i, s:s, s:s, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, "
        "s:I, s:f, s:o}",
        "id", s->id, "model", o->id, "state", slot_state(s), "prefix", s->is_prefix, "kv",
        lk_server_recipe_name(o, s->recipe), "n_tok", (json_int_t)s->stats.n_tok, "n_prompt",
        (json_int_t)s->n_prompt, "n_processed", (json_int_t)s->n_processed, "n_reused",
        (json_int_t)s->n_reused, "n_predicted", (json_int_t)s->n_decoded, "tokens_per_second",
        s->tokens_per_second, "idle_seconds", s->idle_s, "cache_bytes",
        (json_int_t)s->stats.cache_bytes, "checkpoint_bytes", (json_int_t)s->stats.checkpoint_bytes,
        "shared_bytes", (json_int_t)s->stats.shared_bytes, "f16_bytes",
        (json_int_t)s->stats.f16_bytes, "scratch_bytes", (json_int_t)s->stats.scratch_bytes,
        "bits_per_value", s->stats.bits_per_value, "levels", levels);
}

/* The device that computes layers, or null. */
static json_t *device_json(const lk_model_info *info) {
    if (!info->device) return json_null();
    return json_pack("{s:s, s:i, s:I, s:I}", "name", info->device, "n_layer", info->n_device_layers,
                     "weight_bytes", (json_int_t)info->device_weight_bytes, "bytes",
                     (json_int_t)info->device_bytes);
}

/* Sums over the models of /slots. */
struct slots_sum {
    json_t *list;
    size_t n_waiting;
    uint64_t parked, bytes, shared_bytes, max_bytes;
};

static void add_slots(const struct lk_served *served, struct slots_sum *sum) {
    struct lk_slot_snapshot *slot = calloc(LK_MAX_SLOT, sizeof *slot);
    size_t n_waiting = 0, n = 0;
    if (slot) n = lk_scheduler_snapshot(served->scheduler, slot, LK_MAX_SLOT, &n_waiting);
    uint64_t shared = lk_model_get_info(served->opts.model).shared_bytes;
    for (size_t i = 0; i < n; i++) {
        sum->bytes += slot[i].rank_bytes;
        json_array_append_new(sum->list, slot_json(&slot[i], &served->opts));
    }
    sum->n_waiting += n_waiting;
    sum->parked += served->metrics.parked;
    sum->bytes += shared;
    sum->shared_bytes += shared;
    sum->max_bytes += served->opts.max_bytes;
    free(slot);
}

json_t *lk_slots_json(struct lk_server *server, struct lk_served *served) {
    const struct lk_server_opts *o = &server->opts;
    struct lk_models *models = server->models;
    struct slots_sum sum = {.list = json_array()};
    json_t *device = NULL;
    size_t n = lk_models_count(models);
    for (size_t i = 0; i < n; i++) {
        struct lk_served *one = lk_models_at(models, i);
        if ((served && one != served) || !lk_models_use_loaded(models, one)) continue;
        add_slots(one, &sum);
        lk_model_info info = lk_model_get_info(one->opts.model);
        if (!device) device = device_json(&info);
        lk_models_release(models, one);
    }
    if (!served) served = lk_models_default(models);
    if (!sum.max_bytes) sum.max_bytes = o->max_bytes; /* none is loaded: the limit of each */
    return json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "model",
                     lk_served_id(served), "n_ctx", lk_served_n_ctx(served), "ranks", o->n_rank,
                     "waiting", (json_int_t)sum.n_waiting, "parked", (json_int_t)sum.parked,
                     "parallel", (json_int_t)o->n_parallel, "request_bytes",
                     (json_int_t)lk_budget_bytes(&server->budget), "request_max_bytes",
                     (json_int_t)o->request_bytes, "bytes", (json_int_t)sum.bytes, "shared_bytes",
                     (json_int_t)sum.shared_bytes, "max_bytes", (json_int_t)sum.max_bytes, "device",
                     device ? device : json_null(), "slots", sum.list);
}

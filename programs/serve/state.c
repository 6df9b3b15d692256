#include "serve/state.h"

#include <stdlib.h>
#include <string.h>

/* What may be asked for: each with the text it stands for, and words about it where it is a preset. */
static json_t *recipe_json(const char *name) {
    for (size_t i = 0; lk_recipe_preset(i).name; i++) {
        lk_preset preset = lk_recipe_preset(i);
        if (strcmp(preset.name, name) == 0)
            return json_pack("{s:s, s:s, s:s}", "name", name, "text", preset.text, "note",
                             preset.note);
    }
    return json_pack("{s:s, s:s, s:s}", "name", name, "text", name, "note", "");
}

static json_t *recipes(const struct lk_serve_opts *o) {
    json_t *list = json_array();
    for (size_t i = 0; i < o->n_recipe; i++)
        json_array_append_new(list, recipe_json(lk_recipe_text(o->recipe[i])));
    return list;
}

json_t *lk_state_model(const struct lk_server *server) {
    const struct lk_serve_opts *o = &server->opts;
    lk_model_info info = lk_model_get_info(o->model);
    return json_pack("{s:s, s:s, s:I, s:s, s:{s:s?, s:I, s:i, s:i, s:i, s:o}}", "id", o->id,
                     "object", "model", "created", (json_int_t)server->started, "owned_by",
                     "lowkey", "meta", "arch", info.arch, "n_params", (json_int_t)info.n_param,
                     "n_vocab", info.n_vocab, "n_ctx", o->n_ctx, "n_ctx_train", info.n_ctx_train,
                     "kv", recipes(o));
}

static json_t *level_json(const lk_level_stats *level) {
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I}", "name", level->name, "k",
                     level->k_codec, "v", level->v_codec, "k_rows", (json_int_t)level->k_rows,
                     "v_rows", (json_int_t)level->v_rows, "k_bytes", (json_int_t)level->k_bytes,
                     "v_bytes", (json_int_t)level->v_bytes);
}

static const char *state_of(const struct lk_slot_view *v) {
    if (v->loading || v->saving) return v->loading ? "loading" : "saving";
    return !v->busy ? "idle" : v->reading ? "reading" : "decoding";
}

static json_t *slot_json(const struct lk_slot_view *v, const struct lk_serve_opts *o) {
    json_t *levels = json_array();
    for (size_t i = 0; i < v->n_level; i++) json_array_append_new(levels, level_json(&v->level[i]));
    return json_pack(
        "{s:i, s:s, s:b, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:o}", "id",
        v->id, "state", state_of(v), "prefix", v->prefix, "kv",
        lk_recipe_text(o->recipe[v->recipe]), "n_tok", (json_int_t)v->stats.n_tok, "n_prompt",
        (json_int_t)v->n_prompt, "n_reused", (json_int_t)v->n_reused, "n_predicted",
        (json_int_t)v->n_made, "tokens_per_second", v->tokens_per_second, "idle_seconds", v->idle_s,
        "cache_bytes", (json_int_t)v->stats.cache_bytes, "shared_bytes",
        (json_int_t)v->stats.shared_bytes, "f16_bytes", (json_int_t)v->stats.f16_bytes,
        "scratch_bytes", (json_int_t)v->stats.scratch_bytes, "bits_per_value",
        v->stats.bits_per_value, "levels", levels);
}

json_t *lk_state_slots(struct lk_server *server) {
    const struct lk_serve_opts *o = &server->opts;
    struct lk_slot_view *view = calloc(LK_MAX_SLOT, sizeof *view);
    size_t waiting = 0,
           n = view ? lk_scheduler_look(server->scheduler, view, LK_MAX_SLOT, &waiting) : 0;
    uint64_t bytes = lk_model_get_info(o->model).shared_bytes, shared = bytes;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        bytes +=
            view[i].stats.cache_bytes - view[i].stats.shared_bytes + view[i].stats.scratch_bytes;
        json_array_append_new(list, slot_json(&view[i], o));
    }
    free(view);
    return json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:o}", "model", o->id, "n_ctx", o->n_ctx,
                     "waiting", (json_int_t)waiting, "parallel", (json_int_t)o->n_parallel, "bytes",
                     (json_int_t)bytes, "shared_bytes", (json_int_t)shared, "max_bytes",
                     (json_int_t)o->max_bytes, "slots", list);
}

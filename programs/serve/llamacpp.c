/* Requests and replies in the form of llama.cpp's server. */
#include "serve/llamacpp.h"

#include "serve/fields.h"
#include "serve/json_field.h"
#include "serve/openai_completion.h"

#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

static bool parse_body(struct lk_request *request, const struct lk_server_opts *opts,
                       const char *body, size_t len, struct lk_api_error *error) {
    int64_t n_probs = 0;
    if (!lk_request_parse_json(request, opts, lk_fields_parse(body, len, LK_FIELDS_NATIVE, error),
                               error) ||
        !lk_request_reject(request, "suffix", 0, error) ||
        !lk_json_field_int(request->body, "n_probs", 0, LK_MAX_TOP_LOGPROBS, &n_probs, error))
        return false;
    if (request->n != 1)
        return lk_api_error_set(error, 400, "unsupported", "n",
                                "'n' must be 1 here; use /v1/completions for several answers");
    request->n_top_logprobs = n_probs ? (int)n_probs : -1;
    request->may_be_empty = true; /* n_predict 0 prefills the prompt, so that it can be reused */
    return true;
}

static bool parse_completion(struct lk_request *request, const struct lk_server_opts *opts,
                             const char *body, size_t len, struct lk_api_error *error) {
    if (!parse_body(request, opts, body, len, error)) return false;
    request->parse_special = opts->parse_special;
    return lk_json_field_bool(request->body, "parse_special", &request->parse_special, error) &&
           lk_openai_parse_prompts(request, "prompt", 1, error);
}

static bool parse_infill(struct lk_request *request, const struct lk_server_opts *opts,
                         const char *body, size_t len, struct lk_api_error *error) {
    struct lk_infill infill = {0};
    if (!parse_body(request, opts, body, len, error) ||
        !lk_json_field_string(request->body, "input_prefix", &infill.prefix, error) ||
        !lk_json_field_string(request->body, "input_suffix", &infill.suffix, error) ||
        !lk_json_field_string(request->body, "prompt", &infill.prompt, error))
        return false;
    if (!infill.prefix || !infill.suffix)
        return lk_api_error_set(error, 400, "missing_field",
                                infill.prefix ? "input_suffix" : "input_prefix",
                                "'input_prefix' and 'input_suffix' are required");
    infill.extra = json_object_get(request->body, "input_extra");
    request->prompt = calloc(1, sizeof *request->prompt);
    if (!request->prompt)
        return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompt");
    request->n_prompt = 1;
    request->marked = true;
    return lk_infill_format(&infill, opts->model, &request->prompt[0].text, error);
}

/* ---- replies ---- */

json_t *lk_llamacpp_settings(const struct lk_server_opts *o, const lk_sampler_opts *s) {
    return json_pack("{s:I, s:I, s:f, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:b}", "n_ctx",
                     (json_int_t)o->n_ctx, "seed", (json_int_t)s->seed, "temperature",
                     (double)s->temperature, "top_k", s->top_k, "top_p", (double)s->top_p, "min_p",
                     (double)s->min_p, "repeat_penalty", (double)s->repeat_penalty, "repeat_last_n",
                     s->repeat_last_n, "presence_penalty", (double)s->presence_penalty,
                     "frequency_penalty", (double)s->frequency_penalty, "ignore_eos",
                     s->ignore_eos);
}

static const char *token_of(const struct lk_server_opts *o, int32_t tok) {
    size_t len;
    return tok < 0 ? "" : lk_token_text(o->model, tok, &len);
}

json_t *lk_llamacpp_props(const struct lk_server_opts *o) {
    lk_model_info info = lk_model_get_info(o->model);
    lk_sampler_opts sampling = lk_model_sampling(o->model);
    const char *chat_template = lk_model_chat_template(o->model);
    json_t *settings =
        json_pack("{s:i, s:o}", "n_ctx", o->n_ctx, "params", lk_llamacpp_settings(o, &sampling));
    return json_pack("{s:o, s:I, s:i, s:s, s:s, s:s, s:s, s:s, s:{s:b, s:b}, s:s+}",
                     "default_generation_settings", settings, "total_slots",
                     (json_int_t)o->n_parallel, "ranks", o->n_rank, "model_alias", o->id,
                     "model_path", o->id, "chat_template", chat_template ? chat_template : "",
                     "bos_token", token_of(o, info.bos), "eos_token", token_of(o, info.eos),
                     "modalities", "vision", 0, "audio", 0, "build_info", "lowkey ", lk_version());
}

/* The tokens of an answer, with n_probs: {"id", "token", "logprob", "top_logprobs"}. */
static json_t *probabilities(const struct lk_response *r, const struct lk_logprob *lp, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *top = json_array(), *one = NULL;
        for (int k = -1; k < lp[i].n_top; k++) {
            int32_t tok = k < 0 ? lp[i].tok : lp[i].top[k].tok;
            float logprob = k < 0 ? lp[i].logprob : lp[i].top[k].logprob;
            size_t len;
            const char *text = lk_token_text(r->opts->model, tok, &len);
            json_t *entry =
                json_pack("{s:i, s:o, s:f}", "id", tok, "token", lk_json_from_bytes(text, len),
                          "logprob", logprob > -9999.0f ? (double)logprob : -9999.0);
            if (k < 0)
                one = entry;
            else
                json_array_append_new(top, entry);
        }
        json_object_set_new(one, "top_logprobs", top);
        json_array_append_new(list, one);
    }
    return list;
}

json_t *lk_llamacpp_error_json(const struct lk_api_error *error) {
    struct lk_api_error too_long;
    if (!error->n_ctx) return lk_api_error_json(error);
    too_long = lk_api_error_in_words(error,
                                     "request (%zu tokens) exceeds the available context size "
                                     "(%zu tokens), try increasing it",
                                     error->n_tok, error->n_ctx);
    json_t *json = lk_api_error_json(&too_long);
    json_object_set_new(json_object_get(json, "error"), "type",
                        json_string("exceed_context_size_error"));
    return json;
}

/* What stopped the answer, as llama.cpp's server names it. */
static const char *stop_type(const struct lk_job_result *result) {
    if (!result->finish) return "none";
    if (result->stop_string) return "word";
    return strcmp(result->finish, "stop") == 0 ? "eos" : "limit";
}

/* The reply, or the last event of a stream, in which the text was sent before. */
static json_t *final_json(const struct lk_response *r, const char *text, size_t len) {
    const struct lk_request *request = &r->completion->request;
    const struct lk_job_result *result = &r->choice[0].result;
    json_t *settings = lk_llamacpp_settings(r->opts, &request->sampling),
           *out = json_pack("{s:i, s:s%, s:[], s:i, s:b, s:s, s:I, s:I, s:I, s:b, s:s, s:s, s:o}",
                            "index", 0, "content", text, len, "tokens", "id_slot", -1, "stop", 1,
                            "model", r->opts->id, "tokens_predicted", (json_int_t)result->n_decoded,
                            "tokens_evaluated", (json_int_t)result->n_prompt, "tokens_cached",
                            (json_int_t)(result->n_prompt + result->n_decoded), "truncated", 0,
                            "stop_type", stop_type(result), "stopping_word",
                            result->stop_string ? result->stop_string : "", "generation_settings",
                            settings);
    json_object_set_new(settings, "n_predict",
                        json_integer((json_int_t)request->prompt[0].max_tokens));
    lk_response_add_timings(r, result, out);
    return out;
}

static bool write_whole(const struct lk_response *r, struct lk_buf *out) {
    const struct lk_response_choice *c = &r->choice[0];
    json_t *json = final_json(r, lk_buf_cstr(&c->text), c->text.len);
    if (r->completion->request.n_top_logprobs >= 0)
        json_object_set_new(json, "completion_probabilities", probabilities(r, c->lp, c->n_lp));
    lk_buf_add_json(out, json);
    return !out->failed;
}

static void write_event(struct lk_response *r, struct lk_event *event, struct lk_buf *out) {
    const struct lk_text_delta *delta = &event->delta;
    if (event->kind == LK_EVENT_DONE) {
        lk_response_add_event(r, event);
        lk_buf_add_event(out, final_json(r, "", 0));
        return;
    }
    if (event->kind != LK_EVENT_TEXT) return;
    json_t *json =
        json_pack("{s:i, s:s%, s:[], s:i, s:b}", "index", 0, "content",
                  delta->text ? delta->text : "", delta->len, "tokens", "id_slot", -1, "stop", 0);
    if (delta->n_lp)
        json_object_set_new(json, "completion_probabilities",
                            probabilities(r, delta->lp, delta->n_lp));
    lk_buf_add_event(out, json);
    lk_text_delta_free(&event->delta);
}

static void write_end(struct lk_response *r, struct lk_buf *out) {
    (void)r;
    (void)out; /* the last event has "stop": true */
}

const struct lk_endpoint lk_llamacpp_completion = {.parse = parse_completion,
                                                   .write_whole = write_whole,
                                                   .write_event = write_event,
                                                   .write_end = write_end,
                                                   .write_error = lk_response_write_error};
const struct lk_endpoint lk_llamacpp_infill = {.parse = parse_infill,
                                               .write_whole = write_whole,
                                               .write_event = write_event,
                                               .write_end = write_end,
                                               .write_error = lk_response_write_error};

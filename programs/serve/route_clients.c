/* Routes of other APIs. */
#include "serve/route_clients.h"

#include "serve/anthropic.h"
#include "serve/json_text.h"
#include "serve/ollama.h"
#include "serve/ollama_embed.h"
#include "serve/ollama_info.h"
#include "serve/openai_responses.h"
#include "serve/work.h"

void lk_route_responses(struct lk_exchange *x) { lk_answer(x, &lk_openai_responses); }

/* ---- Anthropic ---- */

void lk_route_messages(struct lk_exchange *x) { lk_answer(x, &lk_anthropic); }

/* Prepare a request as if it were to be answered, and count its tokens. */
static void count_prompt(void *arg) {
    struct lk_work *work = arg;
    struct lk_exchange *x = work->x;
    const struct lk_server_opts *opts = &x->server->opts;
    struct lk_request request = {0};
    if (!lk_work_charge_body(work)) return;
    if (work->endpoint->parse(&request, opts, x->body.at, x->body.len, &work->error) &&
        lk_charge_add(&work->charge, lk_request_bytes(&request), &work->error) &&
        lk_request_prepare(&request, opts, &work->error))
        lk_buf_add_json(&work->out, lk_anthropic_count_json(&request));
    lk_request_free(&request);
}

void lk_route_count_tokens(struct lk_exchange *x) {
    struct lk_work work = {.x = x, .endpoint = &lk_anthropic_count};
    lk_work_reply(&work, count_prompt);
}

/* ---- ollama ---- */

void lk_route_ollama_chat(struct lk_exchange *x) { lk_answer(x, &lk_ollama_chat); }

void lk_route_ollama_generate(struct lk_exchange *x) { lk_answer(x, &lk_ollama_generate); }

void lk_route_ollama_show(struct lk_exchange *x) {
    struct lk_work work = {.x = x, .convert = lk_ollama_show};
    lk_work_reply(&work, lk_work_convert);
}

void lk_route_ollama_tags(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_tags_json(x->server));
}

void lk_route_ollama_ps(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_ps_json(x->server));
}

void lk_route_ollama_version(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_version_json());
}

void lk_route_ollama_embed(struct lk_exchange *x) { lk_answer(x, &lk_ollama_embed); }

void lk_route_ollama_embeddings(struct lk_exchange *x) { lk_answer(x, &lk_ollama_embeddings); }

void lk_route_ollama_models(struct lk_exchange *x) {
    struct lk_api_error error;
    lk_api_error_set(&error, 501, "not_supported", NULL,
                     "%.100s is not supported: this server has one model, '%.100s', which is given "
                     "at its start with 'lowkey serve -m FILE'",
                     x->path, x->server->opts.id);
    lk_exchange_reply_error(x, &error);
}

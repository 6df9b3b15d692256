/* Fuzz target: a request body is either parsed, or rejected with a one-line message and a 4xx
 * status, or 501: the model has no tokens for infilling. The first byte selects the endpoint, the
 * rest is the body. What was parsed is prepared for a tiny model: messages become a prompt, prompts
 * become tokens of its vocabulary, fewer than the context. The body is also converted as a JSON
 * schema. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz_input.h"
#include "serve/anthropic.h"
#include "serve/embeddings.h"
#include "serve/llamacpp.h"
#include "serve/ollama.h"
#include "serve/openai_chat.h"
#include "serve/openai_completion.h"
#include "serve/openai_responses.h"
#include "serve/tools.h"
#include "tiny_gguf.h"

enum { CTX = 256 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const struct lk_api_error *error) {
    bool by_client = error->status >= 400 && error->status <= 499;
    if ((!by_client && error->status != 501) || !error->msg[0] || strchr(error->msg, '\n')) abort();
    json_t *json = lk_api_error_json(error);
    if (!json) abort();
    json_decref(json);
}

static void check_request(const struct lk_request *request) {
    if (request->n < 1 || request->n > LK_MAX_N || request->n_stop > LK_MAX_STOP ||
        request->n_prompt > LK_MAX_PROMPT || request->recipe > 1)
        abort();
    const json_t *message;
    size_t i;
    json_array_foreach(request->messages, i, message) {
        if (!json_is_string(json_object_get(message, "role"))) abort();
        if (!json_is_string(json_object_get(message, "content"))) abort();
    }
    for (i = 0; i < request->n_stop; i++)
        if (!request->stop[i][0]) abort();
}

static lk_recipe *recipes[2];
static lk_model *model;

int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Before the fuzzer limits allocations. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const lk_model_opts opts = {.n_threads = 1};
    struct fuzz_file file = fuzz_file_new();
    (void)argc;
    (void)argv;
    if (!tiny_gguf_write(file.path, tiny_preset("qwen2-bpe")) ||
        lk_model_open(&model, file.path, &opts, NULL) != LK_OK ||
        lk_recipe_parse(&recipes[0], "best-4", NULL) != LK_OK ||
        lk_recipe_parse(&recipes[1], "f16", NULL) != LK_OK)
        abort();
    return 0;
}

static struct lk_server_opts make_options(void) {
    struct lk_server_opts opts = lk_server_defaults();
    opts.id = "m";
    opts.model = model;
    opts.n_ctx = CTX;
    opts.recipe = (const lk_recipe *const *)recipes;
    opts.n_recipe = 2;
    return opts;
}

static void check_prepared(const struct lk_request *request, const struct lk_server_opts *opts) {
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    for (size_t i = 0; i < request->n_prompt; i++) {
        const struct lk_prompt *p = &request->prompt[i];
        if (p->n_tok == 0 || p->n_tok >= CTX || p->max_tokens > CTX || p->n_bytes == 0) abort();
        for (size_t k = 0; k < p->n_tok; k++)
            if (p->tok[k] < 0 || p->tok[k] >= n_vocab) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bool (*const parse[])(struct lk_request *, const struct lk_server_opts *, const char *, size_t,
                          struct lk_api_error *) = {
        lk_openai_responses.parse,    lk_openai_chat_parse,     lk_openai_completion_parse,
        lk_anthropic.parse,           lk_ollama_chat.parse,     lk_ollama_generate.parse,
        lk_llamacpp_completion.parse, lk_llamacpp_infill.parse, lk_embeddings_endpoint.parse,
        lk_anthropic_count.parse,     lk_ollama_embed.parse,    lk_ollama_embeddings.parse};
    enum { N_PARSE = sizeof parse / sizeof parse[0] };
    struct lk_server_opts opts = make_options();
    struct lk_api_error error = {0};
    struct lk_request request;
    if (size == 0) return 0;
    const char *body = (const char *)data + 1;
    bool good = parse[data[0] % N_PARSE](&request, &opts, body, size - 1, &error);
    if (good) check_request(&request);
    if (good && !request.is_empty) good = lk_request_prepare(&request, &opts, &error);
    if (good)
        check_prepared(&request, &opts);
    else
        check_error(&error);
    lk_request_free(&request);

    json_t *schema = json_loadb(body, size - 1, JSON_DECODE_ANY, NULL);
    if (schema) {
        char *grammar =
            lk_schema_grammar(schema, &(struct lk_schema_use){.field = "response_format"}, &error);
        if (!grammar) check_error(&error);
        free(grammar);
    }
    json_decref(schema);
    return 0;
}

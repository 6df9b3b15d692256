/* lowkey run: continue a prompt. */
#include "commands.h"
#include "common.h"
#include "generate.h"
#include "kept.h"
#include "progress.h"
#include "say.h"
#include "stats_print.h"
#include "table.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run_args {
    struct model_args model;
    struct session_args session;
    struct sampler_args sampler;
    struct kept kept;
    const char *prompt, *file, *system;
    int64_t n;
    bool chat, stats, json;
};

struct run {
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    lk_sampler *sampler;
    struct text prompt;
    int32_t *tok;
    size_t n_tok;
    double prefill_seconds;
    struct answer answer;
};

static enum args_result read_args(const struct verb *verb, int argc, char **argv,
                                  struct run_args *a) {
    const struct opt_group groups[] = {
        {"Prompt",
         {
             {'p', "prompt", "TEXT", "the prompt (default: read from standard input)", OPT_TEXT,
              &a->prompt, 0, 0},
             {'f', "file", "FILE", "a file with the prompt; its last line end is dropped", OPT_TEXT,
              &a->file, 0, 0},
             {0, "chat", NULL, "put the prompt into the model's chat template", OPT_FLAG, &a->chat,
              0, 0},
             {0, "system", "TEXT", "system message, with --chat", OPT_TEXT, &a->system, 0, 0},
             {'n', "tokens", "N", "most tokens to make (default 256)", OPT_INT, &a->n, 1, 1 << 24},
         }},
        model_options(&a->model),
        session_options(&a->session),
        sampler_options(&a->sampler),
        {"Keeping",
         {
             {0, "session", "FILE", "go on from FILE if it is there, and keep the session in it",
              OPT_TEXT, &a->kept.path, 0, 0},
         }},
        {"Output",
         {
             {0, "stats", NULL, "a table of speed and memory at the end (on stderr)", OPT_FLAG,
              &a->stats, 0, 0},
             {0, "json", NULL, "print one JSON object instead of the text", OPT_FLAG, &a->json, 0,
              0},
         }},
    };
    int first;
    return args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
}

static int read_prompt(const struct run_args *a, struct text *prompt) {
    if (a->prompt && a->file) return complain("--prompt and --file: give one of them");
    if (a->system && !a->chat) return complain("--system needs --chat");
    if (a->prompt) {
        if (!check_text(a->prompt, strlen(a->prompt), "--prompt")) return STATUS_BAD;
        text_add(prompt, a->prompt, strlen(a->prompt));
    } else if (a->kept.found && !a->file && isatty(STDIN_FILENO)) {
        return STATUS_OK; /* go on without a word */
    } else {
        if (!a->file && isatty(STDIN_FILENO))
            return complain("no prompt: give -p TEXT or -f FILE, or pipe a text in");
        if (!read_text(a->file ? a->file : "-", "prompt", PROMPT_BYTES_MOST, prompt))
            return interrupted() ? STATUS_INTERRUPTED : STATUS_BAD;
        if (prompt->len && prompt->at[prompt->len - 1] == '\n') prompt->len--;
        if (prompt->len && prompt->at[prompt->len - 1] == '\r') prompt->len--;
        prompt->at[prompt->len] = 0;
    }
    return prompt->len || a->kept.found ? STATUS_OK : complain("the prompt is empty");
}

/* A text that continues another has no begin token. */
static void drop_begin(struct run *r) {
    int32_t *begin = NULL;
    size_t n_begin = 0;
    if (lk_tokenize(r->model, "", 0, true, &begin, &n_begin, NULL) == LK_OK && n_begin &&
        r->n_tok >= n_begin && memcmp(r->tok, begin, n_begin * sizeof *begin) == 0) {
        r->n_tok -= n_begin;
        memmove(r->tok, r->tok + n_begin, r->n_tok * sizeof *r->tok);
    }
    lk_tokens_free(begin);
}

/* The prompt's tokens, in the chat template if asked. */
static int tokenize(const struct run_args *a, struct run *r) {
    lk_err err = {0};
    char *text = NULL;
    if (r->prompt.len == 0) return STATUS_OK;
    if (a->chat && a->kept.found) {
        int status = a->system ? complain("--system is for the first prompt of a session")
                               : kept_turn(r->model, r->prompt.at, &text);
        if (status) return status;
    } else if (a->chat) {
        lk_message msg[2] = {{"system", a->system}, {"user", r->prompt.at}};
        size_t skip = a->system ? 0 : 1;
        if (lk_chat_format(r->model, msg + skip, 2 - skip, true, &text, &err))
            return complain_of(&err);
    }
    lk_status status =
        lk_tokenize(r->model, text ? text : r->prompt.at, text ? strlen(text) : r->prompt.len, true,
                    &r->tok, &r->n_tok, &err);
    lk_text_free(text);
    if (status) return complain_of(&err);
    if (!status && a->kept.found) drop_begin(r);
    return r->n_tok ? STATUS_OK : complain("the prompt has no tokens");
}

/* Read the prompt behind what the session holds. */
static lk_status read_on(struct run *r, lk_err *err) {
    size_t n_kept = lk_session_n_tok(r->session), n_all = n_kept + r->n_tok;
    if (n_kept == 0) return lk_session_sync(r->session, r->tok, r->n_tok, NULL, err);
    if (r->n_tok == 0 && lk_session_logits(r->session, -1)) return LK_OK;
    int32_t *all = must_grow(NULL, n_all * sizeof *all);
    memcpy(all, lk_session_tokens(r->session), n_kept * sizeof *all);
    if (r->n_tok) memcpy(all + n_kept, r->tok, r->n_tok * sizeof *all);
    lk_status status = lk_session_sync(r->session, all, n_all, NULL, err);
    free(all);
    return status;
}

static int evaluate(const struct run_args *a, struct run *r) {
    lk_err err = {0};
    struct progress progress = progress_begin("reading the prompt");
    int64_t n_ctx = a->session.ctx ? a->session.ctx : lk_model_get_info(r->model).n_ctx_train;
    char have[NUMBER_ROOM], most[NUMBER_ROOM];
    if (n_ctx > 0 && r->n_tok > (size_t)n_ctx)
        return complain("the prompt has %s tokens, more than the context of %s; see --ctx",
                        say_count(have, r->n_tok), say_count(most, (uint64_t)n_ctx));
    int status =
        session_open(&a->session, r->model, r->recipe, progress_step, &progress, &r->session);
    if (!status) status = sampler_open(&a->sampler, r->model, &r->sampler);
    if (!status) status = kept_load(&a->kept, r->session, r->sampler);
    if (status) return status;
    double began = seconds_now();
    lk_status synced = read_on(r, &err);
    progress_end(&progress);
    r->prefill_seconds = seconds_now() - began;
    return synced ? complain_of(&err) : STATUS_OK;
}

static void print_stats(const struct run *r) {
    char a[NUMBER_ROOM];
    struct table table = table_new("lrl");
    table_cell(&table, "prompt");
    table_cell(&table, "%s tokens", say_count(a, r->n_tok));
    table_cell(&table, "%.1f tokens/s", rate(r->n_tok, r->prefill_seconds));
    table_cell(&table, "answer");
    table_cell(&table, "%s tokens", say_count(a, r->answer.n_tok));
    table_cell(&table, "%.1f tokens/s", rate(r->answer.n_eval, r->answer.seconds));
    fprintf(stderr, "\nrecipe: %s\n", lk_recipe_text(r->recipe));
    report_cache(r->session, &table);
    table_print(&table, stderr, 0);
}

static int print_json(const struct run *r) {
    char *name = model_name(r->model);
    int done = json_print(
        json_pack("{s:s s:s s:I s:I s:s% s:s s:o s:o s:o s:o}", "model", name, "kv",
                  lk_recipe_text(r->recipe), "prompt_tokens", (json_int_t)r->n_tok, "answer_tokens",
                  (json_int_t)r->answer.n_tok, "text", r->answer.shown.at, r->answer.shown.len,
                  "stop", stop_name(r->answer.why), "prefill_tokens_per_second",
                  json_number(rate(r->n_tok, r->prefill_seconds)), "decode_tokens_per_second",
                  json_number(rate(r->answer.n_eval, r->answer.seconds)), "cache",
                  json_cache(r->session), "levels", json_levels(r->session)),
        false);
    free(name);
    return done;
}

static int answer(const struct run_args *a, struct run *r) {
    int status = STATUS_OK;
    r->answer = generate(r->model, r->session, r->sampler, (size_t)a->n, a->json ? NULL : stdout);
    if (!a->json) {
        putchar('\n');
        fflush(stdout);
    }
    if (r->answer.why == STOP_FAILED) return complain_of(&r->answer.err);
    if (r->answer.why == STOP_FULL && !a->json)
        fprintf(stderr, "lowkey: stopped: the context of %zu tokens is full\n",
                lk_session_n_tok(r->session));
    status = kept_save(&a->kept, r->session, r->sampler, &r->answer);
    if (a->json && !status) status = print_json(r);
    if (a->stats) print_stats(r);
    return r->answer.why == STOP_INTERRUPTED && !status ? STATUS_INTERRUPTED : status;
}

int run_verb(const struct verb *verb, int argc, char **argv) {
    struct run_args a = {.n = 256, .sampler = sampler_args_default()};
    struct run r = {0};
    enum args_result read = read_args(verb, argc, argv, &a);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    int status = kept_find(verb, &a.kept, &a.session.kv, &r.recipe);
    if (!status) status = read_prompt(&a, &r.prompt);
    if (!status) status = model_open(&a.model, false, &r.model);
    if (!status) status = tokenize(&a, &r);
    if (!status) status = evaluate(&a, &r);
    if (!status) status = answer(&a, &r);
    answer_free(&r.answer);
    lk_sampler_free(r.sampler);
    lk_session_free(r.session);
    lk_tokens_free(r.tok);
    lk_model_free(r.model);
    lk_recipe_free(r.recipe);
    free(r.prompt.at);
    return status;
}

/* lowkey run: continue a prompt. */
#include "auto_recipe.h"
#include "base/atomic_file.h"
#include "base/clock.h"
#include "cache_report.h"
#include "chat_conversation.h"
#include "cmd.h"
#include "common.h"
#include "generate.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text.h"
#include "xalloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The session of --session. */
struct saved_session {
    const char *path; /* NULL: the session is not saved */
    bool exists;
};

struct run_args {
    struct model_args model;
    struct session_args session;
    struct sampler_args sampler;
    struct saved_session saved;
    const char *prompt, *file, *system, *draft;
    int64_t n;
    bool chat, parse_special, stats, json;
};

struct run {
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    lk_sampler *sampler;
    struct drafting drafting;
    struct lk_buf prompt;
    int32_t *tok; /* [n_tok] of the prompt */
    size_t n_tok;
    double prefill_seconds;
    lk_cluster_stats exchanged; /* by several ranks, for the answer */
    struct answer answer;
};

static int read_args(const struct command *command, int argc, char **argv, struct run_args *a) {
    const struct opt_group groups[] = {
        {"Prompt and answer",
         {
             {'p', "prompt", "TEXT", "the prompt (default: standard input)", OPT_TEXT, &a->prompt},
             {'f', "file", "FILE", "file with the prompt; -: standard input", OPT_TEXT, &a->file},
             {0, "chat", NULL, "send the prompt as a user message, in the model's chat template",
              OPT_FLAG, &a->chat},
             {0, "system", "TEXT", "system message, with --chat", OPT_TEXT, &a->system},
             {'n', "tokens", "N",
              "maximum number of tokens to generate (default 256); -1: no limit", OPT_INT, &a->n, 1,
              1 << 24, .endless = true},
             {0, "session", "FILE",
              "continue from FILE if it exists, and save to it when the answer ends; with an empty "
              "prompt, the last answer continues",
              OPT_TEXT, &a->saved.path},
             {0, "stats", NULL, "print speed and memory on stderr at the end", OPT_FLAG, &a->stats},
             {0, "json", NULL, "print one JSON object instead of the text", OPT_FLAG, &a->json},
             draft_option(&a->draft),
             {0, "parse-special", NULL,
              "parse control tokens such as <|im_end|> in the prompt; not for texts of others, who "
              "could speak in any role",
              OPT_FLAG, &a->parse_special},
         }},
        session_options(&a->session),
        model_options(&a->model, MODEL_RUN),
        sampler_options(&a->sampler),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

/* ---- the session of --session ---- */

/* Look for the file and open the recipe: the one of `kv`, or of the file. Without both, *out stays
 * NULL, as by open_single_recipe. */
static int saved_session_find(const struct command *command, struct saved_session *saved,
                              const struct string_list *kv, lk_recipe **out) {
    lk_err err = {0};
    saved->exists = false;
    if (saved->path && lk_file_exists(&saved->exists, saved->path, &err))
        return print_lk_error(&err);
    if (!saved->exists || kv->n) return open_single_recipe(command, kv, out);
    return lk_session_file_recipe(out, saved->path, &err) ? print_lk_error(&err) : STATUS_OK;
}

/* Restore the session and the sampler if the file exists. */
static int saved_session_load(const struct saved_session *saved, lk_session *session,
                              lk_sampler *sampler) {
    lk_err err = {0};
    if (!saved->exists) return STATUS_OK;
    return lk_session_load(session, sampler, saved->path, &err) ? print_lk_error(&err) : STATUS_OK;
}

/* Evaluate the last token of the answer if generation stopped before that, and save. */
static int saved_session_save(const struct saved_session *saved, lk_session *session,
                              const lk_sampler *sampler, const struct answer *answer) {
    lk_err err = {0};
    if (!saved->path) return STATUS_OK;
    if (answer->n_tok > answer->n_eval) {
        lk_status status =
            lk_session_eval(session, answer->tok + answer->n_tok - 1, 1, false, &err);
        if (status && status != LK_E_FULL) return print_lk_error(&err);
    }
    return lk_session_save(session, sampler, saved->path, &err) ? print_lk_error(&err) : STATUS_OK;
}

/* ---- the prompt ---- */

static int read_prompt(const struct run_args *a, struct lk_buf *prompt) {
    bool from_terminal = !a->prompt && !a->file && isatty(STDIN_FILENO);
    if (a->prompt && a->file) return print_error("--prompt and --file cannot be used together");
    if (a->system && !a->chat) return print_error("--system needs --chat");
    if (a->parse_special && a->chat)
        return print_error("--parse-special and --chat cannot be used together");
    if (from_terminal && a->saved.exists) return STATUS_OK; /* continue the answer */
    if (from_terminal) return print_error("no prompt: give -p TEXT or -f FILE, or pipe a text in");
    if (a->prompt) {
        if (!check_utf8_text(a->prompt, strlen(a->prompt), "--prompt")) return STATUS_ERROR;
        xbuf_add(prompt, a->prompt, strlen(a->prompt));
    } else {
        int status = read_text_file(a->file ? a->file : "-", "prompt", MAX_PROMPT_BYTES, prompt);
        if (status) return status;
        if (prompt->len && prompt->at[prompt->len - 1] == '\n') prompt->len--;
        if (prompt->len && prompt->at[prompt->len - 1] == '\r') prompt->len--;
        prompt->at[prompt->len] = 0;
    }
    return prompt->len || a->saved.exists ? STATUS_OK : print_error("the prompt is empty");
}

/* Tokenize the prompt, in the chat template with --chat. */
static int tokenize_prompt(const struct run_args *a, struct run *r) {
    lk_err err = {0};
    char *text = NULL;
    if (r->prompt.len == 0) return STATUS_OK;
    if (a->chat && a->saved.exists) {
        if (a->system) return print_error("--system is only for the first prompt of a session");
        if (format_next_turn(r->model, r->prompt.at, &text, &err)) return print_lk_error(&err);
    } else if (a->chat) {
        lk_message msg[2] = {{"system", a->system}, {"user", r->prompt.at}};
        size_t skip = a->system ? 0 : 1;
        if (lk_chat_format(r->model, msg + skip, 2 - skip, true, &text, &err))
            return print_lk_error(&err);
    }
    unsigned flags = a->saved.exists ? 0 : LK_TOKENIZE_BEGIN; /* the prompt continues a session */
    if (text) flags |= LK_TOKENIZE_MARKED;
    if (a->parse_special) flags |= LK_TOKENIZE_CONTROL;
    lk_status status =
        lk_tokenize(r->model, text ? text : r->prompt.at, text ? strlen(text) : r->prompt.len,
                    flags, 0, &r->tok, &r->n_tok, &err);
    lk_text_free(text);
    if (status) return print_lk_error(&err);
    return r->n_tok ? STATUS_OK : print_error("the prompt has no tokens");
}

/* Prefill the prompt after the tokens that the session already holds. */
static lk_status prefill_prompt(struct run *r, lk_err *err) {
    size_t n_held = lk_session_n_tok(r->session), n_all = n_held + r->n_tok;
    if (n_held == 0) return lk_session_sync(r->session, r->tok, r->n_tok, NULL, err);
    if (r->n_tok == 0 && lk_session_logits(r->session, -1)) return LK_OK;
    int32_t *all = xmalloc(n_all * sizeof *all);
    memcpy(all, lk_session_tokens(r->session), n_held * sizeof *all);
    if (r->n_tok) memcpy(all + n_held, r->tok, r->n_tok * sizeof *all);
    lk_status status = lk_session_sync(r->session, all, n_all, NULL, err);
    free(all);
    return status;
}

/* Print an error of the prefill or the answer. If memory ran out, that of the prompt and of the
 * longest answer is compared with the limit. */
static int print_run_error(const struct run_args *a, struct run *r, const lk_err *err) {
    size_t n_tok =
        lk_session_n_tok(r->session) > r->n_tok ? lk_session_n_tok(r->session) : r->n_tok;
    size_t n_ctx =
        a->session.ctx ? (size_t)a->session.ctx : (size_t)lk_model_get_info(r->model).n_ctx_train;
    n_tok = a->n < 0 || n_tok + (size_t)a->n > n_ctx ? n_ctx : n_tok + (size_t)a->n;
    lk_session_free(r->session); /* its memory counts as free */
    r->session = NULL;
    return print_memory_error(&a->session, r->model, r->recipe, n_tok, err);
}

static int open_and_prefill(const struct run_args *a, struct run *r) {
    lk_err err = {0};
    struct progress progress = progress_start("prefill");
    int64_t n_ctx = a->session.ctx ? a->session.ctx : lk_model_get_info(r->model).n_ctx_train;
    char n_tok[NUMBER_BUF], max_tok[NUMBER_BUF];
    if (n_ctx > 0 && r->n_tok > (size_t)n_ctx)
        return print_error("the prompt has %s tokens, more than the context of %s; see --ctx",
                           format_count(n_tok, r->n_tok), format_count(max_tok, (uint64_t)n_ctx));
    int status = check_memory(&a->session, r->model, r->recipe, r->n_tok);
    if (status) return status;
    warn_beyond_training(r->model, a->session.ctx);
    status = session_open(&a->session, r->model, r->recipe, progress_step, &progress, &r->session);
    if (!status) status = sampler_open(&a->sampler, r->model, &r->sampler);
    if (!status) status = saved_session_load(&a->saved, r->session, r->sampler);
    if (!status) status = drafting_start(&r->drafting, a->draft, r->session);
    if (status) return status;
    double start_time = lk_now();
    lk_status prefilled = prefill_prompt(r, &err);
    progress_end(&progress);
    r->prefill_seconds = lk_now() - start_time;
    return prefilled ? print_run_error(a, r, &err) : STATUS_OK;
}

/* What rank 0 exchanged for each token of the answer, including the bytes that it sent. */
static void add_exchange_rows(const struct run *r, struct table *table) {
    char b[NUMBER_BUF];
    double n = r->answer.n_eval ? (double)r->answer.n_eval : 1;
    table_cell(table, "exchanges");
    table_cell(table, "%.1f", (double)r->exchanged.n_exchange / n);
    table_cell(table, "per token: %s sent, %.2f ms, %.0f%% of the time",
               format_bytes(b, (uint64_t)((double)r->exchanged.bytes_sent / n)),
               1e3 * r->exchanged.seconds / n,
               r->answer.seconds > 0 ? 100 * r->exchanged.seconds / r->answer.seconds : 0.0);
}

/* The same as JSON, with the bytes that it received. NULL in one process. */
static json_t *exchange_json(const struct run_args *a, const struct run *r) {
    double n = r->answer.n_eval ? (double)r->answer.n_eval : 1;
    if (!a->model.cluster) return NULL;
    return json_pack("{s:o s:o s:o s:o}", "exchanges_per_token",
                     json_number((double)r->exchanged.n_exchange / n), "received_per_token",
                     json_number((double)r->exchanged.bytes / n), "sent_per_token",
                     json_number((double)r->exchanged.bytes_sent / n), "exchange_seconds",
                     json_number(r->exchanged.seconds / n));
}

static void print_stats(const struct run_args *a, const struct run *r) {
    char b[NUMBER_BUF];
    struct table table = table_new("lrl");
    table_cell(&table, "prefill");
    table_cell(&table, "%s tokens", format_count(b, r->n_tok));
    table_cell(&table, "%.1f tokens/s", tokens_per_second(r->n_tok, r->prefill_seconds));
    table_cell(&table, "decode");
    table_cell(&table, "%s tokens", format_count(b, r->answer.n_tok));
    table_cell(&table, "%.1f tokens/s", tokens_per_second(r->answer.n_eval, r->answer.seconds));
    char title[RECIPE_TITLE];
    fprintf(stderr, "\nrecipe: %s\n", recipe_title(r->model, r->recipe, title));
    if (r->drafting.drafter) {
        char drafts[3 * NUMBER_BUF];
        drafting_describe(&r->drafting, drafts, sizeof drafts);
        table_cell(&table, "drafts");
        table_cell(&table, "%s", "");
        table_cell(&table, "%s", drafts);
    }
    if (a->model.cluster) add_exchange_rows(r, &table);
    add_cache_rows(r->session, &table);
    add_rank_rows(r->model, r->session, &table);
    table_print(&table, stderr, false);
}

static int print_json(const struct run_args *a, const struct run *r) {
    char *name = model_name(r->model);
    int status = json_print(
        json_pack("{s:s s:s s:I s:I s:s% s:s s:o s:o s:o* s:o* s:o s:o s:o*}", "model", name, "kv",
                  lk_recipe_text(r->recipe), "prompt_tokens", (json_int_t)r->n_tok, "answer_tokens",
                  (json_int_t)r->answer.n_tok, "text", r->answer.shown.at, r->answer.shown.len,
                  "stop", stop_name(r->answer.stop), "prefill_tokens_per_second",
                  json_number(tokens_per_second(r->n_tok, r->prefill_seconds)),
                  "decode_tokens_per_second",
                  json_number(tokens_per_second(r->answer.n_eval, r->answer.seconds)), "drafts",
                  drafting_json(&r->drafting), "exchanges", exchange_json(a, r), "cache",
                  cache_json(r->session), "levels", cache_levels_json(r->session), "ranks",
                  ranks_json(r->model, r->session)),
        false);
    free(name);
    return status;
}

/* What several ranks have exchanged so far. */
static lk_cluster_stats count_exchanges(const struct run_args *a) {
    return a->model.cluster ? lk_cluster_get_stats(a->model.cluster) : (lk_cluster_stats){0};
}

static int generate_answer(const struct run_args *a, struct run *r) {
    size_t max_tok = a->n < 0 ? SIZE_MAX : (size_t)a->n;
    const struct answer_output output = {.out = a->json ? NULL : stdout};
    lk_cluster_stats before = count_exchanges(a);
    r->answer = generate(r->model, r->session, r->sampler, r->drafting.drafter, max_tok, &output);
    lk_cluster_stats after = count_exchanges(a);
    r->exchanged = (lk_cluster_stats){.n_exchange = after.n_exchange - before.n_exchange,
                                      .bytes = after.bytes - before.bytes,
                                      .bytes_sent = after.bytes_sent - before.bytes_sent,
                                      .seconds = after.seconds - before.seconds};
    if (!a->json) {
        putchar('\n');
        fflush(stdout);
    }
    if (r->answer.stop == STOP_FAILED) return print_run_error(a, r, &r->answer.err);
    if (r->answer.stop == STOP_FULL && !a->json)
        print_error("stopped: the context of %zu tokens is full; -c N sets a longer one",
                    lk_session_n_tok(r->session));
    int status = saved_session_save(&a->saved, r->session, r->sampler, &r->answer);
    if (a->json && !status) status = print_json(a, r);
    if (a->stats) print_stats(a, r);
    return r->answer.stop == STOP_INTERRUPTED && !status ? STATUS_INTERRUPTED : status;
}

/* Say which recipe 'auto' is, on a terminal. */
static void print_recipe(const struct run_args *a, const struct run *r) {
    char title[RECIPE_TITLE];
    bool tuned =
        a->session.auto_kv.memory || auto_recipe_exists(r->model, auto_name_of(&a->session.kv));
    print_error("cache %s; %s", recipe_title(r->model, r->recipe, title),
                tuned ? "--kv selects another" : "--tune fits it to this model");
}

int cmd_run(const struct command *command, int argc, char **argv) {
    struct run_args a = {
        .model.cluster = command->cluster, .n = 256, .sampler = sampler_args_default()};
    struct run r = {0};
    int result = read_args(command, argc, argv, &a);
    if (result != ARGS_RUN) return result;
    int status = drafting_check(a.draft);
    if (!status) status = saved_session_find(command, &a.saved, &a.session.kv, &r.recipe);
    if (!status) status = read_prompt(&a, &r.prompt);
    a.model.n_ctx = a.session.ctx;
    if (!status) status = model_open(&a.model, true, &r.model);
    if (!status) sampler_args_complete(&a.sampler, r.model);
    bool is_default = !status && !r.recipe;
    if (!status)
        status = auto_recipe_open(&a.session.auto_kv, &a.model, r.model, &a.session.kv, &r.recipe);
    if (!status && is_default && isatty(STDERR_FILENO)) print_recipe(&a, &r);
    if (!status) status = tokenize_prompt(&a, &r);
    if (!status) status = open_and_prefill(&a, &r);
    if (!status) status = generate_answer(&a, &r);
    answer_free(&r.answer);
    drafting_close(&r.drafting);
    lk_sampler_free(r.sampler);
    lk_session_free(r.session);
    lk_tokens_free(r.tok);
    lk_model_free(r.model);
    lk_recipe_free(r.recipe);
    lk_buf_free(&r.prompt);
    return status;
}

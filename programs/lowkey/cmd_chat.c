/* lowkey chat: chat with a model in the terminal. */
#include "base/clock.h"
#include "cache_report.h"
#include "chat_history.h"
#include "commands.h"
#include "common.h"
#include "generate.h"
#include "json_output.h"
#include "line_reader.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat_args {
    struct model_args model;
    struct session_args session;
    struct sampler_args sampler;
    const char *system;
    int64_t n;
    bool json;
};

struct chat {
    struct chat_args args;
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    struct line_reader *reader;
    struct chat_history history;
    struct progress progress; /* of prefill */
    size_t n_ctx;
    size_t n_answers;
    /* The last turn. */
    size_t prefill_tokens, decode_tokens;
    double prefill_seconds, decode_seconds;
    bool terminal; /* standard input and output are a terminal */
    bool quit;
    int status; /* to exit with */
};

static enum args_result read_args(const struct command *command, int argc, char **argv,
                                  struct chat_args *a) {
    const struct opt_group groups[] = {
        {"Chat",
         {
             {0, "system", "TEXT", "system message", OPT_TEXT, &a->system},
             {'n', "tokens", "N", "maximum tokens of an answer (default: rest of the context)",
              OPT_INT, &a->n, 1, 1 << 24},
             {0, "json", NULL, "print each answer as one line of JSON", OPT_FLAG, &a->json},
         }},
        model_options(&a->model),
        session_options(&a->session),
        sampler_options(&a->sampler),
    };
    int first;
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
}

/* Open an empty session in place of the current one. */
static int open_session(struct chat *c) {
    lk_session *session = NULL;
    int status =
        session_open(&c->args.session, c->model, c->recipe, progress_step, &c->progress, &session);
    if (status) return status;
    lk_session_free(c->session);
    c->session = session;
    return STATUS_OK;
}

/* ---- commands: lines that start with a slash ---- */

static void reset_chat(struct chat *c) {
    chat_history_reset(&c->history);
    c->prefill_tokens = c->decode_tokens = 0;
    if (open_session(c))
        c->quit = true, c->status = STATUS_ERROR;
    else if (!c->args.json)
        puts("Started a new conversation.");
}

static void print_stats(const struct chat *c) {
    if (c->args.json) {
        json_print(json_pack("{s:o}", "cache", cache_json(c->session)), true);
        return;
    }
    char n_tok[NUMBER_BUF], max_tok[NUMBER_BUF];
    struct table table = table_new("lrl");
    table_cell(&table, "context");
    table_cell(&table, "%s", format_count(n_tok, lk_session_n_tok(c->session)));
    table_cell(&table, "of %s tokens", format_count(max_tok, c->n_ctx));
    table_cell(&table, "last prefill");
    table_cell(&table, "%s", format_count(n_tok, c->prefill_tokens));
    table_cell(&table, "tokens, %.1f tokens/s",
               tokens_per_second(c->prefill_tokens, c->prefill_seconds));
    table_cell(&table, "last decode");
    table_cell(&table, "%s", format_count(n_tok, c->decode_tokens));
    table_cell(&table, "tokens, %.1f tokens/s",
               tokens_per_second(c->decode_tokens, c->decode_seconds));
    add_cache_rows(c->session, &table);
    printf("recipe: %s\n", lk_recipe_text(c->recipe));
    table_print(&table, stdout, false);
}

static void run_slash_command(struct chat *c, const char *line) {
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        c->quit = true;
        /* The user has seen the errors; the reader of a pipe may not have. */
        if (c->terminal) c->status = STATUS_OK;
    } else if (strcmp(line, "/stats") == 0) {
        print_stats(c);
    } else if (strcmp(line, "/kv") == 0 && c->args.json) {
        json_print(json_pack("{s:o}", "levels", cache_levels_json(c->session)), true);
    } else if (strcmp(line, "/kv") == 0) {
        print_cache_levels(c->session, stdout);
    } else if (strcmp(line, "/reset") == 0) {
        reset_chat(c);
    } else if (strcmp(line, "/help") == 0) {
        fputs("/stats  speed and memory\n"
              "/kv     contents of the cache by level\n"
              "/reset  start a new conversation\n"
              "/quit   quit (or Ctrl-D)\n"
              "Ctrl-C stops an answer; at the prompt it quits.\n",
              c->args.json ? stderr : stdout);
    } else {
        print_error("unknown command '%s'; /help lists them", line);
    }
}

/* ---- questions and answers ---- */

/* Add the question to the history and prefill it. Returns false if it cannot be answered. */
static bool prefill_question(struct chat *c, const char *question) {
    lk_err err = {0};
    size_t n_reused = 0;
    if (chat_history_add_question(&c->history, question, &err)) {
        c->status = print_lk_error(&err);
        c->quit = err.code == LK_E_UNSUPPORTED; /* the model has no chat template */
        return false;
    }
    if (c->history.n_tok >= c->n_ctx) {
        c->status = print_error("context full: the conversation needs %zu tokens, the context has "
                                "%zu; /reset starts a new one",
                                c->history.n_tok, c->n_ctx);
        chat_history_drop_question(&c->history);
        return false;
    }
    double start_time = lk_now();
    c->progress = progress_start("prefill");
    lk_status status =
        lk_session_sync(c->session, c->history.tok, c->history.n_tok, &n_reused, &err);
    progress_end(&c->progress);
    if (status) {
        int exit_status = print_lk_error(&err);
        if (status != LK_E_CANCELLED || !c->terminal) c->status = exit_status;
        chat_history_drop_question(&c->history);
        return false;
    }
    c->prefill_seconds = lk_now() - start_time;
    c->prefill_tokens = c->history.n_tok - n_reused;
    return true;
}

static void print_answer_json(const struct chat *c, const struct answer *answer) {
    json_print(json_pack("{s:s s:s% s:s s:I s:I s:o s:o s:o}", "role", "assistant", "content",
                         answer->shown.at, answer->shown.len, "stop", stop_name(answer->stop),
                         "prompt_tokens", (json_int_t)c->prefill_tokens, "answer_tokens",
                         (json_int_t)answer->n_tok, "prefill_tokens_per_second",
                         json_number(tokens_per_second(c->prefill_tokens, c->prefill_seconds)),
                         "decode_tokens_per_second",
                         json_number(tokens_per_second(answer->n_eval, answer->seconds)), "cache",
                         cache_json(c->session)),
               true);
}

/* Explain on stderr why an answer stopped before its end. */
static void explain_stop(struct chat *c, const struct answer *answer) {
    bool full =
        answer->stop == STOP_FULL || (answer->stop == STOP_LENGTH && c->history.n_tok >= c->n_ctx);
    if (answer->stop == STOP_FAILED)
        c->status = print_lk_error(&answer->err);
    else if (full)
        print_error("context full: %zu tokens; /reset starts a new conversation", c->n_ctx);
    else if (answer->stop == STOP_LENGTH && c->terminal)
        print_error("stopped after %zu tokens (-n)", answer->n_tok);
}

static void answer_question(struct chat *c, const char *question) {
    struct sampler_args sampling = c->args.sampler;
    lk_sampler *sampler = NULL;
    sampling.seed = (sampling.seed + (int64_t)c->n_answers) & UINT32_MAX;
    if (!prefill_question(c, question)) return;
    /* A new sampler for every answer, so that a grammar starts again. */
    int status = sampler_open(&sampling, c->model, &sampler);
    if (status) {
        c->status = status;
        c->quit = true;
        return;
    }
    size_t max_tok = c->n_ctx - c->history.n_tok;
    if (c->args.n && (size_t)c->args.n < max_tok) max_tok = (size_t)c->args.n;
    struct answer answer =
        generate(c->model, c->session, sampler, max_tok, c->args.json ? NULL : stdout);
    if (!c->args.json) putchar('\n');
    fflush(stdout);
    chat_history_add_answer(&c->history, &answer);
    c->n_answers++;
    c->decode_tokens = answer.n_eval;
    c->decode_seconds = answer.seconds;
    if (c->args.json) print_answer_json(c, &answer);
    explain_stop(c, &answer);
    answer_free(&answer);
    lk_sampler_free(sampler);
}

/* ---- the command ---- */

static void process_line(struct chat *c, const char *line) {
    line += strspn(line, " \t");
    if (!*line) return;
    if (line[0] == '/')
        run_slash_command(c, line);
    else if (check_utf8_text(line, strlen(line), "message"))
        answer_question(c, line);
    else
        c->status = STATUS_ERROR;
}

static int chat_loop(struct chat *c) {
    while (!c->quit && !ferror(stdout)) {
        char *line = line_reader_next(c->reader);
        if (!line) break;
        process_line(c, line);
        free(line);
        /* Ctrl-C stops an answer. In a terminal the chat continues. */
        if (interrupted() && !c->terminal) break;
        if (interrupted()) clear_interrupt();
    }
    if (c->terminal && !c->quit) putchar('\n');
    if (interrupted()) return STATUS_INTERRUPTED;
    return c->terminal && !c->quit ? STATUS_OK : c->status;
}

static int start_chat(struct chat *c) {
    lk_model_info info = lk_model_get_info(c->model);
    c->n_ctx = c->args.session.ctx ? (size_t)c->args.session.ctx : (size_t)info.n_ctx_train;
    c->history.model = c->model;
    c->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (c->args.system) chat_history_add(&c->history, "system", c->args.system);
    int status = open_session(c);
    if (status) return status;
    if (c->terminal && !c->args.json) {
        char *name = model_name(c->model);
        printf("%s, cache %s, context %zu.\n/help lists commands, Ctrl-D quits.\n", name,
               lk_recipe_text(c->recipe), c->n_ctx);
        free(name);
    }
    c->reader = line_reader_open(c->terminal);
    return STATUS_OK;
}

int cmd_chat(const struct command *command, int argc, char **argv) {
    struct chat c = {.args.sampler = sampler_args_default()};
    enum args_result result = read_args(command, argc, argv, &c.args);
    if (result != ARGS_RUN) return result == ARGS_HELP ? STATUS_OK : STATUS_ERROR;
    if (c.args.system && !check_utf8_text(c.args.system, strlen(c.args.system), "--system"))
        return STATUS_ERROR;
    int status = open_single_recipe(command, &c.args.session.kv, &c.recipe);
    if (!status) status = model_open(&c.args.model, true, &c.model);
    if (!status) status = start_chat(&c);
    if (!status) status = chat_loop(&c);
    line_reader_close(c.reader);
    chat_history_free(&c.history);
    lk_session_free(c.session);
    lk_model_free(c.model);
    lk_recipe_free(c.recipe);
    return status;
}

/* The table of commands, what they do, and completion. */
#include "chat_commands.h"

#include "auto_recipe.h"
#include "base/closest.h"
#include "cache_report.h"
#include "chat.h"
#include "chat_saved.h"
#include "output.h"
#include "table.h"
#include "text.h"
#include "xalloc.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- words of a line ---- */

/* Remove the next word of `*text`: up to a blank that is not quoted with '' or "" or a backslash.
 * Returns the word without the quotes: free it. NULL if no word is left. */
static char *next_word(const char **text) {
    const char *s = *text + strspn(*text, " \t");
    struct lk_buf word = {0};
    char quote = 0;
    if (!*s) return NULL;
    xbuf_add(&word, "", 0);
    for (; *s && (quote || !strchr(" \t", *s)); s++) {
        if (*s == quote)
            quote = 0;
        else if (!quote && (*s == '"' || *s == '\''))
            quote = *s;
        else if (*s == '\\' && quote != '\'' && s[1])
            xbuf_add(&word, ++s, 1);
        else
            xbuf_add(&word, s, 1);
    }
    *text = s + strspn(s, " \t");
    return word.at;
}

/* ---- settings that a chat can change while it runs ---- */

struct setting {
    const char *name, *help;
    double *real; /* the variable: one of these three */
    int64_t *integer;
    bool *flag;
    double min, max;
};

enum { MAX_SETTINGS = 8 };

static size_t list_settings(struct chat *c, struct setting setting[MAX_SETTINGS]) {
    struct sampler_args *s = &c->args.sampler;
    const struct setting all[] = {
        {"temperature", "0: always the most probable token", &s->temperature, .max = 100},
        {"top-p", "1: off", &s->top_p, .max = 1},
        {"top-k", "0: off", .integer = &s->top_k, .max = 10000000},
        {"min-p", "0: off", &s->min_p, .max = 1},
        {"repeat-penalty", "1: off", &s->repeat_penalty, .min = 0.01, .max = 100},
        {"seed", "of the next answer", .integer = &s->seed, .max = 4294967295.0},
        {"tokens", "of an answer; -1: until it ends", .integer = &c->args.n, .min = -1,
         .max = 1 << 24},
        {"verbose", "speed after each answer: on or off", .flag = &c->args.verbose, .max = 1},
    };
    memcpy(setting, all, sizeof all);
    return sizeof all / sizeof all[0];
}

static void show(const struct chat *c, const struct setting *s) {
    char value[64];
    if (s->real)
        snprintf(value, sizeof value, "%g", *s->real);
    else if (s->integer)
        snprintf(value, sizeof value, "%lld", (long long)*s->integer);
    else
        snprintf(value, sizeof value, "%s", *s->flag ? "on" : "off");
    fprintf(c->args.json ? stderr : stdout, "%-16s %-8s %s\n", s->name, value, s->help);
}

static bool set(const struct setting *s, const char *text) {
    char *end;
    double value = strtod(text, &end);
    bool on = strcmp(text, "on") == 0, word = on || strcmp(text, "off") == 0;
    bool number =
        !word && end != text && !*end && isfinite(value) && (!s->integer || floor(value) == value);
    if (word) value = on;
    if ((word ? !s->flag : !number) || value < s->min || value > s->max) {
        if (s->flag)
            print_error("/set %s: expected on or off, not '%s'", s->name, text);
        else
            print_error("/set %s: expected %s %.10g to %.10g, not '%s'", s->name,
                        s->real ? "a number from" : "a whole number from", s->min, s->max, text);
        return false;
    }
    if (s->real) *s->real = value;
    if (s->integer) *s->integer = (int64_t)value;
    if (s->flag) *s->flag = value != 0.0;
    return true;
}

/* Accept the names of options and of other programs: temp, top_p, num_predict. */
static bool is_named(const struct setting *s, const char *name) {
    static const char *const other[][2] = {
        {"temp", "temperature"}, {"n", "tokens"}, {"num_predict", "tokens"}};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (strcmp(name, other[i][0]) == 0) name = other[i][1];
    size_t k = 0;
    while (name[k] && (name[k] == s->name[k] || (name[k] == '_' && s->name[k] == '-'))) k++;
    return !name[k] && !s->name[k];
}

/* "NAME VALUE" sets, "NAME" shows one setting, "" shows all. */
static void run_settings(struct chat *c, const char *args) {
    struct setting setting[MAX_SETTINGS];
    size_t n = list_settings(c, setting), i = 0;
    char *name = next_word(&args);
    if (name && strcmp(name, "parameter") == 0) { /* as ollama has it */
        free(name);
        name = next_word(&args);
    }
    char *value = next_word(&args);
    for (i = 0; name && i < n && !is_named(&setting[i], name); i++) continue;
    if (!name) {
        for (i = 0; i < n; i++) show(c, &setting[i]);
    } else if (i == n) {
        print_error("/set: unknown setting '%s'; /set lists them", name);
    } else {
        bool changed = value && set(&setting[i], value);
        if (changed && setting[i].real == &c->args.sampler.temperature)
            c->args.sampler.greedy = false;
        if (changed || !value) show(c, &setting[i]);
    }
    free(name);
    free(value);
}

/* ---- files and sessions ---- */

/* The number of tokens of `text`; more than n_max count as n_max + 1. */
static size_t count_tokens(const struct chat *c, const struct lk_buf *text, size_t n_max) {
    int32_t *tok = NULL;
    size_t n = 0;
    lk_status status = lk_tokenize(c->model, text->at, text->len, 0,
                                   chat_token_limit(text->len, n_max), &tok, &n, NULL);
    lk_tokens_free(tok);
    return status || n > n_max ? n_max + 1 : n;
}

static void cmd_file(struct chat *c, const char *args) {
    enum { MAX_FILE_BYTES = 256 * 1024 * 1024, MANY = 16 }; /* contexts that are counted */
    char count[NUMBER_BUF], size[NUMBER_BUF], n_ctx[NUMBER_BUF];
    char *path = next_word(&args);
    if (!path) {
        for (size_t i = 0; i < c->documents.n; i++)
            chat_note(c, "%s is attached to the next message", c->documents.item[i].name);
        if (!c->documents.n)
            chat_note(c, "no file is attached; /file NAME [QUESTION] attaches one");
    } else if (strcmp(path, "-") == 0) {
        chat_documents_clear(&c->documents);
        chat_note(c, "no file is attached");
    } else if (chat_documents_add(&c->documents, path, MAX_FILE_BYTES)) {
        const struct chat_document *document = &c->documents.item[c->documents.n - 1];
        size_t n_max = MANY * c->n_ctx, n = count_tokens(c, &document->text, n_max);
        format_count(n_ctx, c->n_ctx);
        if (n > c->n_ctx) {
            c->status = print_error("%s does not fit: it has %s%s tokens, the context %s; -c N "
                                    "sets a longer one",
                                    document->name, n > n_max ? "more than " : "",
                                    format_count(count, n > n_max ? n_max : n), n_ctx);
            chat_documents_drop_last(&c->documents);
            args = "";
        } else {
            chat_note(c, "%s: %s, %s of %s tokens%s", document->name,
                      format_bytes(size, document->text.len), format_count(count, n), n_ctx,
                      *args ? "" : "; attached to the next message");
        }
        if (*args) chat_answer_question(c, args);
    } else {
        c->status = STATUS_ERROR;
    }
    free(path);
}

static void save_as(struct chat *c, const char *args, bool replace) {
    char *name = next_word(&args);
    if (!name && c->save_name) name = xasprintf("%s", c->save_name);
    bool known = name && c->save_name && strcmp(name, c->save_name) == 0, exists = false;
    if (!name) {
        print_error("/save needs a name: /save NAME");
    } else if (chat_saved_replaceable(name, &exists)) {
        c->status = STATUS_ERROR;
    } else if (!known && exists && !replace) {
        print_error("%s exists; /save! %s replaces it", name, name);
    } else if (chat_saved_write(name, &c->conversation, c->session, c->n_answers)) {
        c->status = STATUS_ERROR;
    } else {
        chat_note(c, "saved to %s; /load %s or --session %s continues it", name, name, name);
        free(c->save_name);
        c->save_name = name;
        name = NULL;
    }
    free(name);
}

static void cmd_save(struct chat *c, const char *args) { save_as(c, args, false); }
static void cmd_save_over(struct chat *c, const char *args) { save_as(c, args, true); }

static void cmd_load(struct chat *c, const char *args) {
    char *name = next_word(&args);
    if (!name)
        print_error("/load needs a name: /load NAME");
    else if (chat_load(c, name))
        c->status = STATUS_ERROR;
    free(name);
}

/* ---- the conversation ---- */

static void cmd_system(struct chat *c, const char *args) {
    const char *system = chat_conversation_system(&c->conversation);
    if (!*args && !system) {
        chat_note(c, "no system message; /system TEXT sets one");
    } else if (!*args) {
        chat_note(c, "%s", system);
    } else if (c->conversation.n_unknown) {
        print_error("the session comes from 'lowkey run', so its start cannot be changed");
    } else if (check_utf8_text(args, strlen(args), "/system")) {
        chat_conversation_set_system(&c->conversation, strcmp(args, "-") == 0 ? "" : args);
        c->unsaved = true;
        chat_note(c, "the system message is %s%s", strcmp(args, "-") == 0 ? "removed" : "set",
                  chat_conversation_n_questions(&c->conversation)
                      ? "; the conversation is prefilled again for the next answer"
                      : "");
    }
}

static void cmd_regen(struct chat *c, const char *args) {
    (void)args;
    chat_answer_again(c);
}

static void cmd_continue(struct chat *c, const char *args) {
    (void)args;
    chat_answer_continue(c);
}

static void cmd_undo(struct chat *c, const char *args) {
    struct chat_conversation *conversation = &c->conversation;
    (void)args;
    if (chat_conversation_n_questions(conversation) == 0) {
        print_error("there is no question to take back");
        return;
    }
    while (!chat_conversation_last_is(conversation, "user"))
        chat_conversation_drop_last(conversation);
    chat_conversation_drop_last(conversation);
    c->unsaved = true;
    size_t n = chat_conversation_n_questions(conversation);
    chat_note(c, "took back the last exchange; %zu question%s left", n, n == 1 ? " is" : "s are");
}

static void cmd_clear(struct chat *c, const char *args) {
    (void)args;
    chat_conversation_clear(&c->conversation);
    chat_documents_clear(&c->documents);
    lk_session_clear(c->session);
    c->prefill_tokens = c->decode_tokens = 0;
    c->unsaved = false; /* what was saved stays until the next answer */
    chat_note(c, "Started a new conversation.");
}

/* ---- the program ---- */

static void cmd_set(struct chat *c, const char *args) {
    if (strncmp(args, "system ", 7) == 0)
        cmd_system(c, args + 7);
    else
        run_settings(c, args);
}

static void cmd_stats(struct chat *c, const char *args) {
    char n_tok[NUMBER_BUF], max_tok[NUMBER_BUF];
    (void)args;
    if (c->args.json) {
        json_print(json_pack("{s:o}", "cache", cache_json(c->session)), true);
        return;
    }
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
    add_rank_rows(c->model, c->session, &table);
    char title[RECIPE_TITLE];
    printf("recipe: %s\n", recipe_title(c->model, c->recipe, title));
    table_print(&table, stdout, false);
}

static void cmd_kv(struct chat *c, const char *args) {
    (void)args;
    if (c->args.json)
        json_print(json_pack("{s:o}", "levels", cache_levels_json(c->session)), true);
    else
        print_cache_levels(c->session, stdout);
}

static void cmd_quit(struct chat *c, const char *args) {
    (void)args;
    c->quit = true;
    /* The user has seen the errors; the reader of a pipe may not have. */
    if (c->terminal) c->status = STATUS_OK;
}

static void cmd_help(struct chat *c, const char *args);

static const struct chat_command {
    const char *name, *args, *help; /* help is NULL for another name of the command before it */
    void (*run)(struct chat *c, const char *args);
} command_list[] = {
    {"/help", "", "show this list", cmd_help},
    {"/?", "", NULL, cmd_help},
    {"/file", "NAME [QUESTION]", "attach a text file to the next message, or ask about it",
     cmd_file},
    {"/regen", "", "answer the last question again, with another seed", cmd_regen},
    {"/retry", "", NULL, cmd_regen},
    {"/continue", "", "continue an answer that was stopped", cmd_continue},
    {"/undo", "", "take back the last question and its answer", cmd_undo},
    {"/clear", "", "start a new conversation", cmd_clear},
    {"/reset", "", NULL, cmd_clear},
    {"/new", "", NULL, cmd_clear},
    {"/system", "[TEXT]", "show or set the system message; - removes it", cmd_system},
    {"/set", "[NAME VALUE]", "show or set temperature, top-p, tokens, ...", cmd_set},
    {"/save", "[NAME]", "save the conversation and its cache; /save! replaces", cmd_save},
    {"/save!", "", NULL, cmd_save_over},
    {"/load", "NAME", "continue a saved conversation", cmd_load},
    {"/stats", "", "speed and memory", cmd_stats},
    {"/kv", "", "contents of the cache by level", cmd_kv},
    {"/quit", "", "leave (or Ctrl-D, or Ctrl-C twice)", cmd_quit},
    {"/exit", "", NULL, cmd_quit},
    {"/bye", "", NULL, cmd_quit},
};

enum { N_COMMAND = sizeof command_list / sizeof command_list[0] };

static void cmd_help(struct chat *c, const char *args) {
    FILE *out = c->args.json ? stderr : stdout;
    (void)args;
    for (size_t i = 0; i < N_COMMAND; i++) {
        const struct chat_command *command = &command_list[i];
        char *usage = xasprintf("%s %s", command->name, command->args);
        if (command->help) fprintf(out, "%-23s %s\n", usage, command->help);
        free(usage);
    }
    fputs(
        "\"\"\" starts and ends a text of several lines; so does a paste. Alt-Enter is a new "
        "line,\n"
        "and so is a backslash at the end of a line. Ctrl-C stops an answer, Ctrl-R searches what\n"
        "was typed before, Tab completes commands and file names.\n",
        out);
}

static void print_unknown(const char *name) {
    const size_t len = strlen(name);
    struct lk_closest search = {.word = name, .len = len};
    for (size_t i = 0; i < N_COMMAND; i++) lk_closest_offer(&search, command_list[i].name);
    for (size_t i = 0; i < N_COMMAND && len > 2; i++)
        if (strncmp(command_list[i].name, name, len) == 0) search.name = command_list[i].name;
    if (search.name)
        print_error("unknown command '%s'; did you mean %s?", name, search.name);
    else
        print_error("unknown command '%s'; /help lists them", name);
}

void chat_run_command(struct chat *c, const char *line) {
    size_t n = strcspn(line, " \t");
    const char *args = line + n + strspn(line + n, " \t");
    char *name = xasprintf("%.*s", (int)n, line);
    const struct chat_command *command = NULL;
    for (size_t i = 0; i < N_COMMAND && !command; i++)
        if (strcmp(name, command_list[i].name) == 0) command = &command_list[i];
    if (command)
        command->run(c, args);
    else
        print_unknown(name);
    free(name);
}

/* ---- completion with Tab ---- */

enum { MAX_WORDS = 500 };

/* Possible completions of a word. */
struct words {
    char *word[MAX_WORDS];
    size_t n;
};

static void add_word(struct words *words, const char *word, const char *end) {
    if (words->n < MAX_WORDS) words->word[words->n++] = xasprintf("%s%s", word, end);
}

static int compare_words(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void find_commands(struct words *words, const char *prefix) {
    for (size_t i = 0; i < N_COMMAND; i++)
        if (strncmp(command_list[i].name, prefix, strlen(prefix)) == 0)
            add_word(words, command_list[i].name, " ");
}

/* Files in the folder of `path` whose names start with its last part. */
static void find_files(struct words *words, const char *path) {
    const char *slash = strrchr(path, '/'), *prefix = slash ? slash + 1 : path;
    char *folder = slash ? xasprintf("%.*s", (int)(slash + 1 - path), path) : xasprintf("./");
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat info;
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        if (entry->d_name[0] == '.' && prefix[0] != '.') continue;
        char *name = xasprintf("%s%s", folder, entry->d_name);
        bool is_folder = stat(name, &info) == 0 && S_ISDIR(info.st_mode);
        add_word(words, entry->d_name, is_folder ? "/" : " ");
        free(name);
    }
    if (dir) closedir(dir);
    free(folder);
}

static size_t common_prefix(const struct words *words) {
    size_t len = words->n ? strlen(words->word[0]) : 0;
    for (size_t i = 1; i < words->n; i++) {
        size_t k = 0;
        while (k < len && words->word[i][k] == words->word[0][k]) k++;
        len = k;
    }
    while (words->n && len && ((unsigned char)words->word[0][len] & 0xc0) == 0x80) len--;
    return len;
}

/* Append word[from..to) with backslashes before blanks within it, but not before the last one. */
static void add_escaped(struct lk_buf *out, const char *word, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        if (strchr("\\\"'", word[i]) || (word[i] == ' ' && word[i + 1])) xbuf_add(out, "\\", 1);
        xbuf_add(out, word + i, 1);
    }
}

/* Start of the word at the end of the text, without quotes and backslashes: free it. */
static char *last_word(const char *text) {
    char *word = NULL;
    for (char *next; (next = next_word(&text)); word = next) free(word);
    return word;
}

void chat_complete(const char *before, struct lk_buf *insert, struct lk_buf *choices) {
    struct words words = {.n = 0};
    size_t n_before = strlen(before);
    if (before[0] != '/') return;
    bool first = !strchr(before, ' ');
    bool new_word = before[n_before - 1] == ' ' && before[n_before - 2] != '\\';
    char *word = new_word ? xasprintf("%s", "") : last_word(before);
    const char *prefix = word;
    if (!word) return;
    if (first) {
        find_commands(&words, prefix);
    } else {
        find_files(&words, prefix);
        const char *slash = strrchr(prefix, '/');
        if (slash) prefix = slash + 1;
    }
    qsort(words.word, words.n, sizeof words.word[0], compare_words);
    size_t n_common = common_prefix(&words), n_typed = strlen(prefix);
    if (n_common > n_typed) add_escaped(insert, words.word[0], n_typed, n_common);
    for (size_t i = 0; i < words.n; i++) {
        if (words.n > 1) {
            xbuf_add(choices, words.word[i], strlen(words.word[i]));
            xbuf_add(choices, "\n", 1);
        }
        free(words.word[i]);
    }
    free(word);
}

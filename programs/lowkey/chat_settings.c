/* The table of settings. */
#include "chat_settings.h"

#include "chat.h"
#include "chat_words.h"
#include "output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    double value = strcmp(text, "on") == 0    ? 1.0
                   : strcmp(text, "off") == 0 ? 0.0
                                              : strtod(text, &end);
    bool word = strcmp(text, "on") == 0 || strcmp(text, "off") == 0;
    bool number =
        !word && end != text && !*end && isfinite(value) && (!s->integer || floor(value) == value);
    if ((word ? !s->flag : !number) || value < s->min || value > s->max) {
        print_error("/set %s: expected %s %g to %g, not '%s'", s->name,
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

void chat_settings_run(struct chat *c, const char *args) {
    struct setting setting[MAX_SETTINGS];
    size_t n = list_settings(c, setting), i = 0;
    char *name = chat_next_word(&args);
    if (name && strcmp(name, "parameter") == 0) { /* as ollama has it */
        free(name);
        name = chat_next_word(&args);
    }
    char *value = chat_next_word(&args);
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

/* Computes needs with the library's plan. */
#include "memory_need.h"

#include "available.h"
#include "output.h"

#include <string.h>

/* The plan of a session with n_tok tokens. False if there is none for this recipe. */
static bool plan_session(const struct session_args *args, const lk_model *model,
                         const lk_recipe *recipe, size_t n_tok, lk_plan *plan) {
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok, .chunked_prefill = args->stream};
    return n_tok && n_tok <= INT32_MAX && !lk_plan_make(model, recipe, &opts, plan, NULL);
}

/* Cache and scratch together, at their peak. */
static uint64_t session_bytes(const lk_plan *plan) { return plan->peak_bytes - plan->weight_bytes; }

/* The most exact of the best presets whose session fits, if the given recipe is larger; or NULL. */
static const char *smaller_preset(const struct session_args *args, const lk_model *model,
                                  size_t n_tok, uint64_t need, uint64_t limit) {
    static const char *const preset[] = {"best-4", "best-3", "best-2"};
    for (size_t i = 0; i < sizeof preset / sizeof preset[0]; i++) {
        lk_recipe *recipe = NULL;
        lk_plan plan;
        if (lk_recipe_parse(&recipe, preset[i], NULL)) continue;
        bool planned = plan_session(args, model, recipe, n_tok, &plan);
        lk_recipe_free(recipe);
        if (planned && session_bytes(&plan) < need && session_bytes(&plan) <= limit)
            return preset[i];
    }
    return NULL;
}

/* The largest number of tokens below n_tok whose session fits; 0 if none does. */
static size_t fitting_tokens(const struct session_args *args, const lk_model *model,
                             const lk_recipe *recipe, size_t n_tok, uint64_t limit) {
    size_t low = 0, high = n_tok; /* low fits, high does not */
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        lk_plan plan;
        bool fits =
            plan_session(args, model, recipe, middle, &plan) && session_bytes(&plan) <= limit;
        if (fits)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int print_need(const struct session_args *args, const lk_model *model,
                      const lk_recipe *recipe, size_t n_tok, const lk_plan *plan, uint64_t limit) {
    char tokens[NUMBER_BUF], need[NUMBER_BUF], have[NUMBER_BUF], fit[NUMBER_BUF], way[2][80] = {""};
    uint64_t bytes = session_bytes(plan);
    const char *preset = smaller_preset(args, model, n_tok, bytes, limit);
    size_t n_fit = preset ? 0 : fitting_tokens(args, model, recipe, n_tok, limit);
    if (preset)
        snprintf(way[0], sizeof way[0], "use --kv %s", preset);
    else if (n_fit)
        snprintf(way[0], sizeof way[0], "%s tokens fit", format_count(fit, n_fit));
    if (args->max_memory)
        snprintf(way[1], sizeof way[1], "%suse --max-memory %llu", *way[0] ? ", or " : "",
                 (unsigned long long)(bytes >> 20) + 1);
    return print_error("%s tokens with %.60s need %s of cache and scratch, but %s%s%s%s%s",
                       format_count(tokens, n_tok), lk_recipe_text(recipe),
                       format_bytes(need, bytes),
                       args->max_memory ? "--max-memory allows " : "the free memory is ",
                       format_bytes(have, limit), *way[0] || *way[1] ? "; " : "", way[0], way[1]);
}

int print_memory_error(const struct session_args *args, const lk_model *model,
                       const lk_recipe *recipe, size_t n_tok, const lk_err *err) {
    lk_plan plan;
    uint64_t limit = session_limit(args);
    bool explained = err->code == LK_E_NOMEM && plan_session(args, model, recipe, n_tok, &plan) &&
                     session_bytes(&plan) > limit;
    return explained ? print_need(args, model, recipe, n_tok, &plan, limit) : print_lk_error(err);
}

int check_memory(const struct session_args *args, const lk_model *model, const lk_recipe *recipe,
                 size_t n_tok) {
    lk_plan plan;
    uint64_t limit = session_limit(args);
    if (!limit || !plan_session(args, model, recipe, n_tok, &plan) || plan.cache_bytes <= limit)
        return STATUS_OK;
    return print_need(args, model, recipe, n_tok, &plan, limit);
}

/* Context shift: the options and their check. */
#include "context_shift.h"

#include "output.h"

struct opt_group shift_options(struct shift_args *args) {
    return (struct opt_group){
        "Context shift",
        {
            {0, "context-shift", NULL, "drop the oldest tokens when the context is full", OPT_FLAG,
             &args->on,
             .man = "When the context is full, drop half of the tokens after the first ones and go "
                    "on, instead of stopping. Nothing is evaluated again. Not for recipes that "
                    "evict rows, whose cache has a fixed size anyway: use a longer `--ctx` there. "
                    "Not for models with learned positions."},
            {0, "keep", "N", "tokens at the start that --context-shift keeps (default -1)", OPT_INT,
             &args->keep, 0, 1 << 24,
             .man = "How many tokens at the start `--context-shift` keeps, rounded up to whole "
                    "blocks of the cache. -1 (default): the prompt of `run`, the system message of "
                    "`chat` and of a request to `serve`.",
             .endless = true},
        },
        .shared = true,
    };
}

int shift_check(const struct shift_args *args, const lk_session *session) {
    const char *why;
    if (!args->on || lk_session_shiftable(session, &why)) return STATUS_OK;
    return print_error("--context-shift: %s", why);
}

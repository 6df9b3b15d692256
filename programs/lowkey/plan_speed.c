/* Reads results of `lowkey bench` and computes with the model of plan_speed.h. */
#include "plan_speed.h"

#include "base/buf.h"
#include "output.h"
#include "text.h"

#include <jansson.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20 };

/* Sums for a line through points (depth, seconds) with weights 1 / seconds^2. */
struct fit {
    double w, wx, wxx, wy, wxy;
    double first; /* the first depth */
    bool varies;  /* there are two depths */
};

static void add_point(struct fit *f, double depth, double seconds) {
    double w = 1 / (seconds * seconds);
    if (f->w == 0.0) f->first = depth;
    f->varies = f->varies || depth != f->first;
    f->w += w;
    f->wx += w * depth;
    f->wxx += w * depth * depth;
    f->wy += w * seconds;
    f->wxy += w * depth * seconds;
}

static struct decode_cost solve(const struct fit *f) {
    double per_token = (f->w * f->wxy - f->wx * f->wy) / (f->w * f->wxx - f->wx * f->wx);
    if (!(per_token > 0)) per_token = 0; /* noise: the depths were too small */
    return (struct decode_cost){.base = (f->wy - per_token * f->wx) / f->w, .per_token = per_token};
}

/* Add the results of a recipe in one process. False if the JSON is not that of `lowkey bench`. */
static bool add_results(const json_t *root, const char *kv, struct fit *fit) {
    const json_t *list = json_object_get(root, "results"), *result;
    size_t i;
    if (!json_is_array(list)) return false;
    json_array_foreach(list, i, result) {
        const char *name = json_string_value(json_object_get(result, "kv"));
        double depth = json_number_value(json_object_get(result, "depth")),
               tps = json_number_value(json_object_get(result, "decode_tps"));
        if (!name) return false;
        if (strcmp(name, kv) == 0 && tps > 0 && depth >= 0 && !json_object_get(result, "n_rank"))
            add_point(fit, depth, 1 / tps);
    }
    return true;
}

int decode_cost_read(const char *path, const char *model, const char *kv, struct decode_cost *out) {
    struct lk_buf text = {0};
    struct fit fit = {0};
    int status = read_text_file(path, "measurement", MAX_FILE_BYTES, &text);
    if (status) return status;
    json_t *root = json_loads(text.at, 0, NULL);
    const char *measured = json_string_value(json_object_get(root, "model"));
    lk_buf_free(&text);
    if (!measured || !add_results(root, kv, &fit))
        status = print_error("%s was not written by 'lowkey bench --json'", path);
    else if (strcmp(measured, model) != 0)
        status = print_error("%s has measurements of the model '%s', not of '%s'", path, measured,
                             model);
    else if (!fit.varies)
        status = print_error("%s has not two depths of %.200s in one process; measure with 'lowkey "
                             "bench --depth 8k,32k -p 0 --json'",
                             path, kv);
    else
        *out = solve(&fit);
    json_decref(root);
    return status;
}

static double exchange_seconds(const struct network *network, const lk_cluster_stats *exchanged) {
    double seconds = (double)exchanged->n_exchange * network->latency;
    if (network->bandwidth > 0) seconds += (double)exchanged->bytes / network->bandwidth;
    return seconds;
}

double decode_seconds(const struct decode_cost *cost, const struct network *network,
                      const lk_cluster_stats *exchanged, uint64_t n_tok, int32_t n_rank) {
    return cost->base + cost->per_token * (double)lk_plan_max_peer_tokens(n_tok, n_rank) +
           exchange_seconds(network, exchanged);
}

uint64_t ranks_win_from(const struct decode_cost *cost, const struct network *network,
                        const lk_cluster_stats *exchanged, int32_t n_rank) {
    double saved = cost->per_token * (1 - 1 / (double)n_rank); /* per token of depth */
    double n_tok = saved > 0 ? exchange_seconds(network, exchanged) / saved : 1e18;
    return n_tok < 1e15 ? (uint64_t)n_tok + 1 : 0;
}

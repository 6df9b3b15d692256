/* Tables, JSON and recipe files of `lowkey tune`. */
#include "tune_report.h"

#include "base/atomic_file.h"
#include "output.h"
#include "table.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *recipe_name(const struct tune_report *r, size_t i) {
    return i + 1 == r->n ? "tuned" : lk_recipe_text(r->recipe[i]);
}

void tune_print_parts(FILE *file, const lk_recipe *recipe) {
    for (const char *at = lk_recipe_text(recipe); *at;) {
        size_t len = strcspn(at, ";");
        fprintf(file, "%.*s\n", (int)len, at);
        at += len;
        at += strspn(at, "; ");
    }
}

void tune_report_print(const struct tune_report *r) {
    char b[NUMBER_BUF];
    if (r->n == 0) {
        const lk_compare_result *c = &r->tuned->measured;
        printf("%.3f bits per value", r->tuned->plan.bits_per_value);
        if (c->n_scored)
            printf(", KL %.6f +- %.6f on %s predictions of the text", c->kl_mean, c->kl_stderr,
                   format_count(b, c->n_scored));
        printf("\n\n");
        tune_print_parts(stdout, r->tuned->recipe);
        return;
    }
    struct table table = table_new("lrRrRRrR");
    table_titles(&table, "recipe|bits/value|B/token|KL mean|+-|KL p99.9|same top|ppl");
    for (size_t i = 0; i < r->n; i++) {
        const lk_compare_result *c = &r->checked[i];
        table_cell(&table, "%s", recipe_name(r, i));
        table_cell(&table, "%.3f", c->bits_per_value);
        table_cell(&table, "%s", format_count(b, (uint64_t)(c->bytes_per_token + 0.5)));
        table_cell(&table, "%.6f", c->kl_mean);
        table_cell(&table, "%.6f", c->kl_stderr);
        table_cell(&table, "%.5f", c->kl_p999);
        table_cell(&table, "%.2f%%", 100 * c->top1);
        table_cell(&table, "%.3f", c->ppl);
    }
    table_print(&table, stdout, true);
    putchar('\n');
    print_paragraph(stdout,
                    "%s predictions in chunks of %d tokens that had no part in tuning; KL(full "
                    "cache || recipe) in nats; bits/value: everything the cache holds",
                    format_count(b, r->checked[0].n_scored), r->chunk);
    printf("\n");
    tune_print_parts(stdout, r->tuned->recipe);
}

static json_t *result_json(const lk_compare_result *c) {
    return json_pack("{s:o s:o s:o s:o s:o s:o s:o s:I}", "kl_mean", json_number(c->kl_mean),
                     "kl_stderr", json_number(c->kl_stderr), "kl_p999", json_number(c->kl_p999),
                     "top1", json_number(c->top1), "ppl", json_number(c->ppl), "bits_per_value",
                     json_number(c->bits_per_value), "bytes_per_token",
                     json_number(c->bytes_per_token), "n_scored", (json_int_t)c->n_scored);
}

/* KL of each layer alone at 1 to 6 and 8 bits: {"k": [layer][bits], "v": ...}. */
static json_t *sensitivity_json(const lk_tune *tune, int n_layer) {
    static const int bits[] = {1, 2, 3, 4, 5, 6, 8};
    json_t *sides[2];
    for (int side = 0; side < 2; side++) {
        sides[side] = json_array();
        for (int layer = 0; layer < n_layer; layer++) {
            json_t *row = json_array();
            for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
                json_array_append_new(row, json_number(lk_tune_kl(tune, layer, side, bits[i])));
            json_array_append_new(sides[side], row);
        }
    }
    return json_pack("{s:[i,i,i,i,i,i,i] s:o s:o}", "bits", 1, 2, 3, 4, 5, 6, 8, "k", sides[0], "v",
                     sides[1]);
}

/* [[bits per value, KL], ...] from 0.6 to 1.6 times the tuned recipe's bytes, scaled so that the
 * tuned recipe's own estimate agrees with what was checked. */
static json_t *estimates_json(const struct tune_report *r, lk_tune *tune) {
    enum { N_ESTIMATE = 12 };
    const lk_compare_result *last = r->n ? &r->checked[r->n - 1] : &r->tuned->measured;
    double scale = r->tuned->estimate > 0 ? last->kl_mean / r->tuned->estimate : 1;
    double bits = last->bits_per_value / (double)r->tuned->plan.cache_bytes;
    json_t *list = json_array();
    for (int i = 0; i < N_ESTIMATE; i++) {
        double share = 0.6 + 1.0 * i / (N_ESTIMATE - 1), kl;
        uint64_t bytes, max = (uint64_t)(share * (double)r->tuned->plan.cache_bytes);
        if (lk_tune_estimate(tune, max, &kl, &bytes, NULL)) continue;
        json_array_append_new(
            list, json_pack("[o,o]", json_number(bits * (double)bytes), json_number(scale * kl)));
    }
    return list;
}

int tune_report_print_json(const struct tune_report *r, lk_tune *tune) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->n; i++) {
        json_t *entry = result_json(&r->checked[i]);
        json_object_set_new(entry, "kv", json_string(lk_recipe_text(r->recipe[i])));
        json_array_append_new(list, entry);
    }
    json_t *all =
        json_pack("{s:s s:s s:I s:I s:o}", "model", r->model, "kv",
                  lk_recipe_text(r->tuned->recipe), "n_ctx", (json_int_t)r->tuned->plan.n_tok,
                  "cache_bytes", (json_int_t)r->tuned->plan.cache_bytes, "results", list);
    if (tune) {
        json_object_set_new(all, "estimate", json_number(r->tuned->estimate));
        json_object_set_new(all, "tuning", result_json(&r->tuned->measured));
        json_object_set_new(all, "sensitivity", sensitivity_json(tune, r->n_layer));
        json_object_set_new(all, "estimates", estimates_json(r, tune));
    }
    return json_print(all, false);
}

/* ---- recipe file ---- */

static void write_result(FILE *file, const char *name, const lk_compare_result *c) {
    fprintf(file,
            "#   %-10s %.3f bits per value, KL %.6f +- %.6f, p99.9 %.5f, same top %.2f%%, "
            "%" PRIu64 " predictions\n",
            name, c->bits_per_value, c->kl_mean, c->kl_stderr, c->kl_p999, 100 * c->top1,
            c->n_scored);
}

static void write_contents(FILE *file, const struct tune_report *r) {
    const lk_plan *plan = &r->tuned->plan;
    char *command = printable_copy(r->command_line),
         *check = printable_copy(r->check_text ? r->check_text : "other parts of the same texts");
    fprintf(file, "# %s\n# model: %s, weights: %s\n", command, r->model, r->weights);
    fprintf(file,
            "# size: %.3f bits per value, %" PRIu64 " bytes at %" PRIu64 " tokens (f16: %" PRIu64
            " bytes)\n",
            plan->bits_per_value, plan->cache_bytes, plan->n_tok, plan->f16_bytes);
    fprintf(file, "# tuned on");
    for (size_t i = 0; i < r->text->n; i++) {
        char *text = printable_copy(r->text->item[i]);
        fprintf(file, "%s %s", i ? "," : "", text);
        free(text);
    }
    fprintf(file, ", in chunks of %d tokens:\n", r->chunk);
    if (r->tuned->measured.n_scored) write_result(file, "tuned", &r->tuned->measured);
    if (r->n) fprintf(file, "# checked on %s:\n", check);
    for (size_t i = 0; i < r->n; i++) write_result(file, recipe_name(r, i), &r->checked[i]);
    tune_print_parts(file, r->tuned->recipe);
    free(command);
    free(check);
}

/* Close a file that is written, and say so. */
static int finish_file(struct lk_atomic_file *file, const char *path) {
    lk_err err = {0};
    lk_status status =
        ferror(file->file) ? lk_fail(&err, LK_E_IO, "%s: cannot write all of it", path) : LK_OK;
    status = lk_atomic_file_close(file, status, &err);
    return status ? print_lk_error(&err) : STATUS_OK;
}

int tune_report_write(const struct tune_report *r, const char *path) {
    lk_err err = {0};
    struct lk_atomic_file file;
    if (lk_atomic_file_open_public(&file, path, &err)) return print_lk_error(&err);
    write_contents(file.file, r);
    return finish_file(&file, path);
}

/* Prints what a session's cache holds. */
#include "cache_report.h"

#include "base/os.h"
#include "output.h"

#include <string.h>

static bool is_f16(const char *codec) { return strcmp(codec, "f16") == 0; }

/* Whether a level of the cache has another codec than f16. */
static bool is_quantizing(const lk_session *session) {
    lk_level_stats level;
    for (size_t i = 0; lk_session_get_level(session, i, &level); i++)
        if (!is_f16(level.k_codec) || !is_f16(level.v_codec)) return true;
    return false;
}

void add_cache_rows(const lk_session *session, struct table *table) {
    lk_session_stats s = lk_session_get_stats(session);
    char a[NUMBER_BUF], b[NUMBER_BUF], c[NUMBER_BUF];
    table_cell(table, "cache");
    table_cell(table, "%s", format_bytes(a, s.cache_bytes));
    table_cell(table, "%s tokens, %s per token, %.2f bits per value", format_count(b, s.n_tok),
               format_bytes(c, (uint64_t)(s.bytes_per_token + 0.5)), s.bits_per_value);
    table_cell(table, "  as f16");
    table_cell(table, "%s", format_bytes(a, s.f16_bytes));
    if (s.cache_bytes > s.f16_bytes && is_quantizing(session))
        table_cell(table, s.code_bytes ? "little to pack yet: the newest tokens stay exact"
                                       : "nothing to pack yet: the newest tokens stay exact");
    else if (s.cache_bytes)
        table_cell(table, "%.2f times as large", (double)s.f16_bytes / (double)s.cache_bytes);
    else
        table_cell(table, " ");
    if (s.device_bytes) {
        table_cell(table, "  on the device");
        table_cell(table, "%s", format_bytes(a, s.device_bytes));
        table_cell(table, "rows, queries and partial sums");
    }
    const struct {
        const char *name;
        uint64_t bytes;
    } part[] = {{"  codes", s.code_bytes},
                {"  scales", s.scale_bytes},
                {"  exact rows", s.exact_bytes},
                {"  states", s.state_bytes},
                {"  padding", s.padding_bytes}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        table_cell(table, "%s", part[i].name);
        table_cell(table, "%s", format_bytes(a, part[i].bytes));
        if (s.cache_bytes)
            table_cell(table, "%.0f%% of the cache",
                       100.0 * (double)part[i].bytes / (double)s.cache_bytes);
        else
            table_cell(table, " ");
    }
    if (s.sidecar_bytes) {
        table_cell(table, "sidecar");
        table_cell(table, "%s", format_bytes(a, s.sidecar_bytes));
        table_cell(table, "shared by sessions; with it %.2f bits per value", s.bits_with_sidecar);
    }
    if (s.tiles) {
        table_cell(table, "tiles read");
        table_cell(table, "%.0f%%", 100.0 * (double)s.tiles_read / (double)s.tiles);
        table_cell(table, "of the tiles that may be left out");
    }
    table_cell(table, "scratch");
    table_cell(table, "%s", format_bytes(a, s.scratch_bytes));
    table_cell(table, "not cache: activations, logits, graphs");
    table_cell(table, "process");
    table_cell(table, "%s", format_bytes(a, lk_os_resident_bytes()));
    table_cell(table, "resident, including the mapped model file");
}

void add_rank_rows(const lk_model *model, lk_session *session, struct table *table) {
    lk_peer_weights w;
    char a[NUMBER_BUF], b[NUMBER_BUF], c[NUMBER_BUF];
    for (int32_t rank = 0; lk_model_get_peer(model, 1, &w) && lk_model_get_peer(model, rank, &w);
         rank++) {
        table_cell(table, "rank %d", rank);
        table_cell(table, "%s", format_bytes(a, lk_session_peer_bytes(session, rank)));
        table_cell(table, "of the cache; layers %d-%d: weights %s, tables %s", w.first_layer,
                   w.first_layer + w.n_layer - 1, format_bytes(b, w.weight_bytes),
                   format_bytes(c, w.table_bytes));
    }
}

json_t *ranks_json(const lk_model *model, lk_session *session) {
    lk_peer_weights w;
    if (!lk_model_get_peer(model, 1, &w)) return NULL;
    json_t *list = json_array();
    for (int32_t rank = 0; lk_model_get_peer(model, rank, &w); rank++)
        json_array_append_new(
            list, json_pack("{s:i s:i s:i s:I s:I s:I}", "stage", (int)w.stage, "first_layer",
                            (int)w.first_layer, "n_layer", (int)w.n_layer, "weight_bytes",
                            (json_int_t)w.weight_bytes, "table_bytes", (json_int_t)w.table_bytes,
                            "cache_bytes", (json_int_t)lk_session_peer_bytes(session, rank)));
    return list;
}

/* A bar of `share` x `width` characters, in steps of 1/8 character if the locale is UTF-8. */
static void format_bar(double share, int width, char *buf, size_t cap) {
    static const char *const eighth[] = {"",       "\u258f", "\u258e", "\u258d",
                                         "\u258c", "\u258b", "\u258a", "\u2589"};
    int parts = (int)(share * width * 8 + 0.5);
    size_t n = 0;
    if (parts == 0 && share > 0.0) parts = 1;
    if (!lk_os_locale_is_utf8()) {
        for (int i = 0; i < (parts + 7) / 8 && n + 1 < cap; i++) buf[n++] = '#';
        buf[n] = 0;
        return;
    }
    buf[0] = 0;
    for (int i = 0; i < parts / 8 && n + 4 < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "\u2588");
    snprintf(buf + n, cap - n, "%s", eighth[parts % 8]);
}

void print_cache_levels(const lk_session *session, FILE *file) {
    lk_level_stats level;
    uint64_t total = 0;
    struct table table = table_new("lllrrRRl");
    for (size_t i = 0; lk_session_get_level(session, i, &level); i++)
        total += level.k_bytes + level.v_bytes;
    table_titles(&table, "level|K|V|K rows|V rows|K bytes|V bytes|share");
    int columns = terminal_width(file), width = columns == 0 || columns >= 100 ? 24 : 10;
    for (size_t i = 0; lk_session_get_level(session, i, &level); i++) {
        char a[NUMBER_BUF], drawn[160];
        double share = total ? (double)(level.k_bytes + level.v_bytes) / (double)total : 0.0;
        format_bar(share, width, drawn, sizeof drawn);
        table_cell(&table, "%s", level.name);
        table_cell(&table, "%s", level.k_codec);
        table_cell(&table, "%s", level.v_codec);
        table_cell(&table, "%s", format_count(a, level.k_rows));
        table_cell(&table, "%s", format_count(a, level.v_rows));
        table_cell(&table, "%s", format_bytes(a, level.k_bytes));
        table_cell(&table, "%s", format_bytes(a, level.v_bytes));
        table_cell(&table, "%3.0f%% %s", 100.0 * share, drawn);
    }
    table_print(&table, file, 1);
}

json_t *cache_json(const lk_session *session) {
    lk_session_stats s = lk_session_get_stats(session);
    return json_pack(
        "{s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:o s:o s:I s:I}", "n_tok",
        (json_int_t)s.n_tok, "code_bytes", (json_int_t)s.code_bytes, "scale_bytes",
        (json_int_t)s.scale_bytes, "exact_bytes", (json_int_t)s.exact_bytes, "padding_bytes",
        (json_int_t)s.padding_bytes, "state_bytes", (json_int_t)s.state_bytes, "cache_bytes",
        (json_int_t)s.cache_bytes, "f16_bytes", (json_int_t)s.f16_bytes, "scratch_bytes",
        (json_int_t)s.scratch_bytes, "device_bytes", (json_int_t)s.device_bytes, "resident_bytes",
        (json_int_t)lk_os_resident_bytes(), "bits_per_value", json_number(s.bits_per_value),
        "bytes_per_token", json_number(s.bytes_per_token), "tiles", (json_int_t)s.tiles,
        "tiles_read", (json_int_t)s.tiles_read);
}

json_t *cache_levels_json(const lk_session *session) {
    json_t *list = json_array();
    lk_level_stats level;
    for (size_t i = 0; lk_session_get_level(session, i, &level); i++) {
        json_array_append_new(
            list, json_pack("{s:s s:s s:s s:I s:I s:I s:I}", "name", level.name, "k", level.k_codec,
                            "v", level.v_codec, "k_rows", (json_int_t)level.k_rows, "v_rows",
                            (json_int_t)level.v_rows, "k_bytes", (json_int_t)level.k_bytes,
                            "v_bytes", (json_int_t)level.v_bytes));
    }
    return list;
}

#include "stats_print.h"

#include "text.h"

#include <math.h>
#include <unistd.h>

uint64_t resident_bytes(void) {
    unsigned long long whole = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    int n = fscanf(file, "%llu %llu", &whole, &resident);
    fclose(file);
    return n == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

void report_cache(const lk_session *session, struct table *table) {
    lk_session_stats s = lk_session_get_stats(session);
    char a[NUMBER_ROOM], b[NUMBER_ROOM], c[NUMBER_ROOM];
    table_cell(table, "cache");
    table_cell(table, "%s", say_bytes(a, s.cache_bytes));
    table_cell(table, "%s tokens, %s a token, %.2f bits a value", say_count(b, s.n_tok),
               say_bytes(c, (uint64_t)(s.bytes_per_token + 0.5)), s.bits_per_value);
    table_cell(table, "  in f16");
    table_cell(table, "%s", say_bytes(a, s.f16_bytes));
    if (s.cache_bytes)
        table_cell(table, "%.2f times as much", (double)s.f16_bytes / (double)s.cache_bytes);
    else
        table_cell(table, " ");
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
        table_cell(table, "%s", say_bytes(a, part[i].bytes));
        if (s.cache_bytes)
            table_cell(table, "%.0f %% of the cache",
                       100.0 * (double)part[i].bytes / (double)s.cache_bytes);
        else
            table_cell(table, " ");
    }
    table_cell(table, "scratch");
    table_cell(table, "%s", say_bytes(a, s.scratch_bytes));
    table_cell(table, "not cache: activations, logits, graphs");
    table_cell(table, "process");
    table_cell(table, "%s", say_bytes(a, resident_bytes()));
    table_cell(table, "resident, the mapped model included");
}

/* `share` of `width` characters, in eighths where the terminal can. */
static void bar(double share, int width, char *buf, size_t cap) {
    static const char *const eighth[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int parts = (int)(share * width * 8 + 0.5);
    size_t n = 0;
    if (parts == 0 && share > 0.0) parts = 1;
    if (!speaks_utf8()) {
        for (int i = 0; i < (parts + 7) / 8 && n + 1 < cap; i++) buf[n++] = '#';
        buf[n] = 0;
        return;
    }
    buf[0] = 0;
    for (int i = 0; i < parts / 8 && n + 4 < cap; i++) n += (size_t)snprintf(buf + n, cap - n, "█");
    snprintf(buf + n, cap - n, "%s", eighth[parts % 8]);
}

void report_levels(const lk_session *session, FILE *file) {
    static const char *const title[] = {"level",  "K",       "V",       "K rows",
                                        "V rows", "K bytes", "V bytes", "share"};
    lk_level_stats level;
    uint64_t whole = 0;
    struct table table = table_new("lllrrrrl");
    for (size_t i = 0; lk_session_get_level(session, i, &level); i++)
        whole += level.k_bytes + level.v_bytes;
    for (size_t i = 0; i < sizeof title / sizeof title[0]; i++) table_cell(&table, "%s", title[i]);
    int columns = terminal_width(file), width = columns == 0 || columns >= 100 ? 24 : 10;
    for (size_t i = 0; lk_session_get_level(session, i, &level); i++) {
        char a[NUMBER_ROOM], drawn[160];
        double share = whole ? (double)(level.k_bytes + level.v_bytes) / (double)whole : 0.0;
        bar(share, width, drawn, sizeof drawn);
        table_cell(&table, "%s", level.name);
        table_cell(&table, "%s", level.k_codec);
        table_cell(&table, "%s", level.v_codec);
        table_cell(&table, "%s", say_count(a, level.k_rows));
        table_cell(&table, "%s", say_count(a, level.v_rows));
        table_cell(&table, "%s", say_bytes(a, level.k_bytes));
        table_cell(&table, "%s", say_bytes(a, level.v_bytes));
        table_cell(&table, "%3.0f%% %s", 100.0 * share, drawn);
    }
    table_print(&table, file, 1);
}

json_t *json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

json_t *json_cache(const lk_session *session) {
    lk_session_stats s = lk_session_get_stats(session);
    return json_pack(
        "{s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:o s:o}", "n_tok", (json_int_t)s.n_tok,
        "code_bytes", (json_int_t)s.code_bytes, "scale_bytes", (json_int_t)s.scale_bytes,
        "exact_bytes", (json_int_t)s.exact_bytes, "padding_bytes", (json_int_t)s.padding_bytes,
        "state_bytes", (json_int_t)s.state_bytes, "cache_bytes", (json_int_t)s.cache_bytes,
        "f16_bytes", (json_int_t)s.f16_bytes, "scratch_bytes", (json_int_t)s.scratch_bytes,
        "resident_bytes", (json_int_t)resident_bytes(), "bits_per_value",
        json_number(s.bits_per_value), "bytes_per_token", json_number(s.bytes_per_token));
}

json_t *json_levels(const lk_session *session) {
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

int json_print(json_t *value, bool one_line) {
    enum { DIGITS = 10 };
    size_t flags = JSON_REAL_PRECISION(DIGITS) | (one_line ? JSON_COMPACT : JSON_INDENT(2));
    if (!value) return complain("out of memory");
    int failed = json_dumpf(value, stdout, flags);
    json_decref(value);
    if (failed) return complain("cannot write the output");
    putchar('\n');
    return finish_output(STATUS_OK);
}

/* lowkey recipes: the presets, or what given recipes mean. */
#include "commands.h"
#include "common.h"
#include "say.h"
#include "stats_print.h"
#include "table.h"
#include "text.h"

#include <string.h>

static json_t *levels_json(const lk_recipe *recipe) {
    json_t *list = json_array();
    lk_recipe_level level;
    for (size_t i = 0; lk_recipe_get_level(recipe, i, &level); i++) {
        json_array_append_new(list, json_pack("{s:s s:s s:s}", "name", level.name, "k",
                                              level.k_codec, "v", level.v_codec));
    }
    return list;
}

static int list_presets_json(void) {
    json_t *list = json_array();
    for (size_t i = 0; lk_recipe_preset(i).name; i++) {
        lk_preset p = lk_recipe_preset(i);
        lk_recipe *recipe = NULL;
        int status = recipe_open(p.text, &recipe);
        if (status) {
            json_decref(list);
            return status;
        }
        json_array_append_new(list, json_pack("{s:s s:s s:s s:s? s:o}", "name", p.name, "text",
                                              p.text, "note", p.note, "sidecar", p.sidecar,
                                              "levels", levels_json(recipe)));
        lk_recipe_free(recipe);
    }
    return json_print(json_pack("{s:o}", "presets", list), false);
}

static int list_presets(void) {
    const char *bold = wants_colour(stdout) ? "\x1b[1m" : "", *plain = *bold ? "\x1b[0m" : "";
    for (size_t i = 0; lk_recipe_preset(i).name; i++) {
        lk_preset p = lk_recipe_preset(i);
        printf("%s%s%s%*s %s\n%*s %s\n", bold, p.name, plain, (int)(12 - strlen(p.name)), "",
               p.text, 12, "", p.note);
        if (p.sidecar)
            printf("%*s needs a sidecar: lowkey compress %s --text BOOK -o FILE, then --sidecar "
                   "FILE\n",
                   12, "", p.sidecar);
    }
    printf("\nA recipe lists levels from the oldest tokens to the newest, for example\n"
           "  sink 4: f16; body: k=rot3 v=rot2; recent 10%%: rot4; window 128: f16\n"
           "  levels: sink N, body (or all, alone), recent N|N%%, window N|N%%, residual N; layers "
           "LIST: body of some layers\n"
           "  body: none drops what is older than the windows; keep N|N%%|N%% of context by "
           "h2o|tova|random|newest\n"
           "  in its place keeps so many of these tokens; sink N(shift) counts positions among the "
           "held ones\n"
           "  codecs: f16, int8, kivi2, kivi4 (g32, g64, g128), rot1 .. rot8 (mean, nomean, sigma, "
           "nosigma, lloyd, uniform);\n"
           "  with a sidecar latent, latent50%%, latent50%%+CODEC; of K also latent50%%(pre)\n");
    return STATUS_OK;
}

static void print_levels(const lk_recipe *recipe) {
    lk_recipe_level level;
    struct table table = table_new("lll");
    table_cell(&table, "level");
    table_cell(&table, "K");
    table_cell(&table, "V");
    for (size_t i = 0; lk_recipe_get_level(recipe, i, &level); i++) {
        table_cell(&table, "%s", level.name);
        table_cell(&table, "%s", level.k_codec);
        table_cell(&table, "%s", level.v_codec);
    }
    table_print(&table, stdout, 1);
}

static int check(const struct texts *kv, bool json) {
    struct recipes recipes;
    int status = recipes_open(kv, "f16", &recipes); /* all are read before one is shown */
    if (status) return status;
    json_t *list = json_array();
    for (size_t i = 0; i < recipes.n; i++) {
        const lk_recipe *recipe = recipes.item[i];
        if (json) {
            json_array_append_new(list, json_pack("{s:s s:o}", "text", lk_recipe_text(recipe),
                                                  "levels", levels_json(recipe)));
        } else {
            printf("%s%s\n", i ? "\n" : "", lk_recipe_text(recipe));
            print_levels(recipe);
        }
    }
    recipes_free(&recipes);
    if (json) return json_print(json_pack("{s:o}", "recipes", list), false);
    json_decref(list);
    return STATUS_OK;
}

int recipes_verb(const struct verb *verb, int argc, char **argv) {
    bool json = false;
    int first;
    struct texts kv = {0};
    const struct opt_group groups[] = {
        {"Output", {{0, "json", NULL, "print JSON", OPT_FLAG, &json, 0, 0}}},
    };
    enum args_result read =
        args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    if (argc - first > LIST_MOST) return complain("more than %d recipes", LIST_MOST);
    while (first < argc) kv.item[kv.n++] = argv[first++];
    if (kv.n) return check(&kv, json);
    return json ? list_presets_json() : list_presets();
}

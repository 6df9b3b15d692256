/* lowkey recipes: list the presets, or check recipes and show their levels. */
#include "commands.h"
#include "common.h"
#include "json_output.h"
#include "output.h"
#include "table.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

static json_t *recipe_levels_json(const lk_recipe *recipe) {
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
                                              "levels", recipe_levels_json(recipe)));
        lk_recipe_free(recipe);
    }
    return json_print(json_pack("{s:o}", "presets", list), false);
}

static int list_presets(void) {
    enum { NAME_COLUMN = 13, DEFAULT_WIDTH = 100 };
    const char *bold = use_color(stdout) ? "\x1b[1m" : "", *plain = *bold ? "\x1b[0m" : "";
    int width = terminal_width(stdout) ? terminal_width(stdout) : DEFAULT_WIDTH;
    for (size_t i = 0; lk_recipe_preset(i).name; i++) {
        lk_preset p = lk_recipe_preset(i);
        printf("%s%s%s%*s", bold, p.name, plain, (int)(NAME_COLUMN - strlen(p.name)), "");
        print_wrapped(stdout, p.text, NAME_COLUMN, NAME_COLUMN + 2, width);
        printf("%*s", NAME_COLUMN, "");
        print_wrapped(stdout, p.note, NAME_COLUMN, NAME_COLUMN, width);
        if (!p.sidecar) continue;
        char *how = xasprintf("needs a sidecar: lowkey compress %s --text BOOK -o FILE, then "
                              "--sidecar FILE",
                              p.sidecar);
        printf("%*s", NAME_COLUMN, "");
        print_wrapped(stdout, how, NAME_COLUMN, NAME_COLUMN, width);
        free(how);
    }
    fputs("\nA recipe lists levels from the oldest tokens to the newest, for example\n"
          "  sink 4: f16; body: k=rot3 v=rot2; recent 10%: rot4; window 128: f16\n\n"
          "Levels\n"
          "  sink N              the first N tokens\n"
          "  sink N(shift)       positions are counted among the tokens that are held\n"
          "  body                all other tokens; 'body: none' drops them; 'all' if alone\n"
          "  keep N by POLICY    in place of body: N tokens that h2o, tova, random or\n"
          "                      newest chooses; also N%, or N% of context\n"
          "  recent N, window N  the newest N tokens; also N%\n"
          "  residual N          KIVI's buffer\n"
          "  layers LIST         other codecs for the body in some layers\n"
          "  eager               rows are encoded before any query attends to them\n"
          "Codecs\n"
          "  f16, int8, kivi2 and kivi4 (g32, g64, g128),\n"
          "  rot1 to rot8 (mean, nomean, sigma, nosigma, lloyd, uniform);\n"
          "  with a sidecar: latent, latent50%, latent50%+CODEC; for K also latent50%(pre)\n",
          stdout);
    return STATUS_OK;
}

static void print_level_table(const lk_recipe *recipe) {
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
    table_print(&table, stdout, true);
}

static int check_recipes(const struct string_list *kv, bool json) {
    struct recipes recipes;
    int status = recipes_open(kv, "f16", &recipes);
    if (status) return status;
    json_t *list = json_array();
    for (size_t i = 0; i < recipes.n; i++) {
        const lk_recipe *recipe = recipes.item[i];
        if (json) {
            json_array_append_new(list, json_pack("{s:s s:o}", "text", lk_recipe_text(recipe),
                                                  "levels", recipe_levels_json(recipe)));
        } else {
            printf("%s%s\n", i ? "\n" : "", lk_recipe_text(recipe));
            print_level_table(recipe);
        }
    }
    recipes_free(&recipes);
    if (json) return json_print(json_pack("{s:o}", "recipes", list), false);
    json_decref(list);
    return STATUS_OK;
}

int cmd_recipes(const struct command *command, int argc, char **argv) {
    bool json = false;
    int first;
    struct string_list kv = {0};
    const struct opt_group groups[] = {
        {"Output", {{0, "json", NULL, "print JSON", OPT_FLAG, &json}}},
    };
    enum args_result result =
        args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
    if (result != ARGS_RUN) return result == ARGS_HELP ? STATUS_OK : STATUS_ERROR;
    if (argc - first > MAX_LIST) return print_error("more than %d recipes", MAX_LIST);
    while (first < argc) kv.item[kv.n++] = argv[first++];
    if (kv.n) return check_recipes(&kv, json);
    return json ? list_presets_json() : list_presets();
}

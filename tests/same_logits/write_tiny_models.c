/* Write every tiny random model of the tests, or the one called NAME, as DIR/NAME.gguf, and print
 * the paths.
 *
 * usage: write_tiny_models DIR [NAME] */
#include "tiny_gguf.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 2 && argc != 3) return fprintf(stderr, "usage: write_tiny_models DIR [NAME]\n"), 2;
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) {
        struct tiny_spec longer = *spec;
        if (argc == 3 && strcmp(argv[2], spec->name) != 0) continue;
        if (longer.n_ctx < 512) longer.n_ctx = 512; /* room for full levels */
        /* A sidecar needs a text, and no other model without RoPE has a tokenizer. */
        if (!strcmp(spec->name, "bloom")) longer.tokenizer = TINY_BPE;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.gguf", argv[1], spec->name);
        if (!tiny_gguf_write(path, &longer)) return fprintf(stderr, "cannot write %s\n", path), 1;
        puts(path);
    }
    return 0;
}

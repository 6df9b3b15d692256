/* Runs the fuzz targets on their seeds, and on variants of these, in an ordinary build: for
 * test_fuzz_seeds.sh.
 *
 * usage: replay_seeds FOLDER VARIANTS   FOLDER/NAME has the seeds of the target NAME
 *
 * FUZZ_TARGETS lists the targets. In this program LLVMFuzzerTestOneInput of a target is fuzz_NAME,
 * and LLVMFuzzerInitialize, if it has one, start_NAME. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET(name)                                                                               \
    int fuzz_##name(const uint8_t *data, size_t size);                                             \
    int start_##name(int *argc, char ***argv) __attribute__((weak));
FUZZ_TARGETS
#undef TARGET

enum { MAX_SEED = 1 << 20 };

static const struct target {
    const char *name;
    int (*run)(const uint8_t *data, size_t size);
    int (*start)(int *argc, char ***argv); /* may be NULL */
} targets[] = {
#define TARGET(name) {#name, fuzz_##name, start_##name},
    FUZZ_TARGETS
#undef TARGET
};

static uint64_t draw(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

/* A variant: cut, or with some bytes changed. */
static size_t vary(uint8_t *data, size_t size, uint64_t *random) {
    static const uint8_t byte[] = {0, 1, 0xFF, '"', '{', '}', 0x80, ' ', '-', '9'};
    if (size == 0) return 0;
    if (draw(random) % 4 == 0) return draw(random) % size;
    for (uint64_t n = 1 + draw(random) % 4; n > 0; n--) {
        size_t at = draw(random) % size;
        data[at] = draw(random) % 2 ? byte[draw(random) % sizeof byte]
                                    : (uint8_t)(data[at] + (draw(random) % 2 ? 1 : -1));
    }
    return size;
}

static int run_seed(const struct target *t, const char *path, int n_variant) {
    static uint8_t seed[MAX_SEED];
    uint64_t random = 1;
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    size_t size = fread(seed, 1, sizeof seed, file);
    fclose(file);
    for (int i = 0; i <= n_variant; i++) {
        uint8_t *data = malloc(size + 1); /* of its own, so that tools see reads beyond it */
        if (!data) return 0;
        memcpy(data, seed, size);
        t->run(data, i ? vary(data, size, &random) : size);
        free(data);
    }
    return n_variant + 1;
}

int main(int argc, char **argv) {
    char path[4096];
    if (argc != 3) return 2;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        int n = 0, n_seed = 0;
        if (targets[i].start) targets[i].start(&argc, &argv);
        snprintf(path, sizeof path, "%s/%s", argv[1], targets[i].name);
        DIR *folder = opendir(path);
        for (struct dirent *e; folder && (e = readdir(folder));) {
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s/%s", argv[1], targets[i].name, e->d_name);
            n += run_seed(&targets[i], path, atoi(argv[2]));
            n_seed++;
        }
        if (folder) closedir(folder);
        printf("%s: %d seeds, %d inputs\n", targets[i].name, n_seed, n);
        fflush(stdout);
        if (n == 0) return 1;
    }
    return 0;
}

/* Edit distance of short words. */
#include "base/closest.h"

#include "base/ascii.h"

#include <string.h>

enum { MAX_WORD = 40 };

static unsigned min3(unsigned a, unsigned b, unsigned c) {
    unsigned ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Optimal string alignment distance. Lengths are at most MAX_WORD. Rows of the usual table are kept
 * in a ring of three. */
static unsigned edit_distance(const char *a, size_t n_a, const char *b, size_t n_b) {
    unsigned row[3][MAX_WORD + 1];
    for (size_t j = 0; j <= n_b; j++) row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n_a; i++) {
        unsigned *now = row[i % 3];
        const unsigned *above = row[(i - 1) % 3], *above_2 = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            char x = lk_to_lower(a[i - 1]), y = lk_to_lower(b[j - 1]);
            now[j] = min3(above[j] + 1, now[j - 1] + 1, above[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == lk_to_lower(b[j - 2]) && y == lk_to_lower(a[i - 2]) &&
                above_2[j - 2] + 1 < now[j])
                now[j] = above_2[j - 2] + 1;
        }
    }
    return row[n_a % 3][n_b];
}

void lk_closest_offer(struct lk_closest *search, const char *name) {
    size_t n_name = strlen(name);
    if (search->len == 0 || search->len > MAX_WORD || n_name > MAX_WORD) return;
    unsigned distance = edit_distance(search->word, search->len, name, n_name);
    if (distance * 3 > (search->len > n_name ? search->len : n_name)) return;
    if (search->name && distance >= search->distance) return;
    search->name = name;
    search->distance = distance;
}

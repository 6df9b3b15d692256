#include "kern/kern.h"

#include <string.h>

const struct lk_kern *lk_kern_choose(const char *name) {
    return !name || strcmp(name, "reference") == 0 ? &lk_kern_reference : NULL;
}

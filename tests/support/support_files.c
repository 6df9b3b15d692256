/* Files in a temporary folder that stands for the root of a system. */
#include "support_files.h"

#include "test.h"

#include <sys/stat.h>

void write_file_below(const char *root, const char *name, const char *text) {
    char path[200];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *end = path + strlen(root) + 1; (end = strchr(end, '/')); *end++ = '/') {
        *end = 0;
        mkdir(path, 0700);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

void remove_system_below(const char *root) {
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s/proc %s/sys", root, root);
    assert_int_equal(system(command), 0);
}

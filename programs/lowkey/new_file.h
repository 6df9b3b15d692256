/* A file that appears under its name when it is whole, and not at all where something fails before. */
#ifndef LK_LOWKEY_NEW_FILE_H
#define LK_LOWKEY_NEW_FILE_H

#include <stdio.h>

struct new_file {
    const char *path; /* borrowed */
    char *temporary;
    FILE *file;
};

/* STATUS_OK, or STATUS_BAD after a message. */
int new_file_open(struct new_file *f, const char *path);

/* Keep it, on disk, where status is STATUS_OK; returns the status to end with. */
int new_file_close(struct new_file *f, int status);

/* Could it be written? Asked before long work. */
int new_file_try(const char *path);

#endif

/* Files in a temporary folder that stands for the root of a system. */
#ifndef LK_TESTS_SUPPORT_FILES_H
#define LK_TESTS_SUPPORT_FILES_H

/* Write the file `name`, which starts with a slash, below `root`, and make its folders. */
void write_file_below(const char *root, const char *name, const char *text);

/* Remove `root`'s folders proc and sys. */
void remove_system_below(const char *root);

#endif

/* The sections of the man page that do not come from the command and option tables. */
#ifndef LK_LOWKEY_MAN_TEXT_H
#define LK_LOWKEY_MAN_TEXT_H

/* One block of a section, `literal` in backquotes:
 *   term and text  an item of a list
 *   text alone     a paragraph
 *   code           lines to be shown as they are */
struct man_block {
    const char *term, *text, *code;
};

struct man_section {
    const char *title;
    struct man_block block[28]; /* up to the first empty one */
};

enum { N_MAN_SECTIONS = 4 };
extern const struct man_section man_sections[N_MAN_SECTIONS]; /* RECIPES to FILES, in order */

/* DESCRIPTION: paragraphs before and after the list of commands. */
extern const char *const man_introduction, *const man_conventions;

#endif

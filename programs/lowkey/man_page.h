/* The man page lowkey(1), made from the command and option tables. */
#ifndef LK_LOWKEY_MAN_PAGE_H
#define LK_LOWKEY_MAN_PAGE_H

/* Print the page to stdout in the man(7) macros of roff. */
void print_man_page(void);

#endif

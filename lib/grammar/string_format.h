/* The formats of JSON Schema ("date-time", "uuid") as regular expressions. */
#ifndef LK_TOKEN_STRING_FORMAT_H
#define LK_TOKEN_STRING_FORMAT_H

/* The expression (pattern.h) of a format. Static. NULL if the format does not restrict strings. */
const char *lk_string_format_pattern(const char *format);

#endif

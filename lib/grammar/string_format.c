/* The formats of JSON Schema as regular expressions. */
#include "grammar/string_format.h"

#include <string.h>

#define YEAR_MONTH_DAY                                                                             \
    "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|" \
    "02-(0[1-9]|1[0-9]|2[0-8]))|([1-9][0-9](0[48]|[2468][048]|[13579][26])|"                       \
    "([2468][048]|[13579][26])00)-02-29)"
#define TIME_OF_DAY "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
#define ZONE "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HEX4 "[0-9A-Fa-f]{1,4}"

const char *lk_string_format_pattern(const char *format) {
    /* Fewer texts than the standards allow (RFC 3339, 4122, 5322, 1123, 3986, ISO 8601), and none
     * that they do not allow. */
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "^" YEAR_MONTH_DAY "$"},
        {"time", "^" TIME_OF_DAY ZONE "$"},
        {"date-time", "^" YEAR_MONTH_DAY "T" TIME_OF_DAY ZONE "$"},
        {"duration", "^P([0-9]{1,6}W|[0-9]{1,6}D(T[0-9]{1,6}[HMS])?|"
                     "T([0-9]{1,6}H)?[0-9]{1,6}M([0-9]{1,6}S)?|T[0-9]{1,6}[HS])$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        {"email",
         "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,31})?@(" LABEL "\\.){1,3}[A-Za-z]{2,20}$"},
        {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
        {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
        {"ipv6", "^(" HEX4 "(:" HEX4 "){7}|::1|::|" HEX4 "(:" HEX4 "){0,5}::(" HEX4 ")?)$"},
        {"uri", "^[a-z][a-z0-9+.-]{1,15}://" LABEL "(\\." LABEL "){0,3}(:[1-9][0-9]{0,3})?"
                "(/[A-Za-z0-9_.~!$&'()*+,;=:@-]{0,200}){0,16}"
                "(\\?[A-Za-z0-9_.~!$&'()*+,;=:@/?-]{0,500})?(#[A-Za-z0-9_.~-]{0,100})?$"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(format, formats[i].name) == 0) return formats[i].pattern;
    return NULL;
}

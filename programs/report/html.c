/* Text in HTML and XML documents. */
#include "report/html.h"

void lk_html_escape(FILE *out, const char *text) {
    for (const char *c = text; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        switch (*c) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&#39;", out); break;
        default:
            if ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 127)
                fputs("\xef\xbf\xbd", out);
            else
                fputc(byte, out);
        }
    }
}

void lk_html_text(FILE *out, const char *before, const char *text, const char *after) {
    fputs(before, out);
    lk_html_escape(out, text);
    fputs(after, out);
}

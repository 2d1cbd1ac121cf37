#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/flags.h"

void pd_log(pd_level level, const char *fmt, ...) {
    if ((int)level > pd_flags_get()->LOG) return;
    char line[2048];
    int head = snprintf(line, sizeof line, "pydist: ");
    va_list args;
    va_start(args, fmt);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, fmt, args);
    va_end(args);
    size_t n = (size_t)head + (body > 0 ? (size_t)body : 0);
    if (n > sizeof line - 1) n = sizeof line - 1;
    line[n++] = '\n';
    /* A single write, so that the lines of several ranks do not mix. */
    if (write(STDERR_FILENO, line, n) < 0) return;
}

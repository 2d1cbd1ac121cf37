#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local pd_error error = {.rank = -1};

static const char *base_name(const char *file) {
    const char *csrc = strstr(file, "csrc/");
    return csrc ? csrc + 5 : file;
}

void pd_fail_at(const char *file, int line, pd_status kind, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char text[PD_ERROR_TEXT]; /* a buffer of its own, so that the old text may be an argument */
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(error.text, text, sizeof text);
    error.kind = kind;
    error.rank = -1;
    error.number = 0;
    snprintf(error.trail, sizeof error.trail, "%s:%d", base_name(file), line);
}

void pd_trail_at(const char *file, int line) {
    size_t used = strlen(error.trail);
    snprintf(error.trail + used, sizeof error.trail - used, " < %s:%d", base_name(file), line);
}

void pd_error_set_rank(int rank) { error.rank = rank; }
void pd_error_set_number(int number) { error.number = number; }
const pd_error *pd_error_get(void) { return &error; }
void pd_error_save(pd_error *to) { *to = error; }

pd_status pd_error_restore(const pd_error *from) {
    error = *from;
    return error.kind;
}

/* Errors. A function that can fail returns pd_status and leaves results in its last pointer arguments.

   The function that finds an error sets its text by pd_fail(); on the way out PD_TRY adds file:line to a trail. Each
   thread has one record. Nothing below py/ prints, exits or touches Python; only py/raise.c turns a record into an
   exception. pd_error_save and pd_error_restore carry a record to another thread. */
#ifndef PD_BASE_STATUS_H
#define PD_BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum pd_status {
    PD_OK = 0,
#define PD_STATUS(name, cls) PD_E_##name,
#include "base/status.def"
#undef PD_STATUS
    PD_STATUS_COUNT
} pd_status;

#define PD_ERROR_TEXT 2048
#define PD_ERROR_TRAIL 512

typedef struct pd_error {
    pd_status kind;
    int rank;              /* the failed peer (PD_E_PEER), else -1 */
    int number;            /* errno (PD_E_OS of io/file.h), else 0 */
    char text[PD_ERROR_TEXT];
    char trail[PD_ERROR_TRAIL]; /* "file:line < file:line", innermost first */
} pd_error;

/* Stores kind and text in this thread's record. A text that is too long is cut. */
void pd_fail_at(const char *file, int line, pd_status kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5), cold));
void pd_trail_at(const char *file, int line) __attribute__((cold));
void pd_error_set_rank(int rank);
void pd_error_set_number(int number);
const pd_error *pd_error_get(void); /* [borrowed from the thread] the last failure */
void pd_error_save(pd_error *to);
pd_status pd_error_restore(const pd_error *from); /* returns from->kind */

/* Both have the value of `kind` itself, so that the compiler sees that a failure never returns PD_OK. */
#define pd_fail(kind, ...)                                      \
    __extension__({                                             \
        pd_fail_at(__FILE__, __LINE__, kind, __VA_ARGS__);      \
        (pd_status)(kind);                                      \
    })
static inline pd_status pd_trail(const char *file, int line, pd_status kind) {
    pd_trail_at(file, line);
    return kind;
}
#define PD_TRY(call)                                                                         \
    do {                                                                                     \
        pd_status pd_try_ = (call);                                                          \
        if (__builtin_expect(pd_try_ != PD_OK, 0)) return pd_trail(__FILE__, __LINE__, pd_try_); \
    } while (0)
/* PD_TRY for a function with one cleanup label: sets `status` and jumps there. */
#define PD_TRY_TO(label, call)                                     \
    do {                                                           \
        status = (call);                                           \
        if (__builtin_expect(status != PD_OK, 0)) {                \
            pd_trail_at(__FILE__, __LINE__);                       \
            goto label;                                            \
        }                                                          \
    } while (0)

/* The status itself; if it is a failure, this line is added to its trail: `return PD_TRAIL(status)` after cleaning
   up. */
#define PD_TRAIL(status)                                                      \
    __extension__({                                                           \
        pd_status pd_trail_ = (status);                                       \
        pd_trail_ != PD_OK ? pd_trail(__FILE__, __LINE__, pd_trail_) : PD_OK; \
    })
/* PD_TRY for a function that goes on and cleans up at its end: sets `status`; skips the call if it is a failure
   already. */
#define PD_THEN(call)                                                                       \
    do {                                                                                    \
        if (status == PD_OK && (status = (call)) != PD_OK) pd_trail_at(__FILE__, __LINE__); \
    } while (0)

#endif

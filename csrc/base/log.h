/* Writes log lines to a function that py/ sets, or to stderr until then. PYDIST_LOG says which levels are written. */
#ifndef PD_BASE_LOG_H
#define PD_BASE_LOG_H

typedef enum pd_level { PD_LOG_WARN = 1, PD_LOG_INFO = 2, PD_LOG_DEBUG = 3 } pd_level;

void pd_log(pd_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* pd_log, but only once in the process for each `flag`, a static int that starts at 0. */
#define pd_log_once(flag, level, ...) \
    do {                              \
        static int flag;              \
        if (!__atomic_exchange_n(&flag, 1, __ATOMIC_RELAXED)) pd_log(level, __VA_ARGS__); \
    } while (0)

#endif

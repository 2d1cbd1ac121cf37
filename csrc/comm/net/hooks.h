/* What comm/ needs from the program that embeds it. py/ fills one static table; a plain C program passes NULL members.

   A wait gives up the host's lock (base/host.h) when it goes from spinning to sleeping, calls interrupt() about every
   50 ms while it sleeps, and takes the lock back before it returns. */
#ifndef PD_COMM_HOOKS_H
#define PD_COMM_HOOKS_H

#include <stdbool.h>

#include "base/host.h"
#include "base/os.h"

/* The longest sleep between two calls of the interrupt hook (docs/internals/design.md, "One ordered queue"). */
#define PD_SLICE_NS 50000000

typedef struct pd_hooks {
    pd_status (*interrupt)(void); /* anything but PD_OK ends the wait with that error */
    void (*site)(uint64_t site, char *text, size_t size); /* "train.py:12", or "" if unknown */
    void (*place)(char *text, size_t size); /* "train.py:12, in main": where the program is now; at most 200 ms */
    void (*also)(char *text, size_t size); /* lines for pd_status_report, after the flight record; at most 200 ms */
    /* The id of the process that has asked for pd_status_report by SIGUSR1; 0: none has, -1: its id is unknown. */
    int (*status_request)(void);
} pd_hooks;

static inline pd_status pd_hooks_interrupt(const pd_hooks *h) { return h && h->interrupt ? h->interrupt() : PD_OK; }

#endif

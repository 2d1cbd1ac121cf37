#include "base/fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/flags.h"
#include "base/os.h"

const char *const pd_fault_names[PD_FAULTS] = {
    [PD_FAULT_MALLOC] = "malloc", [PD_FAULT_SEND] = "send",       [PD_FAULT_RECV] = "recv",
    [PD_FAULT_WRITE] = "write",   [PD_FAULT_NOSPACE] = "nospace", [PD_FAULT_FSYNC] = "fsync",
    [PD_FAULT_RENAME] = "rename", [PD_FAULT_KILL] = "kill",       [PD_FAULT_STRIPE] = "stripe",
};

static struct { _Atomic int64_t at, seen; } faults[PD_FAULTS]; /* at 0: no fault */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_flag(void) {
    const char *text = pd_flags_get()->FAULT, *colon = strchr(text, ':');
    for (int k = 0; colon && k < PD_FAULTS; k++)
        if (strlen(pd_fault_names[k]) == (size_t)(colon - text) &&
            !strncmp(text, pd_fault_names[k], (size_t)(colon - text)))
            faults[k].at = strtoll(colon + 1, NULL, 10);
}

bool pd_fault_now(pd_fault kind) {
    pthread_once(&once, read_flag);
    int64_t at = faults[kind].at;
    if (__builtin_expect(at == 0, 1)) return false;
    return ++faults[kind].seen == at;
}

void pd_fault_end_process(pd_fault kind) {
    if (pd_fault_now(kind)) kill(pd_os_pid(), SIGKILL);
}

bool pd_fault_armed(pd_fault kind) { return faults[kind].at != 0; }

int64_t pd_fault_set(pd_fault kind, int64_t n) {
    pthread_once(&once, read_flag);
    int64_t before = faults[kind].seen;
    faults[kind].seen = 0;
    faults[kind].at = n;
    return before;
}

#include "parallel/between.h"

#include "autograd/apply.h"
#include "base/os.h"

#define GROUPS 4       /* more wait for the next call of their own */
#define PAUSE_NS 50000 /* between two looks, which may cost a call of the system for each peer */

static _Thread_local pd_group *groups[GROUPS]; /* [strong] */
static _Thread_local int64_t looked;

static void look(void) {
    bool any = false;
    for (int k = 0; k < GROUPS; k++) {
        pd_group *g = groups[k];
        if (!g) continue;
        pd_error e;
        pd_error_save(&e);
        if (!pd_group_progress(g) && !pd_group_is_idle(g)) any = true;
        else { /* it has ended, or failed: the next wait says so */
            groups[k] = NULL;
            pd_group_release(g);
        }
        pd_error_restore(&e);
    }
    if (!any) pd_between_kernels = NULL;
}

static void look_again(void) {
    int64_t now = pd_os_now();
    if (now - looked < PAUSE_NS) return;
    looked = now;
    look();
}

void pd_between_begin(pd_group *g) {
    int free = -1;
    for (int k = 0; k < GROUPS; k++) {
        if (groups[k] == g) return;
        if (!groups[k]) free = k;
    }
    if (free < 0) return;
    pd_group_retain(groups[free] = g);
    pd_between_kernels = look_again;
}

void pd_between_end(void) {
    if (pd_between_kernels) look();
}

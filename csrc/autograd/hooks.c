/* Lists of hooks, which may change while a backward walks them. */
#include "autograd/apply.h"
#include "base/mem.h"

static atomic_uint_fast64_t next_hook = 1;
atomic_int pd_hooks_running;

static void hook_let_go(pd_hook *h) {
    if (atomic_fetch_sub(&h->users, 1) != 1) return;
    pd_closure c = h->closure;
    h->closure = (pd_closure){0};
    pd_closure_drop(&c);
}

void pd_hooks_free(pd_hook *h) {
    while (h) {
        pd_hook *next = h->next;
        if (h->id) hook_let_go(h);
        pd_free(h);
        h = next;
    }
}

/* Unlinks removed hooks, unless a backward may be walking a list. */
static void purge(pd_hook **list) {
    if (pd_hooks_running) return;
    while (*list) {
        pd_hook *h = *list;
        if (h->users) {
            list = &h->next;
            continue;
        }
        *list = h->next;
        pd_free(h);
    }
}

uint64_t pd_hook_add(pd_hook **list, pd_hook_kind kind, int index, pd_closure c, pd_status *status) {
    pd_hook *h;
    purge(list);
    if ((*status = pd_malloc(sizeof *h, "hook", &h))) return 0;
    *h = (pd_hook){.closure = c, .kind = kind, .index = index, .users = 1, .id = atomic_fetch_add(&next_hook, 1)};
    while (*list) list = &(*list)->next; /* hooks run in the order in which they were added */
    *list = h;
    return h->id;
}

void pd_hook_remove(pd_hook **list, uint64_t id) {
    for (pd_hook *h = *list; h; h = h->next)
        if (h->id == id) {
            h->id = 0;
            hook_let_go(h); /* perhaps the list is being walked and this hook called */
            break;
        }
    purge(list);
}

pd_status pd_hook_call(pd_hook *h, void *arg) {
    if (!pd_hold(&h->users)) return PD_OK;
    const bool plain = pd_parts_are_plain;
    pd_parts_are_plain = false; /* hooks see parts as such */
    pd_status status = h->closure.call(h->closure.ctx, arg);
    pd_parts_are_plain = plain;
    hook_let_go(h);
    return status;
}

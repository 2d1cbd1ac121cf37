#include "comm/link/link.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/flags.h"
#include "base/mem.h"

void pd_link_init(pd_link *link, const pd_link_ops *ops, int rank, int world, const pd_hooks *hooks) {
    *link = (pd_link){.ops = ops, .hooks = hooks, .rank = rank, .world = world, .host_rank = -1,
                      .forks = pd_forks};
    atomic_init(&link->refs, 1);
    atomic_init(&link->epochs, 0);
    pthread_mutex_init(&link->lock, NULL);
}

void pd_link_fini(pd_link *link) {
    pthread_mutex_destroy(&link->lock);
    pd_free(link->tasks);
}

void pd_link_retain(pd_link *link) { atomic_fetch_add_explicit(&link->refs, 1, memory_order_relaxed); }

void pd_link_release(pd_link *link) {
    if (!link || atomic_fetch_sub_explicit(&link->refs, 1, memory_order_acq_rel) > 1) return;
    if (pd_forked_since(link->forks)) return; /* locks and threads are the parent's; the child leaks a few bytes */
    pd_link_close(link);
    link->ops->free(link);
}

void pd_link_close(pd_link *link) {
    if (pd_forked_since(link->forks)) return;
    pthread_mutex_lock(&link->lock);
    bool first = !link->closed;
    link->closed = true;
    pthread_mutex_unlock(&link->lock);
    if (first) link->ops->close(link);
}

pd_status pd_link_check(pd_link *link) {
    if (pd_forked_since(link->forks))
        return pd_fail(PD_E_DIST,
                       "comm: this process was forked from rank %d, and a forked child has no groups and no store "
                       "(expected workers started with spawn, or init in the child)",
                       link->rank);
    pthread_mutex_lock(&link->lock);
    bool closed = link->closed;
    pthread_mutex_unlock(&link->lock);
    return closed
               ? pd_fail(
                     PD_E_DIST,
                     "comm: rank %d has left the job, so its control connection is closed (expected calls before that)",
                     link->rank)
               : PD_OK;
}

void pd_link_raised(pd_link *link, const char *traceback) {
    if (pd_link_check(link)) return;
    link->ops->tell(link, &(pd_link_event){.kind = PD_EVENT_RAISED, .rank = link->rank}, traceback);
}

/* The end of a text. If a traceback is too long its end is kept, which says most. */
static const char *tail(const char *text, size_t room) {
    size_t n = strlen(text);
    if (n <= room) return text;
    const char *line = strchr(text + (n - room), '\n');
    return line ? line + 1 : text + (n - room);
}

/* Adds lines, indented, since they are another rank's and must not look like our own traceback. */
static void quote(pd_error *e, const char *lines) {
    size_t n = strlen(e->text);
    for (const char *line = tail(lines, 1500); *line && n < sizeof e->text;) {
        int length = (int)strcspn(line, "\n");
        n += (size_t)snprintf(e->text + n, sizeof e->text - n, "\n    %.*s", length, line);
        line += length + (line[length] == '\n');
    }
}

static pd_weight describe(const pd_link *link, const pd_link_event *n, const char *text, pd_error *e) {
    pd_weight weight = PD_WEIGHT_GONE;
    char pid[32] = "";
    const char *rest = strchr(text, '\n'); /* after a death: a cause, then perhaps a traceback */
    e->kind = PD_E_PEER;
    e->rank = n->rank;
    e->trail[0] = 0;
    switch (n->kind) {
    case PD_EVENT_LEFT:
        weight = PD_WEIGHT_LEFT;
        snprintf(e->text, sizeof e->text, "rank %d left the group (pid %d %s)", n->rank, n->pid,
                 n->epoch ? "destroyed it" : "ended normally");
        break;
    case PD_EVENT_ABORT:
        if (n->status > PD_OK && n->status < PD_STATUS_COUNT) e->kind = (pd_status)n->status;
        if (e->kind != PD_E_PEER) e->rank = -1;
        snprintf(e->text, sizeof e->text, "rank %d gave up: %s", n->rank, text);
        break;
    case PD_EVENT_RAISED:
        snprintf(e->text, sizeof e->text, "rank %d (pid %d) raised:", n->rank, n->pid);
        quote(e, text);
        break;
    case PD_EVENT_DEAD:
        if (n->pid) snprintf(pid, sizeof pid, " (pid %d)", n->pid); /* 0: it had not joined */
        snprintf(e->text, sizeof e->text, "rank %d%s %.*s", n->rank, pid, (int)strcspn(text, "\n"), text);
        if (rest) quote(e, rest + 1);
        break;
    default:
        if (link->host_rank < 0) e->kind = PD_E_DIST;
        e->rank = link->host_rank;
        if (link->host_rank < 0)
            snprintf(e->text, sizeof e->text, "rank %d: the launcher is gone (%s)", link->rank, text);
        else
            snprintf(e->text, sizeof e->text, "rank %d, which hosted the control server, is gone (%s)", link->host_rank,
                     text);
    }
    return weight;
}

/* ---- where everybody is ------------------------------------------------------------------------------------------ */

void pd_link_ask(pd_link *link, int rank) {
    if (!link->ops->answers) return;
    pthread_mutex_lock(&link->lock);
    pd_place *p = NULL;
    for (unsigned i = 0; i < PD_PLACES && i < link->asked; i++)
        if (link->places[i].rank == rank) p = &link->places[i];
    if (!p) p = &link->places[link->asked++ % PD_PLACES];
    p->rank = rank;
    p->on = -1;
    *p->text = 0;
    pthread_mutex_unlock(&link->lock);
    link->ops->tell(link, &(pd_link_event){.kind = PD_EVENT_WHERE, .rank = link->rank, .status = rank}, "");
}

bool pd_link_place(pd_link *link, int rank, char *text, size_t size) {
    *text = 0;
    pthread_mutex_lock(&link->lock);
    for (unsigned i = 0; i < PD_PLACES && i < link->asked; i++)
        if (link->places[i].rank == rank) snprintf(text, size, "%s", link->places[i].text);
    pthread_mutex_unlock(&link->lock);
    return *text != 0;
}

int pd_link_waits_for(pd_link *link, int rank) {
    int on = -1;
    pthread_mutex_lock(&link->lock);
    for (unsigned i = 0; i < PD_PLACES && i < link->asked; i++)
        if (link->places[i].rank == rank) on = link->places[i].on;
    pthread_mutex_unlock(&link->lock);
    return on;
}

void pd_link_task(pd_link *link, const char *name, double seconds) {
    int32_t whole = seconds < 1e9 ? (int32_t)(seconds + 0.999) : 1000000000;
    if (pd_link_check(link)) return;
    link->ops->tell(link, &(pd_link_event){.kind = PD_EVENT_TASK, .rank = link->rank, .status = whole}, name);
}

int64_t pd_link_task_of(pd_link *link, int rank, char *name, size_t size) {
    int64_t until = 0;
    *name = 0;
    pthread_mutex_lock(&link->lock);
    if (link->tasks && link->tasks[rank].until) {
        until = link->tasks[rank].until;
        snprintf(name, size, "%s", link->tasks[rank].name);
    }
    pthread_mutex_unlock(&link->lock);
    return until;
}

size_t pd_link_flight(pd_link *link, int rows, char *text, size_t size) {
    size_t n = 0;
    int64_t since;
    int on;
    if (size) *text = 0;
    pthread_mutex_lock(&link->lock);
    for (pd_listener *l = link->listeners; l; l = l->next)
        if (l->report) n += l->report(l, rows, &since, &on, text + n, size - n);
    pthread_mutex_unlock(&link->lock);
    return n;
}

/* The letter by which the kernel gives the state of the process's first thread: R runs, S sleeps, D waits for a
   disk. */
static char thread_state(void) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", pd_os_pid());
    FILE *f = fopen(path, "re");
    if (!f) return '?';
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    const char *end = strrchr(line, ')');
    return end && end[1] == ' ' ? end[2] : '?';
}

int pd_link_standing(pd_link *link, int64_t *since, char *text, size_t size) {
    char line[600];
    int64_t began;
    int who, on = -1;
    if (size) *text = 0;
    *since = 0;
    pthread_mutex_lock(&link->lock);
    for (pd_listener *l = link->listeners; l && !*since; l = l->next) {
        if (!l->report || !l->report(l, 0, &began, &who, line, sizeof line)) continue;
        if (began || !*text) snprintf(text, size, "%s%s", began ? "it " : "", line);
        *since = began;
    }
    pthread_mutex_unlock(&link->lock);
    if (*since && pd_os_now() - *since >= (int64_t)(pd_flags_get()->BLOCKED * 1e9)) on = who;
    return on;
}

int pd_link_waits_now(pd_link *link) {
    char line[600];
    int64_t since = 0;
    int who, on = -1;
    pthread_mutex_lock(&link->lock);
    for (pd_listener *l = link->listeners; l && !since; l = l->next)
        if (l->report && l->report(l, 0, &since, &who, line, sizeof line) && since) on = who;
    pthread_mutex_unlock(&link->lock);
    return on;
}

int pd_link_here(pd_link *link, char *text, size_t size) {
    char last[600], place[300] = "";
    int64_t since;
    int on = pd_link_standing(link, &since, last, sizeof last);
    if (since) {
        snprintf(text, size, "%s", last);
        return on;
    }
    char state = thread_state();
    if (link->hooks && link->hooks->place) link->hooks->place(place, sizeof place);
    const char *does = state == 'R' ? "it computes" : state == 'D' ? "it waits for a device" : "it sleeps";
    snprintf(text, size, "%s%s%s%s%s", does, *place ? " at " : "", place, *last ? "; " : "", last);
    return -1;
}

/* Needs the lock. */
static void hear_place(pd_link *link, const pd_link_event *n, const char *text) {
    for (unsigned i = 0; i < PD_PLACES && i < link->asked; i++)
        if (link->places[i].rank == n->rank) {
            link->places[i].on = (int)n->epoch - 1;
            snprintf(link->places[i].text, sizeof link->places[i].text, "%s", text);
        }
}

/* Needs the lock. Without memory the peers' timeouts stay as they are. */
static void hear_task(pd_link *link, const pd_link_event *n, const char *text) {
    if (n->rank < 0 || n->rank >= link->world) return;
    if (!link->tasks && pd_calloc((size_t)link->world * sizeof *link->tasks, "tasks", &link->tasks)) return;
    pd_task *t = &link->tasks[n->rank];
    t->until = n->status > 0 ? pd_os_now() + n->status * INT64_C(1000000000) : 0;
    snprintf(t->name, sizeof t->name, "%s", text);
}

/* Whether an event concerns a listener. The loss of the control plane concerns all. */
static bool concerns(const pd_listener *l, const pd_link_event *event) {
    if (event->epoch) return event->epoch == l->epoch;
    bool all = !l->ranks || event->kind == PD_EVENT_LOST;
    for (int i = 0; !all && i < l->size; i++) all = l->ranks[i] == event->rank;
    return all;
}

void pd_link_hear(pd_link *link, const pd_link_event *event, const char *text) {
    if (event->kind == PD_EVENT_WHERE || event->kind == PD_EVENT_HERE || event->kind == PD_EVENT_TASK) {
        pthread_mutex_lock(&link->lock);
        if (event->kind == PD_EVENT_HERE) hear_place(link, event, text);
        else if (event->kind == PD_EVENT_TASK) hear_task(link, event, text);
        pthread_mutex_unlock(&link->lock);
        return;
    }
    pd_error e;
    pd_weight weight = describe(link, event, text, &e);
    pthread_mutex_lock(&link->lock);
    if (!link->closed) {
        bool known = event->kind != PD_EVENT_LOST && event->rank >= 0 && event->rank < PD_RANKS_MAX;
        if (!event->epoch && known && weight > link->left[event->rank]) link->left[event->rank] = (uint8_t)weight;
        bool goes_on = link->open && event->kind != PD_EVENT_LOST; /* without those that leave or die */
        if (!event->epoch && weight > link->gone && !goes_on) {
            link->gone = weight;
            link->why = e;
        }
        for (pd_listener *l = link->listeners; l; l = l->next)
            if (concerns(l, event)) l->hear(l, weight, &e);
    }
    pthread_mutex_unlock(&link->lock);
}

/* Tells a new listener of past events. Of all dead ranks the reason of only one is kept. */
static void tell_past(const pd_link *link, pd_listener *l) {
    const pd_error *why = &link->why;
    bool lost = link->gone == PD_WEIGHT_GONE && (why->rank < 0 || !link->left[why->rank]);
    if (link->gone && (!l->ranks || lost)) l->hear(l, link->gone, why);
    int n = l->ranks ? l->size : link->open ? link->world : 0;
    for (int i = 0; i < n; i++) {
        int rank = l->ranks ? l->ranks[i] : i;
        pd_error e = {.kind = PD_E_PEER, .rank = rank};
        if (!link->left[rank]) continue;
        snprintf(e.text, sizeof e.text, "rank %d is gone", rank);
        l->hear(l, (pd_weight)link->left[rank], why->rank == rank ? why : &e);
    }
}

void pd_link_listen(pd_link *link, pd_listener *l, uint32_t epoch) {
    pthread_mutex_lock(&link->lock);
    l->epoch = epoch;
    l->next = link->listeners;
    l->at = &link->listeners;
    if (l->next) l->next->at = &l->next;
    link->listeners = l;
    tell_past(link, l);
    pthread_mutex_unlock(&link->lock);
}

void pd_link_unlisten(pd_link *link, pd_listener *l) {
    pthread_mutex_lock(&link->lock);
    *l->at = l->next;
    if (l->next) l->next->at = l->at;
    pthread_mutex_unlock(&link->lock);
}

pd_status pd_link_gone(pd_link *link) {
    pd_error e;
    pthread_mutex_lock(&link->lock);
    bool bad = link->gone >= PD_WEIGHT_GONE;
    if (bad) e = link->why;
    pthread_mutex_unlock(&link->lock);
    return bad ? pd_error_restore(&e) : PD_OK;
}

pd_weight pd_link_left(pd_link *link, int rank) {
    pthread_mutex_lock(&link->lock);
    /* The event does not say which rank hosted the server. */
    bool why = link->gone == PD_WEIGHT_GONE && link->why.rank == rank;
    pd_weight weight = why ? PD_WEIGHT_GONE : (pd_weight)link->left[rank];
    pthread_mutex_unlock(&link->lock);
    return weight;
}

/* Opening and closing, and the news of ranks that are gone. */
#include "comm/pipe/pipe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/pipe/pipe_impl.h"

static void ring(pd_pipes *p) {
    uint64_t one = 1;
    ssize_t n = write(p->bell, &one, sizeof one);
    (void)n; /* it can only be full, and then it rings */
}

/* Called by the link's thread. After a death nobody waits for bytes: what has come can still be read. */
static void hear(pd_listener *l, pd_weight weight, const pd_error *e) {
    pd_pipes *p = (pd_pipes *)((char *)l - offsetof(pd_pipes, listener));
    bool lost = e->rank < 0 || (e->rank == p->link->host_rank && weight == PD_WEIGHT_GONE); /* the control plane */
    pd_fate *f = &p->fates[lost ? p->rank : e->rank];
    pthread_mutex_lock(&p->lock);
    if (weight > f->weight) {
        if (!f->weight) atomic_fetch_add(&p->news, 1);
        f->weight = weight;
        f->why = *e;
        f->since = pd_os_now();
    }
    pthread_mutex_unlock(&p->lock);
    ring(p);
}

static pd_status make_poll(pd_pipes *p) {
    p->poll = epoll_create1(EPOLL_CLOEXEC);
    p->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    if (p->poll < 0 || p->bell < 0) return pd_fail(PD_E_OS, "pipes: no descriptor: %s", strerror(errno));
    pd_fork_watch_add(&p->watches[0], p->poll);
    pd_fork_watch_add(&p->watches[1], p->bell);
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = pd_pipe_tag(PD_TAG_BELL, 0)};
    if (epoll_ctl(p->poll, EPOLL_CTL_ADD, p->bell, &e))
        return pd_fail(PD_E_OS, "pipes: epoll_ctl: %s", strerror(errno));
    return PD_OK;
}

pd_status pd_pipes_open(pd_link *link, uint32_t number, double timeout, size_t arena, pd_pipes **out) {
    pd_pipes *p;
    pd_status status = PD_OK;
    size_t world = (size_t)link->world;
    PD_TRY(pd_link_check(link));
    PD_TRY(pd_calloc(sizeof *p, "pipes", &p));
    *p = (pd_pipes){.link = link, .number = number, .rank = link->rank, .world = link->world,
                    .poll = -1, .bell = -1, .near = -1, .far = -1};
    pd_link_retain(link);
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < PD_PIPE_GUESTS; i++) p->guests[i].fd = -1;
    PD_TRY_TO(fail, pd_arena_init(&p->arena, p->rank, p->world, arena));
    PD_TRY_TO(fail, pd_calloc(world * sizeof *p->fates, "pipes", &p->fates));
    PD_TRY_TO(fail, pd_calloc(world * sizeof *p->doors, "pipes", &p->doors));
    PD_TRY_TO(fail, pd_calloc(world * sizeof *p->inlets, "pipes", &p->inlets));
    PD_TRY_TO(fail, pd_calloc(world * sizeof *p->outlets, "pipes", &p->outlets));
    for (size_t r = 0; r < world; r++) {
        p->inlets[r].fd = p->outlets[r].fd = p->inlets[r].handle = -1;
        atomic_init(&p->inlets[r].next, -1);
        pthread_mutex_init(&p->outlets[r].lock, NULL);
    }
    PD_TRY_TO(fail, make_poll(p));
    p->listener = (pd_listener){.hear = hear};
    pd_link_listen(link, &p->listener, 0);
    PD_TRY_TO(fail, pd_door_open(p, pd_os_now() + (int64_t)(timeout * 1e9)));
    *out = p;
    return PD_OK;
fail:
    pd_pipes_close(p);
    return status;
}

static void close_watched(int fd, pd_fork_watch *w) {
    if (fd < 0) return;
    if (w->at) pd_fork_watch_drop(w);
    close(fd);
}

void pd_pipes_close(pd_pipes *p) {
    if (pd_forked_since(p->link->forks)) return; /* the child has closed the descriptors; the locks are the parent's */
    if (p->listener.at) pd_link_unlisten(p->link, &p->listener);
    pd_door_close(p);
    for (int r = 0; r < p->world && p->inlets && p->outlets; r++) {
        pd_inlet_close(&p->inlets[r]);
        close_watched(p->outlets[r].fd, &p->outlets[r].watch);
        pthread_mutex_destroy(&p->outlets[r].lock);
        for (int i = 0; p->inlets[r].slabs && i < PD_SLABS; i++)
            if (p->inlets[r].slabs[i]) pd_slab_release(p->inlets[r].slabs[i]);
        pd_free(p->inlets[r].slabs);
    }
    close_watched(p->poll, &p->watches[0]);
    close_watched(p->bell, &p->watches[1]);
    if (p->arena.known) pd_arena_fini(&p->arena);
    pd_free(p->inlets);
    pd_free(p->outlets);
    pd_free(p->fates);
    pd_free(p->doors);
    pthread_mutex_destroy(&p->lock);
    pd_link_release(p->link);
    pd_free(p);
}

void pd_pipes_wake(pd_pipes *p) { ring(p); }

void pd_pipes_stop(pd_pipes *p) { atomic_store(&p->stopped, true); }

void pd_pipes_take(pd_pipes *p, uint32_t kind, pd_pipes_taker take, void *ctx) {
    p->taken_kind = kind;
    p->take_ctx = ctx;
    p->take = take;
}

pd_status pd_pipes_check(pd_pipes *p, int rank) {
    pd_error e = {0};
    PD_TRY(pd_link_check(p->link));
    if (atomic_load(&p->stopped)) return pd_fail(PD_E_DIST, "rpc: the agent shuts down (expected sends before)");
    pthread_mutex_lock(&p->lock);
    const pd_fate *f = &p->fates[p->rank];
    if (!f->weight) f = &p->fates[rank];
    if (pd_fate_holds(f)) e = f->why;
    pthread_mutex_unlock(&p->lock);
    return e.kind ? pd_error_restore(&e) : PD_OK;
}

void pd_mail_drop(pd_mail *m) {
    for (int i = 0; i < m->nparcels; i++)
        if (m->parcels[i].drop) m->parcels[i].drop(m->parcels[i].ctx);
    pd_free(m->parcels);
    pd_free(m->body);
    *m = (pd_mail){.from = -1};
}

void pd_mail_lose(pd_mail *m) {
    pd_mail lost = {.from = m->from, .kind = m->kind, .id = m->id, .lost = true, .resumed = m->resumed};
    pd_mail_drop(m);
    *m = lost;
}

void pd_pipes_count(pd_pipes *p, pd_pipes_counts *out) {
    *out = (pd_pipes_counts){.sent = p->sent, .received = p->received, .bytes_sent = p->bytes_sent,
                             .bytes_received = p->bytes_received, .copied = p->copied, .moved = p->moved};
    pd_arena_count(&p->arena, &out->arena, &out->lent);
}

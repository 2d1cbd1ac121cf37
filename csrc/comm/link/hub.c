#include "comm/link/hub.h"

#include <string.h>

#include "base/mem.h"
#include "comm/link/kv.h"
#include "comm/memory/inproc.h"

typedef struct seat {
    pd_link link; /* first: a seat is a link */
    pd_hub *hub;
} seat;

struct pd_hub {
    atomic_int refs;
    int world, hosts;
    uint8_t token[PD_TOKEN_BYTES];
    pthread_mutex_t lock; /* guards the store and the seats; taken before any link's lock */
    pthread_cond_t change;
    pd_kv kv;
    struct {
        seat *seat;
        bool taken;
        pd_link_event last; /* that it left or raised, for ranks that join later */
    } ranks[];
};

pd_status pd_hub_new(int world, int hosts, pd_hub **out) {
    pd_hub *h;
    if (world < 1 || world > PD_RANKS_MAX)
        return pd_fail(PD_E_VALUE, "hub: world is %d (expected 1 to %d)", world, PD_RANKS_MAX);
    if (hosts < 1) return pd_fail(PD_E_VALUE, "hub: hosts is %d (expected at least 1)", hosts);
    PD_TRY(pd_calloc(sizeof *h + (size_t)world * sizeof *h->ranks, "hub", &h));
    atomic_init(&h->refs, 1);
    h->world = world;
    h->hosts = hosts;
    pthread_mutex_init(&h->lock, NULL);
    pd_os_cond_init(&h->change);
    pd_kv_init(&h->kv, pd_inproc_dup, pd_inproc_drop);
    pd_status status = pd_os_random(h->token, sizeof h->token);
    if (status) pd_hub_release(h);
    else *out = h;
    return status;
}

void pd_hub_release(pd_hub *hub) {
    if (!hub || atomic_fetch_sub_explicit(&hub->refs, 1, memory_order_acq_rel) > 1) return;
    pd_kv_fini(&hub->kv);
    pthread_cond_destroy(&hub->change);
    pthread_mutex_destroy(&hub->lock);
    pd_free(hub);
}

int pd_hub_world(const pd_hub *hub) { return hub->world; }

/* The asking thread looks by itself, since all ranks are in this process. Of a rank that does not wait nothing is
   known. */
static void answer(const pd_hub *h, pd_link *asker, int rank) {
    char text[sizeof asker->places[0].text];
    int64_t since;
    if (rank < 0 || rank >= h->world || !h->ranks[rank].seat) return;
    int on = pd_link_standing(&h->ranks[rank].seat->link, &since, text, sizeof text);
    pd_link_event n = {.kind = PD_EVENT_HERE, .rank = rank, .status = asker->rank, .epoch = (uint32_t)(on + 1)};
    if (since) pd_link_hear(asker, &n, text);
}

static void tell(pd_link *link, const pd_link_event *event, const char *text) {
    pd_hub *h = ((seat *)link)->hub;
    pd_link_event n = *event;
    n.rank = link->rank;
    n.pid = pd_os_pid();
    pthread_mutex_lock(&h->lock);
    if (n.kind == PD_EVENT_WHERE) {
        answer(h, link, n.status);
        pthread_mutex_unlock(&h->lock);
        return;
    }
    if (!n.epoch && n.kind != PD_EVENT_ABORT && n.kind != PD_EVENT_TASK) h->ranks[n.rank].last = n;
    for (int r = 0; r < h->world; r++)
        if (h->ranks[r].seat && r != n.rank) pd_link_hear(&h->ranks[r].seat->link, &n, text);
    pthread_cond_broadcast(&h->change);
    pthread_mutex_unlock(&h->lock);
}

/* Needs the lock, which it gives up while it sleeps and while the interrupt hook runs. */
static pd_status await(pd_hub *h, pd_link *link, const pd_store_call *call, pd_store_reply *reply) {
    int64_t deadline = pd_os_now() + call->timeout_ns;
    for (;;) {
        bool ready;
        PD_TRY(pd_kv_run(&h->kv, call, reply, &ready));
        if (ready) return PD_OK;
        if (call->stop && atomic_load_explicit(call->stop, memory_order_acquire))
            return pd_fail(PD_E_DIST, "store: the wait was cancelled, because the group failed or was destroyed");
        if (!call->stop) PD_TRY(pd_link_gone(link));
        int64_t left = deadline - pd_os_now();
        if (left <= 0)
            return pd_fail(PD_E_TIMEOUT, "store: waited %.1f s for key '%.*s' (expected a rank to set it)",
                           (double)call->timeout_ns * 1e-9, (int)call->key_bytes, call->key);
        if (pd_os_cond_wait(&h->change, &h->lock, left < PD_SLICE_NS ? left : PD_SLICE_NS)) continue;
        pthread_mutex_unlock(&h->lock);
        pd_status status = pd_hooks_interrupt(link->hooks);
        pthread_mutex_lock(&h->lock);
        PD_TRY(status);
    }
}

static pd_status call(pd_link *link, const pd_store_call *call, pd_store_reply *reply) {
    pd_hub *h = ((seat *)link)->hub;
    void *token = pd_host_release();
    pthread_mutex_lock(&h->lock);
    pd_status status = await(h, link, call, reply);
    if (call->verb == PD_STORE_SET || call->verb == PD_STORE_ADD) pthread_cond_broadcast(&h->change);
    pthread_mutex_unlock(&h->lock);
    pd_host_acquire(token);
    return status;
}

static void close_link(pd_link *link) {
    pd_hub *h = ((seat *)link)->hub;
    tell(link, &(pd_link_event){.kind = PD_EVENT_LEFT}, "");
    pthread_mutex_lock(&h->lock);
    h->ranks[link->rank].seat = NULL;
    pthread_mutex_unlock(&h->lock);
}

static void free_link(pd_link *link) {
    pd_hub *h = ((seat *)link)->hub;
    pd_link_fini(link);
    pd_free(link);
    pd_hub_release(h);
}

static const pd_link_ops ops = {
    .transport = &pd_transport_inproc,
    .answers = true,
    .call = call,
    .tell = tell,
    .close = close_link,
    .free = free_link,
};

pd_status pd_hub_join(pd_hub *hub, int rank, const pd_hooks *hooks, pd_link **out) {
    seat *s;
    if (rank < 0 || rank >= hub->world)
        return pd_fail(PD_E_VALUE, "hub: rank %d does not exist in a world of %d (expected a smaller rank, at least 0)",
                       rank, hub->world);
    PD_TRY(pd_calloc(sizeof *s, "hub seat", &s));
    pd_link_init(&s->link, &ops, rank, hub->world, hooks);
    s->link.host = (uint64_t)(rank * hub->hosts / hub->world);
    memcpy(s->link.token, hub->token, sizeof s->link.token);
    s->hub = hub;
    pthread_mutex_lock(&hub->lock);
    bool taken = hub->ranks[rank].taken;
    if (!taken) {
        hub->ranks[rank].taken = true;
        hub->ranks[rank].seat = s;
        for (int r = 0; r < hub->world; r++)
            if (hub->ranks[r].last.kind) pd_link_hear(&s->link, &hub->ranks[r].last, "");
    }
    pthread_mutex_unlock(&hub->lock);
    if (taken) {
        pd_link_fini(&s->link);
        pd_free(s);
        return pd_fail(PD_E_DIST, "hub: rank %d has already joined (expected each rank once)", rank);
    }
    atomic_fetch_add_explicit(&hub->refs, 1, memory_order_relaxed);
    *out = &s->link;
    return PD_OK;
}

/* Batches of messages between GPUs.

   Each message is announced by an envelope, a host message with the same tag. So the contract of messages holds for
   batches, too: late, dead and differing ranks are known before NCCL is called, and a batch that meets a plain send or
   receive is a mismatch. Then the group's mover makes one launch for each pair of ranks; NCCL's has a communicator and
   a stream for each pair. In a launch all messages move at the same time, and no pair waits for another. Peers are
   handled in increasing order, so that ranks that make their communicators do not wait in a circle. */
#include "base/mem.h"
#include "comm/group/mover.h"
#include "comm/group/p2p.h"
#include "device/cuda.h"

typedef struct envelope {
    int64_t count;
    int32_t tag, dtype, place; /* place: among the messages from one to the other */
    int32_t sent;              /* 0: not yet; 2: captured into a CUDA graph */
} envelope;

static pd_status check(const pd_group *g, const pd_message *m, int n) {
    for (int i = 0; i < n; i++)
        if (m[i].peer < 0 || m[i].peer >= g->size || m[i].peer == g->rank)
            return pd_fail(PD_E_VALUE,
                           "batch_isend_irecv: the peer is rank %d (expected 0 to %d, but not this rank, %d)",
                           m[i].peer, g->size - 1, g->rank);
    return PD_OK;
}

static envelope envelope_of(const pd_message *m, int i) {
    envelope l = {.count = m[i].count, .tag = m[i].tag, .dtype = (int32_t)m[i].dtype,
                .sent = 1 + pd_cuda_capturing(pd_device_here)};
    for (int j = 0; j < i; j++) l.place += m[j].peer == m[i].peer && m[j].sends == m[i].sends;
    return l;
}

static pd_status compare(const pd_group *g, const pd_message *m, int i, const envelope *got) {
    envelope want = envelope_of(m, i);
    if (!memcmp(got, &want, sizeof want)) return PD_OK;
    const char *dtype = got->dtype >= 0 && got->dtype < PD_DTYPE_COUNT ? pd_dtype_name((pd_dtype)got->dtype) : "?";
    return pd_fail(PD_E_MISMATCH,
                   "batch_isend_irecv: message %d from rank %d is %s[%lld] with tag %d%s (expected message %d, "
                   "%s[%lld] with tag %d%s, on rank %d)", got->place, pd_group_name(g, m[i].peer), dtype,
                   (long long)got->count, got->tag, got->sent > 1 ? ", captured" : "", want.place,
                   pd_dtype_name(m[i].dtype), (long long)want.count, want.tag, want.sent > 1 ? ", captured" : "",
                   pd_group_name(g, g->rank));
}

/* Starts all envelopes before it waits for one. */
static pd_status announce(pd_group *g, const pd_message *m, int n, uint64_t site, envelope *envelopes,
                          pd_work **posted) {
    for (int i = 0; i < n; i++) {
        envelope *l = &envelopes[i];
        int peer = m[i].peer, tag = m[i].tag;
        if (m[i].sends) *l = envelope_of(m, i);
        PD_TRY((m[i].sends ? pd_group_send(g, l, sizeof *l, PD_U8, peer, tag, site, &posted[i])
                           : pd_group_recv(g, l, sizeof *l, PD_U8, peer, tag, site, &posted[i])));
    }
    for (int i = 0; i < n; i++) PD_TRY(pd_work_wait(posted[i], -1));
    for (int i = 0; i < n; i++)
        if (!m[i].sends) PD_TRY(compare(g, m, i, &envelopes[i]));
    return PD_OK;
}

static pd_work work_of(pd_group *g, const pd_message *m, uint64_t site) {
    pd_collective coll = m->sends ? PD_COLL_SEND : PD_COLL_RECV;
    return (pd_work){
        .group = g, .site = site, .device = pd_device_here, .mover = g->mover, .peer = m->peer, .tag = m->tag,
        .state = PD_WORK_DONE,
        .id = {.coll = (uint8_t)coll, .dtype = (uint8_t)m->dtype, .device = (uint8_t)pd_device_here->kind,
               .root = pd_group_name(g, m->peer), .count = m->count, .scale = m->tag},
    };
}

/* The works of all messages with one peer share a launch. */
static pd_status launch_pair(pd_group *g, const pd_message *m, int n, int peer, pd_work **works) {
    bool any = false;
    for (int i = 0; i < n; i++) any |= m[i].peer == peer;
    return any ? g->mover->exchange(g, &(pd_batch){.messages = m, .works = works, .n = n, .peer = peer}) : PD_OK;
}

static pd_status launch_all(pd_group *g, const pd_message *m, int n, pd_work **works) {
    PD_TRY(pd_group_enter(g));
    pd_status status = pd_group_check(g);
    for (int peer = 0; peer < g->size && !status; peer++) {
        status = launch_pair(g, m, n, peer, works);
        if (status) pd_group_fail(g, !atomic_load(&g->abort));
    }
    pd_group_leave(g);
    return status;
}

static pd_status make_works(pd_group *g, const pd_message *m, int n, uint64_t site, pd_work **works) {
    for (int i = 0; i < n; i++) {
        PD_TRY(pd_malloc(sizeof **works, "work", &works[i]));
        *works[i] = work_of(g, &m[i], site);
        atomic_init(&works[i]->refs, 1);
        pd_group_retain(g);
    }
    return PD_OK;
}

static pd_status run(pd_group *g, const pd_message *m, int n, uint64_t site, envelope *envelopes, pd_work **posted,
                     pd_work **works) {
    PD_TRY(make_works(g, m, n, site, works));
    pd_status status = announce(g, m, n, site, envelopes, posted);
    if (!status) return launch_all(g, m, n, works);
    if (pd_group_enter(g)) return status;
    /* Half a batch cannot be undone. Ending the group also ends the works that borrow the envelopes. */
    pd_group_fail(g, !atomic_load(&g->abort));
    pd_group_leave(g);
    return status;
}

pd_status pd_group_messages(pd_group *g, const pd_message *m, int n, uint64_t site, pd_work **works) {
    envelope *envelopes;
    pd_work **posted = NULL;
    pd_error e;
    memset(works, 0, (size_t)n * sizeof *works);
    PD_TRY(check(g, m, n));
    PD_TRY(pd_group_check(g));
    PD_TRY(pd_mover_check(g, "batch_isend_irecv"));
    PD_TRY(pd_calloc((size_t)n * (sizeof *envelopes + sizeof *posted), "batch", &envelopes));
    posted = (pd_work **)(envelopes + n);
    pd_status status = run(g, m, n, site, envelopes, posted, works);
    if (status) pd_error_save(&e);
    for (int i = 0; i < n; i++) {
        pd_work_release(posted[i]);
        if (status) pd_work_release(works[i]);
    }
    pd_free(envelopes);
    return status ? pd_error_restore(&e) : PD_OK;
}

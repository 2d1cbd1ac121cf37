/* Sums over logical shards on GPUs, with the bits that CPUs give (comm/algo/blocks.h). NCCL sums in an order of its
   own, so it only moves the data:

     messages    each rank gets its part of all blocks' sums, the nodes of the table; all messages are one group
     a kernel    adds them up in the order of the tree
     all_gather  of the parts; a rest that does not divide by the ranks is the last rank's, which broadcasts it

   A rank sends (W-1)/W of each of its nodes, and W-1 times its part: a ring's bytes, where a rank has one block. */
#include "comm/nccl/nccl_impl.h"
#include "kernels/kernels.h"

#define ALIGNED 64 /* elements: parts begin at whole cache lines; bytes: so do copies of them */

typedef struct parts { /* rank r has elements [r * each, (r + 1) * each) of every node, the last rank the rest, too */
    const pd_job *job;
    int rank, size;
    int64_t each, rest;
    char *others; /* this rank's part of the other ranks' nodes, in the order of the table */
    size_t apart; /* bytes from one of them to the next */
} parts;

static size_t place_of(const parts *p, int rank) { return pd_job_bytes(p->job, rank * p->each); }
static int64_t count_of(const parts *p, int rank) { return p->each + (rank + 1 == p->size ? p->rest : 0); }

/* A node of this rank. */
static const char *own_node(const parts *p, const pd_shard_block *b) {
    return p->job->from + (size_t)b->part * p->job->apart;
}

static int send_node(pd_nccl *c, const parts *p, const pd_shard_block *b) {
    int result = PD_NCCL_OK;
    for (int d = 1; d < p->size && !result; d++) { /* starting with the right neighbour, as everywhere */
        int r = (p->rank + d) % p->size;
        size_t bytes = pd_job_bytes(p->job, count_of(p, r));
        if (bytes) result = c->lib->Send(own_node(p, b) + place_of(p, r), bytes, PD_NCCL_U8, r, c->comm, c->on);
    }
    return result;
}

static int exchange(pd_nccl *c, const void *what) {
    const parts *p = what;
    const pd_blocks *b = p->job->blocks;
    size_t bytes = pd_job_bytes(p->job, count_of(p, p->rank));
    char *to = p->others;
    int result = c->lib->GroupStart();
    for (int i = 0; i < b->count && !result; i++) {
        if (b->of[i].rank == p->rank) {
            result = send_node(c, p, &b->of[i]);
        } else if (bytes) {
            result = c->lib->Recv(to, bytes, PD_NCCL_U8, b->of[i].rank, c->comm, c->on);
            to += p->apart;
        }
    }
    int end = c->lib->GroupEnd();
    return result ? result : end;
}

/* Notes after which of the inputs [lo, hi) a sum is complete. split: as in pd_reduce_tree. */
static void note_sums(int lo, int hi, const int16_t *split, uint8_t *sums) {
    if (hi - lo < 2) return;
    note_sums(lo, lo + *split, split + 1, sums);
    note_sums(lo + *split, hi, split + *split, sums);
    sums[hi - 1]++;
}

/* Adds up this rank's part of all nodes. */
static void sum(const parts *p, void *out) {
    const pd_blocks *b = p->job->blocks;
    pd_sum_tree t = {.n = count_of(p, p->rank), .in = p->others, .apart = (int64_t)p->apart, .out = out,
                     .scale = p->job->scale, .last = p->job->dtype, .inputs = b->count, .at = {-1, -1}};
    for (int i = 0; i < b->count; i++) {
        if (b->of[i].rank != p->rank) continue;
        t.at[b->of[i].part] = (int16_t)i;
        t.own[b->of[i].part] = own_node(p, &b->of[i]) + place_of(p, p->rank);
    }
    note_sums(0, b->count, b->split, t.sums);
    if (t.n) pd_here()->sum_tree(p->job->dtype, &t);
}

/* Each rank gets the other ranks' parts of the result. */
static pd_status gather(pd_nccl *c, const pd_work *w, const parts *p) {
    pd_job all = *p->job, rest = all;
    all.from = all.to + place_of(p, p->rank);
    all.count = p->each;
    rest.to += place_of(p, p->size);
    rest.from = rest.to;
    rest.count = p->rest;
    rest.root = p->size - 1;
    if (p->each) PD_TRY(pd_nccl_run(c, w, &all, PD_COLL_ALL_GATHER));
    return p->rest ? pd_nccl_run(c, w, &rest, PD_COLL_BROADCAST) : PD_OK;
}

pd_status pd_nccl_sum_blocks(pd_nccl *c, const pd_work *w) {
    const pd_job *j = &w->job;
    const pd_device *d = c->device;
    const bool whole = w->id.coll == PD_COLL_ALL_REDUCE;
    parts p = {.job = j, .rank = c->rank, .size = c->size, .each = j->count};
    if (whole) p.each = j->count / c->size / ALIGNED * ALIGNED;
    if (whole) p.rest = j->count - p.each * c->size;
    p.apart = (pd_job_bytes(j, count_of(&p, p.rank)) + ALIGNED - 1) / ALIGNED * ALIGNED;
    size_t bytes = (size_t)(j->blocks->count - pd_blocks_of(j->blocks, c->rank)) * p.apart;
    void *room = NULL;
    if (bytes) PD_TRY(d->alloc(d, bytes, &room));
    p.others = room;
    pd_status status = pd_nccl_ask(c, w, exchange, &p);
    if (!status) sum(&p, j->to + (whole ? place_of(&p, p.rank) : 0));
    PD_THEN(pd_device_check(d, pd_collective_names[w->id.coll]));
    if (whole) PD_THEN(gather(c, w, &p));
    if (room) d->free(d, room, 0); /* the next user of it comes later on the stream */
    return status;
}

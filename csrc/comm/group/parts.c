/* Parts of different sizes in a group (algo/parts.h): checks whether the sizes fit together, and reads large parts
   directly in the memory of the other rank's process.

   Every rank puts the first piece into its slot and shows its line, as for any collective. A rank with parts of more
   than a piece also shows the address of its table. If the largest part is large enough and all ranks can read each
   other's memory, they take small parts from the slots and large parts from memory, and one more gate ends the
   collective. A rank whose own parts are large enough puts nothing before that is known.

   If all parts of an all_gather lie in symmetric segments, at the same places on all ranks, then each rank copies the
   others' parts from there, with as many gates. So it does for an all_to_all if what each rank gives lies in one
   segment, the same one on all ranks, at any place: a rank shows the segment, and where its parts begin in its slot. */
#include "base/copy.h"
#include "comm/group/group_impl.h"

enum { CAN_READ = 1, TO_BE_READ = 2, NOT_PUT = 4, FLAGS = 3 }; /* line.segment: FLAGS bits, then a segment's id */

static const pd_line *line_of(const pd_group *g, const pd_work *w, int r) { return &g->boards[r]->line[w->seq & 1]; }

static int64_t largest_of(const pd_group *g, const pd_work *w, int r) {
    return pd_parts_own_sizes(w) ? line_of(g, w, r)->id.count : w->job.takes[r].count;
}

/* False, for example, for memory of a device, which the kernel cannot read. */
static bool is_readable(const pd_group *g, const pd_work *w) {
    for (int r = 0; r < g->size; r++) {
        const pd_part *p = &w->job.gives[r];
        uint64_t first = (uint64_t)(uintptr_t)p->data, last = first + pd_job_bytes(&w->job, p->count) - 1;
        char byte;
        if (p->count <= w->job.piece) continue;
        if (!pd_peek_read(g->peeks[g->rank].pid, first, &byte, 1)) return false;
        if (!pd_peek_read(g->peeks[g->rank].pid, last, &byte, 1)) return false;
    }
    return true;
}

/* A hash of the places of all parts in symmetric segments; 0: not all of them lie in one. peers: NULL, or gets for each
   rank where its part lies in its own memory. */
static uint64_t find_places(pd_group *g, const pd_work *w, char **peers) {
    const pd_part *own = &w->job.gives[g->rank];
    uint64_t hash = 1;
    if (own->count && own->data != w->job.takes[g->rank].data) return 0;
    for (int r = 0; r < g->size; r++) {
        const pd_part *p = &w->job.takes[r];
        if (!p->count) continue;
        pd_segment *s = pd_segment_of(g, p->data, pd_job_bytes(&w->job, p->count));
        if (!s) return 0;
        size_t at = (size_t)(p->data - (char *)pd_segment_ptr(s));
        hash = (hash ^ at ^ (uint64_t)s->id << 40) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
        if (peers) peers[r] = (char *)s->parts[r].ptr + at;
        pd_segment_release(s); /* the caller's buffers hold it */
    }
    return hash | 1;
}

static bool may_be_placed(const pd_group *g, const pd_work *w, int coll, int64_t count) {
    return w->id.coll == coll && !g->mesh && !g->forced && pd_job_bytes(&w->job, count) > (size_t)g->tuning.direct;
}

/* Writes into our slot where the parts that we give begin in their segment. Returns that segment's id as it is shown,
   or 0 if they do not all lie in one. */
static uint32_t show_places(pd_group *g, const pd_work *w) {
    const pd_part *first = NULL;
    for (int r = 0; r < g->size && !first; r++)
        if (w->job.gives[r].count) first = &w->job.gives[r];
    pd_segment *s = first ? pd_segment_of(g, first->data, pd_job_bytes(&w->job, first->count)) : NULL;
    if (!s) return 0;
    uint64_t *at = (uint64_t *)pd_job_slot(&w->job, g->rank, 0);
    const char *begin = pd_segment_ptr(s);
    bool inside = s->id && s->id < 1u << (32 - FLAGS);
    for (int r = 0; r < g->size; r++) {
        const pd_part *p = &w->job.gives[r];
        const size_t bytes = pd_job_bytes(&w->job, p->count);
        inside &= !p->count || (p->data >= begin && p->data + bytes <= begin + s->bytes);
        at[r] = p->count ? (uint64_t)(p->data - begin) : 0;
    }
    uint32_t id = inside ? s->id << FLAGS : 0;
    pd_segment_release(s); /* the caller's buffers hold it */
    return id;
}

/* Sets where the parts lie that the ranks give us, in the segment that they have shown. */
static pd_status look_up_places(pd_group *g, const pd_work *w) {
    const pd_part *own = NULL;
    for (int r = 0; r < g->size && !own; r++)
        if (w->job.gives[r].count) own = &w->job.gives[r];
    pd_segment *s = pd_segment_of(g, own->data, pd_job_bytes(&w->job, own->count));
    bool good = s != NULL;
    for (int r = 0; r < g->size && good; r++) {
        const uint64_t at = ((const uint64_t *)pd_job_slot(&w->job, r, 0))[g->rank];
        const size_t bytes = pd_job_bytes(&w->job, w->job.takes[r].count);
        good = !bytes || (at <= s->bytes && bytes <= s->bytes - at); /* always, if sizes are compared */
        g->peers[r] = (char *)s->parts[r].ptr + at;
    }
    if (s) pd_segment_release(s);
    return good ? PD_OK : pd_group_mismatch(g, w);
}

static int64_t own_largest(const pd_group *g, const pd_work *w) {
    return pd_parts_own_sizes(w) ? w->largest : w->job.takes[g->rank].count;
}

static bool is_large(const pd_group *g, const pd_work *w, int64_t largest) {
    return largest > w->job.piece && pd_job_bytes(&w->job, largest) > g->read_from;
}

void pd_parts_begin(pd_group *g, pd_work *w) {
    w->shows = 0;
    if (w->device || w->id.coll == PD_COLL_REDUCE_SCATTER_PARTS) return;
    if (may_be_placed(g, w, PD_COLL_ALL_GATHER_PARTS, w->job.count) && (w->places = find_places(g, w, NULL))) {
        w->shows = NOT_PUT;
        w->not_put = true;
        return;
    }
    if (may_be_placed(g, w, PD_COLL_ALL_TO_ALL_PARTS, w->largest) && (w->shows = show_places(g, w))) {
        w->shows |= NOT_PUT;
        w->not_put = true;
        return;
    }
    if (!g->peeks) return;
    const int64_t largest = own_largest(g, w);
    w->shows = CAN_READ;
    if (largest <= w->job.piece || !is_readable(g, w)) return;
    w->shows |= TO_BE_READ;
    if (!is_large(g, w, largest)) return;
    w->shows |= NOT_PUT;
    w->not_put = true;
}

/* Compares the lines. *can: all ranks can read each other's memory, and there are large parts to be read. *again: some
   rank has put nothing. */
static pd_status compare(pd_group *g, pd_work *w, int64_t *largest, bool *can, bool *again) {
    uint64_t balance = 0;
    *largest = 0;
    *can = true;
    const bool own_sizes = pd_parts_own_sizes(w);
    w->placed = own_sizes ? w->shows >> FLAGS : w->places != 0;
    for (int r = 0; r < g->size; r++) {
        const pd_line *l = line_of(g, w, r);
        if (__builtin_expect(l->hash != w->hash, 0) && g->check) return pd_group_mismatch(g, w);
        int64_t own = largest_of(g, w, r);
        balance += l->balance;
        w->placed &= own_sizes ? l->segment >> FLAGS == w->shows >> FLAGS : l->balance == w->places;
        *largest = own > *largest ? own : *largest;
        *again |= (l->segment & NOT_PUT) != 0;
        *can &= (l->segment & CAN_READ) && ((l->segment & TO_BE_READ) || own <= w->job.piece);
    }
    return balance && g->check && own_sizes ? pd_group_mismatch(g, w) : PD_OK;
}

pd_status pd_parts_meet(pd_group *g, pd_work *w, bool *again) {
    int64_t largest;
    bool can, waits = false;
    PD_TRY(compare(g, w, &largest, &can, &waits));
    if (w->device) return PD_OK;
    if (pd_parts_own_sizes(w)) {
        w->pieces = pd_pieces_of(&w->job, largest);
        g->piece += (uint32_t)w->pieces;
    }
    if (w->placed && pd_parts_own_sizes(w)) PD_TRY(look_up_places(g, w));
    else if (w->placed) find_places(g, w, g->peers);
    w->read = w->placed || (can && is_large(g, w, largest));
    *again = waits && !w->read;
    return PD_OK;
}

static pd_status take_from(pd_group *g, pd_work *w, int r) {
    const pd_part *to = &w->job.takes[r];
    const pd_line *l = line_of(g, w, r);
    pd_part part;
    int64_t pid = g->peeks[r].pid;
    if (r == g->rank || !(l->segment & TO_BE_READ)) {
        pd_parts_take(&w->job, w->algo, r);
        return PD_OK;
    }
    bool good = pd_peek_read(pid, l->offset + (uint64_t)g->rank * sizeof part, &part, sizeof part);
    int64_t n = part.count < to->count ? part.count : to->count; /* equal, unless nothing is compared */
    if (good && n > 0)
        good = pd_peek_read(pid, (uint64_t)(uintptr_t)part.data, to->data, pd_job_bytes(&w->job, n));
    if (good) g->counted.read[PD_LEVEL_MEMORY] += n > 0 ? (int64_t)pd_job_bytes(&w->job, n) : 0;
    if (good) return PD_OK;
    char call[400];
    PD_TRY(pd_group_heard(g, w)); /* this error explains more */
    pd_work_text(g, w, call, sizeof call);
    pd_status status =
        pd_fail(PD_E_PEER, "%s: this rank can no longer read the memory of rank %d", call, pd_group_name(g, r));
    pd_error_set_rank(pd_group_name(g, r));
    return status;
}

static void copy_from(pd_group *g, const pd_work *w, int r) {
    const pd_part *to = &w->job.takes[r];
    size_t bytes = pd_job_bytes(&w->job, to->count);
    if (!bytes || (r == g->rank && !pd_parts_own_sizes(w))) return;
    const int64_t all = pd_parts_own_sizes(w) ? pd_parts_total(g->size, w->job.takes) : w->job.count;
    pd_copy(to->data, g->peers[r], bytes, pd_job_bytes(&w->job, all));
    if (r != g->rank) pd_count_read(&w->job, bytes);
}

pd_status pd_parts_read(pd_group *g, pd_work *w) {
    if (w->placed) {
        for (int d = 0; d < g->size; d++) copy_from(g, w, (g->rank + d) % g->size);
        return PD_OK;
    }
    for (int d = 0; d < g->size; d++) PD_TRY(take_from(g, w, (g->rank + d) % g->size));
    return PD_OK;
}

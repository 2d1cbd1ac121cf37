/* What a table is made of, and what its files ask of each other. */
#ifndef PD_PS_TABLE_IMPL_H
#define PD_PS_TABLE_IMPL_H

#include "ps/ps_impl.h"

#define LOCKS 1024
#define PARTS 64 /* of a round, which workers claim */
#define EXTENT ((size_t)1 << 20)
#define PAGE ((size_t)4096)
#define TABLE_DIM (PIECE * 2) /* so a row fits where sums lie */
#define MAGIC "pdtable1"

/* Where an update of rows stands: seq of the push or round << 32 | rows that are done * 2 | whether the next is being
   written, and then `undo` has what it was. */
typedef struct position { word at; } position;

typedef struct lock { LINE pthread_mutex_t mutex; } lock;
typedef struct part { LINE pthread_mutex_t mutex; word version; position position; } part;

/* A worker's last push: unique ids, sorted, and the sums of their gradients. `undo`, ids and gradients follow it. */
typedef struct slot {
    LINE word seq;
    position position;
    word count, lr, rescale, base, own, applied;
} slot;

typedef struct table_head {
    pd_table_options o;
    place locks, parts, settling, bulk, slots; /* bulk 0: in a file */
    word lr, version_before;
} table_head;

typedef struct file_head { char magic[8]; pd_table_options o; word version; } file_head;

struct pd_table {
    pd_ps *ps;
    table_head *head;
    int64_t rows;
    int dim, per_row;
    char *bulk; /* file_head, bitmap, rows, states */
    size_t bulk_bytes, at_rows, at_states, slot_bytes, undo_bytes;
    lock *locks;
    part *parts;
    pthread_mutex_t *settling;
    char *slots;
    int fd;                 /* of the file; -1: in memory */
    uint8_t *extents;       /* of the file, that this process knows to have a place on the disk */
    char *sorting;          /* for sorting, grows */
    size_t sorting_cap;
    uint64_t sent;
    char name[];
};

static inline word *bits_of(const pd_table *t) { return (word *)(t->bulk + PAGE); }
static inline float *row_at(const pd_table *t, int64_t id) { return (float *)(t->bulk + t->at_rows) + id * t->dim; }
static inline float *states_at(const pd_table *t, int64_t id) {
    return (float *)(t->bulk + t->at_states) + id * t->per_row;
}
static inline bool is_made(const pd_table *t, int64_t id) { return get(&bits_of(t)[id >> 6]) >> (id & 63) & 1; }
static inline slot *slot_at(const pd_table *t, int w) { return (slot *)(t->slots + (size_t)w * t->slot_bytes); }
static inline char *undo_of(slot *s) { return (char *)(s + 1); }
static inline int64_t *ids_of(const pd_table *t, slot *s) { return (int64_t *)(undo_of(s) + t->undo_bytes); }
static inline float *grads_of(const pd_table *t, slot *s) { return (float *)(ids_of(t, s) + t->head->o.most); }
static inline char *part_undo(const pd_table *t, int p) {
    return (char *)(t->parts + PARTS) + (size_t)p * t->undo_bytes;
}
static inline size_t pages(size_t bytes) { return (bytes + PAGE - 1) & ~(PAGE - 1); }

/* ---- rows.c ---- */
void pd_row_start(const pd_table *t, int64_t id, float *out); /* what a row is before its first update */
void pd_row_make(pd_table *t, int64_t id);                    /* writes that, unless the row exists */
/* What all rows of a push or round have in common: `number` counts steps from 1. */
typedef struct row_step { float scale, rate, by, root; } row_step;
row_step pd_row_step_of(const pd_table *t, float scale, double lr, uint64_t number);
void pd_row_run(const pd_table *t, int64_t id, const float *g, const row_step *c); /* one step, by c->scale * g */
/* The same for a row that may not exist, such that a death in the middle can be taken back. `at`: where p stands. */
void pd_row_update(pd_table *t, position *p, char *undo, uint64_t at, int64_t id, const float *g, const row_step *c);
void pd_row_mend(const pd_table *t, position *p, char *undo); /* takes back what a dead worker was writing */

/* ---- table_file.c ---- */
bool pd_table_is_same(const pd_table_options *a, const pd_table_options *b);
pd_status pd_table_open_file(pd_table *t, const char *path);
/* Gives rows a place on the disk, so that writing them cannot fail. */
pd_status pd_table_give_places(pd_table *t, const int64_t *ids, int64_t n);

#endif

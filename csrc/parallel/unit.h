/* A unit: parameters that are sharded together (fully_shard). Each parameter is cut along one dimension into a part for
   each rank of the group. The rank's part is its shard: the parameter that optimizers see. All of it is its whole: what
   forward and backward compute with.

   Where the ranks share memory, the wholes exist once on the host (comm/group/common.h), and shards are views of them.
   So nothing is gathered, copied or freed: a forward finds the whole where the optimizers of all ranks have written it.
   readers.h keeps the order: a shard's storage has a guard, which begins a section before the first write, and a
   whole's guard refuses writes. In a world of one the shard is the whole.

   Elsewhere, and with PYDIST_FSDP=private, a shard has memory of its own. Wholes have memory between gather and drop;
   a gather costs messages. Without memory they are on the device `meta`, so that using one is an error. The memory is
   a window, which units of a model use in turn:

     ring     PD_WINDOWS windows of a model, each as large as its largest unit. A window that has been dropped keeps its
              values until another unit takes it; the one that was used longest ago is taken first. So a backward finds
              the last units of its forward without a message
     own      of a unit that has to stay gathered, and where all windows of the ring are in use: freed by drop
     outer    of a model's outermost unit, which lives longest: its own, and it stays

   So a model has PD_WINDOWS windows and that of its outermost unit, and a steady step asks nobody for memory. Values
   that stay are forgotten when the next outermost forward begins, by all ranks alike: a rank whose shards are empty
   does not notice that others have been written.

   A gather is one message for each large parameter, straight into its place, and one for all small ones, which go
   through the end of the window.

   low: wholes of float32 shards are float16 or bfloat16 copies. Then these shards always have memory of their own,
   and the end of a section rounds into the wholes what has changed.

   The layout has the pieces in the order of the parameters. In a whole's memory a rank has elements [lo, hi) of each of
   `outer` rows of `row` elements: one row, except with cuts along later dimensions. */
#ifndef PD_PARALLEL_UNIT_H
#define PD_PARALLEL_UNIT_H

#include "comm/group/readers.h"
#include "parallel/layout.h"
#include "tensor/tensor.h"

typedef enum pd_unit_kind { PD_UNIT_ALONE, PD_UNIT_COMMON, PD_UNIT_GATHERED } pd_unit_kind;

#define PD_WINDOWS 3
typedef struct pd_windows { /* a ring */
    atomic_int refs;
    pd_storage *memory[PD_WINDOWS];   /* [strong] NULL: none yet */
    struct pd_unit *unit[PD_WINDOWS]; /* [borrowed] whose wholes are or were there; NULL: nobody's */
    uint64_t used[PD_WINDOWS], uses;
    size_t bytes;                     /* of each */
} pd_windows;

typedef struct pd_unit_message { /* of a gather */
    pd_dtype dtype;
    int param;                 /* straight into its place; -1: all whose `message` it is are packed, rank after rank */
    size_t at;                 /* packed: bytes from the beginning of the window */
} pd_unit_message;

typedef struct pd_unit_param {
    struct pd_unit *unit;
    const pd_piece *piece;
    pd_tensor *whole, *shard;  /* [strong] */
    pd_storage *all, *rows;    /* [strong] their storages in common memory, with guards; NULL: they are not there */
    pd_guard on_whole, on_rows;
    int dim;
    int64_t outer, row, lo, hi;
    size_t at;                 /* bytes from the beginning of the wholes */
    int message;               /* of the unit's messages: that which gathers it */
    unsigned rounded;          /* low: 1 + the count of writes of the shard's storage when it was rounded; 0: never */
} pd_unit_param;

typedef struct pd_unit {
    atomic_int refs;
    pd_group *group;
    int number;                /* among all units of the group, in the order in which they were made */
    pd_unit_kind kind;
    pd_dtype low;              /* PD_NO_DTYPE: wholes have the shards' dtypes */
    pd_layout layout;
    int n;
    pd_unit_param *params;
    pd_readers *readers;       /* the group's */
    pd_readers_client ending;  /* low: rounds */
    pd_common *common;         /* NULL: no memory yet, or another kind */
    size_t bytes;              /* of all wholes */
    /* Of the kind GATHERED: */
    pd_windows *windows;       /* [strong] the model's; NULL: none */
    bool outer;
    pd_storage *window;        /* [strong] NULL: none */
    int slot;                  /* the window's in the ring; -1: it is the unit's own */
    size_t room;               /* the window's bytes: wholes, and what is packed */
    pd_unit_message *messages;
    int nmessages;
    pd_work **works;           /* of the messages, while they are under way */
    pd_storage **sent;         /* [strong] the shards' memory that they read; NULL: they read the window */
    pd_part *parts;            /* room for a table */
    bool under_way;            /* values are on their way to the window, */
    bool ahead;                /* before they were asked for, */
    bool valid;                /* or in it, */
    bool gathered;             /* and the wholes are there: they have memory */
    uint64_t gathered_at;      /* these values are those of shards that had been written so often */
    uint64_t untouched;        /* and the wholes had been written so often */
    /* Whether shards may be written while this rank reads: all ranks have the unit's gradients. NULL: never. */
    bool (*early)(void *ctx);
    void *ctx;
} pd_unit;

typedef struct pd_unit_options {
    pd_dtype low;
    bool gathered;             /* not in common memory, even if the ranks share some */
} pd_unit_options;

/* [new] of n dense, contiguous leaves, which become the wholes. dims: where each is cut; names are copied. All ranks
   call it, and have the same shapes; no memory moves yet. PD_E_VALUE: a parameter cannot be cut so. */
pd_status pd_unit_new(pd_group *g, pd_tensor *const *params, const char *const *names, const int *dims, int n,
                      pd_unit_options o, pd_unit **out);
void pd_unit_retain(pd_unit *u);
void pd_unit_release(pd_unit *u);

/* The part [lo, hi) of each row that belongs to a rank. */
pd_status pd_unit_cut(const pd_unit_param *p, int rank, int64_t *lo, int64_t *hi);
/* The bytes of the whole in memory that the unit's wholes share: whole cache lines. */
size_t pd_unit_room(const pd_unit_param *p);
/* Copies the parts [lo, hi) of all rows to or from `part`, where they lie one after the other. */
pd_status pd_unit_move_rows(const pd_unit_param *p, const pd_device *d, size_t element, char *rows, char *part,
                            int64_t lo, int64_t hi, bool to_part);
/* [new] a tensor with the geometry of this rank's part and no memory: on meta. */
pd_status pd_unit_empty_shard(const pd_unit *u, int param, pd_tensor **out);
/* The parameter's shard is t from now on, which has its shape. Its values are taken by pd_unit_settle. */
pd_status pd_unit_set_shard(pd_unit *u, int param, pd_tensor *t);
/* Whether all shards and wholes are where they should be. */
bool pd_unit_is_settled(const pd_unit *u);
/* Moves shards that are elsewhere to the unit's memory, and the wholes with them; makes that memory if it is missing
   or has other dtypes. first: the shards' values are those of the wholes. All ranks call it together if any needs it.
   Nothing happens while shards are on meta. */
pd_status pd_unit_settle(pd_unit *u, bool first, uint64_t site);

/* Of units of the kind GATHERED; for others they do nothing. All ranks make the same calls, so that their messages
   match.

   start begins to gather, unless the present values are there or on their way. PD_AHEAD: only if a window of the ring
   is free. gather: the wholes are there when it returns. drop takes their memory away, and waits for what is under way.
   PD_E_RUNTIME: a whole is lent, so it cannot be dropped. */
typedef enum pd_where { PD_AHEAD, PD_IN_RING, PD_IN_OWN } pd_where;
pd_status pd_unit_start(pd_unit *u, pd_where where, uint64_t site);
pd_status pd_unit_gather(pd_unit *u, pd_where where, uint64_t site);
pd_status pd_unit_drop(pd_unit *u);
void pd_unit_forget(pd_unit *u); /* values that were dropped do not count any more */
void pd_unit_plan(pd_unit *u);   /* the messages and the window of a gather, for the wholes' present dtypes */
void pd_unit_abandon(pd_unit *u); /* waits for what is under way, and gives the window back */
/* [new] an empty ring. */
pd_status pd_windows_new(pd_windows **out);
void pd_windows_release(pd_windows *w); /* NULL is fine */
/* The unit uses this ring from now on (NULL: none), or has a window of its own that stays. */
void pd_unit_set_windows(pd_unit *u, pd_windows *w, bool outer);
/* The wholes may hold other values than before. */
void pd_unit_changed(pd_unit *u);
/* Rounds shards that have changed into the wholes, in a world of one; only with low. */
void pd_unit_round(pd_unit *u);
/* A number that changes when a shard is written. */
uint64_t pd_unit_writes(const pd_unit *u);

#endif

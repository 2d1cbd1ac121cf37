/* The order in which buckets start: ascending on every rank, each as soon as its pieces and all earlier buckets are
   ready.

   So the ranks' collectives match, whatever the order in which backward makes the gradients. A round is pd_ready_begin;
   pd_ready_expect for each piece that will come; pd_ready_came as they come; pd_ready_rest for buckets whose pieces
   have not all come; pd_ready_reset. Pieces that are not expected (frozen parameters) hold no bucket back. */
#ifndef PD_PARALLEL_READY_H
#define PD_PARALLEL_READY_H

#include "parallel/layout.h"

typedef struct pd_ready {
    const pd_layout *layout; /* [borrowed] with buckets */
    int next;                /* the bucket that starts next */
    int *waiting;            /* by bucket: expected pieces that have not come */
    bool *came;              /* by piece, in this round */
    pd_status (*start)(void *ctx, int b);
    void *ctx;
} pd_ready;

/* start(ctx, b) is called when bucket b is the next one and complete. If it fails, the function that called it
   fails. */
pd_status pd_ready_init(pd_ready *r, const pd_layout *l, pd_status (*start)(void *ctx, int b), void *ctx);
void pd_ready_fini(pd_ready *r);

void pd_ready_begin(pd_ready *r);
static inline void pd_ready_expect(pd_ready *r, int piece) { r->waiting[r->layout->pieces[piece].bucket]++; }
pd_status pd_ready_came(pd_ready *r, int piece); /* once in a round */
pd_status pd_ready_rest(pd_ready *r);
void pd_ready_reset(pd_ready *r); /* ends the round: nothing has come or started */
bool pd_ready_all_came(const pd_ready *r); /* including those that were not expected */

#endif

/* Ranks as threads of one process: a hub made once for W ranks, a seat (a pd_link) for each.

   The store is the table under one lock; events go straight from seat to seat. A seat that is closed has left; a thread
   cannot die without its process, so nobody is ever found dead here. */
#ifndef PD_COMM_HUB_H
#define PD_COMM_HUB_H

#include "comm/link/link.h"

typedef struct pd_hub pd_hub;

/* [new] `hosts` over 1: rank r is on host r % hosts, as if; only ranks of one host share memory. */
pd_status pd_hub_new(int world, int hosts, pd_hub **out);
void pd_hub_release(pd_hub *hub);
int pd_hub_world(const pd_hub *hub);
/* [new] the seat of `rank`; PD_E_DIST where it is taken. The seat keeps the hub. */
pd_status pd_hub_join(pd_hub *hub, int rank, const pd_hooks *hooks, pd_link **out);

#endif

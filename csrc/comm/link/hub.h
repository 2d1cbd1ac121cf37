/* Ranks that are threads of one process have a hub, and each of them a seat in it (a pd_link).

   The store is the table under one lock; events go directly from seat to seat. A seat that is closed has left. A thread
   cannot die without its process, so no rank is ever dead here. */
#ifndef PD_COMM_HUB_H
#define PD_COMM_HUB_H

#include "comm/link/link.h"

typedef struct pd_hub pd_hub;

/* [new] With `hosts` over 1 it pretends that rank r is on host r % hosts: only ranks of one host share memory. */
pd_status pd_hub_new(int world, int hosts, pd_hub **out);
void pd_hub_release(pd_hub *hub);
int pd_hub_world(const pd_hub *hub);
/* [new] the seat of `rank`, which retains the hub. PD_E_DIST: the seat is taken. */
pd_status pd_hub_join(pd_hub *hub, int rank, const pd_hooks *hooks, pd_link **out);

#endif

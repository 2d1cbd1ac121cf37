/* The inside of point-to-point messages (p2p.c), for the rest of a group. */
#ifndef PD_COMM_P2P_H
#define PD_COMM_P2P_H

#include "comm/group/group_impl.h"

typedef struct pd_lane pd_lane;

size_t pd_p2p_room(int size); /* bytes of the lanes in every part */
pd_status pd_p2p_new(int size, size_t at, pd_p2p **out); /* [new] lanes from `at` on in every part */
const pd_flight *pd_p2p_flight(const pd_group *g); /* [borrowed] of the messages */
void pd_p2p_free(pd_p2p *p, int size);
pd_status pd_p2p_error(pd_group *g);          /* why works have failed */
void pd_p2p_close(pd_group *g);               /* notes that the group was destroyed here */
void pd_p2p_end(pd_group *g);                 /* the group has failed or was destroyed: all works under way fail */
void pd_p2p_left(pd_group *g, int link_rank); /* this rank left the group in good order */
bool pd_p2p_used(const pd_group *g);          /* this rank has sent or received: waits should look often */
/* Carries all lanes on without waiting; under the group's lock where it has a mesh. */
pd_status pd_p2p_pump(pd_group *g);
/* A send or receive like this one: waits for it, or gives it to *out [new]. */
pd_status pd_p2p_start(const pd_work *like, pd_work **out);
pd_status pd_p2p_wait(pd_work *w, int64_t deadline);
pd_status pd_p2p_test(pd_work *w, bool *done);

#endif

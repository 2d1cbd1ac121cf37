/* What the rest of a group calls of point-to-point messages (p2p.c). */
#ifndef PD_COMM_P2P_H
#define PD_COMM_P2P_H

#include "comm/group/group_impl.h"

typedef struct pd_lane pd_lane;

size_t pd_p2p_room(int size); /* bytes of the lanes in every part */
pd_status pd_p2p_new(int size, size_t at, pd_p2p **out); /* [new] the lanes are at `at` in every part */
const pd_flight *pd_p2p_flight(const pd_group *g); /* [borrowed] the record of messages */
void pd_p2p_free(pd_p2p *p, int size);
pd_status pd_p2p_error(pd_group *g);          /* the error of works that have failed */
void pd_p2p_close(pd_group *g);               /* notes that this rank has destroyed the group */
void pd_p2p_end(pd_group *g);                 /* the group has failed or was destroyed: all works under way fail */
void pd_p2p_left(pd_group *g, int link_rank); /* notes that this peer has left the group in good order */
bool pd_p2p_used(const pd_group *g);          /* whether this rank has sent or received; then waits look often */
/* Moves messages on all lanes without waiting. With a mesh, the caller holds the group's lock. */
pd_status pd_p2p_pump(pd_group *g);
/* Starts a send or receive like this one, and waits for it or gives it to *out [new]. */
pd_status pd_p2p_start(const pd_work *like, pd_work **out);
pd_status pd_p2p_wait(pd_work *w, int64_t deadline);
pd_status pd_p2p_test(pd_work *w, bool *done);

#endif

/* Memory that all ranks of a group map: written by one of them, read by all, at once. Only where the ranks share memory
   (pd_group_is_near); a world of one has it, too. It is zeroed, begins on a page, and outlives the group. */
#ifndef PD_COMM_COMMON_H
#define PD_COMM_COMMON_H

#include "comm/group/group.h"

typedef struct pd_common pd_common;

bool pd_group_is_near(const pd_group *g); /* all ranks of the group share memory */
/* [new] All ranks call it together, with the same number of bytes. PD_E_MEMORY on all ranks if there is no room;
   PD_E_NOTIMPL: the group is not near. */
pd_status pd_common_new(pd_group *g, size_t bytes, pd_common **out);
void *pd_common_ptr(const pd_common *c); /* [borrowed from c] this rank's address of it; never moves */
void pd_common_retain(pd_common *c);
void pd_common_release(pd_common *c); /* NULL is fine */

#endif

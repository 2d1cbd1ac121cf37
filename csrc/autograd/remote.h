/* Where a graph leaves this process, and where it comes in again from another one.

   A send node stands for tensors that were sent away. Its outputs are the gradients that the receiver gives back, so a
   run that is `fed` (engine.h) discovers it and is fed these; they go on to where the tensors came from. A recv node
   made tensors that were received. It reaches nothing here: a closure takes their gradients and delivers them. */
#ifndef PD_AUTOGRAD_REMOTE_H
#define PD_AUTOGRAD_REMOTE_H

#include "autograd/tape.h"

/* [new] the node of n tensors that are sent. It does not keep the tensors. */
pd_status pd_node_send(pd_tensor *const *sent, int n, pd_node **out);
bool pd_node_is_send(const pd_node *n);
/* How many recv nodes n leads to; these [borrowed] in `found`. -1: more than `max`, or it would take long to find
   out. */
int pd_node_leads_to(const pd_node *n, const pd_node **found, int max);
/* [new] the node that made n tensors. They have no history yet and get this one; a view may not be written in place
   any more. deliver.call(ctx, pd_vjp *) is called once in each run that reaches the node, also if no gradient has come:
   v->g[i] is NULL then. Owns `deliver` from now on, also if it fails. */
pd_status pd_node_recv(pd_tensor *const *received, int n, pd_closure deliver, pd_node **out);
/* [borrowed from n] NULL if n is no recv node. */
const pd_closure *pd_node_delivers(const pd_node *n);

#endif

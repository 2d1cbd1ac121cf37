/* Reaching another process: a race between all ways to it.

   A host may have several addresses and this one several interfaces, of which some are dead: an address there then
   takes minutes to fail. So a try starts a moment after the one before it (at once, where that has failed), and the
   first that answers wins: each address by the way that this host's routes say, then each through every other
   interface. The interfaces of PYDIST_IFACE (or GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) are the only ones, where it is
   set: names or their beginnings, "eth1,ib"; "^docker,lo": all but these. Addresses of this host are free from it. */
#ifndef PD_COMM_DIAL_H
#define PD_COMM_DIAL_H

#include <net/if.h>
#include <sys/socket.h>

#include "comm/net/hooks.h"

#define PD_DIAL_TRIES 64
#define PD_DIAL_FACES 16

typedef struct pd_face { /* an address of an interface that is up and not loopback */
    char name[IF_NAMESIZE];
    struct sockaddr_storage address;
} pd_face;

typedef struct pd_try {
    struct sockaddr_storage to;
    socklen_t bytes;
    int face, fd; /* face -1: as the routes say. fd -1: not started, or over */
    bool over;
} pd_try;

typedef struct pd_race {
    pd_face faces[PD_DIAL_FACES];
    pd_try tries[PD_DIAL_TRIES];
    int face_count, count, started, error; /* error: errno of the last try that failed */
    int64_t began;
    char way[320]; /* of the newest connection: the address, the interface and why this one */
} pd_race;

/* The interfaces that may be used; at most PD_DIAL_FACES addresses. PD_E_VALUE: PYDIST_IFACE leaves none. */
pd_status pd_dial_faces(pd_face *faces, int *count);
/* To "host:port" or "[v6]:port". Adds to a race that is zeros or has others. PD_E_DIST: no such host. */
pd_status pd_race_add(pd_race *r, const char *address);
/* The next connection that stands: *fd [new], non-blocking, with r->way. *fd -1: nobody has answered, r->error says
   why; at the latest at the deadline (pd_os_now). */
pd_status pd_race_next(pd_race *r, int64_t deadline, const pd_hooks *hooks, int *fd);
void pd_race_end(pd_race *r);

/* [new] a connected, non-blocking descriptor to "@name", "host:port" or "[v6]:port". Waits in slices with the interrupt
   hook, until the deadline; `patient`: also while nobody listens there. way: a race's, "" for "@name". */
pd_status pd_dial(const char *address, int64_t deadline, bool patient, const pd_hooks *hooks, int *fd, char *way,
                  size_t size);

#endif

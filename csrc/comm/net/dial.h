/* Connects to another process by a race between all ways to it.

   The other host may have several addresses and this one several interfaces. Some of them may be dead, and a connection
   over a dead one takes minutes to fail. So each try starts a moment after the one before it, or at once if that has
   failed, and the first answer wins. Each address is tried first by this host's routes, then through every other
   interface. If PYDIST_IFACE (or GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) is set, only its interfaces are used: a list
   of names or their beginnings, "eth1,ib"; or "^docker,lo" for all but these. It does not matter for addresses of this
   host. */
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
    int face, fd; /* face -1: by the routes. fd -1: not started, or ended */
    bool over;
} pd_try;

typedef struct pd_race {
    pd_face faces[PD_DIAL_FACES];
    pd_try tries[PD_DIAL_TRIES];
    int face_count, count, started, error; /* error: errno of the last try that failed */
    int64_t began;
    char way[320]; /* of the newest connection: address, interface, and why it was chosen */
} pd_race;

/* The interfaces that may be used; at most PD_DIAL_FACES addresses. PD_E_VALUE: PYDIST_IFACE leaves none. */
pd_status pd_dial_faces(pd_face *faces, int *count);
/* Adds the ways to "host:port" or "[v6]:port" to a race, which is zeroed or has others. PD_E_DIST: no such host. */
pd_status pd_race_add(pd_race *r, const char *address);
/* Waits for the next connection: *fd [new], non-blocking, and r->way. *fd -1: none has come by the deadline
   (pd_os_now), or all have failed; r->error says why. */
pd_status pd_race_next(pd_race *r, int64_t deadline, const pd_hooks *hooks, int *fd);
void pd_race_end(pd_race *r);

/* [new] a connected, non-blocking descriptor to "@name", "host:port" or "[v6]:port". Waits until the deadline and calls
   the interrupt hook meanwhile; `patient`: also waits while nobody listens there. way: as in pd_race; "" for
   "@name". */
pd_status pd_dial(const char *address, int64_t deadline, bool patient, const pd_hooks *hooks, int *fd, char *way,
                  size_t size);

#endif

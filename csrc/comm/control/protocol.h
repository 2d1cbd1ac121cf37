/* The frames of the control plane. Payloads are fixed structs in the host's byte order, then bytes.

     client   HELLO (who, a random number)             PROOF (of the secret)
     server                  CHALLENGE (its own, and proof)        WELCOME (the job's token, masked) | REFUSED

   The server gives the reason of a refusal only to a client that has proved that it knows the secret. */
#ifndef PD_COMM_CONTROL_WIRE_H
#define PD_COMM_CONTROL_WIRE_H

#include <string.h>

#include "base/sha256.h"
#include "comm/control/control.h"
#include "comm/net/auth.h"
#include "comm/net/wire.h"

enum {
    PD_CONTROL_HELLO = 1, /* client: pd_control_hello */
    PD_CONTROL_CHALLENGE, /* server: pd_control_challenge */
    PD_CONTROL_PROOF,     /* client: PD_SHA256_BYTES */
    PD_CONTROL_WELCOME,   /* server: pd_control_welcome */
    PD_CONTROL_REFUSED,   /* server: text; then it closes */
    PD_CONTROL_CALL,      /* client: pd_control_call + key + data, perhaps a descriptor */
    PD_CONTROL_REPLY,     /* server, same id: pd_control_reply + data or error text, perhaps a descriptor */
    PD_CONTROL_EVENT,      /* both ways: pd_link_event + text */
    PD_CONTROL_PING,      /* server: are you there */
    PD_CONTROL_PONG,      /* client */
};

#define PD_CONTROL_TEXT 65536 /* the longest traceback that is passed on; a longer one loses its beginning */
#define PD_CONTROL_PAYLOAD (64 + PD_STORE_KEY + PD_STORE_VALUE)
#define PD_HEARTBEAT_NS INT64_C(1000000000) /* between two pings */
#define PD_SILENCE_NS (5 * PD_HEARTBEAT_NS / 2) /* the shortest silence that counts: two lost pings */

typedef struct pd_control_hello {
    uint8_t nonce[PD_NONCE_BYTES];
    int32_t rank, world, pid, pad;
} pd_control_hello;

typedef struct pd_control_challenge {
    uint8_t nonce[PD_NONCE_BYTES], proof[PD_SHA256_BYTES];
} pd_control_challenge;

#define PD_CONTROL_OPEN (1 << 30)
typedef struct pd_control_welcome {
    uint8_t token[PD_TOKEN_BYTES];
    int32_t host_rank; /* the rank that hosts the server, plus PD_CONTROL_OPEN in an open job; -1: a launcher does */
} pd_control_welcome;

typedef struct pd_control_call {
    uint32_t verb, key_bytes, bytes, pad;
    int64_t amount, timeout_ns;
} pd_control_call;

typedef struct pd_control_reply {
    int64_t amount;
    int32_t status; /* not PD_OK: the bytes that follow are the error's text */
    uint32_t pad;
} pd_control_reply;

/* The MAC of a purpose, the client's hello and the server's number; only who knows the secret can compute it. */
void pd_control_mac(const uint8_t secret[PD_SECRET_BYTES], const char *purpose, const pd_control_hello *hello,
                    const uint8_t nonce[PD_NONCE_BYTES], uint8_t out[PD_SHA256_BYTES]);

_Static_assert(PD_STORE_KEY + sizeof(pd_control_call) < PD_CONTROL_PAYLOAD - PD_STORE_VALUE, "payload bound");

#endif

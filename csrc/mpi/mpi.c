/* pydist/_mpi.so: pd_mpi_table over the MPI whose mpicc compiled it. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi/mpi_table.h"

#define EXPORT __attribute__((visibility("default")))

_Static_assert(sizeof(MPI_Request) <= sizeof(pd_mpi_request), "an MPI_Request fits");
_Static_assert(sizeof(MPI_Comm) <= sizeof(pd_mpi_comm), "an MPI_Comm fits");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MPI_Comm comm = MPI_COMM_NULL;
/* Groups are made from it: Open MPI's own messages for that would meet our tags. */
static MPI_Comm parent = MPI_COMM_NULL;
static _Thread_local char reason[MPI_MAX_ERROR_STRING + 64];

static const char *text(void) { return reason; }

static const char *name(void) {
    static char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int n = 0;
    if (MPI_Get_library_version(version, &n) != MPI_SUCCESS) return "MPI";
    version[strcspn(version, "\n")] = 0;
    return version;
}

/* 0, or -1 with the reason. */
static int checked(const char *call, int code) {
    if (code == MPI_SUCCESS) return 0;
    int n = snprintf(reason, sizeof reason, "%s: ", call), used = 0;
    if (MPI_Error_string(code, reason + n, &used) != MPI_SUCCESS)
        snprintf(reason + n, sizeof reason - (size_t)n, "error %d", code);
    return -1;
}

static void finish(void) {
    int over = 1;
    MPI_Finalized(&over);
    if (!over) MPI_Finalize();
}

static int begin(int *rank, int *size) {
    int running, level;
    if (comm == MPI_COMM_NULL) {
        if (checked("MPI_Initialized", MPI_Initialized(&running))) return -1;
        if (!running) {
            if (checked("MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level))) return -1;
            atexit(finish);
        } else if (checked("MPI_Query_thread", MPI_Query_thread(&level)))
            return -1;
        if (level < MPI_THREAD_SERIALIZED) {
            snprintf(reason, sizeof reason,
                     "this MPI allows only one thread to call it (expected MPI_THREAD_SERIALIZED)");
            return -1;
        }
        if (checked("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &parent))) return -1;
        if (checked("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &comm))) return -1;
        MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    if (checked("MPI_Comm_rank", MPI_Comm_rank(comm, rank))) return -1;
    return checked("MPI_Comm_size", MPI_Comm_size(comm, size));
}

static int start(int *rank, int *size) {
    pthread_mutex_lock(&lock);
    int failed = begin(rank, size);
    pthread_mutex_unlock(&lock);
    return failed;
}

static int broadcast(void *data, size_t bytes, int root) {
    pthread_mutex_lock(&lock);
    int failed = checked("MPI_Bcast", MPI_Bcast(data, (int)bytes, MPI_BYTE, root, comm));
    pthread_mutex_unlock(&lock);
    return failed;
}

static void keep(pd_mpi_request *out, const MPI_Request *r) {
    *out = (pd_mpi_request){0};
    memcpy(out, r, sizeof *r);
}

static int send(int peer, int tag, const void *data, size_t bytes, pd_mpi_request *out) {
    MPI_Request r;
    pthread_mutex_lock(&lock);
    int failed = checked("MPI_Isend", MPI_Isend(data, (int)bytes, MPI_BYTE, peer, tag, comm, &r));
    pthread_mutex_unlock(&lock);
    if (!failed) keep(out, &r);
    return failed;
}

static int receive(int peer, int tag, void *data, size_t bytes, pd_mpi_request *out) {
    MPI_Request r;
    pthread_mutex_lock(&lock);
    int failed = checked("MPI_Irecv", MPI_Irecv(data, (int)bytes, MPI_BYTE, peer, tag, comm, &r));
    pthread_mutex_unlock(&lock);
    if (!failed) keep(out, &r);
    return failed;
}

static int test(pd_mpi_request *request, int *done) {
    MPI_Request r;
    memcpy(&r, request, sizeof r);
    pthread_mutex_lock(&lock);
    int failed = checked("MPI_Test", MPI_Test(&r, done, MPI_STATUS_IGNORE));
    pthread_mutex_unlock(&lock);
    keep(request, &r);
    return failed;
}

static void cancel(pd_mpi_request *request) {
    MPI_Request r;
    int over = 1;
    memcpy(&r, request, sizeof r);
    pthread_mutex_lock(&lock);
    MPI_Finalized(&over);
    if (!over && MPI_Cancel(&r) == MPI_SUCCESS) MPI_Wait(&r, MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&lock);
}

static int group(const int *ranks, int size, int tag, pd_mpi_comm *out) {
    MPI_Group all, some;
    MPI_Comm made;
    pthread_mutex_lock(&lock);
    int failed = checked("MPI_Comm_group", MPI_Comm_group(parent, &all));
    if (!failed) {
        failed = checked("MPI_Group_incl", MPI_Group_incl(all, size, ranks, &some));
        if (!failed) {
            failed = checked("MPI_Comm_create_group", MPI_Comm_create_group(parent, some, tag, &made));
            MPI_Group_free(&some);
        }
        MPI_Group_free(&all);
    }
    pthread_mutex_unlock(&lock);
    *out = (pd_mpi_comm){0};
    if (!failed) memcpy(out, &made, sizeof made);
    return failed;
}

static int all_reduce(const pd_mpi_comm *c, void *data, int count, pd_mpi_type type, pd_mpi_op op,
                      pd_mpi_request *out) {
    const MPI_Datatype types[] = {[PD_MPI_U8] = MPI_UINT8_T,   [PD_MPI_I8] = MPI_INT8_T,   [PD_MPI_I16] = MPI_INT16_T,
                                  [PD_MPI_I32] = MPI_INT32_T,  [PD_MPI_I64] = MPI_INT64_T, [PD_MPI_F32] = MPI_FLOAT,
                                  [PD_MPI_F64] = MPI_DOUBLE};
    const MPI_Op ops[] = {[PD_MPI_SUM] = MPI_SUM, [PD_MPI_PRODUCT] = MPI_PROD, [PD_MPI_MIN] = MPI_MIN,
                          [PD_MPI_MAX] = MPI_MAX, [PD_MPI_BAND] = MPI_BAND,    [PD_MPI_BOR] = MPI_BOR,
                          [PD_MPI_BXOR] = MPI_BXOR};
    MPI_Request r;
    MPI_Comm of;
    memcpy(&of, c, sizeof of);
    pthread_mutex_lock(&lock);
    int code = MPI_Iallreduce(MPI_IN_PLACE, data, count, types[type], ops[op], of, &r);
    int failed = checked("MPI_Iallreduce", code);
    pthread_mutex_unlock(&lock);
    if (!failed) keep(out, &r);
    return failed;
}

EXPORT const pd_mpi_table pd_mpi_table_2 = {
    .version = PD_MPI_VERSION, .name = name, .text = text, .start = start, .broadcast = broadcast, .send = send,
    .receive = receive, .test = test, .cancel = cancel, .group = group, .all_reduce = all_reduce,
};

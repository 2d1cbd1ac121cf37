/* What the engine needs of MPI: messages that can be asked whether they are done. One table, filled by mpi.c, which is
   compiled by an MPI's own mpicc to pydist/_mpi.so and opened at run time: the engine itself links no MPI.

   Functions return 0, or -1 with the reason in text(). Any thread may call; calls exclude each other. */
#ifndef PD_MPI_TABLE_H
#define PD_MPI_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define PD_MPI_VERSION 1
#define PD_MPI_TABLE "pd_mpi_table_1" /* the library's one symbol */

typedef struct pd_mpi_request {
    uint64_t opaque;
} pd_mpi_request;

typedef struct pd_mpi_table {
    int version;
    const char *(*name)(void); /* "Open MPI v4.1.4, ..." */
    const char *(*text)(void); /* of this thread's last failure */
    /* Joins the job (MPI_Init_thread, where nobody has done it; then MPI_Finalize at exit is ours too). */
    int (*start)(int *rank, int *size);
    int (*broadcast)(void *data, size_t bytes, int root); /* blocks */
    int (*send)(int peer, int tag, const void *data, size_t bytes, pd_mpi_request *out);
    int (*receive)(int peer, int tag, void *data, size_t bytes, pd_mpi_request *out);
    int (*test)(pd_mpi_request *r, int *done); /* after done the request is gone */
    void (*cancel)(pd_mpi_request *r);         /* of a receive; it is gone */
} pd_mpi_table;

#endif

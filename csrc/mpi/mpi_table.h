/* The table of MPI functions that the engine uses. An MPI's own mpicc compiles mpi.c, which fills it, to
   pydist/_mpi.so. The engine opens that at run time and links no MPI.

   Functions return 0, or -1 with the reason in text(). Any thread may call; calls exclude each other. */
#ifndef PD_MPI_TABLE_H
#define PD_MPI_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define PD_MPI_VERSION 2
#define PD_MPI_TABLE "pd_mpi_table_2" /* the library's one symbol */

typedef struct pd_mpi_request {
    uint64_t opaque;
} pd_mpi_request;

typedef struct pd_mpi_comm {
    uint64_t opaque; /* 0: none */
} pd_mpi_comm;

typedef enum pd_mpi_type {
    PD_MPI_NONE, PD_MPI_U8, PD_MPI_I8, PD_MPI_I16, PD_MPI_I32, PD_MPI_I64, PD_MPI_F32, PD_MPI_F64
} pd_mpi_type;
typedef enum pd_mpi_op {
    PD_MPI_SUM, PD_MPI_PRODUCT, PD_MPI_MIN, PD_MPI_MAX, PD_MPI_BAND, PD_MPI_BOR, PD_MPI_BXOR
} pd_mpi_op;

typedef struct pd_mpi_table {
    int version;
    const char *(*name)(void); /* "Open MPI v4.1.4, ..." */
    const char *(*text)(void); /* the reason of this thread's last failure */
    /* Joins the job. If nobody else has, it calls MPI_Init_thread, and then also MPI_Finalize at exit. */
    int (*start)(int *rank, int *size);
    int (*broadcast)(void *data, size_t bytes, int root); /* blocks */
    int (*send)(int peer, int tag, const void *data, size_t bytes, pd_mpi_request *out);
    int (*receive)(int peer, int tag, void *data, size_t bytes, pd_mpi_request *out);
    int (*test)(pd_mpi_request *r, int *done); /* once done, the request is freed */
    void (*cancel)(pd_mpi_request *r);         /* cancels a receive and frees the request */
    /* Makes a communicator of these ranks. All of them call it, and it blocks until they do. It is never freed, since
       all ranks would have to free it together. */
    int (*group)(const int *ranks, int size, int tag, pd_mpi_comm *out);
    int (*all_reduce)(const pd_mpi_comm *c, void *data, int count, pd_mpi_type type, pd_mpi_op op, pd_mpi_request *out);
} pd_mpi_table;

#endif

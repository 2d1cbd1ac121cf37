/* The mesh over MPI: Isend, Irecv and Test under the native algorithms, so that order, identity and errors are those of
   every other transport. pd_mpi_open first, once in a process. */
#ifndef PD_COMM_MPI_H
#define PD_COMM_MPI_H

#include "base/status.h"

/* Opens the library (pydist/_mpi.so) and joins the MPI job; later calls return the same. PD_E_RUNTIME: there is no such
   library, or MPI refuses. */
pd_status pd_mpi_open(const char *path, int *rank, int *size);
const char *pd_mpi_name(void); /* of the MPI that is open, or NULL */
/* data = rank 0's data. For ranks that have not found each other yet. Blocks as MPI does. */
pd_status pd_mpi_broadcast(void *data, size_t bytes);

#endif

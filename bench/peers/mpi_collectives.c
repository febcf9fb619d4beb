/* MPI sweep with the same output as torch_collectives.py:
 *   mpicc -O2 mpi_collectives.c -o mpi_collectives && mpirun --allow-run-as-root -np 2 ./mpi_collectives [max_mib] [seconds] [operation]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, BARRIER, OPS };
static const char *names[OPS] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"};
static int ascending(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }

static void run(int op, float *in, float *out, int count, int n) {
  switch (op) {
    case ALL_REDUCE: MPI_Allreduce(MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(in, count / n, MPI_FLOAT, out, count / n, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(in, out, count / n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(in, count / n, MPI_FLOAT, out, count / n, MPI_FLOAT, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    default: MPI_Barrier(MPI_COMM_WORLD);
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, n;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  double limit = (argc > 1 ? atof(argv[1]) : 256) * 1048576.0, seconds = argc > 2 ? atof(argv[2]) : 0.5;
  for (int op = 0; op < OPS; op++)
    for (size_t bytes = 4; bytes <= limit; bytes *= 4) {
      if ((op == BARRIER && bytes > 4) || (argc > 3 && strcmp(argv[3], names[op]))) break;
      int count = (int)(bytes / 4);
      count = count < n ? n : count / n * n;
      float *in = calloc(count, 4), *out = calloc(count, 4);
      memset(in, 0, 4ul * count), memset(out, 0, 4ul * count);
      for (int i = 0; i < count; i++) in[i] = out[i] = rank + 1 + i % 7;
      run(op, in, out, count, n);
      for (int i = 0, share = count / n; i < count; i++) { /* the answer, once a case */
        float sum = n * (n + 1) / 2.0f, want = out[i];
        if (op == ALL_REDUCE) want = sum + n * (i % 7);
        if (op == BROADCAST) want = 1 + i % 7;
        if (op == ALL_GATHER) want = i / share + 1 + i % share % 7;
        if (op == ALL_TO_ALL) want = i / share + 1 + (rank * share + i % share) % 7;
        if (op == REDUCE_SCATTER && i < share) want = sum + n * ((rank * share + i) % 7);
        if (out[i] != want) fprintf(stderr, "%s: wrong answer at %d\n", names[op], i), MPI_Abort(MPI_COMM_WORLD, 1);
      }
      memset(in, 0, 4ul * count), memset(out, 0, 4ul * count);
      for (int i = 0; i < 3; i++) run(op, in, out, count, n);
      MPI_Barrier(MPI_COMM_WORLD);
      double est = MPI_Wtime();
      run(op, in, out, count, n);
      est = MPI_Wtime() - est;
      MPI_Allreduce(MPI_IN_PLACE, &est, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      int iters = est > 0 ? (int)(seconds / est) : 20000;
      iters = iters < 5 ? 5 : iters > 20000 ? 20000 : iters;
      double *t = malloc(iters * sizeof *t);
      for (int i = 0; i < iters; i++) {
        double s = MPI_Wtime();
        run(op, in, out, count, n);
        t[i] = MPI_Wtime() - s;
      }
      MPI_Allreduce(MPI_IN_PLACE, t, iters, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      qsort(t, iters, sizeof *t, ascending);
      double f = op == ALL_REDUCE ? 2.0 * (n - 1) / n : op == BROADCAST ? 1 : op == BARRIER ? 0 : (double)(n - 1) / n;
      if (!rank)
        printf("{\"op\": \"%s\", \"backend\": \"mpi\", \"world\": %d, \"bytes\": %d, \"us_min\": %.2f, \"us_p50\": %.2f, \"us_p99\": %.2f, "
               "\"busbw_gbs\": %.3f, \"iters\": %d}\n", names[op], n, 4 * count, t[0] * 1e6, t[iters / 2] * 1e6, t[(int)(iters * .99)] * 1e6,
               4e-9 * count / t[iters / 2] * f, iters), fflush(stdout);
      free(in), free(out), free(t);
    }
  MPI_Finalize();
  return 0;
}

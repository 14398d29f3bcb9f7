/*
 * matmul - products of dense matrices whose rows are allocated anew before each product.
 *
 * usage: matmul [THREADS [ci|thesis [N [PRODUCTS]]]]
 *
 * The program "Matmul" of Endo's thesis (2001, section 1.1): a matrix is an array of pointers to rows, and thread t makes the
 * rows t, t + T, t + 2T ... Before each product both factors get fresh rows, so the old ones are garbage; little is allocated, and
 * where a row lies decides more than how fast it was allocated.
 *
 * Elements are whole numbers below 1009 in doubles, so every product is exact. Each product C = A B is checked by Freivalds's
 * method: C x = A (B x) for a random vector x, which a wrong element passes with probability 1/1009.
 */
#include "thesis.h"

enum { MODULUS = 1009 };

typedef double **Matrix;

static long threads, n, products;
static Matrix a, b, c;
static double *x, *bx; /* the vector of the check, and B x */
static pthread_barrier_t barrier;

static Matrix new_matrix(void) { return allocated("matmul", GC_MALLOC(n * sizeof(double *))); }
static double *new_row(void) { return allocated("matmul", GC_MALLOC_ATOMIC(n * sizeof(double))); }

static double remainder_of(double value) { return value - (double)(uint64_t)(value / MODULUS) * MODULUS; }

static double dot(const double *row, const double *vector) {
    double total = 0;
    for (long j = 0; j < n; j++)
        total += row[j] * vector[j];
    return remainder_of(total);
}

/* A row that replaces `old`; `spread` makes the next product another one. */
static double *renewed(const double *old, double spread) {
    double *row = new_row();
    for (long j = 0; j < n; j++)
        row[j] = remainder_of(old[j] + spread);
    return row;
}

static void multiply_row(long i) {
    double *row = c[i];
    memset(row, 0, n * sizeof *row);
    for (long k = 0; k < n; k++) {
        double factor = a[i][k];
        const double *from = b[k];
        for (long j = 0; j < n; j++)
            row[j] += factor * from[j];
    }
    for (long j = 0; j < n; j++)
        row[j] = remainder_of(row[j]);
}

static void *work(void *argument) {
    long me = (intptr_t)argument;
    for (long p = 0; p < products; p++) {
        /* The last product is the next left factor. */
        for (long i = me; i < n; i += threads) {
            a[i] = renewed(c[i], 1);
            b[i] = renewed(b[i], p);
        }
        pthread_barrier_wait(&barrier);
        for (long i = me; i < n; i += threads) {
            multiply_row(i);
            bx[i] = dot(b[i], x);
        }
        pthread_barrier_wait(&barrier);
        for (long i = me; i < n; i += threads)
            if (dot(c[i], x) != dot(a[i], bx)) {
                fprintf(stderr, "matmul: row %ld of product %ld is wrong: an object was lost or changed\n", i, p);
                exit(1);
            }
        pthread_barrier_wait(&barrier);
    }
    return 0;
}

int main(int argc, char **argv) {
    threads = thesis_threads(argc, argv, 4);
    n = thesis_size(argc, argv, 3, "N", 150, 1000, 1, 8000);
    products = thesis_size(argc, argv, 4, "PRODUCTS", 20, 30, 1, 1000000);
    report_start();
    a = new_matrix(), b = new_matrix(), c = new_matrix();
    x = new_row(), bx = new_row();
    uint64_t state = 2001;
    for (long i = 0; i < n; i++) {
        b[i] = new_row(), c[i] = new_row();
        x[i] = random_next(&state) % MODULUS;
        for (long j = 0; j < n; j++) {
            b[i][j] = random_next(&state) % MODULUS;
            c[i][j] = random_next(&state) % MODULUS;
        }
    }
    pthread_barrier_init(&barrier, 0, threads);
    double start = now_s();
    run_threads(threads, work);
    double seconds = now_s() - start;
    uint64_t sum = 0;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++)
            sum = sum_add(sum, c[i][j]);
    thesis_begin("matmul", threads, sum, seconds);
    printf(" n=%ld products=%ld", n, products);
    thesis_end();
    return 0;
}

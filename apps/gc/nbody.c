/*
 * nbody - Barnes-Hut simulation of a star cluster, with the tree built anew at every step by all threads.
 *
 * usage: nbody [THREADS [BODIES [STEPS]]]
 *
 * What a step does stands in bodies.h; `sum` is a checksum of all places.
 */
#include "bodies.h"

int main(int argc, char **argv) {
    threads = argument(argc, argv, 1, "THREADS", 8, 1, MOST_THREADS);
    bodies_count = argument(argc, argv, 2, "BODIES", 20000, 2, 10000000);
    steps = argument(argc, argv, 3, "STEPS", 30, 1, 1000000);
    report_start();
    double seconds = run_simulation(), drift = energy_drift();
    int ok = energy_is_kept();
    printf("program=nbody threads=%ld bodies=%ld steps=%ld sum=%016" PRIx64
           " ok=%d energy=%.6f energy_drift=%.2e body_steps_per_s=%.0f",
           threads, bodies_count, steps, checksum(), ok, first_energy, drift, bodies_count * (double)steps / seconds);
    report_end(seconds);
    if (!ok)
        fprintf(stderr, "nbody: the energy drifted by %.1f %%: an object was lost or changed\n", drift * 100);
    return !ok;
}

/* bh.h - the main program of bh-st and bh-pt; what a step does stands in bodies.h. */
#include "bodies.h"
#include "thesis.h"

int main(int argc, char **argv) {
    threads = thesis_threads(argc, argv, 4);
    bodies_count = thesis_size(argc, argv, 3, "BODIES", 4000, 100000, 2, 10000000);
    steps = thesis_size(argc, argv, 4, "STEPS", 6, 30, 1, 1000000);
    one_builder = BH_ONE_BUILDER;
    report_start();
    double seconds = run_simulation();
    if (!energy_is_kept()) {
        fprintf(stderr, BH_NAME ": the energy drifted by %.1f %%: an object was lost or changed\n", energy_drift() * 100);
        return 1;
    }
    thesis_begin(BH_NAME, threads, checksum(), seconds);
    printf(" bodies=%ld steps=%ld objects=%ld energy_drift=%.2e", bodies_count, steps, objects_made(), energy_drift());
    thesis_end();
    return 0;
}

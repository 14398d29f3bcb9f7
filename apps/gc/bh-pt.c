/*
 * bh-pt - the thesis's BH with parallel tree construction: all threads build the tree and calculate forces from it.
 *
 * usage: bh-pt [THREADS [ci|thesis [BODIES [STEPS]]]]
 *
 * All threads allocate, so the nodes are nearly as many for each. See bh.h.
 */
#include "barrier.h"

#define BH_NAME "bh-pt" SOFT
#define BH_ONE_BUILDER 0
#include "bh.h"

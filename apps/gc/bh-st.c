/*
 * bh-st - the thesis's BH with sequential tree construction: one thread builds the tree, all calculate forces from it.
 *
 * usage: bh-st [THREADS [ci|thesis [BODIES [STEPS]]]]
 *
 * Only one thread allocates, so whatever memory is local to is imbalanced. See bh.h.
 */
#define BH_NAME "bh-st"
#define BH_ONE_BUILDER 1
#include "bh.h"

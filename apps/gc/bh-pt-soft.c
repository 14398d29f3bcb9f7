/* bh-pt-soft - bh-pt with a software write barrier: Barnes-Hut, the tree built by all threads, telling the collector of each pointer that it stores. See barrier.h. */
#define SOFTWARE_BARRIER
#include "bh-pt.c"

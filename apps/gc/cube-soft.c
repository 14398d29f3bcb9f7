/* cube-soft - cube with a software write barrier: Rubik's cube, telling the collector of each pointer that it stores. See barrier.h. */
#define SOFTWARE_BARRIER
#include "cube.c"

/* cky-soft - cky with a software write barrier: the parser, telling the collector of each pointer that it stores. See barrier.h. */
#define SOFTWARE_BARRIER
#include "cky.c"

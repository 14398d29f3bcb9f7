/*
 * barrier.h - how a program stores a pointer into an object of the heap.
 *
 * Programs are compiled twice where the price of a software write barrier is to be seen (Endo's thesis, 2001, section 5.2.2):
 * as they are, with plain stores, for collectors that stop the world or watch pages; and with SOFTWARE_BARRIER, as
 * PROGRAM-soft, with a call for each pointer stored. Only the latter may run with LARDER_WATCH=barrier or snapshot.
 *
 * Roots (static data, stacks) need no barrier, and neither do objects without pointers.
 */
#ifndef BARRIER_H
#define BARRIER_H

#include "report.h"

#ifdef SOFTWARE_BARRIER
#define SOFT "-soft"
/* Stores a pointer at a place in the heap. */
#define STORE(place, value) GC_PTR_STORE_AND_DIRTY(place, value)
/* Pointers were stored into this object by other means. They are still held elsewhere. */
#define STORED(object) GC_END_STUBBORN_CHANGE(object)
#else
#define SOFT ""
#define STORE(place, value) (*(place) = (value))
#define STORED(object) ((void)(object))
#endif

#endif

/* Which version of libgc's interface these headers describe. Part of gc.h. */
#ifndef GC_VERSION_H
#define GC_VERSION_H

#define GC_VERSION_MAJOR 8
#define GC_VERSION_MINOR 2
#define GC_VERSION_MICRO 2

#endif

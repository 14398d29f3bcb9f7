/* SGC's interface for C++: sgc.h, and the classes and placements of gc_cpp.h. */
#ifndef SGC_CPP_H
#define SGC_CPP_H

#include "sgc.h"
#include "gc/gc_cpp.h"

#endif

/* The C++ interface under its short name. */
#include "gc/gc_cpp.h"

/* The collector's interface under its short name. */
#include "gc/gc.h"

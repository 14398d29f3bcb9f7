/* The name under which some programs include the header; everything is in the other one. */
#include "../gc.h"

/* errno: what allocates, frees or collects leaves it alone, whatever the heap asks the kernel for. Programs allocate the text of a message
 * between the call that failed and the look at why. */
#include "check.h"
#include <errno.h>

#define UNTOUCHED(call)     \
    do {                    \
        errno = 77;         \
        call;               \
        CHECK(errno == 77); \
    } while (0)

static void *kept;

int main(void) {
    UNTOUCHED(GC_malloc(1));
    for (int i = 0; i < 300000; i++) {
        size_t bytes = i % 5000 == 0 ? 200000 : i % 100 == 0 ? 40000 : (size_t)(i % 300);
        void **p;
        UNTOUCHED(p = i % 3 ? GC_malloc(bytes + 8) : GC_malloc_atomic(bytes + 8));
        *p = 0;
        if (i % 100 == 1) UNTOUCHED(GC_free(p));
        if (i % 1000 == 0) {
            *p = kept;
            kept = i % 3 ? p : kept;
        }
        if (i % 30000 == 7) UNTOUCHED(GC_gcollect());
    }
    UNTOUCHED(GC_gcollect_and_unmap());
    UNTOUCHED(GC_realloc(GC_malloc(10), 100000));
    UNTOUCHED(GC_strdup("x"));
    void *p;
    UNTOUCHED(CHECK(GC_posix_memalign(&p, 64, 10) == 0));
    UNTOUCHED(GC_free(GC_malloc_uncollectable(500000)));
    return 0;
}

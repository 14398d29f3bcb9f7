/* Code may run on the heap where that was asked for. */
#include "check.h"

int main(void) {
    GC_set_pages_executable(1);
    GC_init();
    CHECK(GC_get_pages_executable() == 1);
    static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3}; /* mov eax, 42; ret */
    void *p = GC_malloc_atomic(sizeof code);
    memcpy(p, code, sizeof code);
    p = opaque(p);
    __asm__ volatile("" ::: "memory");
    CHECK(((int (*)(void))p)() == 42);
    return 0;
}

/* Copies of strings, aligned memory, lists of objects. */
#include "check.h"
#include <errno.h>
#include <gc/gc_inline.h>
#include <gc/gc_mark.h>

static void *GC_CALLBACK no_memory(size_t bytes UNUSED) { return 0; }

int main(void) {
    GC_init();
    char *s = GC_strdup("twelve bytes");
    CHECK(strcmp(s, "twelve bytes") == 0 && GC_get_kind_and_size(s, 0) == 0);
    CHECK(GC_strdup(0) == 0);
    CHECK(strcmp(GC_strndup("twelve bytes", 6), "twelve") == 0);
    CHECK(strcmp(GC_strndup("twelve", 600), "twelve") == 0);
    CHECK(strcmp(GC_strndup("x", 0), "") == 0);

    for (size_t align = 1; align <= 2048; align *= 2) {
        char *p = GC_memalign(align, 100);
        CHECK(p && ((uintptr_t)p & (align - 1)) == 0);
        for (int i = 0; i < 100; i++) CHECK(p[i] == 0);
        CHECK(GC_base(p + 99) == GC_base(p) && GC_base(p) != 0);
    }
    /* Multiples of what is no power of two, as of a structure's size. */
    for (size_t align = 17; align < 2048; align += 111) {
        char *p = GC_memalign(align, 100);
        CHECK(p && (uintptr_t)p % align == 0 && GC_base(p + 99) == GC_base(p));
    }
    CHECK(GC_memalign(0, 10) && GC_memalign(3, 10) && GC_memalign((size_t)1 << 63, 10) == 0);
    void *p = 0;
    CHECK(GC_posix_memalign(&p, 3, 10) == EINVAL && GC_posix_memalign(&p, 4, 10) == EINVAL && p == 0);
    CHECK(GC_posix_memalign(&p, 64, 10) == 0 && ((uintptr_t)p & 63) == 0);
    GC_set_oom_fn(no_memory);
    p = &p;
    CHECK(GC_posix_memalign(&p, 64, (size_t)1 << 60) == ENOMEM && p == 0);

    int n = 0;
    for (char **list = GC_malloc_many(24); list; list = GC_NEXT(list), n++) {
        CHECK(list[1] == 0 && list[2] == 0 && GC_size(list) > 24 && GC_base(list) == list);
    }
    CHECK(n > 0);
    /* Sizes in whole cells here: the byte past the end is the caller's affair. */
    void *list;
    GC_generic_malloc_many(32, GC_I_NORMAL, &list);
    CHECK(list && GC_size(list) == 32 && GC_get_kind_and_size(list, 0) == 1);
    GC_generic_malloc_many(16, GC_I_PTRFREE, &list);
    CHECK(list && GC_size(list) == 16 && GC_get_kind_and_size(list, 0) == 0);
    GC_generic_malloc_many(100000, GC_I_NORMAL, &list);
    CHECK(list && GC_size(list) >= 100000);
    CHECK(GC_NEXT(list) == 0);
    return 0;
}

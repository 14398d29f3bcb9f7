/* Text about the collector's state, and what programs print through it. */
#include "check.h"
#include <gc/gc_mark.h>

extern void GC_printf(const char *, ...);

static void nothing(void *object, void *data) {
    (void)object;
    (void)data;
}

int main(void) {
    GC_init();
    void *p = GC_malloc(100), *short_link = p, *long_link = p;
    GC_register_finalizer(p, nothing, 0, 0, 0);
    CHECK(GC_general_register_disappearing_link(&short_link, p) == GC_SUCCESS);
    CHECK(GC_register_long_link(&long_link, p) == GC_SUCCESS);
    GC_gcollect();
    captured_begin();
    GC_dump();
    const char *text = captured_end();
    static const char *const parts[] = {
        "***GC Dump collection #", "***Static roots:\n", "GC_root_size=", "***Heap sections:\n", "Total heap size: ",
        "***Free blocks:\n", "***Blocks in use:\n", "kind(0=ptrfree,1=normal,2=unc.),size_in_bytes,#_marks_set,#objs\n",
        "blocks= "};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) CHECK(strstr(text, parts[i]));
    captured_begin();
    GC_dump_named("of mine");
    CHECK(strstr(captured_end(), "***GC Dump of mine\n"));
    captured_begin();
    GC_dump_named(0);
    CHECK(strstr(captured_end(), "***GC Dump collection #"));
    captured_begin();
    GC_dump_regions();
    CHECK(strstr(captured_end(), "***Section from "));
    captured_begin();
    GC_dump_finalization();
    text = captured_end();
    char line[200];
    sprintf(line, "Object: %p, link: %p\n", p, (void *)&short_link);
    CHECK(strstr(text, "Disappearing (short) links:\n") && strstr(text, line));
    sprintf(line, "Object: %p, link: %p\n", p, (void *)&long_link);
    CHECK(strstr(text, "Disappearing long links:\n") && strstr(text, line));
    sprintf(line, "Finalizable object: %p\n", p);
    CHECK(strstr(text, "Finalizers:\n") && strstr(text, line));
    captured_begin();
    GC_printf("%s %d %c\n", "words", 5, 'x');
    CHECK(strcmp(captured_end(), "words 5 x\n") == 0);
    CHECK(GC_unregister_long_link(&long_link) == 1 && GC_unregister_disappearing_link(&short_link) == 1);
    GC_register_finalizer(p, 0, 0, 0, 0);
    return 0;
}

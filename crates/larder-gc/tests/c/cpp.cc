// xtask: archive
/* Collected objects in C++, containers, and operators new and delete. */
#define GC_THREADS
#define GC_NO_THREAD_REDIRECTS
#include <gc/gc_allocator.h>
#include <gc/gc_cpp.h>

#include <cstdio>
#include <list>
#include <map>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);  \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

static int destroyed, cleaned, thrown;

struct Plain : gc {
    Plain *next;
    long number;
    Plain(Plain *n, long i) : next(n), number(i) {}
};
struct Cleaned : gc_cleanup {
    long number;
    Cleaned() : number(7) {}
    ~Cleaned() {
        CHECK(number == 7);
        destroyed++;
    }
};
struct Whole : gc {
    Cleaned part;
};
struct Throws : gc {
    Throws() { throw std::runtime_error("constructor"); }
};
static void cleanup(void *object, void *value) {
    CHECK(*(int *)object == 5);
    ++*(int *)value;
}
static void __attribute__((noinline)) make() {
    for (int i = 0; i < 100; i++) {
        new Cleaned;
        new Whole;
        int *p = new (GC, cleanup, &cleaned) int[10];
        p[0] = 5;
        __asm__ volatile("" ::"r"(p) : "memory");
    }
}
static void __attribute__((noinline)) clear_stack() {
    volatile char dead[32768];
    for (size_t i = 0; i < sizeof dead; i++) dead[i] = 0;
}
static void __attribute__((noinline)) far_away(void (*f)()) {
    volatile char gap[4096];
    gap[0] = 0;
    f();
    gap[4095] = gap[0];
    clear_stack();
}

int main() {
    GC_INIT();
    Plain *list = 0;
    for (long i = 0; i < 100000; i++) list = new Plain(list, i);
    GC_gcollect();
    long n = 100000;
    for (Plain *p = list; p; p = p->next) CHECK(p->number == --n);
    CHECK(n == 0 && GC_base(list) == list);

    far_away(make);
    for (int i = 0; i < 4; i++) {
        clear_stack();
        GC_gcollect();
    }
    CHECK(destroyed >= 190 && cleaned >= 90);
    int before = destroyed;
    delete new Cleaned;
    CHECK(destroyed == before + 1);
    try {
        new Throws;
    } catch (const std::runtime_error &) {
        thrown++;
    }
    CHECK(thrown == 1);

    int *atomic = new (PointerFreeGC) int[10], *kept = new (NoGC) int[10];
    CHECK(GC_base(atomic) && GC_base(kept));
    operator delete[](kept);

    std::vector<Plain *, gc_allocator<Plain *> > vector;
    std::vector<double, gc_allocator_ignore_off_page<double> > numbers(100000, 1.5);
    std::list<Plain *, traceable_allocator<Plain *> > traced;
    std::map<int, std::string, std::less<int>, gc_allocator<std::pair<const int, std::string> > > map;
    for (int i = 0; i < 10000; i++) {
        vector.push_back(new Plain(0, i));
        traced.push_back(new Plain(0, i));
        map[i] = "a string that is too long to lie in the object itself";
        if (i % 1000 == 0) GC_gcollect();
    }
    for (int i = 0; i < 10000; i++) CHECK(vector[i]->number == i && map[i][0] == 'a');
    n = 0;
    std::list<Plain *, traceable_allocator<Plain *> >::iterator at = traced.begin();
    for (; at != traced.end(); ++at) CHECK((*at)->number == n++);
    CHECK(numbers[99999] == 1.5 && gc_allocator<int>() == gc_allocator<long>());

    /* Ordinary new and delete are the collector's. */
    std::string *string = new std::string(1000, 'x');
    char *array = new char[100];
    CHECK(GC_base(string) == string && GC_base(array) == array && string->size() == 1000);
    delete string;
    delete[] array;
    GC_set_warn_proc(GC_ignore_warn_proc);
    volatile size_t huge = (size_t)1 << 60;
    for (int i = 0; i < 4; i++) {
        try {
            void *p = 0;
            if (i == 0) p = operator new(huge);
            if (i == 1) p = operator new[](huge);
            if (i == 2) p = operator new(huge, GC);
            if (i == 3) GC_throw_bad_alloc();
            CHECK(p == 0 && "an exception was expected");
        } catch (const std::bad_alloc &) {
            thrown++;
        }
    }
    CHECK(thrown == 5);
    return 0;
}

/* What a program in C++ chooses by defining names before it includes the headers: operators new for arrays of its own, a standard library without exceptions. */
#define GC_NO_OPERATOR_NEW_ARRAY
#define _LIBCPP_NO_EXCEPTIONS /* libc++ defines it with -fno-exceptions; libstdc++ does not look at it. */
#include <gc/gc.h>

/* gc.h alone has it. */
static int arrays() GC_NOEXCEPT;

#include <gc/gc_allocator.h>
#include <gc/gc_cpp.h>

#include <cstdio>
#include <vector>

#define TEXT_OF(words) #words
#define TEXT(words) TEXT_OF(words)
static_assert(sizeof(TEXT(GC_ALLOCATOR_THROW_OR_ABORT())) == sizeof "GC_abort_on_oom()", "nothing is thrown");

static int own_arrays;

/* The program's own. */
inline void *operator new[](size_t bytes, GCPlacement where, GCCleanUpFunc cleanup = 0, void *value = 0) {
    own_arrays++;
    return ::operator new(bytes, where, cleanup, value);
}

struct Plain : gc {
    long number;
};

static int arrays() GC_NOEXCEPT {
    /* The class has no operator for arrays, so this one is the program's. */
    Plain *few = ::new (GC) Plain[3];
    long *numbers = new (PointerFreeGC) long[3];
    return GC_base(few) != 0 && GC_base(numbers) != 0 ? own_arrays : -1;
}

int main() {
    GC_INIT();
    std::vector<int, gc_allocator<int> > many(1000, 7);
    if (GC_base(&many[999]) == 0 || arrays() != 2) {
        std::fprintf(stderr, "cpp_choices: arrays come from elsewhere\n");
        return 1;
    }
    return 0;
}

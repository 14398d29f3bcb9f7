/*
 * gc_allocator.h - allocators for the containers of the C++ standard library.
 *
 *     std::vector<T, gc_allocator<T>>                  elements in collected memory
 *     std::vector<T, gc_allocator_ignore_off_page<T>>  the same for large containers to which a pointer near the start is kept
 *     std::list<T, traceable_allocator<T>>             elements in memory that is searched for pointers and lives until the container frees it
 *
 * A type without pointers is allocated as such if GC_DECLARE_PTRFREE(type) says so; arithmetic types are.
 */
#ifndef GC_ALLOCATOR_H
#define GC_ALLOCATOR_H

#include "gc.h"
#include <new>

#ifndef GC_ALLOCATOR_THROW_OR_ABORT
#if defined(GC_NEW_ABORTS_ON_OOM) || defined(_LIBCPP_NO_EXCEPTIONS)
#define GC_ALLOCATOR_THROW_OR_ABORT() GC_abort_on_oom()
#else
#define GC_ALLOCATOR_THROW_OR_ABORT() throw std::bad_alloc()
#endif
#endif

struct GC_true_type {};
struct GC_false_type {};

/* Whether a type holds no pointers to collected memory. */
template <class T> struct GC_type_traits {
    GC_false_type GC_is_ptr_free;
};
#define GC_DECLARE_PTRFREE(T)            \
    template <> struct GC_type_traits<T> { \
        GC_true_type GC_is_ptr_free;       \
    }
GC_DECLARE_PTRFREE(char);
GC_DECLARE_PTRFREE(signed char);
GC_DECLARE_PTRFREE(unsigned char);
GC_DECLARE_PTRFREE(signed short);
GC_DECLARE_PTRFREE(unsigned short);
GC_DECLARE_PTRFREE(signed int);
GC_DECLARE_PTRFREE(unsigned int);
GC_DECLARE_PTRFREE(signed long);
GC_DECLARE_PTRFREE(unsigned long);
GC_DECLARE_PTRFREE(float);
GC_DECLARE_PTRFREE(double);
GC_DECLARE_PTRFREE(long double);

inline void *GC_selective_alloc(size_t bytes, GC_false_type, bool ignore_off_page) {
    void *object = ignore_off_page ? GC_MALLOC_IGNORE_OFF_PAGE(bytes) : GC_MALLOC(bytes);
    if (object == 0) GC_ALLOCATOR_THROW_OR_ABORT();
    return object;
}
inline void *GC_selective_alloc(size_t bytes, GC_true_type, bool ignore_off_page) {
    void *object = ignore_off_page ? GC_MALLOC_ATOMIC_IGNORE_OFF_PAGE(bytes) : GC_MALLOC_ATOMIC(bytes);
    if (object == 0) GC_ALLOCATOR_THROW_OR_ABORT();
    return object;
}

/* How the three allocators get their memory. */
struct GC_collected {
    template <class T> static void *take(size_t bytes) {
        return GC_selective_alloc(bytes, GC_type_traits<T>().GC_is_ptr_free, false);
    }
};
struct GC_collected_by_start {
    template <class T> static void *take(size_t bytes) {
        return GC_selective_alloc(bytes, GC_type_traits<T>().GC_is_ptr_free, true);
    }
};
struct GC_traced {
    template <class T> static void *take(size_t bytes) {
        void *object = GC_MALLOC_UNCOLLECTABLE(bytes);
        if (object == 0) GC_ALLOCATOR_THROW_OR_ABORT();
        return object;
    }
};

/* What the three have in common. A count that would overflow finds no memory. */
#define GC_DEFINE_ALLOCATOR(name, memory)                                                                   \
    template <class T> class name {                                                                         \
    public:                                                                                                 \
        typedef size_t size_type;                                                                           \
        typedef ptrdiff_t difference_type;                                                                  \
        typedef T *pointer;                                                                                 \
        typedef const T *const_pointer;                                                                     \
        typedef T &reference;                                                                               \
        typedef const T &const_reference;                                                                   \
        typedef T value_type;                                                                               \
        template <class U> struct rebind {                                                                  \
            typedef name<U> other;                                                                          \
        };                                                                                                  \
        name() GC_NOEXCEPT {}                                                                               \
        name(const name &) GC_NOEXCEPT {}                                                                   \
        template <class U> name(const name<U> &) GC_NOEXCEPT {}                                             \
        ~name() GC_NOEXCEPT {}                                                                              \
        name &operator=(const name &) GC_NOEXCEPT { return *this; }                                         \
        pointer address(reference element) const { return &element; }                                       \
        const_pointer address(const_reference element) const { return &element; }                           \
        T *allocate(size_type count, const void * = 0) {                                                    \
            if (count > max_size()) GC_ALLOCATOR_THROW_OR_ABORT();                                          \
            return static_cast<T *>(memory::template take<T>(count * sizeof(T)));                           \
        }                                                                                                   \
        void deallocate(pointer object, size_type) GC_NOEXCEPT { GC_FREE(object); }                         \
        size_type max_size() const GC_NOEXCEPT { return size_t(-1) / sizeof(T); }                           \
        void construct(pointer object, const T &value) { new (static_cast<void *>(object)) T(value); }      \
        void destroy(pointer object) { object->~T(); }                                                      \
    };                                                                                                      \
    template <> class name<void> {                                                                          \
    public:                                                                                                 \
        typedef size_t size_type;                                                                           \
        typedef ptrdiff_t difference_type;                                                                  \
        typedef void *pointer;                                                                              \
        typedef const void *const_pointer;                                                                  \
        typedef void value_type;                                                                            \
        template <class U> struct rebind {                                                                  \
            typedef name<U> other;                                                                          \
        };                                                                                                  \
    };                                                                                                      \
    template <class T, class U> inline bool operator==(const name<T> &, const name<U> &) GC_NOEXCEPT {      \
        return true;                                                                                        \
    }                                                                                                       \
    template <class T, class U> inline bool operator!=(const name<T> &, const name<U> &) GC_NOEXCEPT {      \
        return false;                                                                                       \
    }

GC_DEFINE_ALLOCATOR(gc_allocator, GC_collected)
GC_DEFINE_ALLOCATOR(gc_allocator_ignore_off_page, GC_collected_by_start)
GC_DEFINE_ALLOCATOR(traceable_allocator, GC_traced)

#endif

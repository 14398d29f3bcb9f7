/*
 * gc_cpp.h - collected objects in C++.
 *
 *     class Node : public gc { ... };             new Node is collected; no delete is needed
 *     class File : public gc_cleanup { ... };     collected, and the destructor runs when it is
 *     T *p = new (GC) T;                          any type, collected
 *     T *p = new (PointerFreeGC) T;               not searched for pointers
 *     T *p = new (NoGC) T;                        searched for pointers, lives until delete
 *     T *p = new (GC, function, value) T;         function(p, value) runs when it is collected
 *
 * delete destroys and frees at once. Linked with libgccpp, plain new and delete also take their memory from the collector, as uncollectable objects. Where there is no memory, new throws std::bad_alloc
 * (libgccpp, or GC_INCLUDE_NEW before the include), or ends the program (GC_NEW_ABORTS_ON_OOM, or a libc++ without exceptions). A program for which GC means something else defines GC_NAME_CONFLICT and writes UseGC;
 * with GC_NAMESPACE the names are in namespace boehmgc. GC_NO_OPERATOR_NEW_ARRAY leaves out the operators for arrays, for a program that has its own.
 *
 * Of an array of objects with gc_cleanup only the first destructor runs. Objects with cleanup that refer to one another in a circle are never collected.
 */
#ifndef GC_CPP_H
#define GC_CPP_H

#include "gc.h"

#if !defined(GC_NO_OPERATOR_NEW_ARRAY) && !defined(GC_OPERATOR_NEW_ARRAY)
#define GC_OPERATOR_NEW_ARRAY
#endif
#define GC_PLACEMENT_DELETE
#define GC_cdecl GC_CALLBACK

#ifdef GC_NAMESPACE
#define GC_NS_QUALIFY(name) boehmgc::name
#else
#define GC_NS_QUALIFY(name) name
#endif

#if defined(GC_NEW_ABORTS_ON_OOM) || defined(_LIBCPP_NO_EXCEPTIONS)
#define GC_OP_NEW_OOM_CHECK(object) \
    do {                            \
        if (!(object)) GC_abort_on_oom(); \
    } while (0)
#elif defined(GC_INCLUDE_NEW)
#include <new>
#define GC_OP_NEW_OOM_CHECK(object) \
    if (object) {                   \
    } else                          \
        throw std::bad_alloc()
#else
/* In libgccpp. */
void GC_throw_bad_alloc();
#define GC_OP_NEW_OOM_CHECK(object) \
    if (object) {                   \
    } else                          \
        GC_throw_bad_alloc()
#endif

#ifdef GC_NAMESPACE
namespace boehmgc {
#endif

/* Where a new object goes. */
enum GCPlacement {
    UseGC,
#ifndef GC_NAME_CONFLICT
    GC = UseGC,
#endif
    NoGC,
    PointerFreeGC
#ifdef GC_ATOMIC_UNCOLLECTABLE
    ,
    PointerFreeNoGC
#endif
};

/* Memory for a placement; 0 without memory. */
inline void *GC_place(size_t bytes, GCPlacement where) {
    switch (where) {
    case UseGC: return GC_MALLOC(bytes);
    case PointerFreeGC: return GC_MALLOC_ATOMIC(bytes);
#ifdef GC_ATOMIC_UNCOLLECTABLE
    case PointerFreeNoGC: return GC_MALLOC_ATOMIC_UNCOLLECTABLE(bytes);
#endif
    case NoGC: break;
    }
    return GC_MALLOC_UNCOLLECTABLE(bytes);
}

/* A base class: objects are collected unless a placement says otherwise. */
class gc {
public:
    void *operator new(size_t bytes) { return operator new(bytes, UseGC); }
    void *operator new(size_t bytes, GCPlacement where) {
        void *object = GC_place(bytes, where);
        GC_OP_NEW_OOM_CHECK(object);
        return object;
    }
    void *operator new(size_t, void *place) GC_NOEXCEPT { return place; }
    void operator delete(void *object) GC_NOEXCEPT { GC_FREE(object); }
    void operator delete(void *object, GCPlacement) GC_NOEXCEPT { GC_FREE(object); }
    void operator delete(void *, void *) GC_NOEXCEPT {}

#ifdef GC_OPERATOR_NEW_ARRAY
    void *operator new[](size_t bytes) { return operator new(bytes, UseGC); }
    void *operator new[](size_t bytes, GCPlacement where) { return operator new(bytes, where); }
    void *operator new[](size_t, void *place) GC_NOEXCEPT { return place; }
    void operator delete[](void *object) GC_NOEXCEPT { GC_FREE(object); }
    void operator delete[](void *object, GCPlacement) GC_NOEXCEPT { GC_FREE(object); }
    void operator delete[](void *, void *) GC_NOEXCEPT {}
#endif
};

/* A base class: collected, and the destructor runs when the object is unreachable. */
class gc_cleanup : virtual public gc {
public:
    gc_cleanup() {
        void *start = GC_base(static_cast<void *>(this));
        if (start == 0) return;
        GC_finalization_proc earlier = 0;
        void *earlier_value = 0;
        ptrdiff_t distance = reinterpret_cast<char *>(this) - static_cast<char *>(start);
        GC_register_finalizer_ignore_self(start, cleanup, reinterpret_cast<void *>(distance), &earlier, &earlier_value);
        /* A part of an object that has a cleanup already: that one goes on. */
        if (earlier != 0) GC_register_finalizer_ignore_self(start, earlier, earlier_value, 0, 0);
    }
    virtual ~gc_cleanup() {
        void *start = GC_base(static_cast<void *>(this));
        if (start != 0) GC_register_finalizer_ignore_self(start, 0, 0, 0, 0);
    }

private:
    static void cleanup(void *start, void *distance) {
        reinterpret_cast<gc_cleanup *>(static_cast<char *>(start) + reinterpret_cast<ptrdiff_t>(distance))->~gc_cleanup();
    }
};

extern "C" {
typedef void (*GCCleanUpFunc)(void *object, void *value);
}

#ifdef GC_NAMESPACE
}
#endif

/* Any type. A cleanup is for collected objects that are not deleted and whose class is no gc_cleanup. */
inline void *operator new(size_t bytes, GC_NS_QUALIFY(GCPlacement) where, GC_NS_QUALIFY(GCCleanUpFunc) cleanup = 0,
                          void *value = 0) {
    void *object = GC_NS_QUALIFY(GC_place)(bytes, where);
    GC_OP_NEW_OOM_CHECK(object);
    if (cleanup != 0 && (where == GC_NS_QUALIFY(UseGC) || where == GC_NS_QUALIFY(PointerFreeGC)))
        GC_REGISTER_FINALIZER_IGNORE_SELF(object, cleanup, value, 0, 0);
    return object;
}
#ifdef GC_OPERATOR_NEW_ARRAY
inline void *operator new[](size_t bytes, GC_NS_QUALIFY(GCPlacement) where, GC_NS_QUALIFY(GCCleanUpFunc) cleanup = 0,
                            void *value = 0) {
    return ::operator new(bytes, where, cleanup, value);
}
#endif

/* Called when a constructor throws. */
inline void operator delete(void *object, GC_NS_QUALIFY(GCPlacement), GC_NS_QUALIFY(GCCleanUpFunc), void *) GC_NOEXCEPT {
    GC_FREE(object);
}
#ifdef GC_OPERATOR_NEW_ARRAY
inline void operator delete[](void *object, GC_NS_QUALIFY(GCPlacement), GC_NS_QUALIFY(GCCleanUpFunc), void *) GC_NOEXCEPT {
    GC_FREE(object);
}
#endif

#endif
